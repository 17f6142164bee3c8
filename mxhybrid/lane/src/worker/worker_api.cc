// The C interface of workers: their tables, pushes and pulls, rows by key, and small arrays; see api.cc for its
// conventions.
#include <memory>
#include <vector>

#include "base/api_errors.h"
#include "worker/row_arrays.h"
#include "worker/worker.h"

using lane::Dtype;
using lane::guarded;
using lane::MxnetFunctions;
using lane::TableRows;
using lane::Worker;

extern "C" {

Worker* lane_worker_new(uint32_t host, uint32_t local, uint32_t agents, const uint32_t* hosts, uint32_t num_hosts,
                        const uint32_t* workers) {
  return guarded([&] {
    return new Worker({{hosts, hosts + agents}, {workers, workers + num_hosts}}, host, local);
  });
}
int lane_worker_block(Worker* worker) { return worker->block().descriptor(); }
int lane_worker_add_agent(Worker* worker, uint32_t agent, int doorbell, int descriptor) {
  return guarded([&] { worker->add_agent(agent, doorbell, descriptor); });
}
/// Return the descriptor of the table's memory, which is open until all agents of the host are attached.
int lane_worker_add_table(Worker* worker, uint32_t number, uint64_t rows, uint32_t width, Dtype dtype,
                          lane::RowFormat format, uint32_t max_batch_rows, uint32_t parts, const uint32_t* owners,
                          uint32_t staleness) {
  return guarded([&] {
    return worker->add_table(number, {rows, width, dtype, format, {owners, owners + parts}, max_batch_rows > 0,
                                      max_batch_rows, staleness});
  });
}
int lane_worker_attach(Worker* worker, uint32_t number, uint32_t agent, int descriptor) {
  return guarded([&] { worker->attach(number, agent, descriptor); });
}
int lane_worker_drop_table(Worker* worker, uint32_t number) {
  return guarded([&] { worker->drop_table(number); });
}
/// Return 0 when done, 1 when the time is over.
int lane_worker_push(Worker* worker, uint32_t number, const int64_t* ids, uint32_t count, const char* rows,
                     int milliseconds, uint32_t flags) {
  return guarded([&] { return worker->push(number, ids, count, rows, milliseconds, flags) ? 0 : 1; });
}
/// Return the number of tables that were pushed to; it is less than `tables` if the time is over.
int lane_worker_push_tables(Worker* worker, const TableRows* pushes, uint32_t tables, int milliseconds) {
  return guarded([&] { return static_cast<int>(worker->push(pushes, tables, milliseconds)); });
}
/// Return the handle of a row request, at least 0, or -2 while all requests are in use; see Worker::post.
int lane_worker_post(Worker* worker, uint32_t number, const int64_t* ids, uint32_t count, uint32_t flags,
                     uint32_t staleness, uint32_t ahead) {
  return guarded([&] {
    const int request = worker->post(number, ids, count, flags, false, staleness, ahead);
    return request < 0 ? -2 : request;
  });
}
/// Return 0 when done, 1 when the time is over.
int lane_worker_wait(Worker* worker, uint32_t number, int request, char* out, int milliseconds) {
  return guarded([&] { return worker->wait(number, request, out, milliseconds) ? 0 : 1; });
}
/// Return 0 when all requests are posted, 1 while all requests of a table are in use.
int lane_worker_post_tables(Worker* worker, const TableRows* requests, const uint32_t* stalenesses, uint32_t tables,
                            int* handles) {
  return guarded([&] { return worker->post(requests, stalenesses, tables, handles) ? 0 : 1; });
}
/// Return deliveries for lane_worker_deliver_tables; if that fails, the requests are given up.
Worker::Deliveries* lane_deliveries_new(Worker* worker, const TableRows* requests, uint32_t tables,
                                        const int* handles) {
  auto* const deliveries = guarded([&] { return new Worker::Deliveries(*worker, requests, tables, handles); });
  if (deliveries == nullptr) worker->abandon(requests, tables, handles);
  return deliveries;
}
/// EngineAsyncFunc; deletes the deliveries.
void lane_worker_deliver_tables(void*, void* on_complete, void* deliveries) {
  std::unique_ptr<Worker::Deliveries> rows(static_cast<Worker::Deliveries*>(deliveries));
  Worker& worker = rows->worker;
  worker.deliver(std::move(rows), *static_cast<lane::OnComplete*>(on_complete));
}
/// Pull rows into row_sparse arrays of one shape.  Rows that are available at once are written to a new array in this
/// thread, others by the completion thread; then the engine copies the new array to `outs`.  Returns 0 when the engine
/// has all operations, 1 while all requests are in use, 2 if MXNet cannot create the array, 3 if it refuses an
/// operation.
int lane_worker_pull(Worker* worker, const MxnetFunctions* mxnet, uint32_t number, const int64_t* ids,
                     uint32_t count, void** outs, uint32_t num_outs, int priority, uint32_t staleness) {
  return guarded([&] {
    const Dtype dtype = worker->dtype(number);
    const int flag = dtype == Dtype::kFloat32 ? 0 : dtype == Dtype::kFloat64 ? 1 : 2;
    const lane::RowArray rows(*mxnet, outs[0], flag, lane::size_of(dtype), ids, count);
    void* array = rows.handle();
    if (array == nullptr) return 2;
    const int handle = worker->post(number, ids, count, 0, true, staleness);
    if (handle < 0) return 1;
    // Rows that are available already need no thread of the engine.
    if (!worker->wait(number, handle, rows.values(), 0)) {
      const TableRows request = {number, count, ids, count, 0, nullptr, rows.values(), nullptr, nullptr};
      auto* const delivery = lane_deliveries_new(worker, &request, 1, &handle);
      if (delivery == nullptr) return -1;
      if (mxnet->push(lane_worker_deliver_tables, delivery, nullptr, &lane::kCpuContext, nullptr, 0, &array, 1,
                      &lane::kPrioritizedOperation, priority, "mxhybrid_rows", false)) {
        delete delivery;
        worker->abandon(number, handle);
        return 3;
      }
    }
    for (uint32_t i = 0; i < num_outs; ++i) {
      if (!mxnet->copy(array, outs[i])) return 3;
    }
    return 0;
  });
}
/// Return 0 when done, 1 when the time is over.
int lane_worker_wait_for_deliveries(Worker* worker, uint32_t number, int milliseconds) {
  return guarded([&] { return worker->wait_for_deliveries(number, milliseconds) ? 0 : 1; });
}
/// Write the number of rows that this host's workers got by requests, by their lag, 0 to kMaxStaleness.
int lane_worker_lags(Worker* worker, uint32_t number, uint64_t* lags) {
  return guarded([&] { worker->read_lags(number, lags); });
}
/// Return flags of lane::Overflow.
int lane_worker_overflows(Worker* worker, uint32_t number) {
  return guarded([&] { return static_cast<int>(worker->overflows(number)); });
}
/// Write the bytes between the worker's host and others so far: bytes sent by kind of message, then bytes received.
void lane_worker_traffic(Worker* worker, uint64_t* counts) {
  worker->read_traffic(counts, counts + lane::kMessageKinds);
}
/// Write the rows of a dynamic table that the worker's host has requested so far, and those found in its cache.
int lane_worker_cache_counts(Worker* worker, uint32_t number, uint64_t* counts) {
  return guarded([&] { worker->read_cache_counts(number, counts); });
}
void lane_worker_close(Worker* worker) { delete worker; }

// ------------------------------------------------------------------------------ rows by key, and small arrays of MXNet

/// Call KeySorter::distinct_keys for several lists of ids; their keys and positions follow each other.  `counts` has
/// the number of ids of each list, and gets that of its keys.
int lane_distinct_keys(uint32_t lists, const int64_t* const* ids, uint64_t* counts, int64_t* keys, int32_t* positions) {
  return guarded([&] {
    lane::KeySorter sorter;
    for (uint32_t i = 0; i < lists; ++i) {
      const uint64_t num_ids = counts[i];
      counts[i] = sorter.distinct_keys(ids[i], num_ids, keys, positions);
      keys += counts[i];
      positions += num_ids;
    }
  });
}

/// See lane::sum_rows.
int lane_sum_rows(Dtype dtype, uint64_t width, const TableRows* rows, char* sums) {
  return guarded([&] {
    rows->check_positions();
    lane::sum_rows(dtype, width, *rows, nullptr, sums);
  });
}

/// Write rows by those of the ids, of shape (ids, width); see lane::write_rows.
int lane_write_rows(Dtype dtype, uint64_t width, const char* id_rows, const TableRows* rows) {
  return guarded([&] {
    rows->check_positions();
    std::vector<const char*> row_of(rows->count);
    for (uint64_t id = 0; id < rows->count; ++id) row_of[id] = id_rows + id * width * lane::size_of(dtype);
    lane::write_rows(dtype, width, row_of.data(), *rows);
  });
}

/// Copy arrays to other arrays by MXNet's operator _copyto; return 0, or -1 if MXNet refuses a copy.
int lane_copy_arrays(const MxnetFunctions* mxnet, uint32_t count, void** from, void** to) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!mxnet->copy(from[i], to[i])) return -1;
  }
  return 0;
}

/// See lane::read_row_ids.
int64_t lane_read_row_ids(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t capacity, int64_t* result) {
  return guarded([&] { return lane::read_row_ids(*mxnet, array, rows, capacity, result); });
}

/// See lane::read_rows.
int64_t lane_read_rows(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t width, int dtype,
                       int64_t capacity, int64_t* ids, char* values) {
  return guarded([&] { return lane::read_rows(*mxnet, array, rows, width, dtype, capacity, ids, values); });
}

}  // extern "C"
