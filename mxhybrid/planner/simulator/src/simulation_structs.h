// Structures of the functions for simulations: arrays of Python, and their lengths.

#pragma once

#include <cstdint>

extern "C" {

// A task, laid out as TASK of task_block.py.
struct Task {
  double work, latency;
  // The share of the work that is bound by arithmetic; memory bounds the rest.
  double arithmetic;
  int64_t order;
  int32_t resource, second;
  int32_t inner, inner_end, outer, outer_end;
  int32_t high_priority;
  // The code of the task's kind plus sixteen times its rank, counted from 1; reports show both.
  int32_t kind_code;
};

// Laid out as EVENT of task_table.py.
struct Event {
  double ready, start, end;
  int32_t position, pending;
};

// A resource: when it is free, when it is free for high-priority tasks, the level of its token bucket, and the share of
// its last task that is bound by arithmetic.
struct State {
  double free, high_priority_free, level, arithmetic;
};

// The other structures are laid out as those of the same names of native_backend.py.

// The arrays of a TaskTable of task_table.py.
struct PlannerTaskTable {
  Task* tasks;
  int32_t* successors;
  int32_t* outer_successors;
  int32_t* bases;
  int32_t* sizes;
  int64_t* keys;
  uint8_t* alive;
  // The number of used tasks, inner successors, outer successors and slots; and the number of live tasks.
  int64_t* counts;
  int64_t max_tasks, max_successors, max_outer_successors, max_slots;

  int64_t used() const { return counts[0]; }
  int64_t slots() const { return counts[3]; }
};

struct PlannerRates {
  const double* rate;
  const double* peak;
  const double* burst;
  // The number of each resource's group; -1 for none.
  const int32_t* group;
  // How many times as long work takes, by group, then for arithmetic and for memory, then by the number of the group's
  // busy resources, which is less than `width`.
  const double* slowdowns;
  int64_t resources, width;
};

struct PlannerTimeline {
  Event* events;
  int64_t* dispatched;
  double* last_ready;
  State* states;
  int64_t* snapshots;
  double* finish;
  int64_t stride, max_snapshots;
};

// A change of the tasks; the arrays have enough capacity.
struct PlannerReplacement {
  int64_t* changed;
  int64_t* removed;
  int64_t changed_count, removed_count, first_new;
};
}
