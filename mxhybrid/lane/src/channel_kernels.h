// Mean and variance of each channel of an array, and their gradient.
#pragma once

#include <cstddef>

namespace lane {

/// An array in its default layout, of which one dimension has the channels.
struct Channels {
  size_t before, count, behind;

  size_t size() const { return before * count * behind; }
  /// Elements of a channel.
  size_t each() const { return before * behind; }
};

/// Mean and variance of each channel; `moments` has all means, then all variances.
void compute_moments(const Channels& shape, const float* data, float* moments);

/// The gradient of data, of those of moments.
void moments_gradient(const Channels& shape, const float* data, const float* moments, const float* gradients,
                      float* gradient);

}  // namespace lane
