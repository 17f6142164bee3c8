// Definitions that the source files of Worker share: its tables, their requests, and waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <vector>

#include "worker/worker.h"

namespace lane {

/// A row request as its worker sees it.
struct Worker::PostedRequest {
  bool used = false;
  bool delivered = false;  // by the completion thread, now or later
  bool abandoned = false;  // not used by anybody, but its slot is free only when the agents have completed it
  uint32_t version = kFirst, posted = kFirst, flags = 0;
  std::vector<uint32_t> order;
};

/// The memory that an agent of this host shares for a table.
struct Worker::AgentView {
  Memory memory;
  AgentTable* shared = nullptr;
};

struct Worker::Table {
  Table(uint32_t number, const TableShape& shape)
      : number(number), shape(shape), layout(shape), memory(layout.size), shared(memory.at<WorkerTable>(0)) {}

  const uint32_t number;
  const TableShape shape;
  const WorkerTableLayout layout;
  Memory memory;
  WorkerTable* const shared;
  /// Arrays over partitions: the position of the agent of this host that handles the partition, whether that agent owns
  /// the partition and shares its rows, and the offset of its rows there if so.
  std::vector<uint32_t> handlers;
  std::vector<uint8_t> readable;
  std::vector<size_t> shards;
  size_t cache[kMaxLocalAgents] = {}, uncached[kMaxLocalAgents] = {};
  std::vector<AgentView> views;
  /// The positions of the agents that take pushes and of those that serve row requests, see TableShape.  The worker
  /// notifies these agents, and waits for them.
  std::vector<uint32_t> push_agents, pull_agents;
  uint32_t pushes = kFirst;
  uint32_t pushed_before = 0, pushed_last = 0;
  /// The ids of the last pushes, as many as the staleness, the latest first.
  std::deque<std::vector<int64_t>> recent;
  PostedRequest requests[kMaxRowRequests];
  std::vector<uint32_t> order, places;
  std::atomic<uint32_t> overflows{0};
};

/// The agents that a call has to notify.  Each of them is notified once for several tables.
class Worker::Doorbells {
 public:
  explicit Doorbells(Worker& worker) : worker_(worker), due_(worker.agents_.size(), 0) {}
  ~Doorbells() { ring(); }
  void add(uint32_t agent) { due_[agent] = 1; }
  void ring() {
    for (uint32_t agent = 0; agent < due_.size(); ++agent) {
      if (due_[agent]) worker_.notify_agent(agent);
      due_[agent] = 0;
    }
  }

 private:
  Worker& worker_;
  std::vector<uint8_t> due_;
};

template <typename Done>
bool Worker::wait_until(Done done, int milliseconds) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(milliseconds);
  WorkerBlock& block = *block_.at<WorkerBlock>(0);
  for (;;) {
    const uint32_t seen = block.doorbell.load();
    if (done()) return true;
    const auto left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left_ms <= 0) return false;
    block.sleepers.fetch_add(1);
    block.doorbell.sleep_while(seen, static_cast<int>(left_ms));
    block.sleepers.fetch_sub(1);
  }
}

}  // namespace lane
