#include "agent/key_cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lane {
namespace {

/// A region is used until it has this many times the slots of the largest request, for each worker.
constexpr uint64_t kRequestsCached = 4;
/// The fewest slots of a region that are used before another one.
constexpr uint64_t kFewSlots = 1024;
/// Memory of a region is given back if it was written to this many times the slots of each of the last two rounds.
constexpr uint64_t kUnusualGrowth = 4;
/// The binary logarithm of the smallest size of the hash table, which is at most 3/4 full, and mostly half full.
constexpr int kSmallestSize = 11;

}  // namespace

KeyCache::KeyCache(uint64_t max_batch_rows, uint32_t workers)
    : max_batch_rows_(max_batch_rows), workers_(workers), written_(kMaxRowRequests * workers + 1, 0) {
  if (cache_slots(max_batch_rows, workers) > UINT32_MAX - 1) {
    throw std::runtime_error("max_batch_rows=" + std::to_string(max_batch_rows) + " is too large for a host with " +
                             std::to_string(workers) + " workers: give at most " +
                             std::to_string((UINT32_MAX - 1) / written_.size()) +
                             "; a table with staleness has as many max_batch_rows as rows");
  }
  forget();
}

void KeyCache::forget() {
  count_ = 0;
  if (entries_.size() > (size_t{1} << kSmallestSize) || entries_.empty()) {
    // The table grows again, in few steps, if the next round needs it.
    shift_ = 64 - kSmallestSize;
    while (used_ * size_t{2} > (size_t{1} << (64 - shift_))) --shift_;
  }
  const size_t size = size_t{1} << (64 - shift_);
  if (size != entries_.size() || ++round_ == 0) {
    std::vector<Entry>(size, Entry{}).swap(entries_);
    round_ = 1;
  }
}

void KeyCache::begin_region(const InUse& in_use) {
  forget();
  for (region_ = 0; region_ < written_.size() && in_use(region_); ++region_) {
  }
  if (region_ == written_.size()) throw std::runtime_error("a worker of this host has more row requests than it may");
  used_ = 0;
}

void KeyCache::begin_round(const InUse& in_use, const Discard& discard) {
  const uint32_t used = used_;
  if (used > 0 || region_ != 0) begin_region(in_use);
  for (uint32_t region = 0; region < written_.size(); ++region) {
    // Regions that requests seldom need keep no memory.
    const uint64_t usual =
        region == region_ ? kUnusualGrowth * std::max({uint64_t{used}, uint64_t{used_before_}, kFewSlots}) : 0;
    if (written_[region] <= usual || in_use(region)) continue;
    discard(region * max_batch_rows_, written_[region]);
    written_[region] = 0;
  }
  if (used > 0) used_before_ = used;
}

void KeyCache::make_room(uint32_t count, const InUse& in_use) {
  largest_ = std::max(largest_, count);
  const uint64_t limit =
      std::min(max_batch_rows_, std::max(kFewSlots, kRequestsCached * workers_ * uint64_t{largest_}));
  if (uint64_t{used_} + count > limit) begin_region(in_use);
}

uint32_t KeyCache::take(uint32_t count) {
  const uint32_t first = static_cast<uint32_t>(region_ * max_batch_rows_) + used_;
  used_ += count;
  written_[region_] = std::max(written_[region_], used_);
  return first;
}

KeyCache::CachedRow KeyCache::row_of(int64_t key, uint32_t version, uint32_t newest, uint64_t pull) {
  size_t position = position_of(key);
  const Entry& entry = entries_[position];
  if (entry.round == round_) {
    if (reached(entry.version, version) && reached(newest, entry.version)) {
      return {entry.slot, pull - (static_cast<uint32_t>(pull) - entry.pull)};
    }
  } else if (++count_ * size_t{4} > entries_.size() * 3) {
    grow();
    position = position_of(key);
  }
  const uint32_t slot = take(1);
  entries_[position] = {key, slot, round_, version, static_cast<uint32_t>(pull)};
  return {slot, pull};
}

void KeyCache::grow() {
  const std::vector<Entry> entries = std::move(entries_);
  --shift_;
  entries_.assign(entries.size() * 2, Entry{});
  for (const Entry& entry : entries) {
    if (entry.round == round_) entries_[position_of(entry.key)] = entry;
  }
}

}  // namespace lane
