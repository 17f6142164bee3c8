// A thread of a worker that ends operations of MXNet's engine once what they wait for is there.
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "mxnet_api.h"
#include "shared.h"

namespace lane {

class CompletionThread {
 public:
  /// What agents do becomes visible with `doorbell`, and `sleepers` are woken.
  explicit CompletionThread(WorkerBlock& block) : block_(block) {}
  ~CompletionThread() { close(); }
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  /// Call `finish`, in the thread, once `ready` is true, which only the thread calls.
  void add(std::function<bool()> ready, std::function<void()> finish);
  /// The same of what was not ready after the doorbell was at `seen`, and whose change is followed by the doorbell: the
  /// thread is not woken before.
  void add_unready(std::function<bool()> ready, std::function<void()> finish, uint32_t seen);
  /// End the thread; nothing is under way, or nobody waits for it any more.
  void close();

 private:
  struct Item {
    std::function<bool()> ready;
    std::function<void()> finish;
  };

  void push(Item item);
  void serve();

  WorkerBlock& block_;
  std::mutex mutex_;
  std::vector<Item> added_;  // that the thread has not seen yet
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace lane
