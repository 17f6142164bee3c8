#include "kernels/int8.h"

#include <algorithm>
#include <cstring>

#include "kernels/avx2.h"
#include "kernels/philox.h"

namespace lane {
namespace {

// Compilers vectorize the loops of this file. Both copies of a kernel give the same bits, since nothing is added in
// another order.

constexpr int32_t kInfinityBits = 0x7f800000;
/// 2^-119: from this magnitude on, the scale is a normal number.
constexpr int32_t kSmallestBits = 8 << 23;
constexpr float kLevels = 127.0f;
/// 1.5 * 2^23: a float of this size plus a small number has the number, rounded to nearest, in its lowest bits.
constexpr float kRounder = 12582912.0f;
/// The elements that are rounded at random at a time: eight counters of Philox, with 16 bits for each element.
constexpr size_t kCounters = 8, kRandomBlock = 8 * kCounters;
/// The number of partial sums, so that an addition need not wait for the one before.
constexpr size_t kPartialSums = 8;

LANE_INLINE int32_t bits_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Return the bits of the largest magnitude; they are at least those of infinity if a value is not finite.
LANE_INLINE int32_t largest_bits(const float* values, size_t count) {
  int32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t magnitude = bits_of(values[i]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Write the scale for the largest magnitude; return its reciprocal, or 0 if all elements are to be zeros.
LANE_INLINE float write_scale(int32_t largest, char* to) {
  float scale = 0, reciprocal = 0;
  if (largest >= kInfinityBits) {
    const uint32_t nan = 0x7fc00000;
    std::memcpy(&scale, &nan, sizeof scale);
  } else if (largest >= kSmallestBits) {
    float magnitude;
    std::memcpy(&magnitude, &largest, sizeof magnitude);
    scale = magnitude / kLevels;
    reciprocal = kLevels / magnitude;
  }
  std::memcpy(to, &scale, sizeof scale);
  return reciprocal;
}

LANE_INLINE void round_to_nearest(const float* values, size_t count, float reciprocal, int8_t* to) {
  for (size_t i = 0; i < count; ++i) {
    const float rounded = values[i] * reciprocal + kRounder;
    to[i] = static_cast<int8_t>(bits_of(rounded));
  }
}

/// Write 16 random bits for each of kRandomBlock elements.
LANE_INLINE void random_bits(const RowRounding& rounding, uint32_t first_counter, uint16_t* to) {
  uint32_t words[4][kCounters];
  for (size_t i = 0; i < kCounters; ++i) {
    words[0][i] = static_cast<uint32_t>(rounding.row);
    words[1][i] = static_cast<uint32_t>(rounding.row >> 32);
    words[2][i] = rounding.pushes;
    words[3][i] = first_counter + static_cast<uint32_t>(i);
  }
  philox(words, rounding.table, rounding.source);
  for (size_t i = 0; i < kCounters; ++i) {
    for (size_t word = 0; word < 4; ++word) {
      to[8 * i + 2 * word] = static_cast<uint16_t>(words[word][i]);
      to[8 * i + 2 * word + 1] = static_cast<uint16_t>(words[word][i] >> 16);
    }
  }
}

LANE_INLINE void round_at_random(const float* values, size_t count, float reciprocal, const RowRounding& rounding,
                                 int8_t* to) {
  uint16_t random[kRandomBlock];
  for (size_t start = 0; start < count; start += kRandomBlock) {
    random_bits(rounding, static_cast<uint32_t>(start / 8), random);
    const size_t size = std::min(kRandomBlock, count - start);
    for (size_t i = 0; i < size; ++i) {
      // Shifted into 1 to 255, where cutting off the fraction rounds down.
      const float multiple = std::min(std::max(values[start + i] * reciprocal, -kLevels), kLevels) + 128.0f;
      const float fraction = static_cast<float>(random[i]) * (1.0f / 65536);
      to[start + i] = static_cast<int8_t>(static_cast<int32_t>(multiple + fraction) - 128);
    }
  }
}

LANE_INLINE void quantize(const float* row, size_t width, const RowRounding* rounding, char* to) {
  const float reciprocal = write_scale(largest_bits(row, width), to);
  int8_t* multiples = reinterpret_cast<int8_t*>(to + sizeof(float));
  if (reciprocal == 0) {
    std::memset(multiples, 0, width);
  } else if (rounding == nullptr) {
    round_to_nearest(row, width, reciprocal, multiples);
  } else {
    round_at_random(row, width, reciprocal, *rounding, multiples);
  }
}

LANE_INLINE void dequantize(const char* from, size_t width, float* to) {
  float scale;
  std::memcpy(&scale, from, sizeof scale);
  const int8_t* multiples = reinterpret_cast<const int8_t*>(from + sizeof scale);
  for (size_t i = 0; i < width; ++i) to[i] = static_cast<float>(multiples[i]) * scale;
}

LANE_INLINE void quantize_all_blocks(const float* values, float* residuals, size_t count, char* to,
                                     Int8Squares& squares) {
  float corrected[kInt8Block], restored[kInt8Block];
  for (size_t start = 0; start < count; start += kInt8Block) {
    const size_t size = std::min(kInt8Block, count - start);
    const float* block = values + start;
    float* residual = residuals + start;
    for (size_t i = 0; i < size; ++i) corrected[i] = block[i] + residual[i];
    quantize(corrected, size, nullptr, to);
    dequantize(to, size, restored);
    to += int8_row_bytes(size);
    if (restored[0] != restored[0]) continue;
    for (size_t i = 0; i < size; ++i) residual[i] = corrected[i] - restored[i];
    float value_squares[kPartialSums] = {}, residual_squares[kPartialSums] = {};
    for (size_t i = 0; i + kPartialSums <= size; i += kPartialSums) {
      for (size_t k = 0; k < kPartialSums; ++k) {
        value_squares[k] += block[i + k] * block[i + k];
        residual_squares[k] += residual[i + k] * residual[i + k];
      }
    }
    for (size_t i = size / kPartialSums * kPartialSums; i < size; ++i) {
      value_squares[0] += block[i] * block[i];
      residual_squares[0] += residual[i] * residual[i];
    }
    for (size_t k = 0; k < kPartialSums; ++k) {
      squares.values += static_cast<double>(value_squares[k]);
      squares.residuals += static_cast<double>(residual_squares[k]);
    }
  }
}

}  // namespace

const Int8Kernels kPortableInt8 = {quantize, dequantize, quantize_all_blocks};
const Int8Kernels kFastInt8 = {Fast<quantize>::kernel, Fast<dequantize>::kernel, Fast<quantize_all_blocks>::kernel};

namespace {
const Int8Kernels& kernels = is_fast() ? kFastInt8 : kPortableInt8;
}  // namespace

void quantize_row(const float* row, size_t width, char* to) { kernels.quantize(row, width, nullptr, to); }

void quantize_row(const float* row, size_t width, const RowRounding& rounding, char* to) {
  kernels.quantize(row, width, &rounding, to);
}

void dequantize_row(const char* from, size_t width, float* to) { kernels.dequantize(from, width, to); }

void quantize_blocks(const float* values, float* residuals, size_t count, char* to, Int8Squares& squares) {
  kernels.quantize_blocks(values, residuals, count, to, squares);
}

void dequantize_blocks(const char* from, size_t count, float* to) {
  for (size_t start = 0; start < count; start += kInt8Block) {
    const size_t size = std::min(kInt8Block, count - start);
    kernels.dequantize(from, size, to + start);
    from += int8_row_bytes(size);
  }
}

}  // namespace lane
