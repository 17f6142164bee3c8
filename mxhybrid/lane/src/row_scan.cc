#include "row_scan.h"

#include <algorithm>
#include <cstring>

namespace lane {
namespace {

constexpr uint64_t kBuckets = 4096;
/// The number of rows by which prefetching is ahead.
constexpr size_t kAhead = 16;

}  // namespace

RowScan::RowScan(const RowStore& store, int64_t since, size_t portion)
    : store_(store), since_(since), portion_(std::max<size_t>(portion, 1)) {
  uint64_t first = UINT64_MAX, last = 0;
  for (uint64_t slot = 0; slot < store.slots(); ++slot) {
    if (!is_scanned(slot)) continue;
    const uint64_t key = ordered(store.key_of(slot));
    first = std::min(first, key);
    last = std::max(last, key);
    ++count_;
  }
  if (count_) ranges_.push_back({first, last, count_});
}

bool RowScan::is_scanned(uint64_t slot) const { return store_.is_live(slot) && store_.step_of(slot) > since_; }

void RowScan::divide(const Range& range) {
  const uint64_t length = (range.last - range.first) / kBuckets + 1;
  std::vector<uint64_t> counts(kBuckets, 0);
  for (uint64_t slot = 0; slot < store_.slots(); ++slot) {
    if (!is_scanned(slot)) continue;
    const uint64_t key = ordered(store_.key_of(slot));
    if (key >= range.first && key <= range.last) ++counts[(key - range.first) / length];
  }
  std::vector<Range> parts;
  for (uint64_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (counts[bucket] == 0) continue;
    const uint64_t first = range.first + bucket * length, last = std::min(range.last - first, length - 1) + first;
    if (!parts.empty() && parts.back().count + counts[bucket] <= portion_) {
      parts.back().last = last;
      parts.back().count += counts[bucket];
    } else {
      parts.push_back({first, last, counts[bucket]});
    }
  }
  ranges_.insert(ranges_.end(), parts.rbegin(), parts.rend());
}

size_t RowScan::next() {
  slots_.clear();
  records_ = Buffer();
  if (ranges_.empty()) return 0;
  while (ranges_.back().count > portion_) {
    const Range range = ranges_.back();
    ranges_.pop_back();
    divide(range);
  }
  const Range range = ranges_.back();
  ranges_.pop_back();
  std::vector<std::pair<int64_t, uint32_t>> entries;
  entries.reserve(range.count);
  for (uint64_t slot = 0; slot < store_.slots(); ++slot) {
    const uint64_t key = ordered(store_.key_of(slot));
    if (key < range.first || key > range.last || !is_scanned(slot)) continue;
    entries.emplace_back(store_.key_of(slot), static_cast<uint32_t>(slot));
  }
  std::sort(entries.begin(), entries.end());
  slots_.reserve(entries.size());
  for (const auto& entry : entries) slots_.push_back(entry.second);
  return slots_.size();
}

void RowScan::keys(int64_t* keys) const {
  for (uint32_t slot : slots_) *keys++ = store_.key_of(slot);
}

void RowScan::copy(size_t offset, size_t bytes, char* to) {
  const size_t record_bytes = store_.record_bytes();
  if (store_.is_cached() && records_.size() == 0) {
    records_ = Buffer(slots_.size() * record_bytes);
    store_.copy_records(slots_.data(), slots_.size(), records_.data());
  }
  const auto record = [&](size_t i) {
    return records_.size() ? records_.data() + i * record_bytes : store_.record_at(slots_[i]);
  };
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (i + kAhead < slots_.size()) __builtin_prefetch(record(i + kAhead) + offset);
    std::memcpy(to + i * bytes, record(i) + offset, bytes);
  }
}

void RowScan::rows(char* rows) { copy(0, store_.row_bytes(), rows); }

void RowScan::states(uint32_t number, char* states) {
  copy(store_.state_offset(number), store_.state_bytes(number), states);
}

void RowScan::steps(uint32_t* steps) const {
  for (uint32_t slot : slots_) *steps++ = store_.step_of(slot);
}

void RowScan::update_counts(uint32_t* counts) const {
  for (uint32_t slot : slots_) *counts++ = store_.update_count_of(slot);
}

}  // namespace lane
