// Keys of dynamic tables: any int64.
#pragma once

#include <cstdint>

namespace lane {

/// Return the hash of a key: the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), a bijection.  It is fast
/// and spreads keys evenly, but it is no protection against keys that are chosen to collide.
inline uint64_t hash_of(int64_t key) {
  uint64_t hash = static_cast<uint64_t>(key) + 0x9E3779B97F4A7C15u;
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
  return hash ^ (hash >> 31);
}

/// Return the partition of a key.  Row numbers are hashed, too, so that no stride of them loads one partition.
inline uint32_t partition_of(int64_t key, uint32_t partitions) {
  const uint64_t hash = hash_of(key);
  // A division takes longer than the hash, and most tables have a power of two.
  if ((partitions & (partitions - 1)) == 0) return static_cast<uint32_t>(hash & (partitions - 1));
  return static_cast<uint32_t>(hash % partitions);
}

}  // namespace lane
