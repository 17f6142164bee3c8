// Sorted distinct row ids.
#pragma once

#include <cstdint>
#include <cstring>

namespace lane {

/// Write the sorted distinct values of row ids to `result` and return their number, or -1 if one is not in [0, rows).
/// `marks` has a bit for each row; all are zero before and after the call.
inline int64_t sorted_unique(const int64_t* ids, int64_t count, int64_t rows, uint64_t* marks, int64_t* result) {
  bool sorted = true;
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= rows) return -1;
    if (i > 0 && ids[i] <= ids[i - 1]) sorted = false;
  }
  if (sorted) {
    if (count) std::memcpy(result, ids, count * sizeof *ids);
    return count;
  }
  int64_t lowest = rows, highest = -1;
  for (int64_t i = 0; i < count; ++i) {
    marks[ids[i] >> 6] |= uint64_t{1} << (ids[i] & 63);
    lowest = ids[i] < lowest ? ids[i] : lowest;
    highest = ids[i] > highest ? ids[i] : highest;
  }
  int64_t distinct = 0;
  for (int64_t word = lowest >> 6; word <= highest >> 6; ++word) {
    for (uint64_t left = marks[word]; left; left &= left - 1) result[distinct++] = (word << 6) + __builtin_ctzll(left);
    marks[word] = 0;
  }
  return distinct;
}

}  // namespace lane
