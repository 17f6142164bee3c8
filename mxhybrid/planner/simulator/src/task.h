// A task of the simulation, as task_block.py's TASK.

#pragma once

#include <cstdint>

struct Task {
  double work, latency;
  int64_t order;
  int32_t resource, second;
  int32_t inner, inner_end, outer, outer_end;
  // What it is for pictures: its kind, and sixteen times its rank, counted from 1.
  int32_t express, kind_code;
};

// Arrays of Python's are given as numbers, by where they are.
template <typename Type>
Type* array_at(int64_t address) {
  return reinterpret_cast<Type*>(static_cast<intptr_t>(address));
}
