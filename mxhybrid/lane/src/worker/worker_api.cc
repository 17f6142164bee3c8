// The C interface of workers: their tables, pushes and pulls; see api.cc for its conventions.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/api_errors.h"
#include "memory/api_arguments.h"
#include "worker/row_arrays.h"
#include "worker/worker.h"

using lane::dynamic_shape_of;
using lane::guarded;
using lane::membership_of;
using lane::MxnetFunctions;
using lane::RowArray;
using lane::shape_of;
using lane::Worker;

namespace {

/// A delivery of rows: the completion thread of a worker writes them to memory of an array.
struct Delivery {
  Worker* worker;
  uint32_t number;
  int request;
  char* out;
};

}  // namespace

extern "C" {

void* lane_worker_new(uint32_t host, uint32_t local, uint32_t agents, const uint32_t* hosts, uint32_t num_hosts,
                      const uint32_t* workers) {
  return guarded([&]() -> void* { return new Worker(membership_of(agents, hosts, num_hosts, workers), host, local); },
                 nullptr);
}
int lane_worker_block(void* worker) { return static_cast<Worker*>(worker)->block().descriptor(); }
int lane_worker_add_agent(void* worker, uint32_t agent, int doorbell, int descriptor) {
  return guarded([&] { static_cast<Worker*>(worker)->add_agent(agent, doorbell, descriptor); return 0; }, -1);
}
/// Return the descriptor of the table's memory, which is open until all agents of the host are attached.
int lane_worker_add_table(void* worker, uint32_t number, uint64_t rows, uint32_t width, uint32_t dtype, uint32_t format,
                          uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  return guarded([&] {
    return static_cast<Worker*>(worker)->add_table(number,
                                                   shape_of(rows, width, dtype, format, parts, owners, staleness));
  }, -1);
}
/// Do the same for a dynamic table.
int lane_worker_add_dynamic_table(void* worker, uint32_t number, uint32_t width, uint32_t dtype, uint32_t format,
                                  uint32_t max_batch_rows, uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  return guarded([&] {
    return static_cast<Worker*>(worker)->add_table(
        number, dynamic_shape_of(width, dtype, format, max_batch_rows, parts, owners, staleness));
  }, -1);
}
int lane_worker_attach(void* worker, uint32_t number, uint32_t agent, int descriptor) {
  return guarded([&] { static_cast<Worker*>(worker)->attach(number, agent, descriptor); return 0; }, -1);
}
int lane_worker_drop_table(void* worker, uint32_t number) {
  return guarded([&] { static_cast<Worker*>(worker)->drop_table(number); return 0; }, -1);
}
/// Return 0 when done, 1 when the time is over.
int lane_worker_push(void* worker, uint32_t number, const int64_t* ids, uint32_t count, const void* rows,
                     int milliseconds, uint32_t flags) {
  return guarded([&] {
    return static_cast<Worker*>(worker)->push(number, ids, count, static_cast<const char*>(rows), milliseconds, flags)
               ? 0
               : 1;
  }, -1);
}
/// Return the handle of a row request, at least 0, or -2 while all requests are in use; see Worker::post.
int lane_worker_post(void* worker, uint32_t number, const int64_t* ids, uint32_t count, uint32_t flags, int delivered,
                     uint32_t staleness, uint32_t ahead) {
  return guarded([&] {
    const int request =
        static_cast<Worker*>(worker)->post(number, ids, count, flags, delivered != 0, staleness, ahead);
    return request < 0 ? -2 : request;
  }, -1);
}
/// Return 0 when done, 1 when the time is over.
int lane_worker_wait(void* worker, uint32_t number, int request, void* out, int milliseconds) {
  return guarded([&] {
    return static_cast<Worker*>(worker)->wait(number, request, static_cast<char*>(out), milliseconds) ? 0 : 1;
  }, -1);
}
/// Return a delivery for lane_worker_deliver; if that fails, the request is given up.
void* lane_delivery_new(void* worker, uint32_t number, int request, void* out) {
  Worker* const poster = static_cast<Worker*>(worker);
  void* const delivery = guarded(
      [&]() -> void* { return new Delivery{poster, number, request, static_cast<char*>(out)}; }, nullptr);
  if (delivery == nullptr) poster->abandon(number, request);
  return delivery;
}
/// EngineAsyncFunc; deletes the delivery.
void lane_worker_deliver(void*, void* on_complete, void* delivery) {
  const std::unique_ptr<Delivery> rows(static_cast<Delivery*>(delivery));
  rows->worker->deliver(rows->number, rows->request, rows->out, *static_cast<lane::OnComplete*>(on_complete));
}
/// Pull rows into row_sparse arrays of one shape.  Rows that are available at once are written to a new array in this
/// thread, others by the completion thread; then the engine copies the new array to `outs`.  Returns 0 when the engine
/// has all operations, 1 while all requests are in use, 2 if MXNet cannot create the array, 3 if it refuses an
/// operation.
int lane_worker_pull(void* worker, const MxnetFunctions* mxnet, uint32_t number, const int64_t* ids, uint32_t count,
                     void** outs, uint32_t num_outs, int priority, uint32_t staleness) {
  return guarded([&] {
    static const int32_t cpu[] = {1, 0};  // struct Context of include/mxnet/base.h
    static const int prioritized = 3;     // FnProperty::kCPUPrioritized of include/mxnet/engine.h
    Worker& poster = *static_cast<Worker*>(worker);
    const lane::Dtype dtype = poster.dtype(number);
    const int flag = dtype == lane::Dtype::kFloat32 ? 0 : dtype == lane::Dtype::kFloat64 ? 1 : 2;
    const RowArray rows(*mxnet, outs[0], flag, lane::size_of(dtype), ids, count);
    if (rows.handle() == nullptr) return 2;
    const int request = poster.post(number, ids, count, 0, true, staleness);
    if (request < 0) return 1;
    void* handle = rows.handle();
    // Rows that are available already need no thread of the engine.
    if (!poster.wait(number, request, rows.values(), 0)) {
      void* const delivery = lane_delivery_new(worker, number, request, rows.values());
      if (delivery == nullptr) return -1;
      if (mxnet->push(lane_worker_deliver, delivery, nullptr, cpu, nullptr, 0, &handle, 1, &prioritized, priority,
                      "mxhybrid_rows", false)) {
        delete static_cast<Delivery*>(delivery);
        poster.abandon(number, request);
        return 3;
      }
    }
    for (uint32_t i = 0; i < num_outs; ++i) {
      int outputs = 1;
      void** pointer = &outs[i];
      const int* storage = nullptr;
      if (mxnet->invoke(mxnet->copyto, 1, &handle, &outputs, &pointer, 0, nullptr, nullptr, &storage)) return 3;
    }
    return 0;
  }, -1);
}
/// Return 0 when done, 1 when the time is over.
int lane_worker_wait_for_deliveries(void* worker, uint32_t number, int milliseconds) {
  return guarded([&] { return static_cast<Worker*>(worker)->wait_for_deliveries(number, milliseconds) ? 0 : 1; }, -1);
}
/// Write the number of rows that this host's workers got by requests, by their lag, 0 to kMaxStaleness.
int lane_worker_lags(void* worker, uint32_t number, uint64_t* lags) {
  return guarded([&] {
    std::fill(lags, lags + lane::kMaxStaleness + 1, 0);
    static_cast<Worker*>(worker)->add_lags(number, lags);
    return 0;
  }, -1);
}
/// Return flags of lane::Overflow.
int lane_worker_overflows(void* worker, uint32_t number) {
  return guarded([&] { return static_cast<int>(static_cast<Worker*>(worker)->overflows(number)); }, -1);
}
/// Write the bytes between the worker's host and others so far: bytes sent by kind of message, then bytes received.
int lane_worker_traffic(void* worker, uint64_t* counts, uint32_t kinds) {
  return guarded(
      [&] {
        if (kinds != lane::kMessageKinds) {
          throw std::runtime_error("there are " + std::to_string(lane::kMessageKinds) + " kinds of messages, not " +
                                   std::to_string(kinds));
        }
        std::fill(counts, counts + 2 * kinds, 0);
        static_cast<Worker*>(worker)->add_traffic(counts, counts + kinds);
        return 0;
      },
      -1);
}
/// Write the rows of a dynamic table that the worker's host has requested so far, and those found in its cache.
int lane_worker_cache_counts(void* worker, uint32_t number, uint64_t counts[2]) {
  return guarded(
      [&] {
        counts[0] = counts[1] = 0;
        static_cast<Worker*>(worker)->add_cache_counts(number, counts[0], counts[1]);
        return 0;
      },
      -1);
}
void lane_worker_close(void* worker) { delete static_cast<Worker*>(worker); }

}  // extern "C"
