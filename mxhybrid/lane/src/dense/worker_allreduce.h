// A worker's side of allreduces: it writes an input and is told when the output is complete.
//
// An allreduce is an operation of MXNet's engine.  The engine calls `start` in one of its threads when the input is
// complete, and is told when the output is.
//
// If all workers are on one host, the last of them whose input is complete also writes the output, see shared.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "dense/completion_thread.h"

namespace lane {

/// The place of a worker among those of its host.
struct LocalRank {
  uint32_t number = 0, workers = 0;
  /// Whether these are all workers of the job.
  bool is_one_host = false;
};

/// Elements of an input that are elsewhere than in the input's memory.
struct InputPiece {
  size_t first, count;
  const char* data;
};

/// The allreduces of a worker.
class WorkerAllreduce {
 public:
  /// `notify_agent` notifies an agent of the host by its position.
  WorkerAllreduce(WorkerBlock& block, CompletionThread& completions, LocalRank local,
                  std::function<void(uint32_t)> notify_agent)
      : block_(block), completions_(completions), local_(local), notify_agent_(std::move(notify_agent)) {}

  class Buffer;

  /// Create the buffer of an allreduce that the agent at position `agent` handles.  Returns the descriptor of the
  /// input, which is open until `attach`.
  int open(uint64_t number, uint32_t agent, Dtype dtype, uint64_t count);
  /// Map the output, and return the buffer.
  Buffer& attach(uint64_t number, int descriptor);
  /// Drop a buffer, whose allreduce is not under way.
  void drop(uint64_t number);
  Buffer& buffer(uint64_t number);

 private:
  WorkerBlock& block_;
  CompletionThread& completions_;
  const LocalRank local_;
  const std::function<void(uint32_t)> notify_agent_;
  std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Buffer>> buffers_;
};

/// The input and output of an allreduce that runs again and again; `attach` comes first.
class WorkerAllreduce::Buffer {
 public:
  char* input() const { return values_; }
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
  /// Start a run; the input is complete, except for `pieces`, which are in order.  Calls `complete` once the output is
  /// there.
  void start(const OnComplete& complete, AllreduceKind kind = AllreduceKind::kSum,
             const std::vector<InputPiece>& pieces = {});

 private:
  friend class WorkerAllreduce;

  bool is_last() const;
  void copy(const std::vector<InputPiece>& pieces);
  void write_output(AllreduceKind kind, const std::vector<InputPiece>& pieces);
  void add_inputs(size_t first, size_t count, const char* local_input);

  WorkerAllreduce* owner_ = nullptr;
  uint32_t agent_ = 0;
  Dtype dtype_ = Dtype::kFloat32;
  uint64_t count_ = 0;
  Memory input_, output_;
  char* values_ = nullptr;
  /// The inputs of all workers and the ends of their ranges, if all workers are on one host.
  std::vector<char*> inputs_;
  const uint64_t* ends_ = nullptr;
  uint32_t round_ = kFirst;
};

}  // namespace lane
