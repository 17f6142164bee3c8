#include "memory/channel.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lane {

char* Channel::ring_data(uint32_t number) const {
  const RingHeader& ring_header = ring(number);
  const uint64_t offset = ring_header.offset, capacity = ring_header.capacity;
  if (capacity < (1U << kMinRingLog2) || capacity > (1U << kMaxRingLog2) || (capacity & (capacity - 1)) != 0 ||
      offset < kData || offset % Layout::kAlignment != 0 || offset > memory_.size() ||
      capacity > memory_.size() - offset) {
    throw std::runtime_error("ring " + std::to_string(number) + " of a channel is malformed");
  }
  return memory_.at<char>(offset);
}

uint32_t Channel::open_ring(uint64_t tag, uint64_t bytes) {
  if (find_ring(tag) != kMaxRings) {
    throw std::runtime_error("another transfer already has the tag " + std::to_string(tag));
  }
  uint32_t log2_capacity = kMinRingLog2;
  while (log2_capacity < kMaxRingLog2 && (uint64_t(1) << log2_capacity) < 2 * bytes) ++log2_capacity;
  const uint32_t capacity = 1U << log2_capacity;
  const auto reusable = std::find_if(closed_.begin(), closed_.end(), [&](uint32_t number) {
    const RingHeader& closed = ring(number);
    return closed.capacity == capacity && closed.written.load() == closed.consumed.load();
  });
  uint32_t number = header().rings.load();
  if (reusable != closed_.end()) {
    number = *reusable;
    closed_.erase(reusable);
  }
  define_ring(number, tag, capacity);
  return number;
}

void Channel::define_ring(uint32_t number, uint64_t tag, uint32_t capacity) {
  if (number >= kMaxRings) {
    throw std::runtime_error("a channel has no ring " + std::to_string(number) + ": it has at most " +
                             std::to_string(kMaxRings) + " rings");
  }
  RingHeader& ring_header = ring(number);
  if (ring_header.capacity == 0) {
    if (kData + used_ + capacity > memory_.size()) throw std::runtime_error("a channel has no room for another ring");
    ring_header.offset = kData + used_;
    ring_header.capacity = capacity;
    used_ += capacity;
  } else if (ring_header.capacity != capacity || ring_header.written.load() != ring_header.consumed.load()) {
    throw std::runtime_error("ring " + std::to_string(number) + " of a channel is in use");
  }
  ring_header.tag.store(tag + 1);
  if (number >= header().rings.load()) header().rings.store(number + 1);
}

uint32_t Channel::find_ring(uint64_t tag) const {
  const uint32_t count = std::min(header().rings.load(), kMaxRings);
  for (uint32_t number = 0; number < count; ++number) {
    if (ring(number).tag.load() == tag + 1) return number;
  }
  return kMaxRings;
}

void Channel::mark_changed(uint32_t number, uint32_t change_number) {
  ring(number).change_number.store(change_number);
  header().dirty[number / 64].fetch_or(uint64_t(1) << number % 64);
  header().changed.add();
}

}  // namespace lane
