// Rows by key in the order in which they are used: several rows may have the same key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace lane {

/// Finds the distinct values of lists of ids, whose memory it uses again for each list.
class KeySorter {
 public:
  /// Write the sorted distinct values of ids to `keys`, and for each id the position of its value there.  Return the
  /// number of distinct values.
  uint64_t distinct_keys(const int64_t* ids, uint64_t count, int64_t* keys, int32_t* positions);

 private:
  struct Entry {
    uint64_t key;  // with the sign bit inverted
    int32_t position;
  };

  std::vector<Entry> entries_, sorted_;
};

/// Rows of one table, which have ids by their positions among sorted unique ids.  Row i has one position,
/// `positions[i]`, or i if `positions` is null.  With segments it is the sum of a segment of positions, from `bounds[i]`
/// to `bounds[i + 1]`, each with its factor.
struct TableRows {
  /// The number of the table.
  uint64_t table;
  /// The number of ids, which are sorted and unique.
  uint64_t count;
  const int64_t* ids;
  uint64_t num_rows;
  uint64_t num_positions;
  const int32_t* positions;
  /// Shape (num_rows, width).
  char* rows;
  /// Shape (num_rows + 1); null without segments.
  const int64_t* bounds;
  /// Shape (num_positions), of the type of the rows, float32 or float64; null if all factors are 1.
  const char* factors;

  /// Throw std::runtime_error unless every position is that of an id, and every position has its row.
  void check_positions() const;
};

/// Write the sums of the rows of each id: that of id i to row `order[i]` of `sums`, or to row i if `order` is null.
/// The rows of an id are added in their order, with segments each times its factor; an id without rows gets zeros.
void sum_rows(Dtype dtype, size_t width, const TableRows& from, const uint32_t* order, char* sums);

/// Write rows that have positions: `row_of` has the address of the row of each id.
void write_rows(Dtype dtype, size_t width, const char* const* row_of, const TableRows& to);

}  // namespace lane
