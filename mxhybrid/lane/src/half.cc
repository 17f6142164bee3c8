#include "half.h"

#include <cstring>

namespace lane {
namespace {

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr uint32_t kInfinity = 0x7f800000U;
constexpr uint16_t kHalfInfinity = 0x7c00U;

}  // namespace

float widen(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t rest = half & 0x7fffU;
  // Moved into place, exponents are short of the difference of the two biases, 127 - 15: a multiplication makes that
  // up, also for subnormal numbers.
  const float value = rest >= kHalfInfinity ? float_of(kInfinity | (rest & 0x3ffU) << 13)
                                            : float_of(rest << 13) * float_of((127U + 112U) << 23);
  return float_of(bits_of(value) | sign);
}

uint16_t narrow(float value) {
  const uint32_t bits = bits_of(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t rest = bits & 0x7fffffffU;
  if (rest > kInfinity) return static_cast<uint16_t>(sign | 0x7e00U | ((rest >> 13) & 0x1ffU));  // not a number
  if (rest >= 0x477ff000U) return sign | kHalfInfinity;  // 65520 and above
  if (rest < 0x38800000U) {  // below the smallest normal one: the unit of this sum is the smallest subnormal one
    const float sum = float_of(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(sum) - bits_of(0.5f)));
  }
  const uint32_t odd = (rest >> 13) & 1U;
  return static_cast<uint16_t>(sign | ((rest - (112U << 23) + 0xfffU + odd) >> 13));
}

void widen(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}

void narrow(const float* from, uint16_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = narrow(from[i]);
}

void round_to_half(const float* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = widen(narrow(from[i]));
}

}  // namespace lane
