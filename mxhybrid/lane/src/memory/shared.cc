#include "memory/shared.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace lane {

AgentTableLayout::AgentTableLayout(const TableShape& shape, uint32_t agent, const std::vector<uint8_t>& handled,
                                   uint32_t workers) {
  Layout layout;
  layout.reserve(sizeof(AgentTable));
  layout.align_to_page();
  if (shape.requested()) {
    cache = uncached = layout.reserve(cache_slots(shape.max_rows(), workers) * shape.row_bytes());
  } else {
    uint64_t remote_rows = 0;
    for (uint32_t part = 0; part < shape.partitions(); ++part) {
      if (handled[part] && shape.owners[part] != agent) remote_rows += shape.rows_of(part);
    }
    cache = layout.reserve(remote_rows * shape.row_bytes());
    layout.align_to_page();
    uncached = layout.reserve(remote_rows * shape.row_bytes());
  }
  for (uint32_t part = 0; part < shape.partitions(); ++part) {
    layout.align_to_page();
    const bool is_owned = shape.owners[part] == agent && !shape.dynamic;
    shards.push_back(layout.reserve(is_owned ? shape.rows_of(part) * shape.row_bytes() : 0));
  }
  size = layout.size();
}

WorkerTableLayout::WorkerTableLayout(const TableShape& shape) {
  Layout layout;
  layout.reserve(sizeof(WorkerTable));
  const size_t ids = shape.max_rows() * shape.id_bytes();
  push_bounds = layout.reserve((shape.partitions() + 1) * sizeof(uint32_t));
  for (int i = 0; i < kMaxRowRequests; ++i) {
    request_bounds[i] = layout.reserve((shape.groups() * shape.partitions() + 1) * sizeof(uint32_t));
  }
  layout.align_to_page();
  push_ids = layout.reserve(ids);
  push_rows = layout.reserve(shape.max_rows() * shape.row_bytes());
  for (int i = 0; i < kMaxRowRequests; ++i) {
    layout.align_to_page();
    request_ids[i] = layout.reserve(ids);
    request_slots[i] = layout.reserve(shape.max_rows() * sizeof(uint32_t));
  }
  size = layout.size();
}

namespace {
uint32_t* word(Flag& flag) { return reinterpret_cast<uint32_t*>(&flag); }
}  // namespace

void sleep_while(Flag& flag, uint32_t seen, int milliseconds) {
  struct timespec limit = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  syscall(SYS_futex, word(flag), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake(Flag& flag) { syscall(SYS_futex, word(flag), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

AllreduceLayout::AllreduceLayout(size_t bytes, uint32_t workers) {
  Layout layout;
  layout.reserve(kAllreduceData + bytes);
  for (uint32_t worker = 0; worker < workers; ++worker) inputs.push_back(layout.reserve(bytes));
  ends = layout.reserve(workers * sizeof(uint64_t));
  size = layout.size();
}

void notify(WorkerBlock& worker) {
  worker.doorbell.add();
  if (worker.sleepers.load() > 0) worker.doorbell.wake();
}

}  // namespace lane
