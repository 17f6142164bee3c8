// The C interface, which Python calls by ctypes.  This file has the functions that belong to no object; the functions of
// agents, workers, allreduces, transfers, operators and row stores are in the files *_api.cc.
//
// Functions return 0, or the value that their comments name.  On an error they return -1 or null; lane_error then
// returns the message, in the same thread.
#include "base/api_errors.h"
#include "base/dtype.h"
#include "base/sigterm_delay.h"
#include "kernels/attribute.h"
#include "kernels/half.h"
#include "kernels/update.h"
#include "memory/rows.h"
#include "worker/row_arrays.h"

using lane::guarded;
using lane::MxnetFunctions;

extern "C" {

/// The version of the interface, which increases with every change.
int lane_version() { return 40; }

const char* lane_error() { return lane::api_error.c_str(); }

/// Return the name of a rule by its number, or of a setting by its position in lists of settings; null after the last
/// one.
const char* lane_rule_name(uint32_t number) { return lane::rule_name(number); }
const char* lane_rule_setting_name(uint32_t number) { return lane::rule_setting_name(number); }
/// Return NumPy's name of a type by its number; null after the last one.
const char* lane_dtype_name(uint32_t number) {
  return number < lane::kDtypes ? lane::kDtypeNames[number] : nullptr;
}

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

/// See lane::delay_sigterm; return 1 or 0.
int lane_delay_sigterm(double seconds) { return lane::delay_sigterm(seconds); }

/// Return whether all values of float16 are finite.
int lane_finite_halves(const uint16_t* values, uint64_t count) { return lane::finite(values, count); }

/// Return the float that MXNet's operators get for a setting, in a list of settings or by itself.
float lane_attribute(double value, int in_list) {
  return in_list ? lane::list_attribute(value) : lane::attribute(value);
}

int64_t lane_sorted_unique(const int64_t* ids, int64_t count, int64_t rows, uint64_t* marks, int64_t* result) {
  return lane::sorted_unique(ids, count, rows, marks, result);
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
