// The cache of a table in an agent, where all rows are requested: which key's row is in which slot of its memory.
//
// The memory is divided into regions of `max_batch_rows` slots.  Slots are taken from the current region one after the
// other, until it has enough of them; then all keys are forgotten, and a region of which no request reads slots becomes
// the current one.  A request takes all of its slots from one region, and a worker has a limited number of requests, so
// there always is such a region: a request never waits for room, and many requests without a push need no more memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "memory/shared.h"

namespace lane {

class KeyCache {
 public:
  /// Return whether requests that were not released read slots of a region.
  using InUse = std::function<bool(uint32_t region)>;
  /// Called with slots whose memory is to be given back: the first one, and their number.
  using Discard = std::function<void(uint64_t first, uint64_t count)>;

  KeyCache(uint64_t max_batch_rows, uint32_t workers);

  /// Forget all keys, after a push, and begin a region; `discard` memory that earlier rounds needed, and the last one
  /// did not.
  void begin_round(const InUse& in_use, const Discard& discard);
  /// Make room for a request of at most `count` slots.
  void make_room(uint32_t count, const InUse& in_use);
  /// Fetch the memory that `row_of` will read for a key.
  void prefetch(int64_t key) const { __builtin_prefetch(&entries_[home_of(key)]); }
  /// A slot, and the number of the pull that fills it.
  struct CachedRow {
    uint32_t slot;
    uint64_t pull;
  };
  /// Return the slot of a row that must include `version` pushes, and no more than `newest`: a worker that has made
  /// `newest` pushes cannot wait for rows that need its next one.  If there is none, return a new slot, which pull number
  /// `pull` will fill.
  CachedRow row_of(int64_t key, uint32_t version, uint32_t newest, uint64_t pull);
  /// Take `count` slots that hold no row of a known key; return the first one.
  uint32_t take(uint32_t count);
  /// Return the current region.
  uint32_t region() const { return region_; }

 private:
  void forget();
  void begin_region(const InUse& in_use);
  void grow();
  size_t home_of(int64_t key) const {
    // Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
    const uint64_t bits = static_cast<uint64_t>(key);
    return ((bits ^ (bits >> 32)) * 0x9e3779b97f4a7c15) >> shift_;
  }
  /// Return the position of a key, or the free one where it belongs.
  size_t position_of(int64_t key) const {
    size_t position = home_of(key);
    while (entries_[position].round == round_ && entries_[position].key != key) {
      position = (position + 1) & (entries_.size() - 1);
    }
    return position;
  }

  const uint64_t max_batch_rows_;
  const uint32_t workers_;
  /// For each region: the number of slots whose memory may have been written since it was given back.
  std::vector<uint32_t> written_;
  uint32_t region_ = 0, used_ = 0;
  /// The most slots of a request so far, and the slots of the region that the round before used.
  uint32_t largest_ = 0, used_before_ = 0;
  /// The slot of a key, if `round` is the current one; otherwise there is no key.  The row includes at least `version`
  /// pushes; `pull` has the lower bits of the number of the pull that fills the slot.
  struct Entry {
    int64_t key;
    uint32_t slot, round, version, pull;
  };
  /// A hash table with linear probing.
  std::vector<Entry> entries_;
  uint32_t count_ = 0, round_ = 0;
  int shift_ = 0;
};

}  // namespace lane
