// Small arrays of MXNet's in one call: row ids and gradients are read, and arrays of rows made.
//
// What a row_sparse array holds MXNet gives away by operations of its engine, for which the caller waits, or as the
// bytes that it writes to files, "raw bytes", at once: two copies of the rows, which is little for few.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mxnet_api.h"

namespace lane {

/// Row ids of a dense array on the CPU, which nothing writes any more, of int32, int64, float32 or float64: their
/// number once they are sorted and unique, in `result`. -1 where they are more than `capacity`, one is no whole number
/// in [0, rows), or the array is of another kind.
int64_t read_row_ids(const MxnetFunctions& mxnet, void* array, int64_t rows, int64_t capacity, int64_t* result);

/// Ids and rows of a row_sparse array on the CPU, (rows, width) of MXNet's `dtype`, which nothing writes any more:
/// their number.  -1 where they are more than `capacity`, not in order, not in [0, rows), or the array is of another
/// kind.
int64_t read_rows(const MxnetFunctions& mxnet, void* array, int64_t rows, int64_t width, int dtype, int64_t capacity,
                  int64_t* ids, char* values);

/// A row_sparse array on the CPU, of the shape of another one, with rows of these ids, all zero for now; the caller's.
class RowArray {
 public:
  RowArray(const MxnetFunctions& mxnet, void* like, int dtype, size_t element, const int64_t* ids, uint32_t count);
  ~RowArray();
  RowArray(const RowArray&) = delete;
  RowArray& operator=(const RowArray&) = delete;

  /// Null where MXNet makes none, as in the semantics of NumPy's shapes.
  void* handle() const { return handle_; }
  /// Its rows.
  char* values() const { return values_; }

 private:
  const MxnetFunctions& mxnet_;
  void* handle_ = nullptr;
  char* values_ = nullptr;
};

}  // namespace lane
