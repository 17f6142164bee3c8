#include "rings.h"

#include <algorithm>
#include <stdexcept>

namespace lane {

char* Way::data(uint32_t number) const {
  const RingHead& found = ring(number);
  const uint64_t offset = found.offset, capacity = found.capacity;
  if (capacity < (1U << kSmallestRing) || capacity > (1U << kLargestRing) || (capacity & (capacity - 1)) != 0 ||
      offset < kData || offset % Layout::kAlignment != 0 || offset > memory_.size() ||
      capacity > memory_.size() - offset) {
    throw std::runtime_error("a malformed ring");
  }
  return memory_.at<char>(offset);
}

uint32_t Way::open(uint64_t tag, uint64_t bytes) {
  if (find(tag) != kMostRings) throw std::runtime_error("another move has the tag " + std::to_string(tag));
  uint32_t size = kSmallestRing;
  while (size < kLargestRing && (uint64_t(1) << size) < 2 * bytes) ++size;
  const uint32_t capacity = 1U << size;
  const auto free = std::find_if(closed_.begin(), closed_.end(), [&](uint32_t number) {
    const RingHead& old = ring(number);
    return old.capacity == capacity && old.written.load() == old.taken.load();
  });
  uint32_t number = head().rings.load();
  if (free != closed_.end()) {
    number = *free;
    closed_.erase(free);
  }
  define(number, tag, capacity);
  return number;
}

void Way::define(uint32_t number, uint64_t tag, uint32_t capacity) {
  if (number >= kMostRings) throw std::runtime_error("more than " + std::to_string(kMostRings) + " rings of one way");
  RingHead& made = ring(number);
  if (made.capacity == 0) {
    if (kData + used_ + capacity > memory_.size()) throw std::runtime_error("no room for another ring of a way");
    made.offset = kData + used_;
    made.capacity = capacity;
    used_ += capacity;
  } else if (made.capacity != capacity || made.written.load() != made.taken.load()) {
    throw std::runtime_error("a ring that is not free");
  }
  made.tag.store(tag + 1);
  if (number >= head().rings.load()) head().rings.store(number + 1);
}

uint32_t Way::find(uint64_t tag) const {
  const uint32_t count = std::min(head().rings.load(), kMostRings);
  for (uint32_t number = 0; number < count; ++number) {
    if (ring(number).tag.load() == tag + 1) return number;
  }
  return kMostRings;
}

void Way::mark(uint32_t number, uint32_t turn) {
  ring(number).turn.store(turn);
  head().dirty[number / 64].fetch_or(uint64_t(1) << number % 64);
  head().changed.add();
}

}  // namespace lane
