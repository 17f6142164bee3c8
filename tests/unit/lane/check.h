// Checks and random numbers of the programs in this folder.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>

namespace lane {

/// Reports a failure; does not return.
inline void (*fail)(const char* what) = [](const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
};

inline void check(bool condition, const char* failure) {
  if (!condition) fail(failure);
}

inline std::mt19937 random_bits(1);

inline size_t random_below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_bits); }

}  // namespace lane
