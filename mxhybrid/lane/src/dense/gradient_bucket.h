// Gradient buckets: several dense gradients in one allreduce, and the update of their weights.  Both are operations of
// MXNet's engine, which calls these functions in its threads when the arrays are ready.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "dense/worker_allreduce.h"
#include "kernels/update.h"
#include "operators/mxnet_api.h"

namespace lane {

/// Arrays of MXNet on the CPU that an update writes.  Operations under way share it, so the arrays outlive the script's
/// references.
class WrittenArrays {
 public:
  /// Take over `arrays`, each of which may be null.  `reorder` changes the layout of a storage to the default one; if it
  /// is null, all arrays are in that layout.
  WrittenArrays(ArrayFunctions functions, void (*reorder)(void* storage), std::vector<void*> arrays)
      : functions_(functions), reorder_(reorder), arrays_(std::move(arrays)) {}
  ~WrittenArrays();
  WrittenArrays(const WrittenArrays&) = delete;
  WrittenArrays& operator=(const WrittenArrays&) = delete;

  /// Return the memory of an array in the default layout, or null.  The caller is an operation of the engine that writes
  /// the array: an operation that ran before may have changed its layout.
  char* memory(size_t index) const;

 private:
  const ArrayFunctions functions_;
  void (*const reorder_)(void* storage);
  const std::vector<void*> arrays_;
};

/// A gradient bucket.  Operations and updates share it, so it may outlive the script's reference.
class GradientBucket {
 public:
  /// Create a bucket of gradients of `dtype`, which has the type of the buffer; with `halves` the gradients are float32
  /// and the buffer float16.
  GradientBucket(WorkerAllreduce::Buffer& buffer, Dtype dtype, bool halves, ArrayFunctions functions)
      : buffer_(buffer), dtype_(dtype), halves_(halves), functions_(functions) {}
  ~GradientBucket();
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  /// Add a gradient of `count` elements, an array of MXNet on the CPU in the default layout.  The bucket takes it over.
  /// A null gradient leaves its range of the buffer as it is, and has no target of an update.
  void add(void* gradient, size_t count);
  /// Start the allreduce of the gradients, which are computed.  Calls `complete` when the sums are.
  void start(const OnComplete& complete, AllreduceKind kind = AllreduceKind::kSum);
  bool halves() const { return halves_; }
  /// Return the sums of gradient `number` among those that are not null, of the type of the buffer.
  const char* sums(size_t number) const {
    return buffer_.output() + items_[number].first * (halves_ ? 2 : size_of(dtype_));
  }

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

/// The learning rate and the weight decay of a weight.
struct Rates {
  double lr, wd;
};

/// An update of weights.
struct DenseUpdate {
  Rule rule;
  Dtype dtype;
  /// Whether MXNet's operator would get the rates as lists for several weights.
  bool in_lists;
  /// Five arrays for each weight: the weight, its gradient, two arrays of optimizer state, and an array to which the
  /// weight is copied; null for those that it lacks.
  std::shared_ptr<WrittenArrays> arrays;
  /// The number of elements of each weight.
  std::vector<size_t> sizes;
  std::vector<Rates> rates;
  /// The bucket with whose sums the weights are updated, which are those of its gradients that are not null; the sums are
  /// also written to the gradients that the update has.  If there is none, the weights are updated with their gradients.
  std::shared_ptr<GradientBucket> bucket;

  void run() const;
};

}  // namespace lane
