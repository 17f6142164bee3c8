// Sums of dense arrays.
#pragma once

#include <cstddef>
#include <vector>

#include "shared.h"

namespace lane {

/// Write the sum of arrays, added in their order, to `result`, which may be one of them.  float16 is added in float32
/// and rounded once, to infinity beyond its range.
void add(Dtype dtype, const std::vector<const char*>& sources, size_t count, char* result);

}  // namespace lane
