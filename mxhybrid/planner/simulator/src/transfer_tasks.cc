// The tasks of redistributions and of sums within groups of ranks, and the load of resources. tests/oracles/
// transfer_tasks.py makes the same tasks in Python, to the last bit.

#include <algorithm>
#include <cstdint>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "task.h"

// Laid out as the structures of the same names of transfer_tasks.py.
extern "C" {

struct PlannerMachine {
  const int32_t* core;
  const int32_t* host;
  const int32_t* up;
  const int32_t* down;
  // By rank: the speed of its core while all cores of its host compute, relative to its speed alone.
  const double* shared;
  int64_t ranks, hosts;
  double link_latency, memory_latency, memory_rate;
};

// The cost of one side of a transfer in seconds of a rank's core, and the latency after it; `kind` is its kind code.
struct PlannerCost {
  double fixed, per_item, per_byte, latency;
  int64_t kind;
};

// A box for each of some ranks, in order of rank. A box is the low and the high end of each dimension.
struct PlannerRankBoxes {
  const int32_t* ranks;
  const int64_t* boxes;
  int64_t count, dimensions;
};

struct PlannerTransfers {
  int32_t* sources;
  int32_t* targets;
  int64_t* elements;
  int64_t count;
};

// The arrays to fill, which have enough capacity. `numbers` gets the successors; the task of each output; and the
// units, ranks and tasks of the first endpoints, then of the last ones. Then the counts of each, and the largest number
// of a resource.
struct PlannerSubgraph {
  Task* tasks;
  int32_t* numbers;
  int64_t successors, outputs, first, last, max_resource;
};
}

namespace {

// Returns the number of elements that two boxes have in common.
int64_t overlap(const int64_t* box, const int64_t* other, int64_t dimensions) {
  int64_t elements = 1;
  for (int64_t end = 0; end < 2 * dimensions; end += 2) {
    elements *= std::max<int64_t>(0, std::min(box[end + 1], other[end + 1]) - std::max(box[end], other[end]));
  }
  return elements;
}

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
struct Exchange {
  PlannerTransfers transfers;
  const int32_t* senders;
  const int32_t* receivers;
  int64_t sender_count, receiver_count, itemsize;
};

class SubgraphBuilder {
 public:
  SubgraphBuilder(const PlannerMachine& machine, PlannerSubgraph& subgraph) : machine_(machine), subgraph_(subgraph) {}

  // Adds a task of a rank's core, given its duration while no other core of the host computes.
  int32_t compute(int64_t kind, int32_t rank, double seconds) {
    return add(kind, rank, machine_.core[rank], seconds, 0.0);
  }

  // Adds a task of a rank's core, given its duration while all cores of the host compute.
  int32_t spend(int64_t kind, int32_t rank, double seconds, double latency = 0.0) {
    return add(kind, rank, machine_.core[rank], seconds * machine_.shared[rank], latency);
  }

  void edge(int32_t before, int32_t after) { edges_.push_back({before, after}); }

  // Adds the tasks of an exchange: senders send, the data moves, receivers receive. Each task of a sender or receiver
  // follows a task of `before_senders` or `before_receivers`, unless these are null pointers. Returns the first task:
  // the tasks of all senders follow it one by one, and then those of all receivers.
  int32_t exchange(const Exchange& exchange, const PlannerCost& cost, bool high_priority,
                   const int32_t* before_senders, const int32_t* before_receivers) {
    const PlannerTransfers& transfers = exchange.transfers;
    const auto ranks = static_cast<size_t>(machine_.ranks);
    sent_.assign(ranks, {0, 0});
    received_.assign(ranks, {0, 0});
    for (int64_t index = 0; index < transfers.count; ++index) {
      sent_[transfers.sources[index]].add(transfers.elements[index] * exchange.itemsize);
      received_[transfers.targets[index]].add(transfers.elements[index] * exchange.itemsize);
    }
    send_tasks_.assign(ranks, -1);
    receive_tasks_.assign(ranks, -1);
    const int32_t first = size_;
    for (int64_t index = 0; index < exchange.sender_count; ++index) {
      const int32_t rank = exchange.senders[index];
      send_tasks_[rank] = spend(cost.kind, rank, sent_[rank].seconds(cost), cost.latency);
      if (before_senders) edge(before_senders[index], send_tasks_[rank]);
    }
    for (int64_t index = 0; index < exchange.receiver_count; ++index) {
      const int32_t rank = exchange.receivers[index];
      receive_tasks_[rank] = spend(cost.kind, rank, received_[rank].seconds(cost));
      if (before_receivers) edge(before_receivers[index], receive_tasks_[rank]);
      if (send_tasks_[rank] >= 0) edge(send_tasks_[rank], receive_tasks_[rank]);
    }
    if (transfers.count > 8 * machine_.ranks) {
      move_by_hosts(exchange, cost.kind, high_priority);
    } else {
      move(exchange, cost.kind, high_priority);
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
    subgraph_.tasks[size_] = Task{work, latency, size_, resource, -1, 0, 0, 0, 0, high_priority, kind_code};
    return size_++;
  }

  double memory_seconds(double size) const { return machine_.memory_latency + size / machine_.memory_rate; }

  // Adds a task for each message within a host, and two for each message between hosts: on the uplink of one host and
  // on the downlink of the other. Both links share the transfer: it may start on one before it starts on the other, and
  // has arrived when both are done.
  void move(const Exchange& exchange, int64_t kind, bool high_priority) {
    const PlannerTransfers& transfers = exchange.transfers;
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
      const auto size = static_cast<double>(transfers.elements[index] * exchange.itemsize);
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
  // for exchanges of very many messages.
  void move_by_hosts(const Exchange& exchange, int64_t kind, bool high_priority) {
    const PlannerTransfers& transfers = exchange.transfers;
    const auto hosts = static_cast<size_t>(machine_.hosts);
    std::vector<int64_t> inside(hosts, 0), sent(hosts, 0), received(hosts, 0);
    for (int64_t index = 0; index < transfers.count; ++index) {
      const int32_t source_host = machine_.host[transfers.sources[index]];
      const int32_t target_host = machine_.host[transfers.targets[index]];
      const int64_t size = transfers.elements[index] * exchange.itemsize;
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
  // The messages and the tasks of the current exchange, by rank.
  std::vector<Traffic> sent_, received_;
  std::vector<int32_t> send_tasks_, receive_tasks_;
  std::vector<std::pair<int64_t, int64_t>> order_;
};

// Adds the transfer of what a held and a needed box have in common, unless the target rank sends it itself.
void add_transfer(const PlannerRankBoxes& held, int64_t source, const PlannerRankBoxes& needed, int64_t target,
                  int32_t sender, PlannerTransfers& transfers) {
  const int64_t width = 2 * held.dimensions;
  const int64_t elements = overlap(held.boxes + source * width, needed.boxes + target * width, held.dimensions);
  if (elements == 0 || sender == needed.ranks[target]) return;
  transfers.sources[transfers.count] = sender;
  transfers.targets[transfers.count] = needed.ranks[target];
  transfers.elements[transfers.count++] = elements;
}

// Returns the indices of ranks that hold the same box, group by group, in order of the first one.
std::vector<std::vector<int64_t>> group_by_box(const PlannerRankBoxes& held) {
  const int64_t width = 2 * held.dimensions;
  std::vector<std::vector<int64_t>> groups;
  for (int64_t index = 0; index < held.count; ++index) {
    const int64_t* box = held.boxes + index * width;
    auto same = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int64_t>& group) {
      return std::equal(box, box + width, held.boxes + group.front() * width);
    });
    if (same == groups.end()) same = groups.insert(groups.end(), std::vector<int64_t>{});
    same->push_back(index);
  }
  return groups;
}

void fill_transfers(const PlannerRankBoxes& held, bool partial, const PlannerRankBoxes& needed,
                    PlannerTransfers& transfers) {
  if (partial) {
    for (int64_t source = 0; source < held.count; ++source) {
      for (int64_t target = 0; target < needed.count; ++target) {
        add_transfer(held, source, needed, target, held.ranks[source], transfers);
      }
    }
    return;
  }
  const auto groups = group_by_box(held);
  std::vector<int64_t> requests(held.count, 0);
  const int64_t width = 2 * held.dimensions;
  // Each target in turn asks the holder that has the fewest requests.
  for (int64_t target = 0; target < needed.count; ++target) {
    for (const auto& group : groups) {
      const bool is_local = std::any_of(group.begin(), group.end(), [&](int64_t holder) {
        return held.ranks[holder] == needed.ranks[target];
      });
      if (is_local || !overlap(held.boxes + group.front() * width, needed.boxes + target * width, held.dimensions)) {
        continue;
      }
      const int64_t source = *std::min_element(group.begin(), group.end(), [&](int64_t holder, int64_t other) {
        return requests[holder] < requests[other];
      });
      ++requests[source];
      add_transfer(held, source, needed, target, held.ranks[source], transfers);
    }
  }
}

// The transfers of gradients: those of the outputs, in the opposite direction, from some of the targets.
class ReversedTransfers {
 public:
  explicit ReversedTransfers(int64_t ranks) : has_gradient_(ranks) {}

  // The arrays of the result are valid until the next call.
  PlannerTransfers reverse(const PlannerTransfers& forward, const int32_t* gradient_ranks, int64_t count) {
    std::fill(has_gradient_.begin(), has_gradient_.end(), false);
    for (int64_t index = 0; index < count; ++index) has_gradient_[gradient_ranks[index]] = true;
    sources_.clear(), targets_.clear(), elements_.clear();
    for (int64_t index = 0; index < forward.count; ++index) {
      if (!has_gradient_[forward.targets[index]]) continue;
      sources_.push_back(forward.targets[index]);
      targets_.push_back(forward.sources[index]);
      elements_.push_back(forward.elements[index]);
    }
    return {sources_.data(), targets_.data(), elements_.data(), static_cast<int64_t>(sources_.size())};
  }

 private:
  std::vector<bool> has_gradient_;
  std::vector<int32_t> sources_, targets_;
  std::vector<int64_t> elements_;
};

}  // namespace

extern "C" {

// Returns 2 if each rank holds exactly the box that it needs, 1 if each holds it or a larger one, else 0.
int64_t planner_coverage(const PlannerRankBoxes* held, const PlannerRankBoxes* needed) {
  const int64_t width = 2 * held->dimensions;
  int64_t source = 0;
  bool is_exact = true;
  for (int64_t target = 0; target < needed->count; ++target) {
    while (source < held->count && held->ranks[source] < needed->ranks[target]) ++source;
    if (source == held->count || held->ranks[source] != needed->ranks[target]) return 0;
    const int64_t *needed_box = needed->boxes + target * width, *held_box = held->boxes + source * width;
    if (std::equal(needed_box, needed_box + width, held_box)) continue;
    is_exact = false;
    for (int64_t end = 0; end < width; end += 2) {
      if (needed_box[end] < held_box[end] || needed_box[end + 1] > held_box[end + 1]) return 0;
    }
  }
  return is_exact ? 2 : 1;
}

// Fills in the transfers that give each rank the box that it needs; returns their number, or -1 if there is no memory.
// Partial sums come from all ranks that hold one. Each target asks one of the ranks that hold the same box.
int64_t planner_transfers(const PlannerRankBoxes* held, int64_t partial, const PlannerRankBoxes* needed,
                          PlannerTransfers* transfers) {
  try {
    fill_transfers(*held, partial, *needed, *transfers);
    return transfers->count;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Builds the tasks of several redistributions that run side by side, or with `back` of their gradients; returns the
// number of tasks, or -1 if there is no memory. Seventeen numbers describe each: the three arrays of its transfers and
// their length; the ranks that hold boxes, the ranks that need them and the ranks that give gradients, each an array
// and its length; and the number of its unit. Then, for a sum in two steps, the transfers of the second step in the same
// form, and the ranks that sum pieces, an array and its length, which is 0 for one step.
int64_t planner_redistributions(const PlannerMachine* machine, const PlannerCost* cost, const int64_t* numbers,
                                int64_t count, int64_t itemsize, int64_t back, PlannerSubgraph* subgraph) {
  try {
    SubgraphBuilder builder(*machine, *subgraph);
    Endpoints first, last;
    ReversedTransfers reversed(machine->ranks);
    std::vector<int32_t> piece_tasks;
    for (int64_t index = 0; index < count; ++index) {
      const PlannerTransfers transfers{array_at<int32_t>(numbers[0]), array_at<int32_t>(numbers[1]),
                                       array_at<int64_t>(numbers[2]), numbers[3]};
      const int32_t *held = array_at<int32_t>(numbers[4]), *needed = array_at<int32_t>(numbers[6]),
                    *gradients = array_at<int32_t>(numbers[8]);
      const int64_t held_count = numbers[5], needed_count = numbers[7], gradient_count = numbers[9];
      const int64_t unit = numbers[10];
      const PlannerTransfers gathered{array_at<int32_t>(numbers[11]), array_at<int32_t>(numbers[12]),
                                      array_at<int64_t>(numbers[13]), numbers[14]};
      const int32_t* pieces = array_at<int32_t>(numbers[15]);
      const int64_t piece_count = numbers[16];
      const int32_t *senders = back ? gradients : held, *receivers = back ? held : needed;
      const int64_t sender_count = back ? gradient_count : held_count, receiver_count = back ? held_count : needed_count;
      const auto direction = [&](const PlannerTransfers& forward, const int32_t* ranks, int64_t rank_count) {
        return back ? reversed.reverse(forward, ranks, rank_count) : forward;
      };
      int32_t first_sender, first_receiver;
      if (piece_count == 0) {
        first_sender = builder.exchange({direction(transfers, gradients, gradient_count), senders, receivers,
                                         sender_count, receiver_count, itemsize},
                                        *cost, true, nullptr, nullptr);
        first_receiver = first_sender + static_cast<int32_t>(sender_count);
      } else {
        first_sender = builder.exchange({direction(back ? gathered : transfers, gradients, gradient_count), senders,
                                         pieces, sender_count, piece_count, itemsize},
                                        *cost, true, nullptr, nullptr);
        piece_tasks.resize(piece_count);
        std::iota(piece_tasks.begin(), piece_tasks.end(), first_sender + static_cast<int32_t>(sender_count));
        first_receiver = builder.exchange({direction(back ? transfers : gathered, pieces, piece_count), pieces,
                                           receivers, piece_count, receiver_count, itemsize},
                                          *cost, true, piece_tasks.data(), nullptr) +
                         static_cast<int32_t>(piece_count);
      }
      for (int64_t sender = 0; sender < sender_count; ++sender) first.add(unit, senders[sender], first_sender++);
      for (int64_t receiver = 0; receiver < receiver_count; ++receiver) {
        last.add(unit, receivers[receiver], first_receiver++);
      }
      numbers += 17;
    }
    return builder.finish(first, last);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Adds the work of tasks of normal priority to the load of each resource. Two numbers describe each array of tasks: its
// address and its length.
int64_t planner_add_load(const int64_t* numbers, int64_t count, double* load) {
  for (int64_t index = 0; index < count; ++index) {
    const Task* task = array_at<Task>(numbers[2 * index]);
    for (const Task* end = task + numbers[2 * index + 1]; task < end; ++task) {
      if (task->high_priority || task->resource < 0) continue;
      load[task->resource] += task->work;
      if (task->second >= 0) load[task->second] += task->work;
    }
  }
  return count;
}

// Builds the tasks of an operator whose shards exchange data: each computes `before` seconds, exchanges, and computes
// `after` seconds. Returns the number of tasks, or -1 if there is no memory.
int64_t planner_collective_operator(const PlannerMachine* machine, const PlannerCost* cost,
                                    const PlannerTransfers* transfers, const int32_t* ranks, int64_t count,
                                    int64_t itemsize, int64_t kind, const double* before, const double* after,
                                    PlannerSubgraph* subgraph) {
  try {
    SubgraphBuilder builder(*machine, *subgraph);
    Endpoints first, last;
    for (int64_t index = 0; index < count; ++index) {
      first.add(0, ranks[index], builder.compute(kind, ranks[index], before[index]));
    }
    const int32_t* computed = first.tasks.data();
    const int32_t first_send = builder.exchange({*transfers, ranks, ranks, count, count, itemsize}, *cost, true,
                                                computed, computed);
    int32_t received = first_send + static_cast<int32_t>(count);
    for (int64_t index = 0; index < count; ++index) {
      last.add(0, ranks[index], builder.compute(kind, ranks[index], after[index]));
      builder.edge(received++, last.tasks.back());
    }
    return builder.finish(first, last);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Builds the tasks of gradient sums among the ranks that hold the same box, by two exchanges, and of the updates.
// Returns the number of tasks, or -1 if there is no memory.
int64_t planner_group_sums(const PlannerMachine* machine, const PlannerCost* cost, const PlannerCost* update,
                           const PlannerRankBoxes* held, int64_t itemsize, PlannerSubgraph* subgraph) {
  try {
    SubgraphBuilder builder(*machine, *subgraph);
    const int64_t width = 2 * held->dimensions;
    Endpoints first, last;
    std::vector<int32_t> ranks, sources, targets, receive_tasks;
    std::vector<int64_t> elements;
    for (const auto& group : group_by_box(*held)) {
      const int64_t* box = held->boxes + group.front() * width;
      const int64_t size = overlap(box, box, held->dimensions);
      const auto count = static_cast<int64_t>(group.size());
      int32_t send_task = -1, gather_task = -1;
      ranks.clear();
      for (int64_t holder : group) ranks.push_back(held->ranks[holder]);
      if (count > 1) {
        sources.clear(), targets.clear(), receive_tasks.clear();
        for (int32_t source : ranks) {
          for (int32_t target : ranks) {
            if (source == target) continue;
            sources.push_back(source);
            targets.push_back(target);
          }
        }
        elements.assign(sources.size(), size / count);
        const PlannerTransfers transfers{sources.data(), targets.data(), elements.data(),
                                         static_cast<int64_t>(sources.size())};
        const Exchange exchange{transfers, ranks.data(), ranks.data(), count, count, itemsize};
        send_task = builder.exchange(exchange, *cost, false, nullptr, nullptr);
        for (int64_t index = 0; index < count; ++index) {
          receive_tasks.push_back(send_task + static_cast<int32_t>(count + index));
        }
        gather_task = builder.exchange(exchange, *cost, false, receive_tasks.data(), receive_tasks.data()) +
                      static_cast<int32_t>(count);
      }
      const double seconds =
          update->fixed + update->per_item * 1.0 + update->per_byte * static_cast<double>(size * itemsize);
      for (int32_t rank : ranks) {
        const int32_t updated = builder.spend(update->kind, rank, seconds);
        if (count > 1) builder.edge(gather_task++, updated);
        first.add(0, rank, count > 1 ? send_task++ : updated);
        last.add(0, rank, updated);
      }
    }
    return builder.finish(first, last);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}
