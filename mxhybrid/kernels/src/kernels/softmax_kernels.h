// Kernels for a softmax or its logarithm along an axis that is cut into parts.
#pragma once

#include <cstddef>

#include "kernels/moment_kernels.h"

namespace lane {

/// Copy a part, and compute the maximum of each row along the axis, which is the `channels` of the shape, and the sum of
/// the exponentials of the differences from it; `parts` gets all maxima, then all sums.
void softmax_parts(const NormShape& shape, const float* data, float* copy, float* parts);

/// Compute the gradient of the part from those of the copy and of the sums; maxima have no gradient.
void softmax_parts_gradient(const NormShape& shape, const float* data, const float* parts, const float* copy_gradient,
                            const float* parts_gradient, float* gradient);

/// Compute the softmax of a part, or its logarithm, from the maxima and sums of all `count` parts: `parts` has the shape
/// (2, outer, count, inner).
void softmax_of_parts(const NormShape& shape, size_t count, bool is_log, const float* data, const float* parts,
                      float* output);

/// Compute the gradients of the part and of all maxima and sums, of which those of maxima are 0.
void softmax_of_parts_gradient(const NormShape& shape, size_t count, bool is_log, const float* parts,
                               const float* output, const float* output_gradient, float* gradient,
                               float* parts_gradient);

}  // namespace lane
