// The hash index of a row store: from keys to slots.
//
// Entries lie in chunks of a cache line, as in F14 (Bronson and Shi, "Open-sourcing F14 for faster, more memory-efficient
// hash tables", 2019): 12 slots, a tag of 8 bits of the hash for each, and the number of entries that were placed in a
// later chunk because this one was full.  A search compares the tags of a chunk at once, and ends at a chunk over which
// no entry was passed on.  Removing an entry decreases these numbers again, so no tombstones stay.  The index holds no
// keys: the caller has those by slot.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "files/growing_memory.h"
#include "store/keys.h"

namespace lane {

class SlotIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// Return the slot of a key; kNone if it has none.
  uint32_t find(int64_t key, uint64_t hash, const int64_t* keys) const {
    if (chunks_ == 0) return kNone;
    const uint8_t tag = tag_of(hash);
    size_t number = home_of(hash);
    for (size_t step = 0; step < chunks_; ++step) {
      const Chunk& chunk = at(number);
      for (uint32_t matches = chunk.matches(tag); matches; matches &= matches - 1) {
        const uint32_t slot = chunk.slots[__builtin_ctz(matches)];
        if (keys[slot] == key) return slot;
      }
      if (chunk.passed_on == 0) return kNone;
      number = next_of(number);
    }
    return kNone;
  }
  /// Return the slot that the key most likely has, without reading keys; kNone if the first chunk has no candidate.
  uint32_t guess(uint64_t hash) const {
    if (chunks_ == 0) return kNone;
    const Chunk& chunk = at(home_of(hash));
    const uint32_t matches = chunk.matches(tag_of(hash));
    return matches ? chunk.slots[__builtin_ctz(matches)] : kNone;
  }
  void prefetch(uint64_t hash) const {
    if (chunks_) __builtin_prefetch(&at(home_of(hash)));
  }

  /// Return whether there is room for one more entry.
  bool has_room() const { return entries_ < most_; }
  /// Make room for more entries than now; `keys` has the keys of slots 0 to `slots` - 1, and `is_live(slot)` says which
  /// have an entry.
  template <typename IsLive>
  void grow(const int64_t* keys, uint64_t slots, IsLive is_live) {
    constexpr uint64_t kAhead = 16;
    SlotIndex larger(chunks_ + chunks_ / 4 + 1);
    for (uint64_t slot = 0; slot < slots; ++slot) {
      if (slot + kAhead < slots) larger.prefetch(hash_of(keys[slot + kAhead]));
      if (is_live(slot)) larger.insert(hash_of(keys[slot]), static_cast<uint32_t>(slot));
    }
    *this = static_cast<SlotIndex&&>(larger);
  }
  /// Add the entry of a key that has none; there is room.
  void insert(uint64_t hash, uint32_t slot);
  /// Remove the entry of a key.
  void erase(uint64_t hash, uint32_t slot);
  void clear() { *this = SlotIndex(); }

  size_t size() const { return entries_; }
  size_t bytes() const { return chunks_ * sizeof(Chunk); }

  SlotIndex() = default;

 private:
  static constexpr uint32_t kSlots = 12;
  /// The share of the slots that may be taken, in 64ths.
  static constexpr size_t kMaxLoad = 54;

  struct Chunk {
    uint8_t tags[kSlots];  // 0: no entry
    uint16_t passed_on;    // stays at its maximum once it is reached
    uint16_t unused;
    uint32_t slots[kSlots];

    /// Return a mask of the entries with a tag.
    uint32_t matches(uint8_t tag) const {
#ifdef __SSE2__
      const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(this));
      return _mm_movemask_epi8(_mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag)))) & ((1u << kSlots) - 1);
#else
      uint32_t mask = 0;
      for (uint32_t i = 0; i < kSlots; ++i) mask |= static_cast<uint32_t>(tags[i] == tag) << i;
      return mask;
#endif
    }
  };
  static_assert(sizeof(Chunk) == 64, "a chunk is a cache line");

  explicit SlotIndex(size_t chunks);

  // The chunk depends on the upper half of the hash, the tag on all bits: all keys of a partition share lower bits.
  size_t home_of(uint64_t hash) const { return static_cast<size_t>((hash >> 32) * chunks_ >> 32); }
  static uint8_t tag_of(uint64_t hash) {
    const uint8_t tag = static_cast<uint8_t>(hash * 0x9E3779B97F4A7C15u >> 56);
    return tag ? tag : 1;
  }
  size_t next_of(size_t number) const { return number + 1 == chunks_ ? 0 : number + 1; }
  Chunk& at(size_t number) const { return reinterpret_cast<Chunk*>(memory_.data())[number]; }

  GrowingMemory memory_;
  size_t chunks_ = 0, entries_ = 0, most_ = 0;
};

}  // namespace lane
