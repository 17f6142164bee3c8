#include "count_min_sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lane {
namespace {

/// Odd factors, one for each row, of multiplicative hashing.
constexpr uint64_t kFactors[] = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u, 0xD6E8FEB86659FD93u};

}  // namespace

uint32_t CountMinSketch::add(uint64_t hash) {
  if (++sightings_ % kAge == 0) halve();
  uint16_t* counters[kRows];
  uint32_t count = kMaxCount;
  for (uint32_t i = 0; i < kRows; ++i) {
    counters[i] = row(i) + (hash * kFactors[i] >> (64 - kBits));
    count = std::min<uint32_t>(count, *counters[i]);
  }
  if (count == 0) ++distinct_;
  if (count < kMaxCount) ++count;
  for (uint16_t* counter : counters) *counter = std::max(*counter, static_cast<uint16_t>(count));
  return count;
}

void CountMinSketch::save(uint64_t* words) const {
  words[0] = sightings_;
  words[1] = distinct_;
  std::memcpy(words + kHead, counters_.data(), bytes());
}

void CountMinSketch::load(const uint64_t* words) {
  sightings_ = words[0];
  distinct_ = words[1];
  std::memcpy(counters_.data(), words + kHead, bytes());
}

void CountMinSketch::merge(const uint64_t* words, uint32_t share) {
  sightings_ = std::max(sightings_, words[0]);
  distinct_ += words[1] / share;
  const uint16_t* others = reinterpret_cast<const uint16_t*>(words + kHead);
  uint16_t* counters = row(0);
  for (size_t i = 0; i < kRows * kColumns; ++i) counters[i] = std::max(counters[i], others[i]);
}

void CountMinSketch::halve() {
  uint16_t* counters = row(0);
  for (size_t i = 0; i < kRows * kColumns; ++i) counters[i] /= 2;
  // Linear counting (Whang, Vander-Zanden and Taylor, 1990) of the keys whose counts remain.
  const double empty = static_cast<double>(std::count(counters, counters + kColumns, 0));
  const double columns = static_cast<double>(kColumns);
  distinct_ = static_cast<uint64_t>(columns * std::log(columns / std::max(empty, 1.0)));
}

}  // namespace lane
