// Builds the tasks of redistributions and of computations as a subgraph.

#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "transfer_structs.h"

// Tasks by unit and rank.
struct Endpoints {
  std::vector<int32_t> units, ranks, tasks;

  void add(int64_t unit, int32_t rank, int32_t task) {
    units.push_back(static_cast<int32_t>(unit));
    ranks.push_back(rank);
    tasks.push_back(task);
  }
};

// The transfers of a redistribution, and the ranks that send and that receive.
struct Redistribution {
  PlannerTransfers transfers;
  const int32_t* senders;
  const int32_t* receivers;
  int64_t sender_count, receiver_count, itemsize;
  // The elements by rank that a receiver takes from its own array; null if there are none.
  const int64_t* own_elements = nullptr;
  // The seconds by rank for which senders compute first, and receivers last, while no other core of the host computes;
  // null if they compute nothing.
  const double* before = nullptr;
  const double* after = nullptr;
};

class SubgraphBuilder {
 public:
  SubgraphBuilder(const PlannerMachine& machine, PlannerSubgraph& subgraph) : machine_(machine), subgraph_(subgraph) {}

  // Adds a task of a rank's core, given its duration while no other core of the host computes.
  int32_t compute(int64_t kind, int32_t rank, double seconds) {
    return add(kind, rank, machine_.core[rank], seconds, 0.0);
  }

  // Adds a task of a rank's core, given its duration while all cores of the host compute, and the seconds of more work
  // while no other one computes.
  int32_t spend(int64_t kind, int32_t rank, double seconds, double latency = 0.0, double more = 0.0) {
    return add(kind, rank, machine_.core[rank], seconds * machine_.shared[rank] + more, latency);
  }

  void edge(int32_t before, int32_t after) { edges_.push_back({before, after}); }

  // Adds the tasks of a redistribution: senders send, the data moves, receivers receive. Each task of a sender or
  // receiver follows a task of `before_senders` or `before_receivers`, unless these are null pointers. Returns the
  // first task: the tasks of all senders follow it one by one, and then those of all receivers.
  int32_t redistribute(const Redistribution& redistribution, const PlannerCost& cost, bool high_priority,
                       const int32_t* before_senders, const int32_t* before_receivers) {
    const PlannerTransfers& transfers = redistribution.transfers;
    const auto ranks = static_cast<size_t>(machine_.ranks);
    sent_.assign(ranks, {0, 0});
    received_.assign(ranks, {0, 0});
    for (int64_t index = 0; index < transfers.count; ++index) {
      sent_[transfers.sources[index]].add(transfers.elements[index] * redistribution.itemsize);
      received_[transfers.targets[index]].add(transfers.elements[index] * redistribution.itemsize);
    }
    send_tasks_.assign(ranks, -1);
    receive_tasks_.assign(ranks, -1);
    const int32_t first = size_;
    for (int64_t index = 0; index < redistribution.sender_count; ++index) {
      const int32_t rank = redistribution.senders[index];
      send_tasks_[rank] = spend(cost.kind, rank, sent_[rank].seconds(cost), cost.latency,
                                redistribution.before ? redistribution.before[rank] : 0.0);
      if (before_senders) edge(before_senders[index], send_tasks_[rank]);
    }
    for (int64_t index = 0; index < redistribution.receiver_count; ++index) {
      const int32_t rank = redistribution.receivers[index];
      // The core copies at the rate of memory what does not travel.
      const int64_t own_elements = redistribution.own_elements ? redistribution.own_elements[rank] : 0;
      const double copy_s = static_cast<double>(own_elements * redistribution.itemsize) / machine_.memory_rate;
      receive_tasks_[rank] = spend(cost.kind, rank, received_[rank].seconds(cost) + copy_s, 0.0,
                                   redistribution.after ? redistribution.after[rank] : 0.0);
      if (before_receivers) edge(before_receivers[index], receive_tasks_[rank]);
      if (send_tasks_[rank] >= 0) edge(send_tasks_[rank], receive_tasks_[rank]);
    }
    if (transfers.count > 8 * machine_.ranks) {
      move_by_hosts(redistribution, cost.kind, high_priority);
    } else {
      move(redistribution, cost.kind, high_priority);
    }
    return first;
  }

  // Fills the arrays of the subgraph; returns the number of tasks.
  int64_t finish(const Endpoints& first, const Endpoints& last) {
    std::vector<int32_t> ends(size_ + 1, 0);
    for (const Edge& edge : edges_) ++ends[edge.before + 1];
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    subgraph_.max_resource = -1;
    for (int32_t index = 0; index < size_; ++index) {
      Task& task = subgraph_.tasks[index];
      task.inner = ends[index];
      task.inner_end = ends[index + 1];
      subgraph_.max_resource = std::max<int64_t>(subgraph_.max_resource, std::max(task.resource, task.second));
    }
    for (const Edge& edge : edges_) subgraph_.numbers[ends[edge.before]++] = edge.after;
    subgraph_.successors = static_cast<int64_t>(edges_.size());
    int32_t* to = subgraph_.numbers + subgraph_.successors;
    subgraph_.outputs = 1;
    for (size_t index = 0; index < last.tasks.size(); ++index) {
      subgraph_.outputs = std::max(subgraph_.outputs, output_of(last, index) + 2);
    }
    std::fill_n(to, subgraph_.outputs, -1);
    for (size_t index = 0; index < last.tasks.size(); ++index) to[output_of(last, index)] = last.tasks[index];
    to += subgraph_.outputs;
    for (const Endpoints* endpoints : {&first, &last}) {
      for (const std::vector<int32_t>* numbers : {&endpoints->units, &endpoints->ranks, &endpoints->tasks}) {
        to = std::copy(numbers->begin(), numbers->end(), to);
      }
    }
    subgraph_.first = static_cast<int64_t>(first.tasks.size());
    subgraph_.last = static_cast<int64_t>(last.tasks.size());
    return size_;
  }

 private:
  struct Edge {
    int32_t before, after;
  };

  // The messages that a rank sends or receives.
  struct Traffic {
    int64_t messages, bytes;

    void add(int64_t size) {
      ++messages;
      bytes += size;
    }

    double seconds(const PlannerCost& cost) const {
      return cost.fixed / 2 + cost.per_item * static_cast<double>(messages) +
             cost.per_byte * static_cast<double>(bytes);
    }
  };

  int64_t output_of(const Endpoints& endpoints, size_t index) const {
    return endpoints.units[index] * machine_.ranks + endpoints.ranks[index];
  }

  int32_t add(int64_t kind, int32_t rank, int32_t resource, double work, double latency, bool high_priority = false) {
    const auto kind_code = static_cast<int32_t>((rank + 1) * 16 + kind);
    subgraph_.tasks[size_] = Task{work, latency, 0.0, size_, resource, -1, 0, 0, 0, 0, high_priority, kind_code};
    return size_++;
  }

  double memory_seconds(double size) const { return machine_.memory_latency + size / machine_.memory_rate; }

  // Adds a task for each message within a host, and two for each message between hosts: on the uplink of one host and
  // on the downlink of the other. Both links share the transfer: it may start on one before it starts on the other, and
  // has arrived when both are done.
  void move(const Redistribution& redistribution, int64_t kind, bool high_priority) {
    const PlannerTransfers& transfers = redistribution.transfers;
    const auto ranks = static_cast<int32_t>(machine_.ranks);
    order_.resize(transfers.count);
    // Senders begin with the next rank each.
    for (int64_t index = 0; index < transfers.count; ++index) {
      const int64_t turn = (transfers.targets[index] - transfers.sources[index] + ranks) % ranks;
      order_[index] = {turn * ranks + transfers.sources[index], index};
    }
    std::sort(order_.begin(), order_.end());
    for (const auto& [turn, index] : order_) {
      const int32_t source = transfers.sources[index], target = transfers.targets[index];
      const auto size = static_cast<double>(transfers.elements[index] * redistribution.itemsize);
      const int32_t source_host = machine_.host[source], target_host = machine_.host[target];
      const auto connect = [&](int32_t task) {
        edge(send_tasks_[source], task);
        edge(task, receive_tasks_[target]);
      };
      if (source_host == target_host) {
        connect(add(kind, source, -1, 0.0, memory_seconds(size)));
      } else {
        connect(add(kind, source, machine_.up[source_host], size, machine_.link_latency, high_priority));
        connect(add(kind, target, machine_.down[target_host], size, machine_.link_latency, high_priority));
      }
    }
  }

  // Adds one task for all messages that a host sends, one for those that it receives, and one for those within it:
  // for redistributions of very many messages.
  void move_by_hosts(const Redistribution& redistribution, int64_t kind, bool high_priority) {
    const PlannerTransfers& transfers = redistribution.transfers;
    const auto hosts = static_cast<size_t>(machine_.hosts);
    std::vector<int64_t> inside(hosts, 0), sent(hosts, 0), received(hosts, 0);
    for (int64_t index = 0; index < transfers.count; ++index) {
      const int32_t source_host = machine_.host[transfers.sources[index]];
      const int32_t target_host = machine_.host[transfers.targets[index]];
      const int64_t size = transfers.elements[index] * redistribution.itemsize;
      if (source_host == target_host) {
        inside[source_host] += size;
      } else {
        sent[source_host] += size;
        received[target_host] += size;
      }
    }
    // Ranks are numbered host by host.
    std::vector<std::vector<int32_t>> before(hosts), after(hosts);
    for (int32_t rank = 0; rank < machine_.ranks; ++rank) {
      if (sent_[rank].messages) before[machine_.host[rank]].push_back(send_tasks_[rank]);
      if (received_[rank].messages) after[machine_.host[rank]].push_back(receive_tasks_[rank]);
    }
    const int32_t all_sent = add(kind, -1, -1, 0.0, 0.0), all_arrived = add(kind, -1, -1, 0.0, 0.0);
    for (size_t host = 0; host < hosts; ++host) {
      if (sent[host]) {
        const int32_t task = add(kind, -1, machine_.up[host], static_cast<double>(sent[host]), machine_.link_latency,
                                 high_priority);
        for (int32_t sender : before[host]) {
          edge(sender, task);
          edge(sender, all_sent);
        }
        edge(task, all_arrived);
      }
      if (inside[host]) {
        const int32_t task = add(kind, -1, -1, 0.0, memory_seconds(static_cast<double>(inside[host])));
        for (int32_t sender : before[host]) edge(sender, task);
        for (int32_t receiver : after[host]) edge(task, receiver);
      }
      if (received[host]) {
        const int32_t task = add(kind, -1, machine_.down[host], static_cast<double>(received[host]),
                                 machine_.link_latency, high_priority);
        edge(all_sent, task);
        for (int32_t receiver : after[host]) {
          edge(task, receiver);
          edge(all_arrived, receiver);
        }
      }
    }
  }

  const PlannerMachine& machine_;
  PlannerSubgraph& subgraph_;
  int32_t size_ = 0;
  std::vector<Edge> edges_;
  // The messages and the tasks of the current redistribution, by rank.
  std::vector<Traffic> sent_, received_;
  std::vector<int32_t> send_tasks_, receive_tasks_;
  std::vector<std::pair<int64_t, int64_t>> order_;
};
