// Sums of elements of arrays.
#pragma once

#include <cstddef>
#include <vector>

#include "base/dtype.h"

namespace lane {

/// Combines `bytes`, whole elements, at `from` with those at `to`, and leaves the result at `to`.
using Apply = void (*)(char* to, const char* from, size_t bytes);

/// Copy elements.
void copy_elements(char* to, const char* from, size_t bytes);
/// Return the function that adds elements to others; each sum is rounded to the type.
Apply adder(Dtype dtype);
/// Return the function that adds elements to zeros: it copies them, except that -0.0 becomes 0.0.
Apply zero_adder(Dtype dtype);

/// Write the sum of arrays of `count` elements, added in their order, to `result`, which may be one of them.  float16
/// is added in float32 and rounded once, to infinity beyond its range.
void add_arrays(Dtype dtype, const std::vector<const char*>& sources, size_t count, char* result);

}  // namespace lane
