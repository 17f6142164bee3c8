// Small arrays of MXNet in one compiled call: reads row ids and gradients, creates arrays of rows.
//
// MXNet gives out the contents of a row_sparse array either through operations of its engine, for which the caller must
// wait, or at once as "raw bytes", the bytes that it writes to files.  Raw bytes cost two copies of the rows, which is
// little for few rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operators/mxnet_api.h"

namespace lane {

/// Write the sorted distinct row ids in a dense array to `result` and return their number.  The array is on the CPU, no
/// operation writes it, and its type is int32, int64, float32 or float64.  Returns -1 if there are more than `capacity`
/// ids, if one is not an integer in [0, rows), or if the array is of another kind.
int64_t read_row_ids(const MxnetFunctions& mxnet, void* array, int64_t rows, int64_t capacity, int64_t* result);

/// Write the ids and rows of a row_sparse array to `ids` and `values` and return their number.  The array is on the
/// CPU, no operation writes it, its shape is (rows, width) and its type is MXNet's `dtype`.  Returns -1 if there are
/// more than `capacity` rows, if ids are not sorted or not in [0, rows), or if the array is of another kind.
int64_t read_rows(const MxnetFunctions& mxnet, void* array, int64_t rows, int64_t width, int dtype, int64_t capacity,
                  int64_t* ids, char* values);

/// A new row_sparse array on the CPU, with the shape of another array and rows of zeros for the given ids.
class RowArray {
 public:
  RowArray(const MxnetFunctions& mxnet, void* like, int dtype, size_t element, const int64_t* ids, uint32_t count);
  ~RowArray();
  RowArray(const RowArray&) = delete;
  RowArray& operator=(const RowArray&) = delete;

  /// Null if MXNet could not create the array, for example with NumPy's semantics of shapes.
  void* handle() const { return handle_; }
  /// The rows, to write to.
  char* values() const { return values_; }

 private:
  const MxnetFunctions& mxnet_;
  void* handle_ = nullptr;
  char* values_ = nullptr;
};

}  // namespace lane
