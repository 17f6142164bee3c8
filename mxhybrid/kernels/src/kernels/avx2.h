// Kernels that are compiled twice: for all processors, and for those with AVX2, which nearly all have.
#pragma once

#include <cstddef>
#include <cstring>

namespace lane {

/// Marks a kernel that must be compiled into its copies.
#define LANE_INLINE __attribute__((always_inline)) inline

#if defined(__x86_64__)
/// Marks the copy of a kernel for processors with AVX2.
#define LANE_FAST __attribute__((target("avx2")))
/// Return whether this processor can run those copies.
inline bool is_fast() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2");
}
#else
#define LANE_FAST
inline bool is_fast() { return false; }
#endif
inline const bool kFast = is_fast();

/// Has the copy of a kernel, which begins with LANE_INLINE, for processors with AVX2; it gives the same bits.
template <auto kKernel>
struct Fast;
template <typename Result, typename... Arguments, Result (*kKernel)(Arguments...)>
struct Fast<kKernel> {
  LANE_FAST static Result kernel(Arguments... arguments) { return kKernel(arguments...); }
};

/// The number of elements that are computed at once.
constexpr size_t kLanes = 8;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

/// Load one element, or a Vector of elements.
template <typename Value>
LANE_INLINE void load(const float* from, Value& value) {
  std::memcpy(&value, from, sizeof value);
}

/// Return the copy of a kernel for this processor.
template <auto kKernel>
auto copy_of() {
  return kFast ? Fast<kKernel>::kernel : kKernel;
}

}  // namespace lane
