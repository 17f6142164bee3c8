// A worker's side of dense sums: it gives values, and goes on once the result is there.
//
// A sum is an operation of MXNet's engine: that calls `begin` in one of its threads when the values are in their place,
// and is told by a thread of this class when the result is there.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shared.h"

namespace lane {

/// `class CallbackOnComplete` of MXNet's include/mxnet/engine.h.
struct OnComplete {
  void (*callback)(void* engine, void* parameter, const void* error);
  void* engine;
  void* parameter;
};

class WorkerSums {
 public:
  /// With the worker's block, how many workers its host has, and what rings a node of the host, by its position.
  WorkerSums(WorkerBlock& block, uint32_t workers, std::function<void(uint32_t)> ring);
  ~WorkerSums();

  class Sum;

  /// Make a sum of which the node at position `node` takes care; the descriptor of the values, which the sum keeps until
  /// it is attached.
  int open(uint64_t number, uint32_t node, Dtype dtype, uint64_t count);
  /// Map the result.
  void attach(uint64_t number, int descriptor);
  /// It is used no more; nothing is under way.
  void drop(uint64_t number);
  Sum& sum(uint64_t number);
  /// End the thread; nothing is under way, or nobody waits for it any more.
  void close();

 private:
  void serve();

  WorkerBlock& block_;
  const uint32_t workers_;
  const std::function<void(uint32_t)> ring_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::unique_ptr<Sum>> sums_;
  std::vector<Sum*> under_way_;
  bool closing_ = false;
  std::thread thread_;
};

class WorkerSums::Sum {
 public:
  char* given() const { return given_.at<char>(kSumData); }
  char* total() const { return total_.at<char>(kSumData); }
  /// Sums that are ready together are made in the order of their priorities, the highest first.
  void set_priority(int32_t priority) { given_.at<SumGiven>(0)->priority = priority; }
  /// The values are in their place; `complete` is to be called when the result is.
  void begin(const OnComplete& complete);

 private:
  friend class WorkerSums;

  bool is_done() const { return reached(total_.at<SumTotal>(0)->done.load(std::memory_order_acquire), round_); }

  WorkerSums* all_ = nullptr;
  uint32_t node_ = 0;
  Memory given_, total_;
  size_t size_ = 0;
  uint32_t round_ = 0;
  OnComplete complete_ = {};
};

}  // namespace lane
