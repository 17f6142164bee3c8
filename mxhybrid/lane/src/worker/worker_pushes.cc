// Pushes of a worker.
#include <algorithm>
#include <cstring>

#include "kernels/half.h"
#include "worker/worker_tables.h"

namespace lane {
namespace {

/// Memory of a push is given back if it had this many times the rows of the push before, such as a whole table.
constexpr uint32_t kUnusualGrowth = 4;
/// A call for several tables notifies agents of its pushes after this many bytes, so that they work while the call goes
/// on.
constexpr size_t kNotifiedBytes = 1 << 20;

}  // namespace

/// Return whether the agents have consumed the last push to a table, and, if asked, all rows are delivered.
bool Worker::may_push(const Table& table, bool after_deliveries) {
  const bool is_consumed = std::all_of(table.push_agents.begin(), table.push_agents.end(), [&table](uint32_t agent) {
    return reached(table.views[agent].shared->consumed.load(std::memory_order_acquire), table.pushes);
  });
  // A push of a stale table leaves rows that are under way as they are.
  return is_consumed && (!after_deliveries || table.shape.staleness > 0 || is_delivered(table));
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

}  // namespace lane
