// The types in which a row store keeps the elements of float32 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace lane {

/// Values are rounded to nearest, ties to even.  bfloat16 is the upper half of a float32.
enum class RowType : uint32_t { kSame, kFloat16, kBfloat16 };

inline uint16_t narrow_to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);  // it stays NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float widen_bfloat16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Write a kept row, of `width` elements of two bytes, as float32.
inline void widen_row(RowType type, const char* kept, float* row, size_t width) {
  const auto* halves = reinterpret_cast<const uint16_t*>(kept);
  if (type == RowType::kFloat16) return widen(halves, row, width);
  for (size_t i = 0; i < width; ++i) row[i] = widen_bfloat16(halves[i]);
}

/// Keep a row of float32.
inline void narrow_row(RowType type, const float* row, char* kept, size_t width) {
  auto* halves = reinterpret_cast<uint16_t*>(kept);
  if (type == RowType::kFloat16) return narrow(row, halves, width);
  for (size_t i = 0; i < width; ++i) halves[i] = narrow_to_bfloat16(row[i]);
}

}  // namespace lane
