#include "store/waiting_keys.h"

#include <algorithm>

namespace lane {

uint16_t& WaitingKeys::number_of(int64_t key, uint64_t hash) {
  uint32_t slot = index_.find(key, hash, keys());
  if (slot == SlotIndex::kNone) {
    if (!index_.has_room()) index_.grow(keys(), size_, [](uint64_t) { return true; });
    keys_.grow((size_ + 1) * sizeof(int64_t));
    numbers_.grow((size_ + 1) * sizeof(uint16_t));
    slot = static_cast<uint32_t>(size_++);
    keys()[slot] = key;
    numbers()[slot] = 0;
    index_.insert(hash, slot);
  }
  return numbers()[slot];
}

uint32_t WaitingKeys::add(int64_t key, uint64_t hash) {
  if (young_ >= kMostYoung) forget_old();
  uint16_t& number = number_of(key, hash);
  if (!(number & kYoung)) ++young_;
  const uint32_t count = std::min((number & kMaxCount) + 1, kMaxCount);
  number = static_cast<uint16_t>(kYoung | count);
  return count;
}

void WaitingKeys::remove(int64_t key, uint64_t hash) {
  const uint32_t slot = index_.find(key, hash, keys());
  if (slot == SlotIndex::kNone) return;
  if (numbers()[slot] & kYoung) --young_;
  remove(slot, hash);
}

/// Remove the key in a slot; the last one takes the slot.
void WaitingKeys::remove(uint32_t slot, uint64_t hash) {
  index_.erase(hash, slot);
  const uint32_t last = static_cast<uint32_t>(--size_);
  if (slot == last) return;
  const uint64_t last_hash = hash_of(keys()[last]);
  index_.erase(last_hash, last);
  index_.insert(last_hash, slot);
  keys()[slot] = keys()[last];
  numbers()[slot] = numbers()[last];
}

void WaitingKeys::forget_old() {
  for (uint32_t slot = static_cast<uint32_t>(size_); slot-- > 0;) {
    if (numbers()[slot] & kYoung) {
      numbers()[slot] &= kMaxCount;
    } else {
      remove(slot, hash_of(keys()[slot]));
    }
  }
  young_ = 0;
}

void WaitingKeys::restore(const int64_t* keys, const uint16_t* numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    number_of(keys[i], hash_of(keys[i])) = numbers[i];
    young_ += (numbers[i] & kYoung) != 0;
  }
}

}  // namespace lane
