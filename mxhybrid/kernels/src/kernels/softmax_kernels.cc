#include "kernels/softmax_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/avx2.h"

namespace lane {
namespace {

/// The number of elements that are added in float before double.
constexpr size_t kBlock = 1024;
/// The number of neighbouring rows that are copied together: those of a cache line.
constexpr size_t kTile = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

typedef uint32_t Bits __attribute__((vector_size(kLanes * sizeof(uint32_t))));

template <typename Value>
LANE_INLINE void store(const Value& value, float* to) {
  std::memcpy(to, &value, sizeof value);
}

/// Compute the exponential of numbers up to 0 within 2 units of the last place, as expf of the Cephes library does;
/// results below the smallest normal number are 0.
template <typename Value>
LANE_INLINE void exponential(const Value& number, Value& result) {
  using Integers = std::conditional_t<std::is_same<Value, float>::value, uint32_t, Bits>;
  const Value zero = {}, lowest = zero - 87.33654f, magic = zero + 12582912.0f;  // 1.5 * 2^23: rounds to integers
  const Value limited = number < lowest ? lowest : number;
  const Value shifted = limited * 1.44269504f + magic, power = shifted - magic;
  Integers exponent, magic_bits;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  std::memcpy(&magic_bits, &magic, sizeof magic_bits);
  exponent = (exponent - magic_bits + 127u) << 23;
  Value scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  const Value rest = limited - power * 0.693359375f + power * 2.12194440e-4f;
  Value series = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.0f;
  result = number < lowest ? zero : series * scale;
}

/// Call a function for each element of a row, for one element or a Vector at a time, and return the sum of its results.
template <typename Function>
LANE_INLINE float sum_of(size_t count, Function function) {
  double sum = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    // Two sums, since every addition to one sum waits for the addition before.
    Vector sums[2] = {};
    size_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      function(i, sums[0]);
      function(i + kLanes, sums[1]);
    }
    for (; i < end; ++i) {
      float term = 0;
      function(i, term);
      sum += term;
    }
    for (size_t lane = 0; lane < kLanes; ++lane) sum += sums[0][lane] + sums[1][lane];
  }
  return static_cast<float>(sum);
}

LANE_INLINE float largest_of(const float* row, size_t count) {
  Vector largest = Vector{} - kInfinity;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vector value;
    load(row + i, value);
    largest = value > largest ? value : largest;
  }
  float result = -kInfinity;
  for (size_t lane = 0; lane < kLanes; ++lane) result = std::max(result, largest[lane]);
  for (; i < count; ++i) result = std::max(result, row[i]);
  return result;
}

/// Return the number to subtract from the elements of a part of a row, which may be masked by -inf as a whole.
LANE_INLINE float shift_of(float largest) { return largest == -kInfinity ? 0.0f : largest; }

/// Copy a part of a row, and return the sum of exponentials.
LANE_INLINE float row_sum(size_t count, float largest, const float* row, float* copy) {
  const float shift = shift_of(largest);
  return sum_of(count, [&](size_t i, auto& term) __attribute__((always_inline)) {
    std::decay_t<decltype(term)> value, result;
    load(row + i, value);
    store(value, copy + i);
    value -= shift;
    exponential(value, result);
    term += result;
  });
}

LANE_INLINE void row_gradient(size_t count, float largest, float sum_gradient, const float* row,
                              const float* copy_gradient, float* gradient) {
  const float shift = shift_of(largest);
  sum_of(count, [&](size_t i, auto& term) __attribute__((always_inline)) {
    std::decay_t<decltype(term)> value, result;
    load(row + i, value);
    value -= shift;
    exponential(value, result);
    load(copy_gradient + i, value);
    value += result * sum_gradient;
    store(value, gradient + i);
  });
}

/// Compute the softmax of a part of a row, or its logarithm, from the totals of the whole row.
LANE_INLINE void row_softmax(size_t count, bool is_log, float largest, float total, const float* row, float* output) {
  const float logarithm = std::log(total);
  sum_of(count, [&](size_t i, auto& term) __attribute__((always_inline)) {
    std::decay_t<decltype(term)> value, result;
    load(row + i, value);
    value -= largest;
    if (is_log) {
      result = value - logarithm;
    } else {
      exponential(value, result);
      result = result / total;
    }
    store(result, output + i);
  });
}

/// Compute the gradient of a part of a row, while the totals do not change, and return its sum.
LANE_INLINE float row_softmax_gradient(size_t count, bool is_log, const float* output, const float* output_gradient,
                                       float* gradient) {
  return sum_of(count, [&](size_t i, auto& term) __attribute__((always_inline)) {
    std::decay_t<decltype(term)> value, factor;
    load(output_gradient + i, value);
    if (!is_log) {
      load(output + i, factor);
      value *= factor;
    }
    store(value, gradient + i);
    term += value;
  });
}

/// The maximum and the sum of exponentials of a whole row, from those of its parts.
class Totals {
 public:
  /// `maxima` and `sums` are those of the first part; those of the next one are `stride` elements after them.
  Totals(const float* maxima, const float* sums, size_t count, size_t stride) : maxima_(maxima), stride_(stride) {
    for (size_t part = 0; part < count; ++part) largest_ = std::max(largest_, maxima[part * stride]);
    for (size_t part = 0; part < count; ++part) total_ += static_cast<double>(sums[part * stride]) * weight(part);
  }

  float largest() const { return largest_; }
  float total() const { return static_cast<float>(total_); }
  /// Return the gradient of the sum of a part, from the sum of the gradients of the elements.
  float gradient(size_t part, float gradients) const { return static_cast<float>(-weight(part) / total_ * gradients); }

 private:
  double weight(size_t part) const { return std::exp(static_cast<double>(maxima_[part * stride_]) - largest_); }

  const float* const maxima_;
  const size_t stride_;
  float largest_ = -kInfinity;
  double total_ = 0;
};

/// Call a function for each row along the axis, with its number and its elements in each array.  Where elements of a
/// row are not contiguous, the function gets copies of some neighbouring rows.
template <size_t kInputs, size_t kOutputs, typename Function>
void for_rows(const NormShape& shape, const std::array<const float*, kInputs>& inputs,
              const std::array<float*, kOutputs>& outputs, Function function) {
  const size_t length = shape.channels, rows = shape.each();
  if (shape.inner == 1) {
#ifdef _OPENMP
#pragma omp parallel for if (shape.size() > 32 * kBlock)
#endif
    for (size_t row = 0; row < rows; ++row) {
      std::array<const float*, kInputs> from = inputs;
      std::array<float*, kOutputs> to = outputs;
      for (auto& array : from) array += row * length;
      for (auto& array : to) array += row * length;
      function(row, from, to);
    }
    return;
  }
  std::vector<float> copies((kInputs + kOutputs) * kTile * length);
  for (size_t outer = 0; outer < shape.outer; ++outer) {
    for (size_t first = 0; first < shape.inner; first += kTile) {
      const size_t count = std::min(kTile, shape.inner - first), begin = outer * length * shape.inner + first;
      const auto copy_of = [&](size_t array, size_t row) { return copies.data() + (array * kTile + row) * length; };
      for (size_t array = 0; array < kInputs; ++array) {
        for (size_t i = 0; i < length; ++i) {
          for (size_t row = 0; row < count; ++row) {
            copy_of(array, row)[i] = inputs[array][begin + i * shape.inner + row];
          }
        }
      }
      for (size_t row = 0; row < count; ++row) {
        std::array<const float*, kInputs> from;
        std::array<float*, kOutputs> to;
        for (size_t array = 0; array < kInputs; ++array) from[array] = copy_of(array, row);
        for (size_t array = 0; array < kOutputs; ++array) to[array] = copy_of(kInputs + array, row);
        function(outer * shape.inner + first + row, from, to);
      }
      for (size_t array = 0; array < kOutputs; ++array) {
        for (size_t i = 0; i < length; ++i) {
          for (size_t row = 0; row < count; ++row) {
            outputs[array][begin + i * shape.inner + row] = copy_of(kInputs + array, row)[i];
          }
        }
      }
    }
  }
}

}  // namespace

void softmax_parts(const NormShape& shape, const float* data, float* copy, float* parts) {
  const size_t rows = shape.each();
  for_rows<1, 1>(shape, {data}, {copy}, [&](size_t row, const auto& from, const auto& to) {
    parts[row] = copy_of<largest_of>()(from[0], shape.channels);
    parts[rows + row] = copy_of<row_sum>()(shape.channels, parts[row], from[0], to[0]);
  });
}

void softmax_parts_gradient(const NormShape& shape, const float* data, const float* parts, const float* copy_gradient,
                            const float* parts_gradient, float* gradient) {
  const size_t rows = shape.each();
  for_rows<2, 1>(shape, {data, copy_gradient}, {gradient}, [&](size_t row, const auto& from, const auto& to) {
    copy_of<row_gradient>()(shape.channels, parts[row], parts_gradient[rows + row], from[0], from[1], to[0]);
  });
}

void softmax_of_parts(const NormShape& shape, size_t count, bool is_log, const float* data, const float* parts,
                      float* output) {
  const float* sums = parts + shape.each() * count;
  for_rows<1, 1>(shape, {data}, {output}, [&](size_t row, const auto& from, const auto& to) {
    const size_t first = row / shape.inner * count * shape.inner + row % shape.inner;
    const Totals totals(parts + first, sums + first, count, shape.inner);
    copy_of<row_softmax>()(shape.channels, is_log, totals.largest(), totals.total(), from[0], to[0]);
  });
}

void softmax_of_parts_gradient(const NormShape& shape, size_t count, bool is_log, const float* parts,
                               const float* output, const float* output_gradient, float* gradient,
                               float* parts_gradient) {
  const float* sums = parts + shape.each() * count;
  float* sums_gradient = parts_gradient + shape.each() * count;
  std::fill(parts_gradient, sums_gradient, 0.0f);
  for_rows<2, 1>(shape, {output, output_gradient}, {gradient}, [&](size_t row, const auto& from, const auto& to) {
    const size_t first = row / shape.inner * count * shape.inner + row % shape.inner;
    const Totals totals(parts + first, sums + first, count, shape.inner);
    const float gradients = copy_of<row_softmax_gradient>()(shape.channels, is_log, from[0], from[1], to[0]);
    for (size_t part = 0; part < count; ++part) {
      sums_gradient[first + part * shape.inner] = totals.gradient(part, gradients);
    }
  });
}

}  // namespace lane
