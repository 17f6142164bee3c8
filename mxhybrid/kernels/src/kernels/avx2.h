// Kernels that are compiled twice: for all processors, and for those with AVX2, which nearly all have.
#pragma once

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

}  // namespace lane
