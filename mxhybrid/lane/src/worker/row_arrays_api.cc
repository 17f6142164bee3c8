// The C interface of small arrays of MXNet; see api.cc for its conventions.
#include "base/api_errors.h"
#include "worker/row_arrays.h"

using lane::guarded;
using lane::MxnetFunctions;

extern "C" {

/// Copy arrays to other arrays by MXNet's operator _copyto; return 0, or -1 if MXNet refuses a copy.
int lane_copy_arrays(const MxnetFunctions* mxnet, uint32_t count, void** from, void** to) {
  for (uint32_t i = 0; i < count; ++i) {
    if (!mxnet->copy(from[i], to[i])) return -1;
  }
  return 0;
}

/// See lane::read_row_ids.
int64_t lane_read_row_ids(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t capacity, int64_t* result) {
  return guarded([&] { return lane::read_row_ids(*mxnet, array, rows, capacity, result); });
}

/// See lane::read_rows.
int64_t lane_read_rows(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t width, int dtype,
                       int64_t capacity, int64_t* ids, char* values) {
  return guarded([&] { return lane::read_rows(*mxnet, array, rows, width, dtype, capacity, ids, values); });
}

}  // extern "C"
