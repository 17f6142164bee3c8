// The memory that this process can still get before the system kills it.
#pragma once

#include <cstdint>
#include <string>

namespace lane {

/// Memory that is left, and the place of the limit: a cgroup, or the machine.
struct AvailableMemory {
  uint64_t bytes = UINT64_MAX;
  /// The limit in bytes, and its file or "" for the machine.
  uint64_t limit_bytes = 0;
  std::string file;
};

/// Return the least memory that the cgroups of this process (versions 1 and 2, also memory.high) and the machine have
/// left, without pages of files, which the system gives back.  `root` has /proc and /sys; what cannot be read does not
/// limit.
AvailableMemory available_memory(const std::string& root = "");

}  // namespace lane
