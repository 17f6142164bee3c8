// Lists of rows by local id, and their sums.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "add.h"
#include "shared.h"

namespace lane {

/// Rows of one partition; the local ids are sorted and unique.
struct RowList {
  const int32_t* local_ids;
  const char* rows;
  uint32_t count;
};

/// Sums lists row by row.  The lists are added in their order, so sums do not depend on how rows are partitioned.
class Merger {
 public:
  Merger(Dtype dtype, size_t width) : add_(adder(dtype)), row_bytes_(width * size_of(dtype)) {}

  /// Call `take(local_id, sum of rows)` for each local id of any list, in order.
  template <typename Take>
  void each(const std::vector<RowList>& lists, Take take) {
    if (lists.size() == 1) {
      const RowList& list = lists[0];
      for (uint32_t i = 0; i < list.count; ++i) take(list.local_ids[i], list.rows + i * row_bytes_);
      return;
    }
    sum_.resize(row_bytes_);
    begin(lists);
    for (int32_t local_id; (local_id = lowest()) != kEnd;) {
      const char* sum = nullptr;
      for (size_t i = 0; i < lists.size(); ++i) {
        if (heads_[i] != local_id) continue;
        const char* row = lists[i].rows + positions_[i] * row_bytes_;
        advance(lists, i);
        if (sum == nullptr) {
          sum = row;
          continue;
        }
        if (sum != sum_.data()) {
          std::copy(sum, sum + row_bytes_, sum_.data());
          sum = sum_.data();
        }
        add_(sum_.data(), row, row_bytes_);
      }
      take(local_id, sum);
    }
  }

  size_t row_bytes() const { return row_bytes_; }

 private:
  static constexpr int32_t kEnd = INT32_MAX;

  void begin(const std::vector<RowList>& lists) {
    positions_.assign(lists.size(), 0);
    heads_.resize(lists.size());
    for (size_t i = 0; i < lists.size(); ++i) heads_[i] = lists[i].count ? lists[i].local_ids[0] : kEnd;
  }
  int32_t lowest() const {
    int32_t result = kEnd;
    for (int32_t head : heads_) result = head < result ? head : result;
    return result;
  }
  void advance(const std::vector<RowList>& lists, size_t i) {
    uint32_t next = ++positions_[i];
    heads_[i] = next < lists[i].count ? lists[i].local_ids[next] : kEnd;
  }

  const Apply add_;
  const size_t row_bytes_;
  std::vector<char> sum_;
  std::vector<uint32_t> positions_;
  std::vector<int32_t> heads_;
};

/// Write the sorted distinct values of row ids to `result` and return their number, or -1 if one is not in [0, rows).
/// `marks` has a bit for each row; all are zero before and after the call.
int64_t sorted_unique(const int64_t* ids, int64_t count, int64_t rows, uint64_t* marks, int64_t* result);

/// Split sorted ids by partition.  Writes the bounds of partitions (see WorkerTableLayout), the local ids, and for each
/// local id the position of its id in `ids`.  `order` may be null with one partition.
void split(const TableShape& shape, const int64_t* ids, uint32_t count, uint32_t* bounds, int32_t* local_ids,
           uint32_t* order);

/// Throw std::runtime_error unless row ids are sorted, unique and rows of the table.  Such ids fit into the shared
/// memory.
void check_ids(const TableShape& shape, const int64_t* ids, uint32_t count);

/// Return whether local ids are sorted, unique and below `rows`.
bool well_formed(const int32_t* local_ids, uint32_t count, uint64_t rows);

/// Copy row `local_ids[i]` of `from` to row i of `to`.
void gather(const char* from, const int32_t* local_ids, uint32_t count, size_t row_bytes, char* to);

}  // namespace lane
