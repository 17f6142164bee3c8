// Quantization of float32 to int8: the elements of a row, or of a block of a dense sum, become multiples of one scale.
//
// The scale is a 127th of the largest magnitude; it precedes the multiples, -127 to 127, one byte each.  A row or block
// with an element that is not finite arrives as NaN.  One without magnitudes from 2^-119 on arrives as zeros: its scale
// would not be a normal number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lane {

/// The elements of a dense sum that have a scale in common.
constexpr size_t kInt8Block = 256;

/// Bytes of a quantized row.
inline size_t int8_row_bytes(size_t width) { return sizeof(float) + width; }
/// Bytes of `count` quantized elements of a dense sum.
inline size_t int8_bytes(size_t count) { return (count + kInt8Block - 1) / kInt8Block * sizeof(float) + count; }

/// The counter and key of the random numbers of a row (philox.h), so that a row is rounded in the same way in every run.
struct RowRounding {
  /// The row of the table, or the key of a dynamic table.
  uint64_t row;
  /// The number of pushes to the table so far, the number of the table, and the host that sends the row.
  uint32_t pushes, table, source;
};

/// Quantize a row; round to nearest, ties to even.
void quantize_row(const float* row, size_t width, char* to);
/// Quantize a row; round up or down at random, so that the mean over many rounds is the exact value.  Each of the two
/// neighbours has the probability of its nearness, in multiples of 2^-16.
void quantize_row(const float* row, size_t width, const RowRounding& rounding, char* to);
void dequantize_row(const char* from, size_t width, float* to);

/// The sums of squares of values that were quantized in blocks, and of their residuals.
struct Int8Squares {
  double values = 0, residuals = 0;
};

/// Quantize values in blocks, with error feedback (Seide et al., "1-bit stochastic gradient descent", Interspeech 2014;
/// Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019): `residuals` are added to the values first, and then
/// become the errors of rounding to nearest.  Residuals of a block that arrives as NaN stay as they are.
void quantize_blocks(const float* values, float* residuals, size_t count, char* to, Int8Squares& squares);
void dequantize_blocks(const char* from, size_t count, float* to);

/// The loops of these functions, compiled for all processors and for those with AVX2; both give the same bits.  Without
/// `rounding` elements are rounded to nearest.
struct Int8Kernels {
  void (*quantize)(const float* row, size_t width, const RowRounding* rounding, char* to);
  void (*dequantize)(const char* from, size_t width, float* to);
  void (*quantize_blocks)(const float* values, float* residuals, size_t count, char* to, Int8Squares& squares);
};
extern const Int8Kernels kPortableInt8, kFastInt8;

}  // namespace lane
