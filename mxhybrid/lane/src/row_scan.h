// Rows of a store in the order of their keys, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory.h"
#include "row_store.h"

namespace lane {

/// Iterates over the rows of a store, which must not change until the end.  Memory is bounded by the portion: each
/// portion is found by a pass over the keys of all slots, and histograms divide the keys into portions.
class RowScan {
 public:
  /// Scan the rows that changed after step `since`, at most `portion` at a time; -1: all rows.
  RowScan(const RowStore& store, int64_t since, size_t portion);

  /// The number of rows.
  uint64_t count() const { return count_; }
  /// Go to the next portion and return its number of rows; 0 after the last one.
  size_t next();

  // The current portion.
  void keys(int64_t* keys) const;
  void rows(char* rows);
  void states(uint32_t number, char* states);
  /// The step that changed each row last, and the number of its updates if the store counts these.
  void steps(uint32_t* steps) const;
  void update_counts(uint32_t* counts) const;

 private:
  /// Ordered keys from `first` to `last`, which `count` rows have.
  struct Range {
    uint64_t first, last, count;
  };

  /// Return a key as a number with the same order.
  static uint64_t ordered(int64_t key) { return static_cast<uint64_t>(key) ^ uint64_t{1} << 63; }
  bool is_scanned(uint64_t slot) const;
  void divide(const Range& range);
  void copy(size_t offset, size_t bytes, char* to);

  const RowStore& store_;
  const int64_t since_;
  const size_t portion_;
  uint64_t count_ = 0;
  std::vector<Range> ranges_;  // those that are left, in descending order
  std::vector<uint32_t> slots_;
  Buffer records_;  // of the portion, if they may have to be read from a file: once for all of their columns
};

}  // namespace lane
