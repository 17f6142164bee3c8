// Where the tasks of all blocks lie, as task_table.py has it.

#pragma once

#include <cstdint>

#include "task.h"

// As native_task_table.py's structure of the same name: arrays of Python's, and how long they are.
extern "C" {

struct PlannerTaskTable {
  Task* tasks;
  int32_t* targets;
  int32_t* outer_targets;
  int32_t* bases;
  int32_t* sizes;
  int64_t* keys;
  uint8_t* alive;
  // How many are used of tasks, of both kinds of successors, and of slots; and how many tasks live.
  int64_t* counts;
  int64_t most_tasks, most_targets, most_outer_targets, most_slots;

  int64_t used() const { return counts[0]; }
  int64_t slots() const { return counts[3]; }
};
}
