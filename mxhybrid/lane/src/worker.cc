#include "worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <set>
#include <stdexcept>
#include <string>

#include "half.h"

namespace lane {
namespace {

/// The number of rows by which prefetching is ahead.
constexpr uint32_t kPrefetchedRows = 6;
/// Memory of a push is given back if it had this many times the rows of the push before, such as a whole table.
constexpr uint32_t kUnusualGrowth = 4;
/// A call for several tables notifies agents of its pushes after this many bytes, so that they work while the call goes
/// on.
constexpr size_t kNotifiedBytes = 1 << 20;

/// Throw std::runtime_error unless a request may have these ids and this staleness.
void check_request(const TableShape& shape, const int64_t* ids, uint32_t count, uint32_t staleness) {
  check_ids(shape, ids, count);
  if (staleness > shape.staleness) throw std::runtime_error("a request with more staleness than its table");
}

/// Append values to a vector with room for them, and return where they are.
template <typename T>
const T* append_copy(std::vector<T>& all, const T* values, uint64_t count) {
  all.insert(all.end(), values, values + count);
  return all.data() + all.size() - count;
}

}  // namespace

/// A row request as its worker sees it.
struct Worker::PostedRequest {
  bool used = false;
  bool delivered = false;  // by the completion thread, now or later
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
  /// For each partition: the position of the agent of this host that handles it, whether that agent owns it and shares
  /// its rows, and the offset of its rows there if so.
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
  /// With staleness: the ids of the last pushes, the latest first, as many as the staleness.
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
  if (::write(doorbells_[agent], &signal, sizeof signal) < 0) {
    // It is ringing already, or the agent is gone, which the job monitor notices.
  }
}

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

/// Return whether the agents have consumed the last push to a table, and, if asked, all rows are delivered.
bool Worker::may_push(const Table& table, bool after_deliveries) {
  const bool is_consumed = std::all_of(table.push_agents.begin(), table.push_agents.end(), [&table](uint32_t agent) {
    return reached(table.views[agent].shared->consumed.load(std::memory_order_acquire), table.pushes);
  });
  // With staleness, rows that are under way stay when a push follows.
  if (!is_consumed || !after_deliveries || table.shape.staleness > 0) return is_consumed;
  std::lock_guard<std::mutex> lock(mutex_);
  return std::none_of(table.requests, table.requests + kMaxRowRequests,
                      [](const PostedRequest& request) { return request.delivered; });
}

bool Worker::push(uint32_t number, const int64_t* ids, uint32_t count, const char* rows, int milliseconds,
                  uint32_t flags) {
  const std::shared_ptr<Table> table = this->table(number);
  check_ids(table->shape, ids, count);
  if (!wait_until([&] { return may_push(*table, false); }, milliseconds)) return false;
  Doorbells doorbells(*this);
  write_push(*table, {number, count, ids, count, 0, nullptr, const_cast<char*>(rows), nullptr, nullptr}, flags);
  announce_push(*table, doorbells);
  return true;
}

uint32_t Worker::push(const TableRows* pushes, uint32_t tables, int milliseconds) {
  std::vector<std::shared_ptr<Table>> targets;
  for (uint32_t i = 0; i < tables; ++i) {
    targets.push_back(table(static_cast<uint32_t>(pushes[i].table)));
    check_ids(targets[i]->shape, pushes[i].ids, static_cast<uint32_t>(pushes[i].count));
    pushes[i].check_positions();
  }
  Doorbells doorbells(*this);
  size_t unannounced_bytes = 0;
  for (uint32_t i = 0; i < tables; ++i) {
    Table& table = *targets[i];
    if (!may_push(table, true)) {
      doorbells.ring();
      if (!wait_until([&] { return may_push(table, true); }, milliseconds)) return i;
    }
    write_push(table, pushes[i], 0);
    announce_push(table, doorbells);
    unannounced_bytes += pushes[i].count * table.shape.row_bytes();
    if (unannounced_bytes < kNotifiedBytes) continue;
    doorbells.ring();
    unannounced_bytes = 0;
  }
  return tables;
}

void Worker::write_push(Table& table, const TableRows& push, uint32_t flags) {
  const TableShape& shape = table.shape;
  const WorkerTableLayout& layout = table.layout;
  const size_t row_bytes = shape.row_bytes();
  const uint32_t count = static_cast<uint32_t>(push.count);
  if (table.pushed_last > kUnusualGrowth * std::max<uint32_t>(table.pushed_before, 1024)) {
    table.memory.discard(layout.push_rows, table.pushed_last * row_bytes);
  }
  if (table.pushed_last) table.pushed_before = table.pushed_last;
  table.pushed_last = count;
  uint32_t* bounds = table.memory.at<uint32_t>(layout.push_bounds);
  void* const to_ids = table.memory.at<void>(layout.push_ids);
  char* to = table.memory.at<char>(layout.push_rows);
  const uint32_t* order = nullptr;
  if (shape.partitions() == 1) {
    split(shape, push.ids, count, bounds, to_ids, nullptr);
  } else {
    table.order.resize(count);
    split(shape, push.ids, count, bounds, to_ids, table.order.data());
    order = table.order.data();
  }
  if (push.positions != nullptr) {
    if (order != nullptr) {
      table.places.resize(count);
      for (uint32_t i = 0; i < count; ++i) table.places[order[i]] = i;
    }
    sum_rows(shape.dtype, shape.width, push, order == nullptr ? nullptr : table.places.data(), to);
  } else if (order == nullptr) {
    if (count) std::memcpy(to, push.rows, count * row_bytes);
  } else {
    for (uint32_t i = 0; i < count; ++i) std::memcpy(to + i * row_bytes, push.rows + order[i] * row_bytes, row_bytes);
  }
  if (shape.format == RowFormat::kFloat16 && !(flags & kExactRows) &&
      !fits(reinterpret_cast<const float*>(to), static_cast<size_t>(count) * shape.width)) {
    table.overflows |= kPushedOverflow;
  }
  table.shared->push_flags = flags;
  if (shape.staleness > 0) {
    if (table.recent.size() == shape.staleness) table.recent.pop_back();
    table.recent.emplace_front(push.ids, push.ids + count);
  }
}

void Worker::announce_push(Table& table, Doorbells& doorbells) {
  ++table.pushes;
  table.shared->pushed.store(table.pushes, std::memory_order_release);
  table.shared->activity.add();
  const uint32_t workers = membership_.worker_counts[host_];
  for (uint32_t agent : table.push_agents) {
    // The worker that completes a round notifies the agent.
    if (completes_round(table.views[agent].shared->arrived, workers)) doorbells.add(agent);
  }
}

void Worker::split_request(Table& table, int handle, const int64_t* ids, uint32_t count, uint32_t staleness) {
  const TableShape& shape = table.shape;
  const WorkerTableLayout& layout = table.layout;
  std::vector<uint32_t>& order = table.requests[handle].order;
  uint32_t* bounds = table.memory.at<uint32_t>(layout.request_bounds[handle]);
  char* const request_ids = table.memory.at<char>(layout.request_ids[handle]);
  if (shape.staleness == 0) {
    split(shape, ids, count, bounds, static_cast<void*>(request_ids), order.data());
    return;
  }
  const uint32_t newest = shape.staleness;
  std::vector<uint8_t> groups(count, static_cast<uint8_t>(newest - staleness));
  for (uint32_t age = 0; age < table.recent.size() && age < staleness; ++age) {
    // A row of the push before `age` later ones must include that push.
    const std::vector<int64_t>& pushed = table.recent[age];
    auto next = pushed.begin();
    for (uint32_t i = 0; i < count && next != pushed.end(); ++i) {
      next = std::lower_bound(next, pushed.end(), ids[i]);
      if (next != pushed.end() && *next == ids[i]) {
        groups[i] = std::max(groups[i], static_cast<uint8_t>(newest - age));
      }
    }
  }
  std::vector<int64_t> group_ids;
  std::vector<uint32_t> positions, group_order;
  uint32_t first = 0;
  for (uint32_t group = 0; group <= newest; ++group, bounds += shape.partitions()) {
    group_ids.clear();
    positions.clear();
    for (uint32_t i = 0; i < count; ++i) {
      if (groups[i] != group) continue;
      group_ids.push_back(ids[i]);
      positions.push_back(i);
    }
    const uint32_t size = static_cast<uint32_t>(positions.size());
    group_order.resize(size);
    split(shape, group_ids.data(), size, bounds, static_cast<void*>(request_ids + first * shape.id_bytes()),
          group_order.data());
    for (uint32_t i = 0; i < size; ++i) order[first + i] = positions[group_order[i]];
    for (uint32_t part = 0; part <= shape.partitions(); ++part) bounds[part] += first;
    first += size;
  }
}

int Worker::post(uint32_t number, const int64_t* ids, uint32_t count, uint32_t flags, bool delivered,
                 uint32_t staleness, uint32_t ahead) {
  const std::shared_ptr<Table> table = this->table(number);
  check_request(table->shape, ids, count, staleness);
  Doorbells doorbells(*this);
  return post(*table, ids, count, flags, delivered, staleness, ahead, doorbells);
}

bool Worker::post(const TableRows* requests, const uint32_t* stalenesses, uint32_t tables, int* handles) {
  std::vector<std::shared_ptr<Table>> targets;
  for (uint32_t i = 0; i < tables; ++i) {
    targets.push_back(table(static_cast<uint32_t>(requests[i].table)));
    check_request(targets[i]->shape, requests[i].ids, static_cast<uint32_t>(requests[i].count), stalenesses[i]);
    requests[i].check_positions();
    if (requests[i].positions != nullptr && !targets[i]->shape.dynamic) {
      throw std::runtime_error("only rows of dynamic tables can be requested by position");
    }
  }
  Doorbells doorbells(*this);
  bool are_posted = true;
  for (uint32_t i = 0; i < tables; ++i) {
    if (handles[i] >= 0) continue;
    handles[i] = post(*targets[i], requests[i].ids, static_cast<uint32_t>(requests[i].count), 0, true, stalenesses[i],
                      0, doorbells);
    are_posted = are_posted && handles[i] >= 0;
  }
  return are_posted;
}

int Worker::post(Table& table, const int64_t* ids, uint32_t count, uint32_t flags, bool delivered, uint32_t staleness,
                 uint32_t ahead, Doorbells& doorbells) {
  int handle = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    while (handle < kMaxRowRequests && table.requests[handle].used) ++handle;
    if (handle == kMaxRowRequests) return -1;
    table.requests[handle].used = true;
    table.requests[handle].delivered = delivered;
  }
  PostedRequest& request = table.requests[handle];
  RowRequest& shared = table.shared->requests[handle];
  request.version = table.pushes;
  request.flags = flags;
  request.order.resize(count);
  split_request(table, handle, ids, count, flags ? 0 : staleness);
  shared.version = request.version;
  shared.flags = flags;
  shared.used_at = request.version + ahead;
  if (!table.pull_agents.empty()) {
    request.posted = shared.posted.load() + 1;
    shared.posted.store(request.posted, std::memory_order_release);
    table.shared->activity.add();
    for (uint32_t agent : table.pull_agents) doorbells.add(agent);
  }
  return handle;
}

bool Worker::is_completed(const Table& table, int handle) {
  const PostedRequest& request = table.requests[handle];
  const auto has_applied = [&](uint32_t agent) {
    return reached(table.views[agent].shared->version.load(std::memory_order_acquire), request.version);
  };
  const auto has_completed = [&](uint32_t agent) {
    return reached(table.shared->requests[handle].completed[agent].load(std::memory_order_acquire), request.posted);
  };
  // Rows of a table with staleness may be there before all pushes are applied; a fence waits for the pushes.
  const bool includes_pushes = table.shape.staleness == 0 || (request.flags & kFence);
  return (!includes_pushes || std::all_of(table.push_agents.begin(), table.push_agents.end(), has_applied)) &&
         std::all_of(table.pull_agents.begin(), table.pull_agents.end(), has_completed);
}

bool Worker::wait(uint32_t number, int handle, char* out, int milliseconds) {
  const std::shared_ptr<Table> table_pointer = this->table(number);
  Table& table = *table_pointer;
  if (!wait_until([&] { return is_completed(table, handle); }, milliseconds)) return false;
  write(table, handle, out);
  release(table, handle);
  return true;
}

void Worker::deliver(uint32_t number, int handle, char* out, const OnComplete& complete) {
  const std::shared_ptr<Table> table_pointer = table(number);
  completions_.add([this, table_pointer, handle] { return is_completed(*table_pointer, handle); },
                   [this, table_pointer, handle, out, complete] {
                     write(*table_pointer, handle, out);
                     release(*table_pointer, handle);
                     notify(*block_.at<WorkerBlock>(0));  // a thread may wait in `wait_for_deliveries` or `push`
                     complete();
                   });
}

Worker::Deliveries::Deliveries(Worker& worker, const TableRows* rows, uint32_t tables, const int* handles)
    : worker(worker), rows(rows, rows + tables), handles(handles, handles + tables) {
  size_t num_positions = 0, num_bounds = 0, factor_bytes = 0;
  for (const TableRows& part : this->rows) {
    tables_.push_back(worker.table(static_cast<uint32_t>(part.table)));
    left_.push_back(static_cast<uint32_t>(left_.size()));
    if (part.positions != nullptr) num_positions += part.num_positions;
    if (part.bounds != nullptr) num_bounds += part.num_rows + 1;
    if (part.factors != nullptr) factor_bytes += part.num_positions * size_of(tables_.back()->shape.dtype);
  }
  positions_.reserve(num_positions);
  bounds_.reserve(num_bounds);
  // Factors have the alignment of their type: tables of one call have the same type.
  factors_.reserve(factor_bytes);
  for (uint32_t i = 0; i < tables; ++i) {
    TableRows& part = this->rows[i];
    if (part.positions != nullptr) part.positions = append_copy(positions_, part.positions, part.num_positions);
    if (part.bounds != nullptr) part.bounds = append_copy(bounds_, part.bounds, part.num_rows + 1);
    if (part.factors != nullptr) {
      part.factors = append_copy(factors_, part.factors, part.num_positions * size_of(tables_[i]->shape.dtype));
    }
  }
}

/// Write the rows of requests that are completed; return whether all requests are written.
bool Worker::Deliveries::write_completed() {
  left_.erase(std::remove_if(left_.begin(), left_.end(),
                             [this](uint32_t i) {
                               if (!worker.is_completed(*tables_[i], handles[i])) return false;
                               worker.write(*tables_[i], handles[i], rows[i]);
                               worker.release(*tables_[i], handles[i]);
                               return true;
                             }),
              left_.end());
  return left_.empty();
}

void Worker::deliver(std::unique_ptr<Deliveries> deliveries, const OnComplete& complete) {
  const std::shared_ptr<Deliveries> shared = std::move(deliveries);
  completions_.add([shared] { return shared->write_completed(); },
                   [this, shared, complete] {
                     notify(*block_.at<WorkerBlock>(0));  // a thread may wait in `wait_for_deliveries` or `push`
                     complete();
                   });
}

void Worker::add_traffic(uint64_t* sent, uint64_t* received) const {
  for (const Memory& block : blocks_) {
    if (!block.mapped()) continue;
    const Traffic& traffic = block.at<AgentBlock>(0)->traffic;
    for (int kind = 0; kind < kMessageKinds; ++kind) {
      sent[kind] += traffic.sent[kind].load(std::memory_order_relaxed);
      received[kind] += traffic.received[kind].load(std::memory_order_relaxed);
    }
  }
}

void Worker::add_cache_counts(uint32_t number, uint64_t& requested, uint64_t& cached) {
  for (const AgentView& view : table(number)->views) {
    if (view.shared == nullptr) continue;
    requested += view.shared->cache_counts.requested.load(std::memory_order_relaxed);
    cached += view.shared->cache_counts.cached.load(std::memory_order_relaxed);
  }
}

void Worker::add_lags(uint32_t number, uint64_t* lags) {
  const std::shared_ptr<Table> table_pointer = table(number);
  for (uint32_t agent : table_pointer->pull_agents) {
    for (uint32_t lag = 0; lag <= kMaxStaleness; ++lag) {
      lags[lag] += table_pointer->views[agent].shared->lags[lag].load(std::memory_order_relaxed);
    }
  }
}

uint32_t Worker::overflows(uint32_t number) { return table(number)->overflows.exchange(0); }

bool Worker::wait_for_deliveries(uint32_t number, int milliseconds) {
  const std::shared_ptr<Table> table = this->table(number);
  return wait_until(
      [&] {
        std::lock_guard<std::mutex> lock(mutex_);
        return std::none_of(table->requests, table->requests + kMaxRowRequests,
                            [](const PostedRequest& request) { return request.delivered; });
      },
      milliseconds);
}

/// Call `write(position of the id, row, bytes of the row)` for each row of a completed request.
template <typename Write>
void Worker::each_row(Table& table, int handle, Write write) {
  PostedRequest& request = table.requests[handle];
  const uint32_t* bounds = table.memory.at<uint32_t>(table.layout.request_bounds[handle]);
  const int32_t* local_ids = table.memory.at<int32_t>(table.layout.request_ids[handle]);
  const uint32_t* slots = table.memory.at<uint32_t>(table.layout.request_slots[handle]);
  const size_t row_bytes = table.shape.row_bytes();
  const uint32_t parts = table.shape.partitions();
  for (uint32_t number = 0; number < table.shape.groups() * parts; ++number) {
    const uint32_t part = number % parts;
    const uint32_t agent = table.handlers[part], first = bounds[number], last = bounds[number + 1];
    const AgentView& view = table.views[agent];
    const bool is_readable = table.readable[part];
    const char* from = view.memory.at<char>(is_readable                        ? table.shards[part]
                                            : request.flags & kUncached ? table.uncached[agent]
                                                                        : table.cache[agent]);
    for (uint32_t i = first; i < last; ++i) {
      if (i + kPrefetchedRows < last) {
        const size_t ahead =
            is_readable ? static_cast<uint32_t>(local_ids[i + kPrefetchedRows]) : slots[i + kPrefetchedRows];
        __builtin_prefetch(from + ahead * row_bytes);
      }
      const size_t row = is_readable ? static_cast<uint32_t>(local_ids[i]) : slots[i];
      const uint64_t number = is_readable ? row_number(table.shape, part, local_ids[i]) : 0;
      write(request.order[i], from + row * row_bytes, is_readable, number);
    }
  }
}

void Worker::write(Table& table, int handle, char* out) {
  const size_t row_bytes = table.shape.row_bytes();
  const PostedRequest& request = table.requests[handle];
  const bool rounded = table.shape.rounds(request.flags & kUncached);
  const bool may_overflow = rounded && table.shape.format == RowFormat::kFloat16;
  const RoundingContext rounding{table.number, kAnswers, request.version};
  bool overflow = false;
  each_row(table, handle, [&](uint32_t position, const char* row, bool is_readable, uint64_t number) {
    char* to = out + position * row_bytes;
    if (is_readable && rounded) {
      // Other hosts get rounded rows, and all workers have to see the same values.
      round_answer(table.shape, rounding, number, row, to);
    } else {
      std::memcpy(to, row, row_bytes);
    }
    overflow = overflow || (may_overflow && !finite(reinterpret_cast<const float*>(to), table.shape.width));
  });
  if (overflow) table.overflows |= kPulledOverflow;
}

void Worker::write(Table& table, int handle, const TableRows& rows) {
  if (rows.positions == nullptr) return write(table, handle, rows.rows);
  bool overflow = false;
  std::vector<const char*> row_of(rows.count);
  const bool may_overflow = table.shape.format == RowFormat::kFloat16;
  each_row(table, handle, [&](uint32_t position, const char* row, bool, uint64_t) {
    row_of[position] = row;
    overflow = overflow || (may_overflow && !finite(reinterpret_cast<const float*>(row), table.shape.width));
  });
  write_rows(table.shape.dtype, table.shape.width, row_of.data(), rows);
  if (overflow) table.overflows |= kPulledOverflow;
}

/// Release a request whose rows are written; return whether the completion thread has written them.
bool Worker::release(Table& table, int handle) {
  PostedRequest& request = table.requests[handle];
  table.shared->requests[handle].released.store(request.posted);
  for (uint32_t agent : table.pull_agents) {
    if (!(request.flags & kUncached) || !table.views[agent].shared->pull_waiting.load()) continue;
    table.shared->activity.add();
    notify_agent(agent);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const bool was_delivered = request.delivered;
  request.used = request.delivered = false;
  return was_delivered;
}

}  // namespace lane
