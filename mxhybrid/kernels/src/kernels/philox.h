// The counter-based random generator Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lane {

/// Replace counters by their random words; `words[w][i]` is word w of counter i.  Compilers vectorize these loops.
template <size_t kCounters>
__attribute__((always_inline)) inline void philox(uint32_t (&words)[4][kCounters], uint32_t key0, uint32_t key1) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kCounters; ++i) {
      const uint64_t product0 = uint64_t{0xD2511F53} * words[0][i], product1 = uint64_t{0xCD9E8D57} * words[2][i];
      words[0][i] = static_cast<uint32_t>(product1 >> 32) ^ words[1][i] ^ key0;
      words[1][i] = static_cast<uint32_t>(product1);
      words[2][i] = static_cast<uint32_t>(product0 >> 32) ^ words[3][i] ^ key1;
      words[3][i] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

}  // namespace lane
