// The C interface of host agents; see api.cc for its conventions.
#include <string>

#include "agent/agent.h"
#include "base/api_errors.h"

using lane::Agent;
using lane::Dtype;
using lane::guarded;
using lane::RowFormat;

extern "C" {

using CallbackFunction = void (*)(uint32_t table, uint32_t part, uint32_t count, const int32_t* local_ids,
                                  const void* rows);
using FailedFunction = void (*)(const char* why);

Agent* lane_agent_new(uint32_t number, uint32_t agents, const uint32_t* hosts, uint32_t num_hosts,
                      const uint32_t* workers, CallbackFunction callback, FailedFunction failed) {
  return guarded([&] {
    return new Agent(number, {{hosts, hosts + agents}, {workers, workers + num_hosts}},
                     [callback](uint32_t table, uint32_t part, const lane::RowList& list) {
                       callback(table, part, list.count, list.ids, list.rows);
                     },
                     [failed](const std::string& why) { failed(why.c_str()); });
  });
}

int lane_agent_doorbell(Agent* agent) { return agent->doorbell(); }
int lane_agent_block(Agent* agent) { return agent->block().descriptor(); }

int lane_agent_connect(Agent* agent, uint32_t peer, int socket) {
  return guarded([&] { agent->connect(peer, socket); });
}
int lane_agent_add_worker(Agent* agent, uint32_t worker, int descriptor) {
  return guarded([&] { agent->add_worker(worker, descriptor); });
}
int lane_agent_add_table(Agent* agent, uint32_t number, uint64_t rows, uint32_t width, Dtype dtype, RowFormat format,
                         uint32_t max_batch_rows, uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  return guarded([&] {
    agent->add_table(number, {rows, width, dtype, format, {owners, owners + parts}, max_batch_rows > 0, max_batch_rows,
                              staleness});
  });
}
/// Add a dynamic table; the last arguments are the options of the row store of each partition.
int lane_agent_add_dynamic_table(Agent* agent, uint32_t number, const char* name, uint64_t rows, uint32_t width,
                                 Dtype dtype, RowFormat format, uint32_t max_batch_rows, uint32_t parts,
                                 const uint32_t* owners, uint32_t staleness, lane::FirstValueKind kind, double value,
                                 uint64_t seed, uint32_t admit, uint64_t capacity, uint64_t expire_after,
                                 int evict_rarest, const char* directory, uint64_t resident_bytes,
                                 lane::RowType row_type) {
  return guarded([&] {
    agent->add_dynamic_table(
        number, {rows, width, dtype, format, {owners, owners + parts}, true, max_batch_rows, staleness}, name,
        {dtype, row_type, width, {kind, value, seed}, admit, capacity, expire_after, evict_rarest != 0, directory,
         resident_bytes});
  });
}
using StoreFunction = void (*)(lane::RowStore* store);
/// Call a function with the row store of a partition of a dynamic table, while the agent does nothing else.
int lane_agent_with_store(Agent* agent, uint32_t number, uint32_t part, StoreFunction function) {
  return guarded([&] { agent->with_store(number, part, [&](lane::RowStore& store) { function(&store); }); });
}
/// Return the descriptor of the table's memory, which the caller closes; once for each worker of the host.
int lane_agent_table(Agent* agent, uint32_t number) {
  return guarded([&] { return agent->share_table(number); });
}
int lane_agent_attach(Agent* agent, uint32_t number, uint32_t worker, int descriptor) {
  return guarded([&] { agent->attach(number, worker, descriptor); });
}
int lane_agent_drop_table(Agent* agent, uint32_t number) {
  return guarded([&] { agent->drop_table(number); });
}
/// Return the descriptor of the output, which the caller closes.  `ends` has the end of the range of each worker, if
/// each owns a range; with `quantized` values of float32 travel between hosts as int8, see int8.h.
int lane_agent_open_allreduce(Agent* agent, uint64_t number, uint32_t worker, Dtype dtype, uint64_t count,
                              uint32_t ranges, const uint64_t* ends, int quantized, int descriptor) {
  return guarded([&] {
    return agent->open_allreduce(number, worker, dtype, count, descriptor, {ends, ends + ranges}, quantized != 0);
  });
}
int lane_agent_open_channel(Agent* agent, uint32_t worker, int outgoing, uint32_t from, uint32_t to, uint32_t other,
                            int descriptor) {
  return guarded([&] { agent->open_channel(worker, outgoing != 0, from, to, other, descriptor); });
}
int lane_agent_drop_allreduce(Agent* agent, uint64_t number) {
  return guarded([&] { agent->drop_allreduce(number); });
}
char* lane_agent_shard(Agent* agent, uint32_t number, uint32_t part) {
  return guarded([&] { return agent->shard(number, part); });
}
int lane_agent_set_rule(Agent* agent, uint32_t number, uint32_t part, lane::RuleKind kind, uint32_t slot,
                        const double* settings) {
  return guarded([&] { agent->set_rule(number, part, lane::make_rule(kind, settings, slot)); });
}
int lane_agent_set_state(Agent* agent, uint32_t number, uint32_t part, uint32_t slot, char* rows, uint64_t row_bytes) {
  return guarded([&] { agent->set_state(number, part, slot, rows, row_bytes); });
}
int lane_agent_set_updates(Agent* agent, uint32_t number, uint32_t part, uint64_t count) {
  return guarded([&] { agent->set_updates(number, part, count); });
}
using ObserverFunction = void (*)(uint32_t table, uint32_t part, int64_t begin, int64_t end, uint32_t rows);
int lane_agent_observe(Agent* agent, ObserverFunction observer) {
  return guarded([&] { agent->observe(observer); });
}
int lane_agent_start(Agent* agent) {
  return guarded([&] { agent->start(); });
}
/// Return 0 when the agent has ended, 1 when the time is over; lane_error then says what the agent waits for.
int lane_agent_close(Agent* agent, int milliseconds) {
  return guarded([&] {
    if (agent->close(milliseconds)) return 0;
    lane::api_error = agent->pending_work();
    return 1;
  });
}
/// Delete an agent that has ended.
void lane_agent_free(Agent* agent) { delete agent; }

}  // extern "C"
