// Several dense gradients in one sum, and what becomes of it: operations of MXNet's engine, which calls these functions
// in its threads when the arrays are there.
#pragma once

#include <vector>

#include "mxnet_api.h"
#include "update.h"
#include "worker_allreduce.h"

namespace lane {

/// Each operation that is under way shares the bucket, which outlives what the script has of it.
class GradientBucket {
 public:
  /// Values of `dtype` that travel as those of the sum: the same, or float32 as float16.
  GradientBucket(WorkerAllreduce::Buffer& buffer, Dtype dtype, bool halves, ArrayFunctions functions)
      : buffer_(buffer), dtype_(dtype), halves_(halves), functions_(functions) {}
  ~GradientBucket();
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  /// One more gradient, an array of MXNet's on the CPU in its default layout, of so many elements; it is taken over.
  void add(void* gradient, size_t count);
  /// The gradients are computed: give them, and `complete` once the sums are there.
  void start(const OnComplete& complete);

  struct Target {
    char* weight;
    char* state[2];
    double lr, wd;
  };
  /// Update the weights, in the order of the gradients.
  void update(const Rule& rule, const std::vector<Target>& targets);

 private:
  struct Item {
    void* gradient;
    size_t first, count;
  };

  WorkerAllreduce::Buffer& buffer_;
  const Dtype dtype_;
  const bool halves_;
  const ArrayFunctions functions_;
  std::vector<Item> items_;
  size_t count_ = 0;
};

}  // namespace lane
