// The C interface of rows by key; see api.cc for its conventions.
#include <vector>

#include "base/api_errors.h"
#include "worker/keyed_rows.h"

using lane::Dtype;
using lane::guarded;
using lane::TableRows;

extern "C" {

/// Call KeySorter::distinct_keys for several lists of ids; their keys and positions follow each other.  `counts` has
/// the number of ids of each list, and gets that of its keys.
int lane_distinct_keys(uint32_t lists, const int64_t* const* ids, uint64_t* counts, int64_t* keys, int32_t* positions) {
  return guarded([&] {
    lane::KeySorter sorter;
    for (uint32_t i = 0; i < lists; ++i) {
      const uint64_t num_ids = counts[i];
      counts[i] = sorter.distinct_keys(ids[i], num_ids, keys, positions);
      keys += counts[i];
      positions += num_ids;
    }
  });
}

/// See lane::sum_rows.
int lane_sum_rows(Dtype dtype, uint64_t width, const TableRows* rows, char* sums) {
  return guarded([&] {
    rows->check_positions();
    lane::sum_rows(dtype, width, *rows, nullptr, sums);
  });
}

/// Write rows by those of the ids, of shape (ids, width); see lane::write_rows.
int lane_write_rows(Dtype dtype, uint64_t width, const char* id_rows, const TableRows* rows) {
  return guarded([&] {
    rows->check_positions();
    std::vector<const char*> row_of(rows->count);
    for (uint64_t id = 0; id < rows->count; ++id) row_of[id] = id_rows + id * width * lane::size_of(dtype);
    lane::write_rows(dtype, width, row_of.data(), *rows);
  });
}

}  // extern "C"
