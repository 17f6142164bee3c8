// What a normalisation over several workers computes of an array by itself: moments of each channel, and scaling.
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

/// Copy an array, and compute mean and variance of each channel; `moments` has all means, then all variances.
void copy_with_moments(const Channels& shape, const float* data, float* copy, float* moments);

/// The gradient of what `copy_with_moments` is given, of those of what it gives.
void moments_gradient(const Channels& shape, const float* data, const float* moments, const float* copy_gradient,
                      const float* gradients, float* gradient);

/// (data - center) * scale + shift, of each channel.
void scale_channels(const Channels& shape, const float* data, const float* center, const float* scale,
                    const float* shift, float* scaled);

/// The gradients of data, scale and shift.
void scale_gradients(const Channels& shape, const float* data, const float* center, const float* scale,
                     const float* scaled_gradient, float* gradient, float* scale_gradient, float* shift_gradient);

}  // namespace lane
