// Structures of the functions for transfers and their tasks.

#pragma once

#include <cstdint>

#include "simulation_structs.h"

// Laid out as the structures of the same names of transfer_tasks.py.
extern "C" {

struct PlannerMachine {
  const int32_t* core;
  const int32_t* host;
  const int32_t* up;
  const int32_t* down;
  // The speed of each rank's core while all cores of its host compute, relative to its speed alone.
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
