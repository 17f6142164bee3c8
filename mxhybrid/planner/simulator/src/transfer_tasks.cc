// The tasks of redistributions and of sums within groups of ranks, and the load of resources. tests/oracles/
// transfer_tasks.py makes the same tasks in Python, to the last bit.

#include <cstdint>
#include <new>
#include <numeric>
#include <vector>

#include "subgraph_builder.h"
#include "transfers.h"

extern "C" {

// A redistribution, laid out as the numbers that TransferTasks.redistributions packs.
struct PlannerRedistribution {
  PlannerRankBoxes held, needed;
  PlannerTransfers transfers;
  const int32_t* gradient_ranks;
  int64_t gradient_count, unit;
  // For a sum in two steps, the boxes of the ranks that sum pieces, and the transfers of the second step.  Otherwise both
  // are empty.
  PlannerRankBoxes pieces;
  PlannerTransfers gathered;
  // The seconds by rank that holders, and then readers, need to convert their arrays; null if they convert none.
  const double* holder_s;
  const double* reader_s;
};

// Builds the tasks of several redistributions that run side by side, or with `back` of their gradients; returns the
// number of tasks, or -1 if there is no memory.
int64_t planner_redistributions(const PlannerMachine* machine, const PlannerCost* cost,
                                const PlannerRedistribution* units, int64_t count, int64_t itemsize, int64_t back,
                                PlannerSubgraph* subgraph) {
  try {
    SubgraphBuilder builder(*machine, *subgraph);
    Endpoints first, last;
    ReversedTransfers reversed(machine->ranks);
    std::vector<int32_t> piece_tasks;
    std::vector<int64_t> own_elements(machine->ranks), own_of_pieces(machine->ranks);
    for (const PlannerRedistribution* unit = units; unit < units + count; ++unit) {
      const PlannerRankBoxes &held = unit->held, &needed = unit->needed, &pieces = unit->pieces;
      const int32_t *gradients = unit->gradient_ranks, *senders = back ? gradients : held.ranks,
                    *receivers = back ? held.ranks : needed.ranks;
      const int64_t sender_count = back ? unit->gradient_count : held.count,
                    receiver_count = back ? held.count : needed.count;
      const auto direction = [&](const PlannerTransfers& forward, const int32_t* ranks, int64_t rank_count) {
        return back ? reversed.reverse(forward, ranks, rank_count) : forward;
      };
      const double *before = back ? unit->reader_s : unit->holder_s, *after = back ? unit->holder_s : unit->reader_s;
      int32_t first_sender, first_receiver;
      if (pieces.count == 0) {
        find_own(held, needed, own_elements);
        if (back) keep_only(gradients, unit->gradient_count, own_elements);
        first_sender = builder.redistribute({direction(unit->transfers, gradients, unit->gradient_count), senders,
                                             receivers, sender_count, receiver_count, itemsize, own_elements.data(),
                                             before, after},
                                            *cost, true, nullptr, nullptr);
        first_receiver = first_sender + static_cast<int32_t>(sender_count);
      } else {
        find_own(held, pieces, own_elements);
        find_own(pieces, needed, own_of_pieces);
        if (back) keep_only(gradients, unit->gradient_count, own_of_pieces);
        const PlannerTransfers &first_step = back ? unit->gathered : unit->transfers,
                               &second_step = back ? unit->transfers : unit->gathered;
        first_sender = builder.redistribute({direction(first_step, gradients, unit->gradient_count), senders,
                                             pieces.ranks, sender_count, pieces.count, itemsize,
                                             (back ? own_of_pieces : own_elements).data(), before},
                                            *cost, true, nullptr, nullptr);
        piece_tasks.resize(pieces.count);
        std::iota(piece_tasks.begin(), piece_tasks.end(), first_sender + static_cast<int32_t>(sender_count));
        first_receiver = builder.redistribute({direction(second_step, pieces.ranks, pieces.count), pieces.ranks,
                                               receivers, pieces.count, receiver_count, itemsize,
                                               (back ? own_elements : own_of_pieces).data(), nullptr, after},
                                              *cost, true, piece_tasks.data(), nullptr) +
                         static_cast<int32_t>(pieces.count);
      }
      for (int64_t sender = 0; sender < sender_count; ++sender) first.add(unit->unit, senders[sender], first_sender++);
      for (int64_t receiver = 0; receiver < receiver_count; ++receiver) {
        last.add(unit->unit, receivers[receiver], first_receiver++);
      }
    }
    return builder.finish(first, last);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// An array of tasks, laid out as the numbers that TransferTasks.load packs.
struct PlannerTasks {
  const Task* tasks;
  int64_t count;
};

// Adds the work of tasks of normal priority to the load of each resource; returns the number of arrays.
int64_t planner_add_load(const PlannerTasks* arrays, int64_t count, double* load) {
  for (const PlannerTasks* array = arrays; array < arrays + count; ++array) {
    for (const Task* task = array->tasks; task < array->tasks + array->count; ++task) {
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
    const int32_t first_send = builder.redistribute({*transfers, ranks, ranks, count, count, itemsize}, *cost, true,
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

// Builds the tasks of gradient sums among the ranks that hold the same box, in two halves, and of the updates.
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
        const Redistribution redistribution{transfers, ranks.data(), ranks.data(), count, count, itemsize};
        send_task = builder.redistribute(redistribution, *cost, false, nullptr, nullptr);
        for (int64_t index = 0; index < count; ++index) {
          receive_tasks.push_back(send_task + static_cast<int32_t>(count + index));
        }
        gather_task = builder.redistribute(redistribution, *cost, false, receive_tasks.data(), receive_tasks.data()) +
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
