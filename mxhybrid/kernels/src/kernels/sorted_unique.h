// Sorted distinct row ids.
#pragma once

#include <cstdint>

namespace lane {

/// Write the sorted distinct values of row ids to `result` and return their number, or -1 if one is not in [0, rows).
/// `marks` has a bit for each row; all are zero before and after the call.
int64_t sorted_unique(const int64_t* ids, int64_t count, int64_t rows, uint64_t* marks, int64_t* result);

}  // namespace lane
