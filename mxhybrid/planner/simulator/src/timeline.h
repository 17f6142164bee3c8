// The resources and the timeline of a simulation, as arrays of Python.

#pragma once

#include <cstdint>

// Laid out as EVENT of timeline.py.
struct Event {
  double ready, start, end;
  int32_t position, pending;
};

// A resource: when it is free, when it is free for high-priority tasks, the level of its token bucket, and the share of
// its last task that is bound by arithmetic.
struct State {
  double free, high_priority_free, level, arithmetic;
};

// Laid out as the structures of the same names of native_backend.py.
extern "C" {

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
}
