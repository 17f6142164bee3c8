// The parts of a row store that checkpoints read and set: rows, optimizer state, and changes since a save.
#include <algorithm>
#include <cstring>

#include "store/row_store.h"

namespace lane {

void RowStore::assign(const int64_t* keys, const char* rows, size_t count) {
  in_batches(keys, count, clock_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      const uint32_t slot = place(keys[i], hash_of(keys[i]));
      write_row(rows + i * row_bytes_, changed_record(slot));
      note_new_elements(slot);
    }
  });
}

void RowStore::assign_state(uint32_t number, const int64_t* keys, const char* states, size_t count) {
  check_state(number);
  const size_t size = state_bytes_[number];
  in_batches(keys, count, clock_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      const uint32_t slot = place(keys[i], hash_of(keys[i]));
      std::memcpy(changed_record(slot) + state_offset(number), states + i * size, size);
      note_change(slot);
    }
  });
}

void RowStore::read_state(uint32_t number, const int64_t* keys, size_t count, char* states) const {
  check_state(number);
  const size_t size = state_bytes_[number];
  in_batches(keys, count, clock_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      const uint32_t slot = find(keys[i], hash_of(keys[i]));
      if (slot == SlotIndex::kNone) {
        std::memset(states + i * size, 0, size);
      } else {
        std::memcpy(states + i * size, record_of(slot) + state_offset(number), size);
      }
    }
  });
}

void RowStore::restore(const int64_t* keys, const SavedRows& saved, size_t count) {
  in_batches(keys, count, clock_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      if (i + kBlock / 4 < end) index_.prefetch(hash_of(keys[i + kBlock / 4]));
      const uint32_t slot = place(keys[i], hash_of(keys[i]));
      char* record = changed_record(slot);
      std::memcpy(record, saved.rows + i * kept_bytes_, kept_bytes_);
      for (uint32_t number = 0; number < 2; ++number) {
        const size_t size = state_bytes_[number];
        if (saved.states[number] == nullptr) {
          std::memset(record + state_offset(number), 0, size);
        } else {
          std::memcpy(record + state_offset(number), saved.states[number] + i * size, size);
        }
      }
      note_new_elements(slot);
      for (uint32_t number = 0; number < 2; ++number) {
        if (saved.ages[number] != nullptr) set_age(slot, number, saved.ages[number][i]);
      }
    }
  });
}

uint32_t RowStore::mark() {
  known_since_ = marked_ ? last_mark_ : version_;
  const auto is_known = [this](const std::pair<int64_t, uint32_t>& removed) { return removed.second <= known_since_; };
  removed_.erase(std::remove_if(removed_.begin(), removed_.end(), is_known), removed_.end());
  marked_ = true;
  last_mark_ = version_;
  return version_++;
}

std::vector<int64_t> RowStore::removed_since(uint32_t version) const {
  std::vector<int64_t> keys;
  for (const auto& [key, removal] : removed_) {
    if (removal > version && find(key, hash_of(key)) == SlotIndex::kNone) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace lane
