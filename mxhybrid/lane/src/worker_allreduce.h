// A worker's side of dense sums: it gives values, and goes on once the result is there.
//
// A sum is an operation of MXNet's engine: that calls `begin` in one of its threads when the values are in their place,
// and is told when the result is there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "completion_thread.h"

namespace lane {

class WorkerAllreduce {
 public:
  /// With the worker's block, how many workers its host has, and what rings an agent of the host, by its position.
  WorkerAllreduce(WorkerBlock& block, CompletionThread& completions, uint32_t workers,
             std::function<void(uint32_t)> notify_agent)
      : block_(block), completions_(completions), workers_(workers), notify_agent_(std::move(notify_agent)) {}

  class Buffer;

  /// Make a sum of which the agent at position `agent` takes care; the descriptor of the values, which the sum keeps
  /// until it is attached.
  int open(uint64_t number, uint32_t agent, Dtype dtype, uint64_t count);
  /// Map the result.
  void attach(uint64_t number, int descriptor);
  /// It is used no more; nothing is under way.
  void drop(uint64_t number);
  Buffer& buffer(uint64_t number);

 private:
  WorkerBlock& block_;
  CompletionThread& completions_;
  const uint32_t workers_;
  const std::function<void(uint32_t)> notify_agent_;
  std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Buffer>> buffers_;
};

class WorkerAllreduce::Buffer {
 public:
  char* input() const { return input_.at<char>(kAllreduceData); }
  char* output() const { return output_.at<char>(kAllreduceData); }
  /// Sums that are ready together are made in the order of their priorities, the highest first.
  void set_priority(int32_t priority) {
    input_.at<AllreduceInput>(0)->priority.store(priority, std::memory_order_relaxed);
  }
  /// The values are in their place; `complete` is to be called when the result is.
  void start(const OnComplete& complete);

 private:
  friend class WorkerAllreduce;

  WorkerAllreduce* all_ = nullptr;
  uint32_t agent_ = 0;
  Memory input_, output_;
  size_t size_ = 0;
  uint32_t round_ = kFirst;
};

}  // namespace lane
