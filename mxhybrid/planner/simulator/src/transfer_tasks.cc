// Tasks of exchanges and of sums among some ranks, and what tasks are to resources: what transfer_tasks.py makes, to the last
// bit, and faster.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#include "task.h"

// As native_transfer_tasks.py's structures of the same names.
extern "C" {

struct PlannerMachine {
  const int32_t* core;
  const int32_t* host;
  const int32_t* up;
  const int32_t* down;
  // By rank: how fast a core is while all of its host compute, beside one alone.
  const double* shared;
  int64_t ranks, hosts;
  double link_latency, memory_latency, memory_rate;
};

// Seconds of a rank's core for a side of an exchange, and what passes after it; `kind` is what pictures call it.
struct PlannerCost {
  double fixed, per_item, per_byte, latency;
  int64_t kind;
};

// Boxes by rank; ranks go up. A box is the low and the high end of each dimension.
struct PlannerBoxes {
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

// Where tasks go, and numbers: successors, a table of ports, and units, ranks and tasks of the first and of the last
// ends; there is room for all. How many there are of each, and the largest number of a resource.
struct PlannerSubgraph {
  Task* tasks;
  int32_t* numbers;
  int64_t targets, ports, first, last, top;
};
}

namespace {

int64_t volume(const int64_t* one, const int64_t* other, int64_t dimensions) {
  int64_t found = 1;
  for (int64_t at = 0; at < 2 * dimensions; at += 2) {
    found *= std::max<int64_t>(0, std::min(one[at + 1], other[at + 1]) - std::max(one[at], other[at]));
  }
  return found;
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

// What moves, and who gives and takes.
struct Exchanged {
  PlannerTransfers moved;
  const int32_t* givers;
  const int32_t* takers;
  int64_t giving, taking, itemsize;
};

class Builder {
 public:
  Builder(const PlannerMachine& machine, PlannerSubgraph& made) : machine_(machine), made_(made) {}

  // A rank computes for so long, if no other core of its host does.
  int32_t compute(int64_t kind, int32_t rank, double seconds) {
    return add(kind, rank, machine_.core[rank], seconds, 0.0);
  }

  // A rank is busy for so long by a cost of the cluster, all others of its host busy, too.
  int32_t spend(int64_t kind, int32_t rank, double seconds, double latency = 0.0) {
    return add(kind, rank, machine_.core[rank], seconds * machine_.shared[rank], latency);
  }

  void edge(int32_t before, int32_t after) { edges_.push_back({before, after}); }

  // Ranks give, what they give moves, ranks take. `before` are tasks before each of them, or there are none. The first
  // task; those of givers, and behind them those of takers, follow each other.
  int32_t exchange(const Exchanged& unit, const PlannerCost& cost, bool express, const int32_t* before_givers,
                   const int32_t* before_takers) {
    const PlannerTransfers& moved = unit.moved;
    const auto ranks = static_cast<size_t>(machine_.ranks);
    gives_.assign(ranks, {0, 0});
    takes_.assign(ranks, {0, 0});
    for (int64_t at = 0; at < moved.count; ++at) {
      gives_[moved.sources[at]].add(moved.elements[at] * unit.itemsize);
      takes_[moved.targets[at]].add(moved.elements[at] * unit.itemsize);
    }
    give_.assign(ranks, -1);
    take_.assign(ranks, -1);
    const int32_t first = size_;
    for (int64_t at = 0; at < unit.giving; ++at) {
      const int32_t rank = unit.givers[at];
      give_[rank] = spend(cost.kind, rank, gives_[rank].seconds(cost), cost.latency);
      if (before_givers) edge(before_givers[at], give_[rank]);
    }
    for (int64_t at = 0; at < unit.taking; ++at) {
      const int32_t rank = unit.takers[at];
      take_[rank] = spend(cost.kind, rank, takes_[rank].seconds(cost));
      if (before_takers) edge(before_takers[at], take_[rank]);
      if (give_[rank] >= 0) edge(give_[rank], take_[rank]);
    }
    if (moved.count > 8 * machine_.ranks) {
      move_by_hosts(unit, cost.kind, express);
    } else {
      move(unit, cost.kind, express);
    }
    return first;
  }

  // Puts all but tasks where it goes; how many tasks there are.
  int64_t finish(const Endpoints& first, const Endpoints& last) {
    std::vector<int32_t> ends(size_ + 1, 0);
    for (const Edge& one : edges_) ++ends[one.before + 1];
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    made_.top = -1;
    for (int32_t at = 0; at < size_; ++at) {
      Task& task = made_.tasks[at];
      task.inner = ends[at];
      task.inner_end = ends[at + 1];
      made_.top = std::max<int64_t>(made_.top, std::max(task.resource, task.second));
    }
    for (const Edge& one : edges_) made_.numbers[ends[one.before]++] = one.after;
    made_.targets = static_cast<int64_t>(edges_.size());
    int32_t* to = made_.numbers + made_.targets;
    made_.ports = 1;
    for (size_t at = 0; at < last.tasks.size(); ++at) made_.ports = std::max(made_.ports, port(last, at) + 2);
    std::fill_n(to, made_.ports, -1);
    for (size_t at = 0; at < last.tasks.size(); ++at) to[port(last, at)] = last.tasks[at];
    to += made_.ports;
    for (const Endpoints* one : {&first, &last}) {
      for (const std::vector<int32_t>* numbers : {&one->units, &one->ranks, &one->tasks}) {
        to = std::copy(numbers->begin(), numbers->end(), to);
      }
    }
    made_.first = static_cast<int64_t>(first.tasks.size());
    made_.last = static_cast<int64_t>(last.tasks.size());
    return size_;
  }

 private:
  struct Edge {
    int32_t before, after;
  };

  struct Side {
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

  int64_t port(const Endpoints& ends, size_t at) const { return ends.units[at] * machine_.ranks + ends.ranks[at]; }

  int32_t add(int64_t kind, int32_t rank, int32_t resource, double work, double latency, bool express = false) {
    const auto kind_code = static_cast<int32_t>((rank + 1) * 16 + kind);
    made_.tasks[size_] = Task{work, latency, size_, resource, -1, 0, 0, 0, 0, express, kind_code};
    return size_++;
  }

  double in_memory(double size) const { return machine_.memory_latency + size / machine_.memory_rate; }

  void move(const Exchanged& unit, int64_t kind, bool express) {
    const PlannerTransfers& moved = unit.moved;
    const auto ranks = static_cast<int32_t>(machine_.ranks);
    order_.resize(moved.count);
    // As senders go about it: each begins with the next rank.  Links share what they carry: no message waits until both
    // have nothing else, and it has arrived when both are done with it.
    for (int64_t at = 0; at < moved.count; ++at) {
      const int64_t turn = (moved.targets[at] - moved.sources[at] + ranks) % ranks;
      order_[at] = {turn * ranks + moved.sources[at], at};
    }
    std::sort(order_.begin(), order_.end());
    for (const auto& [turn, number] : order_) {
      const int32_t source = moved.sources[number], target = moved.targets[number];
      const auto size = static_cast<double>(moved.elements[number] * unit.itemsize);
      const int32_t here = machine_.host[source], there = machine_.host[target];
      const auto between = [&](int32_t at) {
        edge(give_[source], at);
        edge(at, take_[target]);
      };
      if (here == there) {
        between(add(kind, source, -1, 0.0, in_memory(size)));
      } else {
        between(add(kind, source, machine_.up[here], size, machine_.link_latency, express));
        between(add(kind, target, machine_.down[there], size, machine_.link_latency, express));
      }
    }
  }

  // Of very many messages, all that a host sends is one task, and all that it receives another.
  void move_by_hosts(const Exchanged& unit, int64_t kind, bool express) {
    const PlannerTransfers& moved = unit.moved;
    const auto hosts = static_cast<size_t>(machine_.hosts);
    std::vector<int64_t> inside(hosts, 0), sent(hosts, 0), got(hosts, 0);
    for (int64_t at = 0; at < moved.count; ++at) {
      const int32_t here = machine_.host[moved.sources[at]], there = machine_.host[moved.targets[at]];
      const int64_t size = moved.elements[at] * unit.itemsize;
      if (here == there) {
        inside[here] += size;
      } else {
        sent[here] += size;
        got[there] += size;
      }
    }
    // Ranks are numbered host by host.
    std::vector<std::vector<int32_t>> before(hosts), after(hosts);
    for (int32_t rank = 0; rank < machine_.ranks; ++rank) {
      if (gives_[rank].messages) before[machine_.host[rank]].push_back(give_[rank]);
      if (takes_[rank].messages) after[machine_.host[rank]].push_back(take_[rank]);
    }
    const int32_t given = add(kind, -1, -1, 0.0, 0.0), arrived = add(kind, -1, -1, 0.0, 0.0);
    for (size_t host = 0; host < hosts; ++host) {
      if (sent[host]) {
        const int32_t at = add(kind, -1, machine_.up[host], static_cast<double>(sent[host]), machine_.link_latency,
                               express);
        for (int32_t one : before[host]) {
          edge(one, at);
          edge(one, given);
        }
        edge(at, arrived);
      }
      if (inside[host]) {
        const int32_t at = add(kind, -1, -1, 0.0, in_memory(static_cast<double>(inside[host])));
        for (int32_t one : before[host]) edge(one, at);
        for (int32_t one : after[host]) edge(at, one);
      }
      if (got[host]) {
        const int32_t at = add(kind, -1, machine_.down[host], static_cast<double>(got[host]), machine_.link_latency,
                               express);
        edge(given, at);
        for (int32_t one : after[host]) {
          edge(at, one);
          edge(arrived, one);
        }
      }
    }
  }

  const PlannerMachine& machine_;
  PlannerSubgraph& made_;
  int32_t size_ = 0;
  std::vector<Edge> edges_;
  // Of the exchange under way, by rank.
  std::vector<Side> gives_, takes_;
  std::vector<int32_t> give_, take_;
  std::vector<std::pair<int64_t, int64_t>> order_;
};

// What each box of `have` and each of `wanted` have in common moves, but not to where it is already.
void add_moved(const PlannerBoxes& have, int64_t source, const PlannerBoxes& wanted, int64_t target, int32_t sender,
               PlannerTransfers& made) {
  const int64_t width = 2 * have.dimensions;
  const int64_t elements = volume(have.boxes + source * width, wanted.boxes + target * width, have.dimensions);
  if (elements == 0 || sender == wanted.ranks[target]) return;
  made.sources[made.count] = sender;
  made.targets[made.count] = wanted.ranks[target];
  made.elements[made.count++] = elements;
}

// Those who hold the same box, by the first of them.
std::vector<std::vector<int64_t>> holders_of(const PlannerBoxes& have) {
  const int64_t width = 2 * have.dimensions;
  std::vector<std::vector<int64_t>> found;
  for (int64_t at = 0; at < have.count; ++at) {
    const int64_t* box = have.boxes + at * width;
    auto same = std::find_if(found.begin(), found.end(), [&](const std::vector<int64_t>& group) {
      return std::equal(box, box + width, have.boxes + group.front() * width);
    });
    if (same == found.end()) same = found.insert(found.end(), std::vector<int64_t>{});
    same->push_back(at);
  }
  return found;
}

void fill_moved(const PlannerBoxes& have, bool partial, const PlannerBoxes& wanted, PlannerTransfers& made) {
  if (partial) {
    for (int64_t source = 0; source < have.count; ++source) {
      for (int64_t target = 0; target < wanted.count; ++target) {
        add_moved(have, source, wanted, target, have.ranks[source], made);
      }
    }
    return;
  }
  const auto groups = holders_of(have);
  std::vector<int64_t> asked(have.count, 0);
  const int64_t width = 2 * have.dimensions;
  // Target by target, from the one that few others ask.
  for (int64_t target = 0; target < wanted.count; ++target) {
    for (const auto& group : groups) {
      const bool own = std::any_of(group.begin(), group.end(), [&](int64_t one) {
        return have.ranks[one] == wanted.ranks[target];
      });
      if (own || !volume(have.boxes + group.front() * width, wanted.boxes + target * width, have.dimensions)) continue;
      const int64_t source = *std::min_element(
          group.begin(), group.end(), [&](int64_t one, int64_t other) { return asked[one] < asked[other]; });
      ++asked[source];
      add_moved(have, source, wanted, target, have.ranks[source], made);
    }
  }
}

// What comes back as gradients, from those who answer.
class Reversed {
 public:
  explicit Reversed(int64_t ranks) : answers_(ranks) {}

  // Good until it is called again.
  PlannerTransfers of(const PlannerTransfers& there, const int32_t* answers, int64_t count) {
    std::fill(answers_.begin(), answers_.end(), false);
    for (int64_t at = 0; at < count; ++at) answers_[answers[at]] = true;
    sources_.clear(), targets_.clear(), elements_.clear();
    for (int64_t at = 0; at < there.count; ++at) {
      if (!answers_[there.targets[at]]) continue;
      sources_.push_back(there.targets[at]);
      targets_.push_back(there.sources[at]);
      elements_.push_back(there.elements[at]);
    }
    return {sources_.data(), targets_.data(), elements_.data(), static_cast<int64_t>(sources_.size())};
  }

 private:
  std::vector<bool> answers_;
  std::vector<int32_t> sources_, targets_;
  std::vector<int64_t> elements_;
};

}  // namespace

extern "C" {

// 2 if every rank has just what it wants, 1 if it has more, else 0.
int64_t planner_has(const PlannerBoxes* have, const PlannerBoxes* wanted) {
  const int64_t width = 2 * have->dimensions;
  int64_t at = 0;
  bool exactly = true;
  for (int64_t target = 0; target < wanted->count; ++target) {
    while (at < have->count && have->ranks[at] < wanted->ranks[target]) ++at;
    if (at == have->count || have->ranks[at] != wanted->ranks[target]) return 0;
    const int64_t *box = wanted->boxes + target * width, *held = have->boxes + at * width;
    if (std::equal(box, box + width, held)) continue;
    exactly = false;
    for (int64_t one = 0; one < width; one += 2) {
      if (box[one] < held[one] || box[one + 1] > held[one + 1]) return 0;
    }
  }
  return exactly ? 2 : 1;
}

// What moves, see redistribution.moved(), or -1 where there is no memory.
int64_t planner_moved(const PlannerBoxes* have, int64_t partial, const PlannerBoxes* wanted, PlannerTransfers* made) {
  try {
    fill_moved(*have, partial, *wanted, *made);
    return made->count;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Exchanges beside each other, there or back: how many tasks they are, or -1 where there is no memory. Each unit is given
// by what moves, who has it, who wants it, who answers, and its number.
int64_t planner_exchanges(const PlannerMachine* machine, const PlannerCost* cost, const int64_t* given, int64_t count,
                          int64_t itemsize, int64_t back, PlannerSubgraph* made) {
  try {
    Builder builder(*machine, *made);
    Endpoints first, last;
    Reversed reversed(machine->ranks);
    for (int64_t at = 0; at < count; ++at) {
      const PlannerTransfers moved{array_at<int32_t>(given[0]), array_at<int32_t>(given[1]), array_at<int64_t>(given[2]),
                               given[3]};
      const int32_t *have = array_at<int32_t>(given[4]), *wanted = array_at<int32_t>(given[6]),
                    *answers = array_at<int32_t>(given[8]);
      const int64_t having = given[5], wanting = given[7], answering = given[9], number = given[10];
      const Exchanged unit = back ? Exchanged{reversed.of(moved, answers, answering), answers, have, answering, having,
                                              itemsize}
                                  : Exchanged{moved, have, wanted, having, wanting, itemsize};
      int32_t task = builder.exchange(unit, *cost, true, nullptr, nullptr);
      for (int64_t one = 0; one < unit.giving; ++one) first.add(number, unit.givers[one], task++);
      for (int64_t one = 0; one < unit.taking; ++one) last.add(number, unit.takers[one], task++);
      given += 11;
    }
    return builder.finish(first, last);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Adds what resources have to do for tasks that are not express, of contents given by where their tasks are, and how
// many.
int64_t planner_work_of(const int64_t* given, int64_t count, double* work) {
  for (int64_t at = 0; at < count; ++at) {
    const Task* task = array_at<Task>(given[2 * at]);
    for (const Task* end = task + given[2 * at + 1]; task < end; ++task) {
      if (task->express || task->resource < 0) continue;
      work[task->resource] += task->work;
      if (task->second >= 0) work[task->second] += task->work;
    }
  }
  return count;
}

// An operator whose parts, on some ranks, exchange something after some seconds and before some others.
int64_t planner_composed(const PlannerMachine* machine, const PlannerCost* cost, const PlannerTransfers* moved,
                         const int32_t* ranks, int64_t count, int64_t itemsize, int64_t kind, const double* before,
                         const double* after, PlannerSubgraph* made) {
  try {
    Builder builder(*machine, *made);
    Endpoints first, last;
    for (int64_t at = 0; at < count; ++at) first.add(0, ranks[at], builder.compute(kind, ranks[at], before[at]));
    const int32_t* begun = first.tasks.data();
    int32_t told = builder.exchange({*moved, ranks, ranks, count, count, itemsize}, *cost, true, begun, begun) +
                   static_cast<int32_t>(count);
    for (int64_t at = 0; at < count; ++at) {
      last.add(0, ranks[at], builder.compute(kind, ranks[at], after[at]));
      builder.edge(told++, last.tasks.back());
    }
    return builder.finish(first, last);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Sums of gradients among those who hold the same box, by two exchanges, and updates.
int64_t planner_group_sums(const PlannerMachine* machine, const PlannerCost* cost, const PlannerCost* update,
                           const PlannerBoxes* held, int64_t itemsize, PlannerSubgraph* made) {
  try {
    Builder builder(*machine, *made);
    const int64_t width = 2 * held->dimensions;
    Endpoints first, last;
    std::vector<int32_t> ranks, sources, targets, takes;
    std::vector<int64_t> elements;
    for (const auto& group : holders_of(*held)) {
      const int64_t* box = held->boxes + group.front() * width;
      const int64_t size = volume(box, box, held->dimensions);
      const auto count = static_cast<int64_t>(group.size());
      int32_t given = -1, gathered = -1;
      ranks.clear();
      for (int64_t one : group) ranks.push_back(held->ranks[one]);
      if (count > 1) {
        sources.clear(), targets.clear(), takes.clear();
        for (int32_t one : ranks) {
          for (int32_t other : ranks) {
            if (one == other) continue;
            sources.push_back(one);
            targets.push_back(other);
          }
        }
        elements.assign(sources.size(), size / count);
        const PlannerTransfers moved{sources.data(), targets.data(), elements.data(), static_cast<int64_t>(sources.size())};
        const Exchanged unit{moved, ranks.data(), ranks.data(), count, count, itemsize};
        given = builder.exchange(unit, *cost, false, nullptr, nullptr);
        for (int64_t at = 0; at < count; ++at) takes.push_back(given + static_cast<int32_t>(count + at));
        gathered = builder.exchange(unit, *cost, false, takes.data(), takes.data()) + static_cast<int32_t>(count);
      }
      const double seconds =
          update->fixed + update->per_item * 1.0 + update->per_byte * static_cast<double>(size * itemsize);
      for (int32_t rank : ranks) {
        const int32_t updated = builder.spend(update->kind, rank, seconds);
        if (count > 1) builder.edge(gathered++, updated);
        first.add(0, rank, count > 1 ? given++ : updated);
        last.add(0, rank, updated);
      }
    }
    return builder.finish(first, last);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}
