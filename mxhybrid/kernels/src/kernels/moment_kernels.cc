#include "kernels/moment_kernels.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/avx2.h"

namespace lane {
namespace {

/// The number of elements that are added in float before double.
constexpr size_t kBlock = 1024;
/// With fewer contiguous elements of a channel than this, one loop runs over all channels.
constexpr size_t kShort = 16;

struct Sums {
  double first = 0, second = 0;
};

/// Return the sums of two functions over a range of elements; `function` adds the values of an element to two sums.
template <typename Function>
LANE_INLINE Sums sums_of(size_t count, Function function) {
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

LANE_INLINE void moments_of_channel(const NormShape& shape, size_t channel, const float* data, float* moments) {
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

/// The coefficients of one channel.
struct Coefficients {
  float center, scale, shift;

  Coefficients(const NormCoefficients& of_channels, size_t channel)
      : center(of_channels.center[channel]), scale(of_channels.scale[channel]), shift(of_channels.shift[channel]) {}
  /// Return a normalized value before it is rectified; all kernels round it in the same way.
  LANE_INLINE float normalized(float value) const { return (value - center) * scale + shift; }
};

template <bool kRectifies>
LANE_INLINE float output_of(const Coefficients& of_channel, float value) {
  const float normalized = of_channel.normalized(value);
  return kRectifies && normalized <= 0 ? 0 : normalized;
}

template <bool kRectifies>
LANE_INLINE float passed(const Coefficients& of_channel, float value, float gradient) {
  return !kRectifies || of_channel.normalized(value) > 0 ? gradient : 0;
}

/// Call a function with a std::true_type or std::false_type.
template <typename Function>
LANE_INLINE void with_constant(bool value, Function function) {
  if (value) {
    function(std::true_type());
  } else {
    function(std::false_type());
  }
}

template <bool kRectifies>
LANE_INLINE void normalize_channel(const NormShape& shape, size_t channel, const float* data,
                                   const Coefficients& of_channel, float* output) {
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t begin = (row * shape.channels + channel) * shape.inner;
    for (size_t i = begin; i < begin + shape.inner; ++i) output[i] = output_of<kRectifies>(of_channel, data[i]);
  }
}

/// Set `gradient` to 0 except where `value` is positive.  No Vector is returned: without AVX, that would be another ABI.
LANE_INLINE void keep_where_positive(float value, float& gradient) {
  gradient = value > 0 ? gradient : 0;
}
LANE_INLINE void keep_where_positive(const Vector& value, Vector& gradient) {
  gradient = value > 0 ? gradient : Vector{};
}

/// Return the sums of consecutive gradients that pass, and of their products with the values less the center.
template <bool kRectifies>
LANE_INLINE Sums gradient_sums_of_values(size_t count, const float* values, const float* gradients,
                                         const Coefficients& of_channel) {
  const auto [center, scale, shift] = std::tuple(of_channel.center, of_channel.scale, of_channel.shift);
  return sums_of(count, [=](size_t i, auto& first, auto& second) __attribute__((always_inline)) {
    std::decay_t<decltype(first)> value, gradient;
    load(values + i, value);
    load(gradients + i, gradient);
    value -= center;
    if (kRectifies) keep_where_positive(value * scale + shift, gradient);
    first += gradient;
    second += gradient * value;
  });
}

template <bool kRectifies>
LANE_INLINE Sums gradient_sums_of_channel(const NormShape& shape, size_t channel, const float* data,
                                          const float* output_gradient, const Coefficients& of_channel) {
  Sums sums;
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t begin = (row * shape.channels + channel) * shape.inner;
    const Sums of_row =
        gradient_sums_of_values<kRectifies>(shape.inner, data + begin, output_gradient + begin, of_channel);
    sums.first += of_row.first;
    sums.second += of_row.second;
  }
  return sums;
}

/// The moments of a channel of a part, and their gradients for each element.
struct MomentGradients {
  float mean, of_mean, of_variance;
};

template <bool kRectifies>
LANE_INLINE float data_gradient(const Coefficients& of_channel, const MomentGradients& moments, float value,
                                float gradient) {
  return passed<kRectifies>(of_channel, value, gradient) * of_channel.scale +
         (value - moments.mean) * moments.of_variance + moments.of_mean;
}

template <bool kRectifies>
LANE_INLINE void normalized_gradient_of_channel(const NormShape& shape, size_t channel, const float* data,
                                                const float* output_gradient, const Coefficients& of_channel,
                                                const MomentGradients& moments, float* gradient) {
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t begin = (row * shape.channels + channel) * shape.inner;
    for (size_t i = begin; i < begin + shape.inner; ++i) {
      gradient[i] = data_gradient<kRectifies>(of_channel, moments, data[i], output_gradient[i]);
    }
  }
}

/// Return 1 if the largest normalized value of a window belongs to the largest element, -1 if it belongs to the smallest
/// one, and 0 if all values are equal.
LANE_INLINE float direction_of(const Coefficients& of_channel) {
  return static_cast<float>((of_channel.scale > 0) - (of_channel.scale < 0));
}

/// Return the element of a window that has its largest normalized value: the first one among equal elements.
LANE_INLINE float selected(float direction, const float* upper, const float* lower) {
  float value = upper[0];
  value = upper[1] * direction > value * direction ? upper[1] : value;
  value = lower[0] * direction > value * direction ? lower[0] : value;
  return lower[1] * direction > value * direction ? lower[1] : value;
}

template <bool kRectifies>
LANE_INLINE void normalize_windows_of_channel(const NormShape& shape, const Windows& windows, size_t channel,
                                              const float* __restrict__ data, const Coefficients& coefficients,
                                              float* __restrict__ output) {
  const Coefficients of_channel = coefficients;
  const float direction = direction_of(of_channel);
  for (size_t row = 0; row < shape.outer; ++row) {
    const float* from = data + (row * shape.channels + channel) * shape.inner;
    float* to = output + (row * shape.channels + channel) * (shape.inner / 4);
    for (size_t y = 0; y < windows.rows; y += 2, to += windows.columns / 2) {
      const float *upper = from + y * windows.columns, *lower = upper + windows.columns;
      for (size_t x = 0; x < windows.columns / 2; ++x) {
        to[x] = output_of<kRectifies>(of_channel, selected(direction, upper + 2 * x, lower + 2 * x));
      }
    }
  }
}

/// `chosen` has room for a quarter of the inner elements.
template <bool kRectifies>
LANE_INLINE Sums window_gradient_sums_of_channel(const NormShape& shape, const Windows& windows, size_t channel,
                                                 const float* __restrict__ data, const float* output_gradient,
                                                 const Coefficients& of_channel, float* __restrict__ chosen) {
  const float direction = direction_of(of_channel);
  Sums sums;
  for (size_t row = 0; row < shape.outer; ++row) {
    const float* from = data + (row * shape.channels + channel) * shape.inner;
    for (size_t y = 0; y < windows.rows; y += 2) {
      const float *upper = from + y * windows.columns, *lower = upper + windows.columns;
      float* to = chosen + y * windows.columns / 4;
      for (size_t x = 0; x < windows.columns / 2; ++x) to[x] = selected(direction, upper + 2 * x, lower + 2 * x);
    }
    const float* gradients = output_gradient + (row * shape.channels + channel) * (shape.inner / 4);
    const Sums of_row = gradient_sums_of_values<kRectifies>(shape.inner / 4, chosen, gradients, of_channel);
    sums.first += of_row.first;
    sums.second += of_row.second;
  }
  return sums;
}

typedef int Mask __attribute__((vector_size(kLanes * sizeof(int))));

/// Write the gradients of a row of windows.
template <bool kRectifies>
LANE_INLINE void gradient_of_windows(size_t columns, const Coefficients& of_channel, const MomentGradients& moments,
                                     const float* upper, const float* lower, const float* gradients,
                                     float* upper_gradient, float* lower_gradient) {
  const auto [center, scale, shift] = std::tuple(of_channel.center, of_channel.scale, of_channel.shift);
  const auto [mean, of_mean, of_variance] = std::tuple(moments.mean, moments.of_mean, moments.of_variance);
  const float direction = direction_of(of_channel);
  size_t x = 0;
  // Lanes are elements of a row: two of them belong to a window, and have the same values until the last two lines.
  constexpr Mask kLeft = {0, 0, 2, 2, 4, 4, 6, 6}, kRight = {1, 1, 3, 3, 5, 5, 7, 7};
  constexpr Mask kIsLeft = {-1, 0, -1, 0, -1, 0, -1, 0};
  for (; x + kLanes <= columns; x += kLanes) {
    Vector above, below;
    load(upper + x, above);
    load(lower + x, below);
    const float* of_windows = gradients + x / 2;
    Vector passed_gradient = {of_windows[0], of_windows[0], of_windows[1], of_windows[1],
                              of_windows[2], of_windows[2], of_windows[3], of_windows[3]};
    const Vector above_keys = above * direction, below_keys = below * direction;
    const Vector above_left = __builtin_shuffle(above_keys, kLeft), above_right = __builtin_shuffle(above_keys, kRight);
    const Vector below_left = __builtin_shuffle(below_keys, kLeft), below_right = __builtin_shuffle(below_keys, kRight);
    const Mask is_above_right = above_right > above_left, is_below_right = below_right > below_left;
    const Vector above_key = is_above_right ? above_right : above_left;
    const Vector below_key = is_below_right ? below_right : below_left;
    const Mask is_below = below_key > above_key;
    const Vector value = (is_below ? below_key : above_key) * direction;
    if (kRectifies) keep_where_positive((value - center) * scale + shift, passed_gradient);
    const Vector scaled = passed_gradient * scale;
    above = ((is_above_right ^ kIsLeft) & ~is_below ? scaled : Vector{}) + (above - mean) * of_variance + of_mean;
    below = ((is_below_right ^ kIsLeft) & is_below ? scaled : Vector{}) + (below - mean) * of_variance + of_mean;
    std::memcpy(upper_gradient + x, &above, sizeof above);
    std::memcpy(lower_gradient + x, &below, sizeof below);
  }
  for (; x < columns; x += 2) {
    const float* elements[4] = {upper + x, upper + x + 1, lower + x, lower + x + 1};
    float* targets[4] = {upper_gradient + x, upper_gradient + x + 1, lower_gradient + x, lower_gradient + x + 1};
    size_t chosen = 0;
    for (size_t i = 1; i < 4; ++i) {
      if (*elements[i] * direction > *elements[chosen] * direction) chosen = i;
    }
    for (size_t i = 0; i < 4; ++i) {
      *targets[i] =
          data_gradient<kRectifies>(of_channel, moments, *elements[i], i == chosen ? gradients[x / 2] : 0.0F);
    }
  }
}

template <bool kRectifies>
LANE_INLINE void window_gradient_of_channel(const NormShape& shape, const Windows& windows, size_t channel,
                                            const float* data, const float* output_gradient,
                                            const Coefficients& of_channel, const MomentGradients& moments,
                                            float* gradient) {
  const size_t columns = windows.columns;
  for (size_t row = 0; row < shape.outer; ++row) {
    const size_t image = (row * shape.channels + channel) * shape.inner;
    for (size_t y = 0; y < windows.rows; y += 2) {
      const size_t begin = image + y * columns;
      gradient_of_windows<kRectifies>(columns, of_channel, moments, data + begin, data + begin + columns,
                                      output_gradient + image / 4 + y * columns / 4, gradient + begin,
                                      gradient + begin + columns);
    }
  }
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

/// Return whether one loop runs over all channels.
bool is_short(const NormShape& shape, const Windows& windows) { return windows.rows == 0 && shape.inner < kShort; }

std::vector<MomentGradients> gradients_of_elements(const NormShape& shape, const float* moments,
                                                   const float* gradients) {
  const float count = static_cast<float>(shape.each());
  std::vector<MomentGradients> by_channel;
  for (size_t channel = 0; channel < shape.channels; ++channel) {
    by_channel.push_back(
        {moments[channel], gradients[channel] / count, 2 * gradients[shape.channels + channel] / count});
  }
  return by_channel;
}

}  // namespace

void compute_moments(const NormShape& shape, const float* data, float* moments) {
  if (shape.inner >= kShort) {
    for_channels(shape, [&](size_t channel) { copy_of<moments_of_channel>()(shape, channel, data, moments); });
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

void normalize(const NormShape& shape, const Windows& windows, const float* data, const NormCoefficients& coefficients,
               float* output) {
  with_constant(coefficients.rectifies, [&](auto constant) {
    constexpr bool kRectifies = decltype(constant)::value;
    if (is_short(shape, windows)) {
      for_elements(shape, [&](size_t i, size_t channel) {
        output[i] = output_of<kRectifies>(Coefficients(coefficients, channel), data[i]);
      });
      return;
    }
    for_channels(shape, [&](size_t channel) {
      const Coefficients of_channel(coefficients, channel);
      if (windows.rows) {
        copy_of<normalize_windows_of_channel<kRectifies>>()(shape, windows, channel, data, of_channel, output);
      } else {
        copy_of<normalize_channel<kRectifies>>()(shape, channel, data, of_channel, output);
      }
    });
  });
}

void gradient_sums(const NormShape& shape, const Windows& windows, const float* data, const float* output_gradient,
                   const NormCoefficients& coefficients, double* sums, double* products) {
  with_constant(coefficients.rectifies, [&](auto constant) {
    constexpr bool kRectifies = decltype(constant)::value;
    if (is_short(shape, windows)) {
      std::fill(sums, sums + shape.channels, 0.0);
      std::fill(products, products + shape.channels, 0.0);
      for_elements(shape, [&](size_t i, size_t channel) {
        const Coefficients of_channel(coefficients, channel);
        const double gradient = passed<kRectifies>(of_channel, data[i], output_gradient[i]);
        sums[channel] += gradient;
        products[channel] += gradient * (data[i] - of_channel.center);
      });
      return;
    }
    for_channels(shape, [&](size_t channel) {
      const Coefficients of_channel(coefficients, channel);
      std::vector<float> chosen(windows.rows ? shape.inner / 4 : 0);
      const Sums both =
          windows.rows ? copy_of<window_gradient_sums_of_channel<kRectifies>>()(shape, windows, channel, data,
                                                                                output_gradient, of_channel,
                                                                                chosen.data())
                       : copy_of<gradient_sums_of_channel<kRectifies>>()(shape, channel, data, output_gradient,
                                                                         of_channel);
      sums[channel] = both.first;
      products[channel] = both.second;
    });
  });
}

void normalized_gradient(const NormShape& shape, const Windows& windows, const float* data,
                         const float* output_gradient, const NormCoefficients& coefficients, const float* moments,
                         const float* gradients, float* gradient) {
  const auto by_channel = gradients_of_elements(shape, moments, gradients);
  with_constant(coefficients.rectifies, [&](auto constant) {
    constexpr bool kRectifies = decltype(constant)::value;
    if (is_short(shape, windows)) {
      for_elements(shape, [&](size_t i, size_t channel) {
        gradient[i] = data_gradient<kRectifies>(Coefficients(coefficients, channel), by_channel[channel], data[i],
                                                output_gradient[i]);
      });
      return;
    }
    for_channels(shape, [&](size_t channel) {
      const Coefficients of_channel(coefficients, channel);
      if (windows.rows) {
        copy_of<window_gradient_of_channel<kRectifies>>()(shape, windows, channel, data, output_gradient, of_channel,
                                                          by_channel[channel], gradient);
      } else {
        copy_of<normalized_gradient_of_channel<kRectifies>>()(shape, channel, data, output_gradient, of_channel,
                                                              by_channel[channel], gradient);
      }
    });
  });
}

}  // namespace lane
