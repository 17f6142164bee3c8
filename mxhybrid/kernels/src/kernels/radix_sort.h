// A stable sort of entries by a member `key`, a number of 64 bits: a radix sort from the lowest digit on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lane {

/// The bits of a digit.
constexpr int kDigitBits = 8;
constexpr uint32_t kDigits = 1 << kDigitBits;
/// Fewer entries than these are sorted by comparisons.
constexpr uint64_t kFewEntries = 256;

/// Sort the first `count` entries.  The keys differ in no other bits than `varying_bits`.  `spare` has as many entries as
/// `entries`, and is overwritten.
template <typename Entry>
void radix_sort(std::vector<Entry>& entries, std::vector<Entry>& spare, uint64_t count, uint64_t varying_bits) {
  if (count < kFewEntries) {
    std::stable_sort(entries.begin(), entries.begin() + static_cast<int64_t>(count),
                     [](const Entry& a, const Entry& b) { return a.key < b.key; });
    return;
  }
  for (int shift = 0; shift < 64; shift += kDigitBits) {
    if ((varying_bits >> shift & (kDigits - 1)) == 0) continue;
    uint32_t next[kDigits] = {};
    for (uint64_t i = 0; i < count; ++i) ++next[entries[i].key >> shift & (kDigits - 1)];
    uint32_t total = 0;
    for (uint32_t& first : next) {
      const uint32_t size = first;
      first = total;
      total += size;
    }
    for (uint64_t i = 0; i < count; ++i) spare[next[entries[i].key >> shift & (kDigits - 1)]++] = entries[i];
    entries.swap(spare);
  }
}

}  // namespace lane
