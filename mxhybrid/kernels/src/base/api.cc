// The C interface, which Python calls by ctypes.  This file has the functions that belong to no object; the functions of
// agents, workers, allreduces, transfers, operators and row stores are in the files *_api.cc.
//
// Functions return 0, or the value that their comments name.  On an error they return -1 or null; lane_error then
// returns the message, in the same thread.
#include "base/api_errors.h"
#include "base/dtype.h"
#include "base/sigterm_delay.h"

extern "C" {

/// The version of the interface, which increases with every change.
int lane_version() { return 44; }

const char* lane_error() { return lane::api_error.c_str(); }

/// Return NumPy's name of a type by its number; null after the last one.
const char* lane_dtype_name(uint32_t number) {
  return number < lane::kDtypes ? lane::kDtypeNames[number] : nullptr;
}

/// See lane::delay_sigterm; return 1 or 0.
int lane_delay_sigterm(double seconds) { return lane::delay_sigterm(seconds); }

}  // extern "C"
