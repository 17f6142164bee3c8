// The C interface of host agents; see api.cc for its conventions.
#include <string>
#include <vector>

#include "agent/agent.h"
#include "base/api_errors.h"
#include "memory/api_arguments.h"
#include "store/row_store_arguments.h"

using lane::Agent;
using lane::dynamic_shape_of;
using lane::guarded;
using lane::membership_of;
using lane::Rule;
using lane::shape_of;
using lane::TableShape;

extern "C" {

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

/// Write the receive window and the threshold that an agent would set at each of several times, given the number of bytes
/// that it has received by then, the shortest round trip and the number of its connections.
void lane_receive_windows(uint32_t count, const uint64_t* received, const int64_t* times_ns, double min_rtt_s,
                          uint32_t connections, uint32_t* windows, uint32_t* thresholds) {
  lane::ReceiveRate rate;
  for (uint32_t i = 0; i < count; ++i) {
    rate.note(received[i], times_ns[i]);
    windows[i] = lane::receive_window(rate.bytes_per_s(), min_rtt_s, connections);
    thresholds[i] = static_cast<uint32_t>(lane::wake_threshold(rate.bytes_per_s(), connections));
  }
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
/// Add a dynamic table; the last arguments are the options of the row store of each partition.
int lane_agent_add_dynamic_table(void* agent, uint32_t number, const char* name, uint32_t width, uint32_t dtype, uint32_t format,
                                 uint32_t max_batch_rows, uint32_t parts, const uint32_t* owners, uint32_t staleness,
                                 uint32_t first_values, double value, uint64_t seed, uint32_t admit, uint64_t capacity,
                                 uint64_t expire_after, int evict_rarest, const char* directory, uint64_t resident_bytes,
                                 uint32_t row_type) {
  return guarded([&] {
    const TableShape shape = dynamic_shape_of(width, dtype, format, max_batch_rows, parts, owners, staleness);
    static_cast<Agent*>(agent)->add_dynamic_table(
        number, shape, name, lane::row_store_options_of(dtype, width, lane::first_values_of(first_values, value, seed),
                                                        admit, capacity, expire_after, evict_rarest, directory,
                                                        resident_bytes, row_type));
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

}  // extern "C"
