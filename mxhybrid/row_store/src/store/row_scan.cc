#include "store/row_scan.h"

#include <algorithm>
#include <cstring>

#include "kernels/radix_sort.h"

namespace lane {
namespace {

constexpr uint64_t kBuckets = 4096;
/// The most rows whose slots are found in one pass, unless a portion has more.
constexpr uint64_t kGatheredRows = 1 << 22;
/// The number of rows by which prefetching is ahead.
constexpr size_t kAhead = 16;
constexpr size_t kLine = 64;
/// Slots whose versions are compared at once.
constexpr uint64_t kBlock = 16;

}  // namespace

RowScan::RowScan(const RowStore& store, int64_t since, size_t portion)
    : store_(store), since_(since), portion_(std::max<size_t>(portion, 1)) {
  uint64_t first = UINT64_MAX, last = 0;
  bool are_few = since >= 0;
  each_slot([&](uint64_t slot) {
    const uint64_t key = ordered(store_.key_of(slot));
    first = std::min(first, key);
    last = std::max(last, key);
    ++count_;
    are_few = are_few && count_ <= kGatheredRows;
    if (are_few) changed_.push_back(static_cast<uint32_t>(slot));
  });
  are_few_ = are_few;
  if (!are_few) std::vector<uint32_t>().swap(changed_);
  if (count_) ranges_.push_back({first, last, count_});
}

template <typename Function>
void RowScan::each_slot(Function function) const {
  if (are_few_) {
    for (uint32_t slot : changed_) function(slot);
    return;
  }
  for (uint64_t first = 0; first < store_.slots(); first += kBlock) {
    const uint64_t end = std::min(first + kBlock, store_.slots());
    bool has_changed = since_ < 0;
    for (uint64_t slot = first; since_ >= 0 && slot < end; ++slot) has_changed |= store_.version_of(slot) > since_;
    if (!has_changed) continue;
    for (uint64_t slot = first; slot < end; ++slot) {
      if (is_scanned(slot)) function(slot);
    }
  }
}

void RowScan::divide(const Range& range) {
  const uint64_t length = (range.last - range.first) / kBuckets + 1;
  std::vector<uint64_t> counts(kBuckets, 0);
  each_slot([&](uint64_t slot) {
    const uint64_t key = ordered(store_.key_of(slot));
    if (key >= range.first && key <= range.last) ++counts[(key - range.first) / length];
  });
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

void RowScan::gather() {
  gathered_.clear();
  past_portions_ = past_slots_ = 0;
  uint64_t total = 0;
  while (!ranges_.empty()) {
    const Range range = ranges_.back();
    if (range.count > portion_) {
      ranges_.pop_back();
      divide(range);
      continue;
    }
    if (!gathered_.empty() && total + range.count > kGatheredRows) break;
    ranges_.pop_back();
    gathered_.push_back(range);
    total += range.count;
  }
  if (gathered_.empty()) return;
  const uint64_t first = gathered_.front().first, last = gathered_.back().last;
  int shift = 0;
  while ((last - first) >> shift >= kBuckets) ++shift;
  // The first portion that may have the keys of a bucket.
  std::vector<uint32_t> portion_of(kBuckets);
  std::vector<size_t> next(gathered_.size());
  size_t slots = 0;
  for (uint32_t portion = 0, bucket = 0; portion < gathered_.size(); ++portion) {
    for (; bucket <= (gathered_[portion].last - first) >> shift; ++bucket) portion_of[bucket] = portion;
    next[portion] = slots;
    slots += gathered_[portion].count;
  }
  slots_.resize(slots);
  each_slot([&](uint64_t slot) {
    const uint64_t key = ordered(store_.key_of(slot));
    if (key < first || key > last) return;
    uint32_t portion = portion_of[(key - first) >> shift];
    while (key > gathered_[portion].last) ++portion;
    slots_[next[portion]++] = static_cast<uint32_t>(slot);
  });
}

size_t RowScan::next() {
  if (past_portions_ == gathered_.size()) gather();
  size_ = 0;
  if (gathered_.empty()) return 0;
  size_ = gathered_[past_portions_++].count;
  if (entries_.size() < size_) {
    entries_.resize(size_);
    spare_.resize(size_);
  }
  uint64_t varying_bits = 0;
  for (size_t i = 0; i < size_; ++i) {
    const uint32_t slot = slots_[past_slots_ + i];
    entries_[i] = {ordered(store_.key_of(slot)), slot};
    varying_bits |= entries_[i].key ^ entries_[0].key;
  }
  past_slots_ += size_;
  radix_sort(entries_, spare_, size_, varying_bits);
  return size_;
}

void RowScan::read(const Columns& to) const {
  const size_t record_bytes = store_.record_bytes(), kept_bytes = store_.kept_bytes();
  Buffer records;  // if they may have to be read from a file
  if (store_.is_cached()) {
    std::vector<uint32_t> slots(size_);
    for (size_t i = 0; i < size_; ++i) slots[i] = entries_[i].slot;
    records = Buffer(size_ * record_bytes);
    store_.copy_records(slots.data(), size_, records.data());
  }
  for (size_t i = 0; i < size_; ++i) {
    if (i + kAhead < size_ && !store_.is_cached()) {
      const char* later = store_.record_at(entries_[i + kAhead].slot);
      for (size_t offset = 0; offset < record_bytes; offset += kLine) __builtin_prefetch(later + offset);
    }
    const uint32_t slot = entries_[i].slot;
    const char* record = store_.is_cached() ? records.data() + i * record_bytes : store_.record_at(slot);
    if (to.keys) to.keys[i] = unordered(entries_[i].key);
    if (to.rows) std::memcpy(to.rows + i * kept_bytes, record, kept_bytes);
    for (uint32_t number = 0; number < 2; ++number) {
      const size_t bytes = store_.state_bytes(number);
      if (to.states[number]) std::memcpy(to.states[number] + i * bytes, record + store_.state_offset(number), bytes);
      if (to.ages[number]) to.ages[number][i] = store_.age_of(slot, number);
    }
  }
}

}  // namespace lane
