// The C interface of small arrays of MXNet; see api.cc for its conventions.
#include "base/api_errors.h"
#include "worker/row_arrays.h"

using lane::guarded;
using lane::MxnetFunctions;

extern "C" {

/// Copy arrays to other arrays by MXNet's operator _copyto, through MXImperativeInvokeEx; return its result.
int lane_copy_arrays(void* invoke, void* copy, uint32_t count, void** from, void** to) {
  using Invoke = int (*)(void*, int, void**, int*, void***, int, const char**, const char**, const int**);
  for (uint32_t i = 0; i < count; ++i) {
    int outputs = 1;
    void* output = to[i];
    void** pointer = &output;
    const int* storage = nullptr;
    const int failed = reinterpret_cast<Invoke>(invoke)(copy, 1, &from[i], &outputs, &pointer, 0, nullptr, nullptr,
                                                        &storage);
    if (failed) return failed;
  }
  return 0;
}

/// See lane::read_row_ids.
int64_t lane_read_row_ids(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t capacity, int64_t* result) {
  return guarded([&] { return lane::read_row_ids(*mxnet, array, rows, capacity, result); }, -1);
}

/// See lane::read_rows.
int64_t lane_read_rows(const MxnetFunctions* mxnet, void* array, int64_t rows, int64_t width, int dtype,
                       int64_t capacity, int64_t* ids, void* values) {
  return guarded([&] {
    return lane::read_rows(*mxnet, array, rows, width, dtype, capacity, ids, static_cast<char*>(values));
  }, -1);
}

}  // extern "C"
