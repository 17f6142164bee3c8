#include "kernels/half.h"

#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#include <immintrin.h>
#endif

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
/// 65520: from this number on, floats become infinite as float16.
constexpr uint32_t kTooLarge = 0x477ff000U;

#if defined(__x86_64__) || defined(__i386__)

/// The number of values that an instruction converts.
constexpr size_t kVector = 8;

bool has_instructions() {
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  // "avx" says that the system saves the registers, F16C that the processor has the instructions.
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/// Convert as many values as fill whole vectors, and return their number.
__attribute__((target("avx,f16c"))) size_t widen_vectors(const uint16_t* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

__attribute__((target("avx,f16c"))) size_t narrow_vectors(const float* from, uint16_t* to, size_t count) {
  size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

__attribute__((target("avx,f16c"))) size_t round_vectors(const float* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT)));
  }
  return i;
}

#else

bool has_instructions() { return false; }
size_t widen_vectors(const uint16_t*, float*, size_t) { return 0; }
size_t narrow_vectors(const float*, uint16_t*, size_t) { return 0; }
size_t round_vectors(const float*, float*, size_t) { return 0; }

#endif

const bool kInstructions = has_instructions();

}  // namespace

float widen(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t rest = half & 0x7fffU;
  // The shifted exponent lacks the difference of the two biases, 127 - 15.  A multiplication adds it, also for
  // subnormal numbers.
  const uint32_t quiet = rest > kHalfInfinity ? 0x00400000U : 0U;  // as the instructions do with NaN
  const float value = rest >= kHalfInfinity ? float_of(kInfinity | quiet | (rest & 0x3ffU) << 13)
                                            : float_of(rest << 13) * float_of((127U + 112U) << 23);
  return float_of(bits_of(value) | sign);
}

uint16_t narrow(float value) {
  const uint32_t bits = bits_of(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t rest = bits & 0x7fffffffU;
  if (rest > kInfinity) return static_cast<uint16_t>(sign | 0x7e00U | ((rest >> 13) & 0x1ffU));  // NaN
  if (rest >= kTooLarge) return sign | kHalfInfinity;
  if (rest < 0x38800000U) {  // below the smallest normal number: this sum has the unit of the smallest subnormal number
    const float sum = float_of(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(sum) - bits_of(0.5f)));
  }
  const uint32_t odd = (rest >> 13) & 1U;
  return static_cast<uint16_t>(sign | ((rest - (112U << 23) + 0xfffU + odd) >> 13));
}

void widen(const uint16_t* from, float* to, size_t count) {
  for (size_t i = kInstructions ? widen_vectors(from, to, count) : 0; i < count; ++i) to[i] = widen(from[i]);
}

void narrow(const float* from, uint16_t* to, size_t count) {
  for (size_t i = kInstructions ? narrow_vectors(from, to, count) : 0; i < count; ++i) to[i] = narrow(from[i]);
}

void round_to_half(const float* from, float* to, size_t count) {
  for (size_t i = kInstructions ? round_vectors(from, to, count) : 0; i < count; ++i) to[i] = widen(narrow(from[i]));
}

// The comparisons are signed, since compilers vectorize those.

bool finite(const float* values, size_t count) {
  int32_t bad = 0;
  for (size_t i = 0; i < count; ++i) {
    bad |= static_cast<int32_t>(bits_of(values[i]) & 0x7fffffffU) >= static_cast<int32_t>(kInfinity);
  }
  return !bad;
}

bool finite(const uint16_t* values, size_t count) {
  int16_t bad = 0;
  for (size_t i = 0; i < count; ++i) {
    bad |= static_cast<int16_t>(values[i] & 0x7fffU) >= static_cast<int16_t>(kHalfInfinity);
  }
  return !bad;
}

bool fits(const float* values, size_t count) {
  int32_t bad = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t rest = static_cast<int32_t>(bits_of(values[i]) & 0x7fffffffU);
    bad |= (rest >= static_cast<int32_t>(kTooLarge)) & (rest < static_cast<int32_t>(kInfinity));
  }
  return !bad;
}

}  // namespace lane
