#include "store/slot_index.h"

namespace lane {

SlotIndex::SlotIndex(size_t chunks) : chunks_(chunks), most_(chunks * kSlots * kMaxLoad / 64) {
  memory_.grow(chunks * sizeof(Chunk));
}

void SlotIndex::insert(uint64_t hash, uint32_t slot) {
  size_t number = home_of(hash);
  uint32_t empty;
  while ((empty = at(number).matches(0)) == 0) {
    Chunk& full = at(number);
    if (full.passed_on < UINT16_MAX) ++full.passed_on;
    number = next_of(number);
  }
  Chunk& chunk = at(number);
  const int index = __builtin_ctz(empty);
  chunk.tags[index] = tag_of(hash);
  chunk.slots[index] = slot;
  ++entries_;
}

void SlotIndex::erase(uint64_t hash, uint32_t slot) {
  const uint8_t tag = tag_of(hash);
  for (size_t number = home_of(hash);; number = next_of(number)) {
    Chunk& chunk = at(number);
    for (uint32_t matches = chunk.matches(tag); matches; matches &= matches - 1) {
      const int index = __builtin_ctz(matches);
      if (chunk.slots[index] != slot) continue;
      chunk.tags[index] = 0;
      --entries_;
      return;
    }
    if (chunk.passed_on < UINT16_MAX) --chunk.passed_on;
  }
}

}  // namespace lane
