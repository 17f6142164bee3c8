// Kernels for the mean and variance of each channel of an array, and for their gradient.
#pragma once

#include <cstddef>

namespace lane {

/// The shape of an array in the default layout, seen from its dimension of channels.
struct NormShape {
  size_t outer, channels, inner;

  size_t size() const { return outer * channels * inner; }
  /// Return the number of elements of a channel.
  size_t each() const { return outer * inner; }
};

/// Compute the mean and variance of each channel; `moments` gets all means, then all variances.
void compute_moments(const NormShape& shape, const float* data, float* moments);

/// Compute the gradient of the data from the gradients of the moments.
void moments_gradient(const NormShape& shape, const float* data, const float* moments, const float* gradients,
                      float* gradient);

}  // namespace lane
