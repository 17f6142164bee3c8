// A worker's side of allreduces: it writes an input and is told when the output is there.
//
// An allreduce is an operation of MXNet's engine.  The engine calls `start` in one of its threads when the input is
// complete, and is told when the output is.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "completion_thread.h"

namespace lane {

/// The allreduces of a worker.
class WorkerAllreduce {
 public:
  /// `workers` is the number of workers of this host; `notify_agent` notifies an agent of the host by its position.
  WorkerAllreduce(WorkerBlock& block, CompletionThread& completions, uint32_t workers,
                  std::function<void(uint32_t)> notify_agent)
      : block_(block), completions_(completions), workers_(workers), notify_agent_(std::move(notify_agent)) {}

  class Buffer;

  /// Create the buffer of an allreduce that the agent at position `agent` handles.  Returns the descriptor of the
  /// input, which is open until `attach`.
  int open(uint64_t number, uint32_t agent, Dtype dtype, uint64_t count);
  /// Map the output.
  void attach(uint64_t number, int descriptor);
  /// Drop a buffer, whose allreduce is not under way.
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

/// The input and output of an allreduce that runs again and again.
class WorkerAllreduce::Buffer {
 public:
  char* input() const { return input_.at<char>(kAllreduceData); }
  char* output() const { return output_.at<char>(kAllreduceData); }
  /// Set the priority: of allreduces that are ready together, the one with the highest priority starts first.
  void set_priority(int32_t priority) {
    input_.at<AllreduceInput>(0)->priority.store(priority, std::memory_order_relaxed);
  }
  /// Write AllreduceOutput::value_squares and residual_squares.
  void read_squares(double* squares) const {
    const AllreduceOutput* output = output_.at<AllreduceOutput>(0);
    squares[0] = output->value_squares.load(std::memory_order_relaxed);
    squares[1] = output->residual_squares.load(std::memory_order_relaxed);
  }
  /// Start a run; the input is complete.  Calls `complete` once the output is there.
  void start(const OnComplete& complete, AllreduceKind kind = AllreduceKind::kSum);

 private:
  friend class WorkerAllreduce;

  WorkerAllreduce* owner_ = nullptr;
  uint32_t agent_ = 0;
  Memory input_, output_;
  size_t size_ = 0;
  uint32_t round_ = kFirst;
};

}  // namespace lane
