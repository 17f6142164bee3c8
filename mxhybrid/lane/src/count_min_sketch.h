// Counts of keys in a fixed amount of memory: a count-min sketch (Cormode and Muthukrishnan, J. Algorithms 2005) with
// conservative updates (Estan and Varghese, 2002).
#pragma once

#include <cstddef>
#include <cstdint>

#include "growing_memory.h"

namespace lane {

/// Counts are never too low, and too high only for keys that share all their counters with others.  After kAge
/// sightings all counts are halved, so that keys that stay rare do not fill the counters in a long training.
class CountMinSketch {
 public:
  static constexpr uint32_t kMaxCount = UINT16_MAX;

  CountMinSketch() { counters_.grow(kRows * kColumns * sizeof(uint16_t)); }

  /// Count a sighting of a key, by its hash; return its count with it.
  uint32_t add(uint64_t hash);
  /// Forget all sightings.
  void clear() { *this = CountMinSketch(); }
  /// The number of distinct keys that were counted, approximately.
  uint64_t distinct() const { return distinct_; }
  size_t bytes() const { return kRows * kColumns * sizeof(uint16_t); }

  /// The number of words of a saved sketch.
  static constexpr size_t words() { return kHead + kRows * kColumns * sizeof(uint16_t) / sizeof(uint64_t); }
  /// Write the sketch to `words`.
  void save(uint64_t* words) const;
  /// Become a saved sketch.
  void load(const uint64_t* words);
  /// Add the counts of a saved sketch of other keys, by the maximum of each counter; a `share`-th of its keys may be
  /// counted here.  Counts are not too low for the keys of either, as each counter is at least the count of every key
  /// that it belongs to.
  void merge(const uint64_t* words, uint32_t share);

 private:
  static constexpr uint32_t kRows = 4, kBits = 20;
  static constexpr size_t kHead = 2;  // sightings and distinct keys, before the counters of a saved sketch
  static constexpr size_t kColumns = size_t{1} << kBits;
  static constexpr uint64_t kAge = 8 * kColumns;

  uint16_t* row(uint32_t number) const { return reinterpret_cast<uint16_t*>(counters_.data()) + number * kColumns; }
  void halve();

  GrowingMemory counters_;
  uint64_t sightings_ = 0, distinct_ = 0;
};

}  // namespace lane
