// Kernels for the mean and variance of each channel of an array, for values that are normalized by them, and for the
// gradients of both.
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

/// Numbers of each channel by which data is normalized: (data - center) * scale + shift, or 0 in place of negative
/// values if it `rectifies`.
struct NormCoefficients {
  const float *center, *scale, *shift;
  bool rectifies;
};

/// Normalized images of which only the largest value of each window of two rows and two columns is kept.  The count of
/// rows and that of columns are even; zeros mean that all values are kept.  With windows, normalized values and their
/// gradients have a quarter of the size; the first of equal values in a window has the gradient, as in MXNet.
struct Windows {
  size_t rows, columns;
};

/// Normalize data.
void normalize(const NormShape& shape, const Windows& windows, const float* data, const NormCoefficients& coefficients,
               float* output);

/// Compute for each channel the sum of the gradients of normalized data, and the sum of their products with
/// (data - center).  Rectified values have no gradient.
void gradient_sums(const NormShape& shape, const Windows& windows, const float* data, const float* output_gradient,
                   const NormCoefficients& coefficients, double* sums, double* products);

/// Compute the gradient of the data, from the gradient of the normalized data and `gradients`, those of the moments.
void normalized_gradient(const NormShape& shape, const Windows& windows, const float* data,
                         const float* output_gradient, const NormCoefficients& coefficients, const float* moments,
                         const float* gradients, float* gradient);

}  // namespace lane
