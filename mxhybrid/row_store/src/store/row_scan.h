// Rows of a store in the order of their keys, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "store/row_store.h"

namespace lane {

/// Iterates over the rows of a store, which must not change until the end.  Memory is bounded: histograms divide the keys
/// into portions, and each pass over the keys of all slots finds the slots of as many portions as have some millions of
/// rows.
class RowScan {
 public:
  /// Scan the rows that changed after version `since`, at most `portion` at a time; -1: all rows.
  RowScan(const RowStore& store, int64_t since, size_t portion);

  /// The number of rows.
  uint64_t count() const { return count_; }
  /// Go to the next portion and return its number of rows; 0 after the last one.
  size_t next();

  /// The memory to which the columns of a portion are written; null for a column that is left out.  Python gives the
  /// pointers in this order.
  struct Columns {
    int64_t* keys;
    char* rows;
    char* states[2];
    uint32_t* ages[2];
  };
  /// Write the columns of the current portion.
  void read(const Columns& to) const;

 private:
  /// Ordered keys from `first` to `last`, which `count` rows have.
  struct Range {
    uint64_t first, last, count;
  };
  struct Entry {
    uint64_t key;  // ordered
    uint32_t slot;
  };

  /// Return a key as a number with the same order.
  static uint64_t ordered(int64_t key) { return static_cast<uint64_t>(key) ^ uint64_t{1} << 63; }
  static int64_t unordered(uint64_t key) { return static_cast<int64_t>(key ^ uint64_t{1} << 63); }
  bool is_scanned(uint64_t slot) const {
    return store_.is_live(slot) && (since_ < 0 || store_.version_of(slot) > since_);
  }
  /// Call `function` with each slot whose row is scanned, in their order.
  template <typename Function>
  void each_slot(Function function) const;
  void divide(const Range& range);
  /// Find the slots of the next portions.
  void gather();

  const RowStore& store_;
  const int64_t since_;
  const size_t portion_;
  uint64_t count_ = 0;
  std::vector<Range> ranges_;  // those that are left, in descending order
  /// All slots whose rows are scanned, if these are few; otherwise each pass looks for them.
  std::vector<uint32_t> changed_;
  bool are_few_ = false;
  /// The portions whose slots are known, those slots, portion by portion, and the numbers of those that are past.
  std::vector<Range> gathered_;
  std::vector<uint32_t> slots_;
  size_t past_portions_ = 0, past_slots_ = 0;
  /// The entries of the current portion, and memory to sort them.
  std::vector<Entry> entries_, spare_;
  size_t size_ = 0;
};

}  // namespace lane
