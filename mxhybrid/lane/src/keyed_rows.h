// Rows by key in the order in which they are used: several rows may have the same key.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace lane {

/// Write the sorted distinct values of ids to `keys`, and for each id the position of its value there.  Return the
/// number of distinct values.
uint64_t distinct_keys(const int64_t* ids, uint64_t count, int64_t* keys, int32_t* positions);

/// Rows of one table: row i belongs to id `positions[i]`, or to id i if `positions` is null.
struct TableRows {
  /// The number of the table.
  uint64_t table;
  /// The number of ids, which are sorted and unique.
  uint64_t count;
  const int64_t* ids;
  /// The number of rows.
  uint64_t num_rows;
  const int32_t* positions;
  /// Shape (num_rows, width).
  char* rows;

  /// Throw std::runtime_error unless every position is that of an id.
  void check_positions() const;
};

/// Write the sums of the rows of each id: that of id i to row `order[i]` of `sums`, or to row i if `order` is null.  The
/// rows of an id are added in their order; an id without rows gets zeros.
void sum_rows(Dtype dtype, size_t width, const TableRows& from, const uint32_t* order, char* sums);

}  // namespace lane
