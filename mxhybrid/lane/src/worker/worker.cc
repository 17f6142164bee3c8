#include "worker/worker.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

#include "base/system_calls.h"
#include "worker/worker_tables.h"

namespace lane {

Worker::Worker(Membership membership, uint32_t host, uint32_t local)
    : membership_(std::move(membership)),
      host_(host),
      agents_(membership_.agents_of(host)),
      block_(sizeof(WorkerBlock)),
      blocks_(agents_.size()),
      doorbells_(agents_.size(), -1),
      completions_(*block_.at<WorkerBlock>(0)),
      allreduce_(*block_.at<WorkerBlock>(0), completions_,
                 LocalRank{local, membership_.worker_counts.at(host), membership_.has_one_host()},
                 [this](uint32_t agent) { notify_agent(agent); }),
      channels_(std::make_shared<WorkerChannels>(*block_.at<WorkerBlock>(0), completions_,
                                                 [this](uint32_t agent) { notify_agent(agent); })) {}

Worker::~Worker() {
  completions_.close();
  channels_->close();
  for (int doorbell : doorbells_) {
    if (doorbell >= 0) ::close(doorbell);
  }
}

void Worker::add_agent(uint32_t agent, int doorbell, int descriptor) {
  const uint32_t index = position(agent);
  blocks_.at(index) = Memory(descriptor, sizeof(AgentBlock));
  doorbells_.at(index) = doorbell;
}

uint32_t Worker::position(uint32_t agent) const {
  return static_cast<uint32_t>(std::find(agents_.begin(), agents_.end(), agent) - agents_.begin());
}

int Worker::add_table(uint32_t number, const TableShape& shape) {
  auto table = std::make_shared<Table>(number, shape);
  table->views.resize(agents_.size());
  table->shards.resize(shape.partitions());
  std::set<uint32_t> push_agents, pull_agents;
  for (uint32_t owner : shape.owners) {
    const uint32_t agent = membership_.handler(host_, owner);
    const uint32_t index = position(agent);
    table->handlers.push_back(index);
    const bool is_readable = agent == owner && !shape.requested();
    table->readable.push_back(is_readable);
    push_agents.insert(index);
    if (!is_readable) pull_agents.insert(index);
  }
  table->push_agents.assign(push_agents.begin(), push_agents.end());
  table->pull_agents.assign(pull_agents.begin(), pull_agents.end());
  std::lock_guard<std::mutex> lock(mutex_);
  tables_[number] = table;
  return table->memory.descriptor();
}

void Worker::attach(uint32_t number, uint32_t agent, int descriptor) {
  const std::shared_ptr<Table> table = this->table(number);
  const uint32_t index = position(agent);
  std::vector<uint8_t> handled;
  for (uint32_t handler : table->handlers) handled.push_back(handler == index);
  const AgentTableLayout layout(table->shape, agent, handled, membership_.worker_counts[host_]);
  AgentView& view = table->views.at(index);
  view.memory = Memory(descriptor, layout.size);
  view.shared = view.memory.at<AgentTable>(0);
  table->cache[index] = layout.cache;
  table->uncached[index] = layout.uncached;
  for (uint32_t part = 0; part < table->shape.partitions(); ++part) {
    if (handled[part]) table->shards[part] = layout.shards[part];
  }
  const bool is_complete = std::all_of(table->views.begin(), table->views.end(),
                               [](const AgentView& other) { return other.memory.mapped(); });
  if (is_complete) table->memory.close_descriptor();
}

Dtype Worker::dtype(uint32_t number) { return table(number)->shape.dtype; }

void Worker::drop_table(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  tables_.erase(number);
}

std::shared_ptr<Worker::Table> Worker::table(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto entry = tables_.find(number);
  if (entry == tables_.end()) throw std::runtime_error("no table has number " + std::to_string(number));
  return entry->second;
}

void Worker::notify_agent(uint32_t agent) {
  if (!blocks_[agent].at<AgentBlock>(0)->asleep.load()) return;
  const uint64_t signal = 1;
  // It fails if the doorbell is ringing already, or the agent is gone, which the job monitor notices.
  uninterrupted([&] { return ::write(doorbells_[agent], &signal, sizeof signal); });
}

void Worker::read_traffic(uint64_t* sent, uint64_t* received) const {
  std::fill_n(sent, kMessageKinds, 0);
  std::fill_n(received, kMessageKinds, 0);
  for (const Memory& block : blocks_) {
    if (!block.mapped()) continue;
    const Traffic& traffic = block.at<AgentBlock>(0)->traffic;
    for (int kind = 0; kind < kMessageKinds; ++kind) {
      sent[kind] += traffic.sent[kind].load(std::memory_order_relaxed);
      received[kind] += traffic.received[kind].load(std::memory_order_relaxed);
    }
  }
}

void Worker::read_cache_counts(uint32_t number, uint64_t* counts) {
  counts[0] = counts[1] = 0;
  for (const AgentView& view : table(number)->views) {
    if (view.shared == nullptr) continue;
    counts[0] += view.shared->cache_counts.requested.load(std::memory_order_relaxed);
    counts[1] += view.shared->cache_counts.cached.load(std::memory_order_relaxed);
  }
}

void Worker::read_lags(uint32_t number, uint64_t* lags) {
  std::fill_n(lags, kMaxStaleness + 1, 0);
  const std::shared_ptr<Table> table_pointer = table(number);
  for (uint32_t agent : table_pointer->pull_agents) {
    for (uint32_t lag = 0; lag <= kMaxStaleness; ++lag) {
      lags[lag] += table_pointer->views[agent].shared->lags[lag].load(std::memory_order_relaxed);
    }
  }
}

uint32_t Worker::overflows(uint32_t number) { return table(number)->overflows.exchange(0); }

}  // namespace lane
