// The C interface, which Python calls by ctypes.
//
// Functions return 0, or the value that their comments name.  On an error they return -1 or null; lane_error then
// returns the message, in the same thread.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "agent.h"
#include "api_errors.h"
#include "attribute.h"
#include "exchange_operator.h"
#include "gradient_bucket.h"
#include "half.h"
#include "norm_operators.h"
#include "row_arrays.h"
#include "softmax_operators.h"
#include "worker.h"

using lane::Agent;
using lane::ArrayOperator;
using lane::Box;
using lane::ExchangeOperator;
using lane::GradientBucket;
using lane::guarded;
using lane::Membership;
using lane::MxnetFunctions;
using lane::PersistentTransfer;
using lane::RowArray;
using lane::Rule;
using lane::TableShape;
using lane::TransferRun;
using lane::WeightCopies;
using lane::Worker;
using lane::WorkerAllreduce;

namespace {

Membership membership_of(uint32_t agents, const uint32_t* hosts, uint32_t count, const uint32_t* workers) {
  Membership membership;
  membership.agent_hosts.assign(hosts, hosts + agents);
  membership.worker_counts.assign(workers, workers + count);
  return membership;
}

TableShape shape_of(uint64_t rows, uint32_t width, uint32_t dtype, uint32_t format, uint32_t parts,
                    const uint32_t* owners, uint32_t staleness) {
  if (staleness > lane::kMaxStaleness) throw std::runtime_error("a staleness of " + std::to_string(staleness));
  TableShape shape;
  shape.rows = rows;
  shape.width = width;
  shape.dtype = static_cast<lane::Dtype>(dtype);
  shape.format = static_cast<lane::RowFormat>(format);
  shape.owners.assign(owners, owners + parts);
  shape.staleness = staleness;
  return shape;
}

TableShape dynamic_shape_of(uint32_t width, uint32_t dtype, uint32_t format, uint32_t batch_rows, uint32_t parts,
                            const uint32_t* owners, uint32_t staleness) {
  TableShape shape = shape_of(0, width, dtype, format, parts, owners, staleness);
  shape.dynamic = true;
  shape.batch_rows = batch_rows;
  return shape;
}

/// A delivery of rows: the completion thread of a worker writes them to memory of an array.
struct Delivery {
  Worker* worker;
  uint32_t number;
  int request;
  char* out;
};

/// One update of a bucket.
struct BucketUpdate {
  std::shared_ptr<GradientBucket> bucket;
  Rule rule;
  std::vector<GradientBucket::Target> targets;
  /// Null if the updated weights are not copied.
  std::shared_ptr<WeightCopies> copies;
};

lane::ArrayFunctions functions_of(void* get_data, void* free) {
  return {reinterpret_cast<int (*)(void*, void**)>(get_data), reinterpret_cast<int (*)(void*)>(free)};
}

std::unique_ptr<ExchangeOperator::Shape> shape_of(int dimensions, const uint64_t* shape) {
  if (dimensions < 0) return nullptr;
  return std::make_unique<ExchangeOperator::Shape>(shape, shape + dimensions);
}

PersistentTransfer& transfer_of(void* share) { return **static_cast<std::shared_ptr<PersistentTransfer>*>(share); }

Box::Position position_of(uint32_t dimensions, uint64_t offset, const uint64_t* strides) {
  return {offset, std::vector<size_t>(strides, strides + dimensions)};
}

}  // namespace

extern "C" {

/// The version of the interface, which increases with every change.
int lane_version() { return 26; }

const char* lane_error() { return lane::api_error.c_str(); }

/// Return the name of a rule by its number, or of a setting by its position in lists of settings; null after the last
/// one.
const char* lane_rule_name(uint32_t number) { return lane::rule_name(number); }
const char* lane_rule_setting_name(uint32_t number) { return lane::rule_setting_name(number); }
/// Return NumPy's name of a type by its number; null after the last one.
const char* lane_dtype_name(uint32_t number) {
  return number < lane::kDtypes ? lane::kDtypeNames[number] : nullptr;
}

// ------------------------------------------------------------------------------------------------------------ agents

using CallbackFunction = void (*)(uint32_t table, uint32_t part, uint32_t count, const int32_t* local_ids,
                                  const void* rows);
using FailedFunction = void (*)(const char* why);

void* lane_agent_new(uint32_t number, uint32_t agents, const uint32_t* hosts, uint32_t num_hosts,
                    const uint32_t* workers, CallbackFunction callback, FailedFunction failed) {
  return guarded([&]() -> void* {
    return new Agent(number, membership_of(agents, hosts, num_hosts, workers),
                    [callback](uint32_t table, uint32_t part, const lane::RowList& list) {
                      callback(table, part, list.count, list.ids, list.rows);
                    },
                    [failed](const std::string& why) { failed(why.c_str()); });
  }, nullptr);
}

int lane_agent_doorbell(void* agent) { return static_cast<Agent*>(agent)->doorbell(); }
int lane_agent_block(void* agent) { return static_cast<Agent*>(agent)->block().descriptor(); }

int lane_agent_connect(void* agent, uint32_t peer, int socket) {
  return guarded([&] { static_cast<Agent*>(agent)->connect(peer, socket); return 0; }, -1);
}
int lane_agent_add_worker(void* agent, uint32_t worker, int descriptor) {
  return guarded([&] { static_cast<Agent*>(agent)->add_worker(worker, descriptor); return 0; }, -1);
}
int lane_agent_add_table(void* agent, uint32_t number, uint64_t rows, uint32_t width, uint32_t dtype, uint32_t format,
                        uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  return guarded([&] {
    static_cast<Agent*>(agent)->add_table(number, shape_of(rows, width, dtype, format, parts, owners, staleness));
    return 0;
  }, -1);
}
/// Add a dynamic table; `stores` has the options of the row stores, the same for all partitions except that partition p
/// has the subdirectory `p` of the directory.
int lane_agent_add_dynamic_table(void* agent, uint32_t number, const char* name, uint32_t width, uint32_t dtype, uint32_t format,
                                 uint32_t batch_rows, uint32_t parts, const uint32_t* owners, uint32_t staleness,
                                 uint32_t first_values, double value, uint64_t seed, uint32_t admit, uint64_t capacity,
                                 uint64_t expire_after, int evict_rarest, const char* directory, uint64_t resident_bytes) {
  return guarded([&] {
    const TableShape shape = dynamic_shape_of(width, dtype, format, batch_rows, parts, owners, staleness);
    static_cast<Agent*>(agent)->add_dynamic_table(number, shape, name, [&](uint32_t part) {
      lane::RowStoreOptions options;
      options.dtype = shape.dtype;
      options.width = width;
      options.first_values = {static_cast<lane::FirstValueKind>(first_values), value, seed};
      options.admit = admit;
      options.capacity = capacity;
      options.expire_after = expire_after;
      options.evict_rarest = evict_rarest != 0;
      if (*directory) options.directory = std::string(directory) + "/" + std::to_string(part);
      options.resident_bytes = resident_bytes;
      return options;
    });
    return 0;
  }, -1);
}
using StoreFunction = void (*)(void* store);
/// Call a function with the row store of a partition of a dynamic table, while the agent does nothing else.
int lane_agent_with_store(void* agent, uint32_t number, uint32_t part, StoreFunction function) {
  return guarded([&] {
    static_cast<Agent*>(agent)->with_store(number, part, [&](lane::RowStore& store) { function(&store); });
    return 0;
  }, -1);
}
/// Return the descriptor of the table's memory, which the caller closes; once for each worker of the host.
int lane_agent_table(void* agent, uint32_t number) {
  return guarded([&] { return static_cast<Agent*>(agent)->share_table(number); }, -1);
}
int lane_agent_attach(void* agent, uint32_t number, uint32_t worker, int descriptor) {
  return guarded([&] { static_cast<Agent*>(agent)->attach(number, worker, descriptor); return 0; }, -1);
}
int lane_agent_drop_table(void* agent, uint32_t number) {
  return guarded([&] { static_cast<Agent*>(agent)->drop_table(number); return 0; }, -1);
}
/// Return the descriptor of the output, which the caller closes.
int lane_agent_open_allreduce(void* agent, uint64_t number, uint32_t worker, uint32_t dtype, uint64_t count,
                              int descriptor) {
  return guarded(
      [&] {
        return static_cast<Agent*>(agent)->open_allreduce(number, worker, static_cast<lane::Dtype>(dtype), count,
                                                          descriptor);
      },
      -1);
}
/// Do the same for an allreduce of which each worker owns a range; `ends` has the end of the range of each worker.
int lane_agent_open_ranges(void* agent, uint64_t number, uint32_t worker, uint32_t dtype, uint64_t count,
                           uint32_t workers, const uint64_t* ends, int descriptor) {
  return guarded(
      [&] {
        return static_cast<Agent*>(agent)->open_allreduce(number, worker, static_cast<lane::Dtype>(dtype), count,
                                                          descriptor, std::vector<uint64_t>(ends, ends + workers));
      },
      -1);
}
/// Do the same for an allreduce of float32 whose values travel between hosts as int8, see int8.h.
int lane_agent_open_quantized(void* agent, uint64_t number, uint32_t worker, uint64_t count, int descriptor) {
  return guarded(
      [&] {
        return static_cast<Agent*>(agent)->open_allreduce(number, worker, lane::Dtype::kFloat32, count, descriptor, {},
                                                          true);
      },
      -1);
}
int lane_agent_open_channel(void* agent, uint32_t worker, int outgoing, uint32_t from, uint32_t to, uint32_t other,
                       int descriptor) {
  return guarded([&] {
    static_cast<Agent*>(agent)->open_channel(worker, outgoing != 0, from, to, other, descriptor);
    return 0;
  }, -1);
}
int lane_agent_drop_allreduce(void* agent, uint64_t number) {
  return guarded([&] { static_cast<Agent*>(agent)->drop_allreduce(number); return 0; }, -1);
}
void* lane_agent_shard(void* agent, uint32_t number, uint32_t part) {
  return guarded([&]() -> void* { return static_cast<Agent*>(agent)->shard(number, part); }, nullptr);
}
int lane_agent_set_rule(void* agent, uint32_t number, uint32_t part, uint32_t kind, uint32_t slot,
                       const double* settings) {
  return guarded([&] {
    Rule rule = lane::make_rule(kind, settings);
    rule.slot = slot;
    static_cast<Agent*>(agent)->set_rule(number, part, rule);
    return 0;
  }, -1);
}
int lane_agent_set_state(void* agent, uint32_t number, uint32_t part, uint32_t slot, void* rows, uint64_t row_bytes) {
  return guarded([&] {
    static_cast<Agent*>(agent)->set_state(number, part, slot, static_cast<char*>(rows), row_bytes);
    return 0;
  }, -1);
}
int lane_agent_set_updates(void* agent, uint32_t number, uint32_t part, uint64_t count) {
  return guarded([&] { static_cast<Agent*>(agent)->set_updates(number, part, count); return 0; }, -1);
}
using ObserverFunction = void (*)(uint32_t table, uint32_t part, int64_t begin, int64_t end, uint32_t rows);
int lane_agent_observe(void* agent, ObserverFunction observer) {
  return guarded([&] { static_cast<Agent*>(agent)->observe(observer); return 0; }, -1);
}
int lane_agent_start(void* agent) {
  return guarded([&] { static_cast<Agent*>(agent)->start(); return 0; }, -1);
}
/// Return 0 when the agent has ended, 1 when the time is over; lane_error then says what the agent waits for.
int lane_agent_close(void* agent, int milliseconds) {
  return guarded([&] {
    Agent& host_agent = *static_cast<Agent*>(agent);
    if (host_agent.close(milliseconds)) return 0;
    lane::api_error = host_agent.pending_work();
    return 1;
  }, -1);
}
/// Delete an agent that has ended.
void lane_agent_free(void* agent) { delete static_cast<Agent*>(agent); }

// ---------------------------------------------------------------------------------------------------------- workers

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
                                  uint32_t batch_rows, uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  return guarded([&] {
    return static_cast<Worker*>(worker)->add_table(
        number, dynamic_shape_of(width, dtype, format, batch_rows, parts, owners, staleness));
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
/// Return a delivery for lane_worker_deliver.
void* lane_delivery_new(void* worker, uint32_t number, int request, void* out) {
  return guarded([&]() -> void* {
    return new Delivery{static_cast<Worker*>(worker), number, request, static_cast<char*>(out)};
  }, nullptr);
}
/// EngineAsyncFunc; deletes the delivery.
void lane_worker_deliver(void*, void* on_complete, void* delivery) {
  const std::unique_ptr<Delivery> rows(static_cast<Delivery*>(delivery));
  rows->worker->deliver(rows->number, rows->request, rows->out, *static_cast<lane::OnComplete*>(on_complete));
}
/// Pull rows into row_sparse arrays of one shape.  Rows that are there at once are written to a new array in this
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
    // Rows that are there already need no thread of the engine.
    if (!poster.wait(number, request, rows.values(), 0) &&
        mxnet->push(lane_worker_deliver, new Delivery{&poster, number, request, rows.values()}, nullptr, cpu, nullptr,
                    0, &handle, 1, &prioritized, priority, "mxhybrid_rows", false)) {
      return 3;
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
/// Return the agent of the worker's host that handles an allreduce.
int lane_worker_allreduce_agent(void* worker, uint64_t number) {
  return guarded([&] { return static_cast<int>(static_cast<Worker*>(worker)->allreduce_agent(number)); }, -1);
}
/// Return the descriptor of the input.
int lane_worker_open_allreduce(void* worker, uint64_t number, uint32_t dtype, uint64_t count) {
  return guarded(
      [&] {
        Worker& self = *static_cast<Worker*>(worker);
        return self.allreduce().open(number, self.position(self.allreduce_agent(number)),
                                     static_cast<lane::Dtype>(dtype), count);
      },
      -1);
}
/// Return the buffer of the allreduce, for the functions below.
void* lane_worker_attach_allreduce(void* worker, uint64_t number, int descriptor) {
  return guarded([&]() -> void* {
    WorkerAllreduce& allreduce = static_cast<Worker*>(worker)->allreduce();
    allreduce.attach(number, descriptor);
    return &allreduce.buffer(number);
  }, nullptr);
}
int lane_worker_drop_allreduce(void* worker, uint64_t number) {
  return guarded([&] { static_cast<Worker*>(worker)->allreduce().drop(number); return 0; }, -1);
}
void* lane_allreduce_input(void* buffer) { return static_cast<WorkerAllreduce::Buffer*>(buffer)->input(); }
void* lane_allreduce_output(void* buffer) { return static_cast<WorkerAllreduce::Buffer*>(buffer)->output(); }
void lane_allreduce_set_priority(void* buffer, int32_t priority) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->set_priority(priority);
}
/// Write the sums of squares of the values that this host quantized in the last round, and of the residuals left over.
void lane_allreduce_squares(void* buffer, double* squares) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->read_squares(squares);
}
/// EngineAsyncFunc of MXNet's include/mxnet/c_api.h.
void lane_allreduce_start(void*, void* on_complete, void* buffer) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->start(*static_cast<lane::OnComplete*>(on_complete));
}

/// EngineAsyncFunc of a reduce-scatter, and of an allgather.
void lane_allreduce_scatter(void*, void* on_complete, void* buffer) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->start(*static_cast<lane::OnComplete*>(on_complete),
                                                       lane::AllreduceKind::kScatter);
}
void lane_allreduce_gather(void*, void* on_complete, void* buffer) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->start(*static_cast<lane::OnComplete*>(on_complete),
                                                       lane::AllreduceKind::kGather);
}

// -------------------------------------------------------------------------------------------------------- transfers

/// Return the descriptor of the channel from another worker.
int lane_worker_open_incoming(void* worker, uint32_t rank, uint64_t room) {
  return guarded([&] { return static_cast<Worker*>(worker)->channels()->open_incoming(rank, room); }, -1);
}
/// Return the descriptor of the channel to a worker of another host.
int lane_worker_open_outgoing(void* worker, uint32_t rank, uint64_t room) {
  return guarded([&] { return static_cast<Worker*>(worker)->channels()->open_outgoing(rank, room); }, -1);
}
int lane_worker_link(void* worker, uint32_t rank, int channel, int block) {
  return guarded([&] { static_cast<Worker*>(worker)->channels()->link(rank, channel, block); return 0; }, -1);
}
/// Return the agent of the worker's host that relays the channel between two ranks.
int lane_worker_channel_agent(void* worker, uint32_t from, uint32_t to) {
  return guarded([&] { return static_cast<int>(static_cast<Worker*>(worker)->channel_agent(from, to)); }, -1);
}
/// Link with a worker of another host; an agent has mapped the channels to and from it.
int lane_worker_link_by_agents(void* worker, uint32_t rank, uint32_t agent) {
  return guarded([&] {
    Worker& self = *static_cast<Worker*>(worker);
    self.channels()->link_by_agent(rank, self.position(agent));
    return 0;
  }, -1);
}
/// Return a reference to a new transfer, which the functions below describe, and lane_transfer_open completes.
void* lane_transfer_new(void* worker, uint32_t rank, uint64_t tag, uint32_t dtype, int adds, uint64_t target_bytes) {
  return guarded([&]() -> void* {
    if (dtype >= lane::kDtypes) throw std::runtime_error("no dtype has number " + std::to_string(dtype));
    return new std::shared_ptr<PersistentTransfer>(
        std::make_shared<PersistentTransfer>(static_cast<Worker*>(worker)->channels(), rank, tag,
                                             static_cast<lane::Dtype>(dtype), adds != 0, target_bytes));
  }, nullptr);
}
int lane_transfer_send(void* share, uint32_t rank, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                   const uint64_t* strides) {
  return guarded([&] {
    transfer_of(share).send(rank, Box(size_of(transfer_of(share).dtype()), {shape, shape + dimensions},
                                  position_of(dimensions, offset, strides)));
    return 0;
  }, -1);
}
int lane_transfer_receive(void* share, uint32_t rank, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                      const uint64_t* strides) {
  return guarded([&] {
    transfer_of(share).receive(rank, Box(size_of(transfer_of(share).dtype()), {shape, shape + dimensions},
                                     position_of(dimensions, offset, strides)));
    return 0;
  }, -1);
}
int lane_transfer_copy_local(void* share, uint32_t dimensions, const uint64_t* shape, uint64_t from,
                             const uint64_t* from_strides, uint64_t to, const uint64_t* to_strides) {
  return guarded([&] {
    const size_t element = size_of(transfer_of(share).dtype());
    const std::vector<uint64_t> lengths(shape, shape + dimensions);
    const Box::Position target = position_of(dimensions, to, to_strides);
    transfer_of(share).copy_local(Box(element, lengths, position_of(dimensions, from, from_strides), target),
                                  Box(element, lengths, target));
    return 0;
  }, -1);
}
/// The first bytes of `value` are the element.
int lane_transfer_fill(void* share, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                       const uint64_t* strides, uint64_t value) {
  return guarded([&] {
    transfer_of(share).fill(Box(size_of(transfer_of(share).dtype()), {shape, shape + dimensions},
                            position_of(dimensions, offset, strides)), value);
    return 0;
  }, -1);
}
int lane_transfer_open(void* share) {
  return guarded([&] { transfer_of(share).open(); return 0; }, -1);
}
/// Release a reference.
void lane_transfer_close(void* share) { delete static_cast<std::shared_ptr<PersistentTransfer>*>(share); }
/// Return a run for lane_transfer_start.
void* lane_transfer_run_new(void* share, const void* source, void* target) {
  return guarded([&]() -> void* {
    return new TransferRun{*static_cast<std::shared_ptr<PersistentTransfer>*>(share), static_cast<const char*>(source),
                       static_cast<char*>(target)};
  }, nullptr);
}
/// EngineFuncParamDeleter.
void lane_transfer_run_close(void* run) { TransferRun::remove(run); }
/// EngineAsyncFunc.
void lane_transfer_start(void* engine, void* on_complete, void* run) { TransferRun::start(engine, on_complete, run); }

/// Return an operator of graphs that runs two transfers of float32 arrays, one forwards and one backwards.  A negative
/// number of dimensions means no array.  The functions are MXNDArrayGetData, MXNDArrayFree and MXEnginePushAsyncND.
void* lane_exchange_operator_new(void* forward, void* backward, int input_dimensions, const uint64_t* input,
                                 int output_dimensions, const uint64_t* output, void* get_data, void* free,
                                 void* push) {
  return guarded(
      [&]() -> void* {
        const lane::ArrayFunctions functions = functions_of(get_data, free);
        for (void* share : {forward, backward}) {
          if (transfer_of(share).dtype() != lane::Dtype::kFloat32) {
            throw std::runtime_error("an exchange operator needs transfers of type float32");
          }
        }
        return new ExchangeOperator(*static_cast<std::shared_ptr<PersistentTransfer>*>(forward),
                                    *static_cast<std::shared_ptr<PersistentTransfer>*>(backward),
                                    shape_of(input_dimensions, input), shape_of(output_dimensions, output), functions,
                                    reinterpret_cast<lane::PushFunction>(push));
      },
      nullptr);
}
/// Return the attribute `info` of MXNet's operator _NDArray.
const void* lane_exchange_operator_info(void* exchange) { return static_cast<ExchangeOperator*>(exchange)->info(); }
/// Delete an operator that no graph calls any more.
void lane_exchange_operator_close(void* exchange) { delete static_cast<ExchangeOperator*>(exchange); }

/// Return an operator of a BatchNorm over several workers.  The functions are MXNDArrayGetData and MXNDArrayFree.
void* lane_moments_operator_new(int dimensions, const uint64_t* shape, uint64_t axis, void* get_data, void* free) {
  return guarded([&]() -> void* {
    const auto input_shape = shape_of(dimensions, shape);
    if (!input_shape) throw std::runtime_error("a moments operator needs the shape of its input");
    return static_cast<ArrayOperator*>(new lane::MomentsOperator(*input_shape, axis, functions_of(get_data, free)));
  }, nullptr);
}
void* lane_joint_operator_new(uint32_t parts, const double* shares, uint64_t channels, double epsilon, void* get_data,
                              void* free) {
  return guarded([&]() -> void* {
    return static_cast<ArrayOperator*>(
        new lane::JointOperator({shares, shares + parts}, channels, epsilon, functions_of(get_data, free)));
  }, nullptr);
}
void* lane_average_operator_new(uint32_t averages, const uint64_t* counts, const uint64_t* lengths,
                                const double* factors, void* get_data, void* free) {
  return guarded([&]() -> void* {
    std::vector<lane::AverageOperator::Average> list;
    for (uint32_t i = 0; i < averages; factors += lengths[i++]) {
      list.push_back({counts[i], {factors, factors + lengths[i]}});
    }
    return static_cast<ArrayOperator*>(new lane::AverageOperator(std::move(list), functions_of(get_data, free)));
  }, nullptr);
}
/// Return an operator of a softmax over several workers, see softmax_operators.h.
void* lane_softmax_parts_operator_new(int dimensions, const uint64_t* shape, uint64_t axis, void* get_data,
                                      void* free) {
  return guarded([&]() -> void* {
    const auto part_shape = shape_of(dimensions, shape);
    if (!part_shape) throw std::runtime_error("a softmax operator needs the shape of its part");
    return static_cast<ArrayOperator*>(
        new lane::SoftmaxPartsOperator(*part_shape, axis, functions_of(get_data, free)));
  }, nullptr);
}
void* lane_softmax_operator_new(int dimensions, const uint64_t* shape, uint64_t axis, uint64_t count, int is_log,
                                void* get_data, void* free) {
  return guarded([&]() -> void* {
    const auto part_shape = shape_of(dimensions, shape);
    if (!part_shape) throw std::runtime_error("a softmax operator needs the shape of its part");
    return static_cast<ArrayOperator*>(
        new lane::SoftmaxOperator(*part_shape, axis, count, is_log != 0, functions_of(get_data, free)));
  }, nullptr);
}
/// Return the attribute `info` of MXNet's operator _NDArray.
const void* lane_array_operator_info(void* array_operator) {
  return static_cast<ArrayOperator*>(array_operator)->info();
}

// ---------------------------------------------------------------------------------------------------------- buckets

/// Return a reference to a new bucket, which takes over the arrays of gradients.
void* lane_bucket_new(void* buffer, uint32_t dtype, int halves, void* get_data, void* free, uint32_t count,
                      void** gradients, const uint64_t* sizes) {
  return guarded([&]() -> void* {
    const lane::ArrayFunctions functions = functions_of(get_data, free);
    auto bucket = std::make_shared<GradientBucket>(*static_cast<WorkerAllreduce::Buffer*>(buffer),
                                                   static_cast<lane::Dtype>(dtype), halves != 0, functions);
    for (uint32_t i = 0; i < count; ++i) bucket->add(gradients[i], sizes[i]);
    return new std::shared_ptr<GradientBucket>(std::move(bucket));
  }, nullptr);
}
/// Return another reference, for lane_bucket_start.
void* lane_bucket_share(void* share) {
  return guarded(
      [&]() -> void* {
        return new std::shared_ptr<GradientBucket>(*static_cast<std::shared_ptr<GradientBucket>*>(share));
      },
      nullptr);
}
/// Release a reference; EngineFuncParamDeleter.
void lane_bucket_close(void* share) { delete static_cast<std::shared_ptr<GradientBucket>*>(share); }
/// EngineAsyncFunc.
void lane_bucket_start(void*, void* on_complete, void* share) {
  (*static_cast<std::shared_ptr<GradientBucket>*>(share))->start(*static_cast<lane::OnComplete*>(on_complete));
}
/// EngineAsyncFunc; the sum is a reduce-scatter.
void lane_bucket_scatter(void*, void* on_complete, void* share) {
  (*static_cast<std::shared_ptr<GradientBucket>*>(share))
      ->start(*static_cast<lane::OnComplete*>(on_complete), lane::AllreduceKind::kScatter);
}
/// Return a reference to arrays for copies of updated weights, which it takes over; an array may be null.  `reorder` is
/// NDArray::Chunk::Reorder2Default.
void* lane_copies_new(void* get_data, void* free, void* reorder, uint32_t count, void** arrays) {
  return guarded(
      [&]() -> void* {
        return new std::shared_ptr<WeightCopies>(
            std::make_shared<WeightCopies>(functions_of(get_data, free), reinterpret_cast<void (*)(void*)>(reorder),
                                           std::vector<void*>(arrays, arrays + count)));
      },
      nullptr);
}
void lane_copies_close(void* copies) { delete static_cast<std::shared_ptr<WeightCopies>*>(copies); }
/// Return an update for lane_bucket_update.  Every weight has two states, null if it has fewer.  `copies` is a result of
/// lane_copies_new, or null.
void* lane_update_new(void* share, uint32_t kind, const double* settings, uint32_t count, void** weights,
                      void** states, void* copies, const double* lrs, const double* wds) {
  return guarded(
      [&]() -> void* {
        auto update = std::make_unique<BucketUpdate>(
            BucketUpdate{*static_cast<std::shared_ptr<GradientBucket>*>(share), lane::make_rule(kind, settings), {}, {}});
        if (copies != nullptr) update->copies = *static_cast<std::shared_ptr<WeightCopies>*>(copies);
        for (uint32_t i = 0; i < count; ++i) {
          update->targets.push_back({static_cast<char*>(weights[i]),
                                   {static_cast<char*>(states[2 * i]), static_cast<char*>(states[2 * i + 1])},
                                   lrs[i],
                                   wds[i]});
        }
        return update.release();
      },
      nullptr);
}
/// EngineFuncParamDeleter.
void lane_update_close(void* update) { delete static_cast<BucketUpdate*>(update); }
/// EngineSyncFunc.
void lane_bucket_update(void*, void* update) {
  BucketUpdate& bucket_update = *static_cast<BucketUpdate*>(update);
  bucket_update.bucket->update(bucket_update.rule, bucket_update.targets, bucket_update.copies.get());
}
/// Have MXNet copy arrays to others, by MXImperativeInvokeEx of operator _copyto; return its result.
int lane_copy_arrays(void* invoke, void* copy, uint32_t count, void** from, void** to) {
  using Invoke = int (*)(void*, int, void**, int*, void***, int, const char**, const char**, const int**);
  for (uint32_t i = 0; i < count; ++i) {
    int outputs = 1;
    void* output = to[i];
    void** pointer = &output;
    const int* storage = nullptr;
    const int failed = reinterpret_cast<Invoke>(invoke)(copy, 1, &from[i], &outputs, &pointer, 0, nullptr, nullptr,
                                                        &storage);
    if (failed) return failed;
  }
  return 0;
}

void lane_worker_close(void* worker) { delete static_cast<Worker*>(worker); }

// ---------------------------------------------------------------------------------------------------------- kernels

/// Return whether all values of float16 are finite.
int lane_finite_halves(const uint16_t* values, uint64_t count) { return lane::finite(values, count); }

/// Return the float that MXNet's operators get for a setting, in a list of settings or by itself.
float lane_attribute(double value, int in_list) {
  return in_list ? lane::list_attribute(value) : lane::attribute(value);
}

int64_t lane_sorted_unique(const int64_t* ids, int64_t count, int64_t rows, uint64_t* marks, int64_t* result) {
  return lane::sorted_unique(ids, count, rows, marks, result);
}

/// See lane::read_row_ids.
int64_t lane_read_row_ids(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t capacity, int64_t* result) {
  return guarded([&] { return lane::read_row_ids(*mxnet, array, rows, capacity, result); }, -1);
}

/// See lane::read_rows.
int64_t lane_read_rows(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t width, int dtype,
                       int64_t capacity, int64_t* ids, void* values) {
  return guarded([&] {
    return lane::read_rows(*mxnet, array, rows, width, dtype, capacity, ids, static_cast<char*>(values));
  }, -1);
}

}  // extern "C"
