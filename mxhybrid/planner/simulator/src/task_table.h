// The arrays of a TaskTable of task_table.py.

#pragma once

#include <cstdint>

#include "task.h"

// Laid out as the structure of the same name of native_backend.py: arrays of Python, and their lengths.
extern "C" {

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
}
