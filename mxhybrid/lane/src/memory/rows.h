// Lists of rows by id, and their sums.  An id is a local id (int32) or, in a dynamic table, a key (int64).
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/add.h"
#include "memory/shared.h"

namespace lane {

/// Rows of one partition; the ids are sorted and unique.
template <typename Id>
struct RowListOf {
  const Id* ids;
  const char* rows;
  uint32_t count;
};
using RowList = RowListOf<int32_t>;
using KeyedRowList = RowListOf<int64_t>;

/// Sums lists row by row.  The lists are added in their order, so sums do not depend on how rows are partitioned.
class Merger {
 public:
  Merger(Dtype dtype, size_t width) : add_(adder(dtype)), row_bytes_(width * size_of(dtype)) {}

  /// Call `take(id, sum of rows)` for each id of any list, in order.
  template <typename Id, typename Take>
  void each(const std::vector<RowListOf<Id>>& lists, Take take) {
    if (lists.size() == 1) {
      const RowListOf<Id>& list = lists[0];
      for (uint32_t i = 0; i < list.count; ++i) take(list.ids[i], list.rows + i * row_bytes_);
      return;
    }
    sum_.resize(row_bytes_);
    if (lists.size() == 2) return each_of_two(lists[0], lists[1], take);
    positions_.assign(lists.size(), 0);
    Heads<Id>& heads = heads_of<Id>();
    heads.resize(lists.size());
    for (size_t i = 0; i < lists.size(); ++i) heads[i] = lists[i].count ? lists[i].ids[0] : kEnd<Id>;
    for (Head<Id> lowest; (lowest = lowest_of<Id>(heads)) != kEnd<Id>;) {
      const char* sum = nullptr;
      for (size_t i = 0; i < lists.size(); ++i) {
        if (heads[i] != lowest) continue;
        const char* row = lists[i].rows + positions_[i] * row_bytes_;
        const uint32_t next = ++positions_[i];
        heads[i] = next < lists[i].count ? lists[i].ids[next] : kEnd<Id>;
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
      take(static_cast<Id>(lowest), sum);
    }
  }

  size_t row_bytes() const { return row_bytes_; }
  /// Return whether a row that `each` has passed on is a sum, whose memory the next sum overwrites.
  bool is_sum(const char* row) const { return row == sum_.data(); }

 private:
  template <typename Id, typename Take>
  void each_of_two(const RowListOf<Id>& first, const RowListOf<Id>& second, Take take) {
    uint32_t i = 0, j = 0;
    while (i < first.count && j < second.count) {
      const Id id = first.ids[i], other = second.ids[j];
      if (id < other) {
        take(id, first.rows + i++ * row_bytes_);
      } else if (other < id) {
        take(other, second.rows + j++ * row_bytes_);
      } else {
        const char* row = first.rows + i++ * row_bytes_;
        std::copy(row, row + row_bytes_, sum_.data());
        add_(sum_.data(), second.rows + j++ * row_bytes_, row_bytes_);
        take(id, static_cast<const char*>(sum_.data()));
      }
    }
    for (; i < first.count; ++i) take(first.ids[i], first.rows + i * row_bytes_);
    for (; j < second.count; ++j) take(second.ids[j], second.rows + j * row_bytes_);
  }

  /// The next id of a list, or a larger number after the last one.  Any int64 may be a key, so that needs more bits;
  /// local ids are below INT32_MAX.
  template <typename Id>
  using Head = std::conditional_t<sizeof(Id) == sizeof(int32_t), int32_t, __int128>;
  template <typename Id>
  using Heads = std::vector<Head<Id>>;
  template <typename Id>
  static constexpr Head<Id> kEnd =
      sizeof(Id) == sizeof(int32_t) ? INT32_MAX : static_cast<Head<Id>>(INT64_MAX) + 1;

  template <typename Id>
  Heads<Id>& heads_of() {
    if constexpr (sizeof(Id) == sizeof(int32_t)) {
      return heads_;
    } else {
      return key_heads_;
    }
  }
  template <typename Id>
  static Head<Id> lowest_of(const Heads<Id>& heads) {
    Head<Id> result = kEnd<Id>;
    for (Head<Id> head : heads) result = head < result ? head : result;
    return result;
  }

  const Apply add_;
  const size_t row_bytes_;
  std::vector<char> sum_;
  std::vector<uint32_t> positions_;
  Heads<int32_t> heads_;
  Heads<int64_t> key_heads_;
};

/// Split sorted ids by partition.  Writes the bounds of partitions (see WorkerTableLayout), the local ids, and for each
/// local id the position of its id in `ids`.  `order` may be null with one partition.
void split(const TableShape& shape, const int64_t* ids, uint32_t count, uint32_t* bounds, int32_t* local_ids,
           uint32_t* order);
/// Split the sorted keys of a dynamic table in the same way; `result` has the keys by partition.
void split(const TableShape& shape, const int64_t* keys, uint32_t count, uint32_t* bounds, int64_t* result,
           uint32_t* order);
/// Do the same for the local ids or keys at an address.
inline void split(const TableShape& shape, const int64_t* ids, uint32_t count, uint32_t* bounds, void* result,
                  uint32_t* order) {
  shape.dynamic ? split(shape, ids, count, bounds, static_cast<int64_t*>(result), order)
                : split(shape, ids, count, bounds, static_cast<int32_t*>(result), order);
}

/// Throw std::runtime_error unless row ids are sorted, unique and rows of the table, or keys are sorted and unique and
/// no more than a batch may have.  Such ids fit into the shared memory.
void check_ids(const TableShape& shape, const int64_t* ids, uint32_t count);

/// Return whether local ids are sorted, unique and below the number of rows of a partition.
bool well_formed(const TableShape& shape, uint32_t part, const int32_t* local_ids, uint32_t count);
/// Return whether keys are sorted and unique and belong to a partition.
bool well_formed(const TableShape& shape, uint32_t part, const int64_t* keys, uint32_t count);
/// Do the same for the local ids or keys at an address.
inline bool well_formed(const TableShape& shape, uint32_t part, const void* ids, uint32_t count) {
  return shape.dynamic ? well_formed(shape, part, static_cast<const int64_t*>(ids), count)
                       : well_formed(shape, part, static_cast<const int32_t*>(ids), count);
}

/// The pushes, pulls and answers in which a row is rounded at random, see RowRounding.
struct RoundingContext {
  uint32_t table, source, pushes;
};
/// The source of answers to pulls, which are the same whichever host sends them.
constexpr uint32_t kAnswers = UINT32_MAX;

/// Return the number of a row with a local id or, in a dynamic table, a key, by which it is rounded.
inline uint64_t row_number(const TableShape& shape, uint32_t part, int32_t local_id) {
  return static_cast<uint64_t>(local_id) * shape.partitions() + part;
}
inline uint64_t row_number(const TableShape&, uint32_t, int64_t key) { return static_cast<uint64_t>(key); }

/// Write a row that is pushed as it travels.
void encode_push(const TableShape& shape, const RoundingContext& context, uint64_t row, const char* from, char* to);
/// Write a row that is pulled as it travels.
void encode_answer(const TableShape& shape, const RoundingContext& context, uint64_t row, const char* from, char* to);
/// Write rows that have travelled rounded as float32.
void decode_rows(const TableShape& shape, const char* from, uint32_t count, char* to);
/// Round a row that is pulled on the host of its owner as if it had travelled.
void round_answer(const TableShape& shape, const RoundingContext& context, uint64_t row, const char* from, char* to);

/// Copy row `local_ids[i]` of `from` to row i of `to`.
void gather(const char* from, const int32_t* local_ids, uint32_t count, size_t row_bytes, char* to);

}  // namespace lane
