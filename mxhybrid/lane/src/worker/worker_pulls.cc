// Row requests of a worker, and the delivery of their rows.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/half.h"
#include "worker/worker_tables.h"

namespace lane {
namespace {

/// The number of rows by which prefetching is ahead.
constexpr uint32_t kPrefetchedRows = 6;

/// Throw std::runtime_error unless a request may have these ids and this staleness.
void check_request(const TableShape& shape, const int64_t* ids, uint32_t count, uint32_t staleness) {
  check_ids(shape, ids, count);
  if (staleness > shape.staleness) throw std::runtime_error("a request with more staleness than its table");
}

/// Return a copy of values, which is kept in a list; null for null alone.
template <typename T>
const T* kept_copy(std::vector<std::vector<T>>& copies, const T* values, uint64_t count) {
  if (values == nullptr) return nullptr;
  copies.emplace_back(values, values + count).reserve(1);  // an empty copy has an address, too
  return copies.back().data();
}

}  // namespace

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
  try {
    for (uint32_t i = 0; i < tables; ++i) {
      if (handles[i] >= 0) continue;
      handles[i] = post(*targets[i], requests[i].ids, static_cast<uint32_t>(requests[i].count), 0, true, stalenesses[i],
                        0, doorbells);
      are_posted = are_posted && handles[i] >= 0;
    }
  } catch (...) {
    abandon(requests, tables, handles);
    throw;
  }
  return are_posted;
}

void Worker::abandon(const TableRows* requests, uint32_t tables, const int* handles) {
  for (uint32_t i = 0; i < tables; ++i) {
    if (handles[i] >= 0) abandon(static_cast<uint32_t>(requests[i].table), handles[i]);
  }
}

void Worker::abandon(uint32_t number, int handle) {
  PostedRequest& request = table(number)->requests[handle];
  std::lock_guard<std::mutex> lock(mutex_);
  request.delivered = false;
  request.abandoned = true;
}

int Worker::post(Table& table, const int64_t* ids, uint32_t count, uint32_t flags, bool delivered, uint32_t staleness,
                 uint32_t ahead, Doorbells& doorbells) {
  int handle = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto is_free = [&] {
      const PostedRequest& request = table.requests[handle];
      if (request.abandoned && is_completed(table, handle)) {
        free_rows(table, handle);
        return true;
      }
      return !request.used;
    };
    while (handle < kMaxRowRequests && !is_free()) ++handle;
    if (handle == kMaxRowRequests) return -1;
    table.requests[handle].used = true;
    table.requests[handle].delivered = delivered;
    table.requests[handle].abandoned = false;
  }
  PostedRequest& request = table.requests[handle];
  RowRequest& shared = table.shared->requests[handle];
  request.version = table.pushes;
  request.flags = flags;
  try {
    request.order.resize(count);
    split_request(table, handle, ids, count, flags ? 0 : staleness);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    request.used = request.delivered = false;
    throw;
  }
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

Worker::Deliveries::Deliveries(Worker& worker, const TableRows* rows, uint32_t tables, const int* handles)
    : worker(worker), rows(rows, rows + tables), handles(handles, handles + tables) {
  for (TableRows& part : this->rows) {
    tables_.push_back(worker.table(static_cast<uint32_t>(part.table)));
    left_.push_back(static_cast<uint32_t>(left_.size()));
    part.positions = kept_copy(positions_, part.positions, part.num_positions);
    part.bounds = kept_copy(bounds_, part.bounds, part.num_rows + 1);
    part.factors = kept_copy(factors_, part.factors, part.num_positions * size_of(tables_.back()->shape.dtype));
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

bool Worker::wait_for_deliveries(uint32_t number, int milliseconds) {
  const std::shared_ptr<Table> table = this->table(number);
  return wait_until([&] { return is_delivered(*table); }, milliseconds);
}

/// Return whether the rows of all requests of a table are delivered.
bool Worker::is_delivered(const Table& table) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::none_of(table.requests, table.requests + kMaxRowRequests,
                      [](const PostedRequest& request) { return request.delivered; });
}

/// Call `write(position of the id, row, whether it is read in place, its number if so)` for each row of a completed
/// request.
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
    const auto row_of = [&](uint32_t i) {
      return from + size_t{is_readable ? static_cast<uint32_t>(local_ids[i]) : slots[i]} * row_bytes;
    };
    for (uint32_t i = first; i < last; ++i) {
      if (i + kPrefetchedRows < last) __builtin_prefetch(row_of(i + kPrefetchedRows));
      const uint64_t number = is_readable ? row_number(table.shape, part, local_ids[i]) : 0;
      write(request.order[i], row_of(i), is_readable, number);
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

/// Let the agents use the memory of the rows of a request again.
void Worker::free_rows(Table& table, int handle) {
  const PostedRequest& request = table.requests[handle];
  table.shared->requests[handle].released.store(request.posted);
  for (uint32_t agent : table.pull_agents) {
    if (!(request.flags & kUncached) || !table.views[agent].shared->pull_waiting.load()) continue;
    table.shared->activity.add();
    notify_agent(agent);
  }
}

/// Release a request whose rows are written.
void Worker::release(Table& table, int handle) {
  free_rows(table, handle);
  PostedRequest& request = table.requests[handle];
  std::lock_guard<std::mutex> lock(mutex_);
  request.used = request.delivered = false;
}

}  // namespace lane
