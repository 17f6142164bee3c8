// A job of several hosts in one process.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "check.h"
#include "worker/worker.h"

namespace lane {

constexpr int kLimitMs = 60000;
constexpr uint32_t kWidth = 3;

/// The agents are not started yet.
struct Job {
  Job(const std::vector<uint32_t>& workers_on, const std::vector<uint32_t>& agents_on) {
    for (uint32_t host = 0; host < agents_on.size(); ++host) {
      membership.agent_hosts.insert(membership.agent_hosts.end(), agents_on[host], host);
    }
    membership.worker_counts = workers_on;
    for (uint32_t number = 0; number < membership.agent_hosts.size(); ++number) {
      agents.push_back(std::make_unique<Agent>(number, membership, [](uint32_t, uint32_t, const RowList&) {},
                                               [](const std::string& why) { check(false, why.c_str()); }));
      for (uint32_t other = 0; other < number; ++other) {
        if (membership.agent_hosts[other] == membership.agent_hosts[number]) continue;
        int pair[2];
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
        // Small buffers: data stays at the sender for a while, as on a slow link.
        const int buffer_bytes = 4096;
        for (int end : pair) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
        agents[number]->connect(other, pair[0]);
        agents[other]->connect(number, pair[1]);
      }
    }
    for (uint32_t host = 0; host < workers_on.size(); ++host) {
      for (uint32_t local = 0; local < workers_on[host]; ++local) {
        workers.push_back(std::make_unique<Worker>(membership, host, local));
        hosts.push_back(host);
        locals.push_back(local);
        for (uint32_t agent : membership.agents_of(host)) {
          agents[agent]->add_worker(local, workers.back()->block().descriptor());
          workers.back()->add_agent(agent, dup(agents[agent]->doorbell()), agents[agent]->block().descriptor());
        }
      }
    }
  }

  /// Return the ends of the workers' ranges of an array, which are nearly equal.
  std::vector<uint64_t> ends(uint32_t size) const {
    std::vector<uint64_t> ends;
    for (uint64_t worker = 1; worker <= workers.size(); ++worker) ends.push_back(size * worker / workers.size());
    return ends;
  }

  void add_allreduce(uint32_t number, uint32_t size) {
    for (size_t i = 0; i < workers.size(); ++i) {
      const uint32_t agent = workers[i]->allreduce_agent(number);
      const int input = workers[i]->allreduce().open(number, workers[i]->position(agent), Dtype::kFloat32, size);
      const int output = agents[agent]->open_allreduce(number, locals[i], Dtype::kFloat32, size, input, ends(size));
      workers[i]->allreduce().attach(number, output);
      close(output);
    }
  }

  /// Open and link the channels between all workers.
  void link() {
    constexpr size_t kRingBytes = 1 << 25;
    std::vector<std::vector<int>> channels(workers.size(), std::vector<int>(workers.size(), -1));
    for (uint32_t me = 0; me < workers.size(); ++me) {
      for (uint32_t other = 0; other < workers.size(); ++other) {
        if (other == me) continue;
        const int channel = workers[me]->channels()->open(other, false, kRingBytes);
        if (hosts[other] == hosts[me]) {
          channels[me][other] = dup(channel);
          continue;
        }
        Agent& agent = *agents[workers[me]->channel_agent(me, other)];
        agent.open_channel(locals[me], false, other, me, hosts[other], channel);
        agent.open_channel(locals[me], true, me, other, hosts[other],
                           workers[me]->channels()->open(other, true, kRingBytes));
      }
    }
    for (uint32_t me = 0; me < workers.size(); ++me) {
      for (uint32_t other = 0; other < workers.size(); ++other) {
        if (other == me) continue;
        if (hosts[other] != hosts[me]) {
          workers[me]->channels()->link_by_agent(other, workers[me]->position(workers[me]->channel_agent(me, other)));
          continue;
        }
        workers[me]->channels()->link(other, channels[other][me], workers[other]->block().descriptor());
        close(channels[other][me]);
      }
    }
  }

  void add_table(uint32_t number, const TableShape& shape) {
    for (auto& agent : agents) {
      if (!shape.dynamic) {
        agent->add_table(number, shape);
        continue;
      }
      RowStoreOptions options;  // rows are zeros at first
      options.dtype = shape.dtype;
      options.width = shape.width;
      agent->add_dynamic_table(number, shape, "items", options);
    }
    for (size_t i = 0; i < workers.size(); ++i) {
      const int worker_memory = workers[i]->add_table(number, shape);
      for (uint32_t agent : membership.agents_of(hosts[i])) {
        agents[agent]->attach(number, locals[i], worker_memory);
        const int agent_memory = agents[agent]->share_table(number);
        workers[i]->attach(number, agent, agent_memory);
        close(agent_memory);
      }
    }
    Rule rule;
    rule.kind = RuleKind::kSgd;
    rule.lr = 1;
    rule.rescale = -1;
    for (uint32_t part = 0; part < shape.partitions(); ++part) {
      agents[shape.owners[part]]->set_rule(number, part, rule);
    }
  }

  Membership membership;
  std::vector<std::unique_ptr<Agent>> agents;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<uint32_t> hosts, locals;
};

/// Return the shape of a table with a number of rows, or of a dynamic table with as many keys in a batch.
inline TableShape shape_of(uint64_t rows, const std::vector<uint32_t>& owners, bool dynamic = false) {
  TableShape shape;
  shape.width = kWidth;
  shape.owners = owners;
  shape.dynamic = dynamic;
  if (dynamic) {
    shape.max_batch_rows = static_cast<uint32_t>(rows);
  } else {
    shape.rows = rows;
  }
  return shape;
}

/// Push ones to rows of a table.
inline void push(Worker& worker, uint32_t table, const std::vector<int64_t>& ids) {
  const std::vector<float> ones(ids.size() * kWidth, 1);
  check(worker.push(table, ids.data(), static_cast<uint32_t>(ids.size()), reinterpret_cast<const char*>(ones.data()),
                    kLimitMs), "a push that does not end");
}

/// Post a request for rows; return its handle.
inline int post(Worker& worker, uint32_t table, const std::vector<int64_t>& ids, uint32_t flags,
                uint32_t staleness = 0, uint32_t ahead = 0) {
  const int request =
      worker.post(table, ids.data(), static_cast<uint32_t>(ids.size()), flags, false, staleness, ahead);
  check(request >= 0, "no request");
  return request;
}

/// Return the rows of a request.
inline std::vector<float> wait(Worker& worker, uint32_t table, int request, size_t count) {
  std::vector<float> rows(count * kWidth, -1);
  check(worker.wait(table, request, reinterpret_cast<char*>(rows.data()), kLimitMs), "a pull that does not end");
  return rows;
}

}  // namespace lane
