// The completion thread of a worker, which completes operations of MXNet's engine once their results are complete.
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/shared.h"
#include "operators/mxnet_api.h"

namespace lane {

class CompletionThread {
 public:
  /// Agents ring the doorbell of `block` after every event that may make an operation ready.
  explicit CompletionThread(WorkerBlock& block) : block_(block) {}
  ~CompletionThread() { close(); }
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  /// Add an operation: once `ready` returns true, the thread calls `finish`.  Only the thread calls `ready`.
  void add(std::function<bool()> ready, std::function<void()> finish);
  /// Add an operation that was not ready when the doorbell had the value `seen`, and that becomes ready before the
  /// doorbell rings.  The thread is woken only if the doorbell has rung since.
  void add_unready(std::function<bool()> ready, std::function<void()> finish, uint32_t seen);
  /// End the thread.  No operation is under way, or none is waited for any more.
  void close();

 private:
  struct Item {
    std::function<bool()> ready;
    std::function<void()> finish;
  };

  void push(Item item);
  void run();
  void serve();

  WorkerBlock& block_;
  std::mutex mutex_;
  std::vector<Item> added_;  // operations that the thread has not seen yet
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace lane
