// The C interface of kernels; see api.cc for its conventions.
#include "kernels/half.h"
#include "kernels/sorted_unique.h"
#include "kernels/update.h"

extern "C" {

/// Return the name of a rule by its number, or of a setting by its position in lists of settings; null after the last
/// one.
const char* lane_rule_name(uint32_t number) { return lane::rule_name(number); }
const char* lane_rule_setting_name(uint32_t number) { return lane::rule_setting_name(number); }

/// Return whether all values of float16 are finite.
int lane_finite_halves(const uint16_t* values, uint64_t count) { return lane::finite(values, count); }

int64_t lane_sorted_unique(const int64_t* ids, int64_t count, int64_t rows, uint64_t* marks, int64_t* result) {
  return lane::sorted_unique(ids, count, rows, marks, result);
}

}  // extern "C"
