// The keys of a dynamic table that wait for admission, with the number of their sightings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "files/growing_memory.h"
#include "store/slot_index.h"

namespace lane {

/// Counts are exact.  A key takes 10 bytes, and 6 to 8 of the index.  Memory is bounded: after kMostYoung keys were
/// sighted, the keys that were sighted before them, and not since, are forgotten.
class WaitingKeys {
 public:
  static constexpr uint32_t kMaxCount = INT16_MAX;

  /// Count a sighting of a key, which waits from now on; return its count with it.
  uint32_t add(int64_t key, uint64_t hash);
  /// Forget a key, if it waits.
  void remove(int64_t key, uint64_t hash);
  void clear() { *this = WaitingKeys(); }

  uint64_t size() const { return size_; }
  size_t bytes() const { return index_.bytes() + size_ * (sizeof(int64_t) + sizeof(uint16_t)); }

  /// The keys, and a number for each: its count, and kYoung.
  int64_t* keys() const { return reinterpret_cast<int64_t*>(keys_.data()); }
  uint16_t* numbers() const { return reinterpret_cast<uint16_t*>(numbers_.data()); }
  /// Add keys with their numbers, as they were saved.
  void restore(const int64_t* keys, const uint16_t* numbers, size_t count);

 private:
// Tests set a small one.
#ifndef LANE_MOST_YOUNG_KEYS
#define LANE_MOST_YOUNG_KEYS (1 << 25)
#endif
  static constexpr uint64_t kMostYoung = LANE_MOST_YOUNG_KEYS;
  /// Marks keys that were sighted since keys were forgotten last.
  static constexpr uint16_t kYoung = kMaxCount + 1;

  /// Return the number of a key, which waits from now on.
  uint16_t& number_of(int64_t key, uint64_t hash);
  void remove(uint32_t slot, uint64_t hash);
  void forget_old();

  SlotIndex index_;
  GrowingMemory keys_, numbers_;  // by slot; all slots are in use
  uint64_t size_ = 0, young_ = 0;
};

}  // namespace lane
