#include "moment_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "avx2.h"

namespace lane {
namespace {

/// The number of elements that are computed at once, and of those that are added in float before double.
constexpr size_t kLanes = 8, kBlock = 1024;
/// With fewer contiguous elements of a channel than this, one loop runs over all channels.
constexpr size_t kShort = 16;

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

/// Load one element, or a Vector of elements.
template <typename Value>
__attribute__((always_inline)) inline void load(const float* from, Value& value) {
  std::memcpy(&value, from, sizeof value);
}

struct Sums {
  double first = 0, second = 0;
};

/// Return the sums of two functions over a range of elements; `function` adds the values of an element to two sums.
template <typename Function>
__attribute__((always_inline)) inline Sums sums_of(size_t count, Function function) {
  Sums sums;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    // Two sums of each kind, since every addition to one sum waits for the addition before.
    Vector first[2] = {}, second[2] = {};
    size_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      function(i, first[0], second[0]);
      function(i + kLanes, first[1], second[1]);
    }
    for (; i < end; ++i) {
      float first_term = 0, second_term = 0;
      function(i, first_term, second_term);
      sums.first += first_term;
      sums.second += second_term;
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums.first += first[0][lane] + first[1][lane];
      sums.second += second[0][lane] + second[1][lane];
    }
  }
  return sums;
}

/// The mean and the sum of squared deviations of the elements so far (Chan, Golub and LeVeque, 1979).
struct Moments {
  double count = 0, mean = 0, squares = 0;

  void add(double others, double their_mean, double their_squares) {
    const double total = count + others, apart = their_mean - mean;
    mean += apart * others / total;
    squares += their_squares + apart * apart * count * others / total;
    count = total;
  }
};

__attribute__((always_inline)) inline void moments_of_channel(const NormShape& shape, size_t channel, const float* data,
                                                              float* moments) {
  Moments merged;
  for (size_t row = 0; row < shape.outer; ++row) {
    const float* from = data + (row * shape.channels + channel) * shape.inner;
    const double mean = sums_of(shape.inner, [&](size_t i, auto& first, auto& value) __attribute__((always_inline)) {
                          load(from + i, value);
                          first += value;
                        }).first / static_cast<double>(shape.inner);
    const float center = static_cast<float>(mean);
    const Sums apart = sums_of(shape.inner, [&](size_t i, auto& first, auto& second) __attribute__((always_inline)) {
      std::decay_t<decltype(first)> distance;
      load(from + i, distance);
      distance -= center;
      first += distance;
      second += distance * distance;
    });
    // The deviations are from a rounded mean.
    merged.add(static_cast<double>(shape.inner), center + apart.first / static_cast<double>(shape.inner),
              apart.second - apart.first * apart.first / static_cast<double>(shape.inner));
  }
  moments[channel] = static_cast<float>(merged.mean);
  moments[shape.channels + channel] = static_cast<float>(std::max(0.0, merged.squares) / merged.count);
}

__attribute__((always_inline)) inline void moments_gradient_of_channel(const NormShape& shape, size_t channel,
                                                                       const float* data, const float* moments,
                                                                       const float* gradients, float* gradient) {
  const float mean = moments[channel], count = static_cast<float>(shape.each());
  const float of_mean = gradients[channel] / count, of_variance = 2 * gradients[shape.channels + channel] / count;
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t begin = (row * shape.channels + channel) * shape.inner;
    for (size_t i = begin; i < begin + shape.inner; ++i) gradient[i] = of_mean + (data[i] - mean) * of_variance;
  }
}

__attribute__((always_inline)) inline void normalize_channel(const NormShape& shape, size_t channel, const float* data,
                                                             float center, float scale, float shift, float* output) {
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t begin = (row * shape.channels + channel) * shape.inner;
    for (size_t i = begin; i < begin + shape.inner; ++i) output[i] = (data[i] - center) * scale + shift;
  }
}

__attribute__((always_inline)) inline Sums gradient_sums_of_channel(const NormShape& shape, size_t channel,
                                                                    const float* data, const float* output_gradient,
                                                                    float center) {
  Sums sums;
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t begin = (row * shape.channels + channel) * shape.inner;
    const float *values = data + begin, *gradients = output_gradient + begin;
    const Sums of_row = sums_of(shape.inner, [&](size_t i, auto& first, auto& second) __attribute__((always_inline)) {
      std::decay_t<decltype(first)> value, gradient;
      load(values + i, value);
      load(gradients + i, gradient);
      first += gradient;
      second += gradient * (value - center);
    });
    sums.first += of_row.first;
    sums.second += of_row.second;
  }
  return sums;
}

__attribute__((always_inline)) inline void normalized_gradient_of_channel(const NormShape& shape, size_t channel,
                                                                          const float* data, float mean,
                                                                          const float* output_gradient, float scale,
                                                                          float of_mean, float of_variance,
                                                                          float* gradient) {
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t begin = (row * shape.channels + channel) * shape.inner;
    for (size_t i = begin; i < begin + shape.inner; ++i) {
      gradient[i] = output_gradient[i] * scale + (data[i] - mean) * of_variance + of_mean;
    }
  }
}

const bool kFast = is_fast();

LANE_FAST void fast_moments(const NormShape& shape, size_t channel, const float* data, float* moments) {
  moments_of_channel(shape, channel, data, moments);
}
LANE_FAST void fast_moments_gradient(const NormShape& shape, size_t channel, const float* data, const float* moments,
                                     const float* gradients, float* gradient) {
  moments_gradient_of_channel(shape, channel, data, moments, gradients, gradient);
}
LANE_FAST void fast_normalize(const NormShape& shape, size_t channel, const float* data, float center, float scale,
                              float shift, float* output) {
  normalize_channel(shape, channel, data, center, scale, shift, output);
}
LANE_FAST Sums fast_gradient_sums(const NormShape& shape, size_t channel, const float* data,
                                  const float* output_gradient, float center) {
  return gradient_sums_of_channel(shape, channel, data, output_gradient, center);
}
LANE_FAST void fast_normalized_gradient(const NormShape& shape, size_t channel, const float* data, float mean,
                                        const float* output_gradient, float scale, float of_mean, float of_variance,
                                        float* gradient) {
  normalized_gradient_of_channel(shape, channel, data, mean, output_gradient, scale, of_mean, of_variance, gradient);
}

/// Call a function for each channel, in the threads of OpenMP.
template <typename Function>
void for_channels(const NormShape& shape, Function function) {
#ifdef _OPENMP
#pragma omp parallel for if (shape.size() > 32 * kBlock)
#endif
  for (size_t channel = 0; channel < shape.channels; ++channel) function(channel);
}

/// Call a function for each element with its position and channel.
template <typename Function>
void for_elements(const NormShape& shape, Function function) {
  size_t i = 0;
  for (size_t row = 0; row < shape.outer; ++row) {
    for (size_t channel = 0; channel < shape.channels; ++channel) {
      for (size_t end = i + shape.inner; i < end; ++i) function(i, channel);
    }
  }
}

}  // namespace

void compute_moments(const NormShape& shape, const float* data, float* moments) {
  if (shape.inner >= kShort) {
    for_channels(shape, [&](size_t channel) {
      if (kFast) {
        fast_moments(shape, channel, data, moments);
      } else {
        moments_of_channel(shape, channel, data, moments);
      }
    });
    return;
  }
  const double each = static_cast<double>(shape.each());
  std::vector<double> mean(shape.channels), squares(shape.channels);
  for_elements(shape, [&](size_t i, size_t channel) { mean[channel] += data[i]; });
  for (double& value : mean) value /= each;
  for_elements(shape, [&](size_t i, size_t channel) {
    const double distance = data[i] - mean[channel];
    squares[channel] += distance * distance;
  });
  for (size_t channel = 0; channel < shape.channels; ++channel) {
    moments[channel] = static_cast<float>(mean[channel]);
    moments[shape.channels + channel] = static_cast<float>(squares[channel] / each);
  }
}

void moments_gradient(const NormShape& shape, const float* data, const float* moments, const float* gradients,
                      float* gradient) {
  for_channels(shape, [&](size_t channel) {
    if (kFast) {
      fast_moments_gradient(shape, channel, data, moments, gradients, gradient);
    } else {
      moments_gradient_of_channel(shape, channel, data, moments, gradients, gradient);
    }
  });
}

void normalize(const NormShape& shape, const float* data, const float* center, const float* scale, const float* shift,
               float* output) {
  if (shape.inner < kShort) {
    for_elements(shape, [&](size_t i, size_t channel) {
      output[i] = (data[i] - center[channel]) * scale[channel] + shift[channel];
    });
    return;
  }
  for_channels(shape, [&](size_t channel) {
    (kFast ? fast_normalize : normalize_channel)(shape, channel, data, center[channel], scale[channel], shift[channel],
                                                 output);
  });
}

void gradient_sums(const NormShape& shape, const float* data, const float* output_gradient, const float* center,
                   double* sums, double* products) {
  if (shape.inner < kShort) {
    std::fill(sums, sums + shape.channels, 0.0);
    std::fill(products, products + shape.channels, 0.0);
    for_elements(shape, [&](size_t i, size_t channel) {
      sums[channel] += output_gradient[i];
      products[channel] += static_cast<double>(output_gradient[i]) * (data[i] - center[channel]);
    });
    return;
  }
  for_channels(shape, [&](size_t channel) {
    const Sums of_channel = (kFast ? fast_gradient_sums : gradient_sums_of_channel)(shape, channel, data,
                                                                                    output_gradient, center[channel]);
    sums[channel] = of_channel.first;
    products[channel] = of_channel.second;
  });
}

void normalized_gradient(const NormShape& shape, const float* data, const float* moments, const float* output_gradient,
                         const float* scale, const float* gradients, float* gradient) {
  const float count = static_cast<float>(shape.each());
  std::vector<float> of_mean(shape.channels), of_variance(shape.channels);
  for (size_t channel = 0; channel < shape.channels; ++channel) {
    of_mean[channel] = gradients[channel] / count;
    of_variance[channel] = 2 * gradients[shape.channels + channel] / count;
  }
  if (shape.inner < kShort) {
    for_elements(shape, [&](size_t i, size_t channel) {
      gradient[i] = output_gradient[i] * scale[channel] + (data[i] - moments[channel]) * of_variance[channel] +
                    of_mean[channel];
    });
    return;
  }
  for_channels(shape, [&](size_t channel) {
    (kFast ? fast_normalized_gradient : normalized_gradient_of_channel)(
        shape, channel, data, moments[channel], output_gradient, scale[channel], of_mean[channel],
        of_variance[channel], gradient);
  });
}

}  // namespace lane
