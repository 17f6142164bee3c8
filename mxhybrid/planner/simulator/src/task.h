// A task of the simulation, laid out as TASK of task_block.py.

#pragma once

#include <cstdint>

struct Task {
  double work, latency;
  // The share of the work that is bound by arithmetic; memory bounds the rest.
  double arithmetic;
  int64_t order;
  int32_t resource, second;
  int32_t inner, inner_end, outer, outer_end;
  int32_t high_priority;
  // For reports: the kind of the task, and sixteen times its rank, counted from 1.
  int32_t kind_code;
};
