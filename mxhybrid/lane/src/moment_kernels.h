// Mean and variance of each channel of an array, and their gradient.
#pragma once

#include <cstddef>

namespace lane {

/// An array in its default layout, of which one dimension has the channels.
struct NormShape {
  size_t outer, channels, inner;

  size_t size() const { return outer * channels * inner; }
  /// Elements of a channel.
  size_t each() const { return outer * inner; }
};

/// Mean and variance of each channel; `moments` has all means, then all variances.
void compute_moments(const NormShape& shape, const float* data, float* moments);

/// The gradient of data, of those of moments.
void moments_gradient(const NormShape& shape, const float* data, const float* moments, const float* gradients,
                      float* gradient);

}  // namespace lane
