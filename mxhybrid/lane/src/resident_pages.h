// The pages of a file that are in memory, kept within a budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "growing_memory.h"

namespace lane {

/// The owner notes each use of bytes of the file.  Over budget, the pages that were used least recently are written to
/// the disk and given back, a 16th of the budget at a time, on the owner's thread: writes are started for all of them
/// before the first one is waited for.
class ResidentPages {
 public:
  /// `budget` is in bytes.
  explicit ResidentPages(size_t budget);

  /// Note that bytes are about to be used; start to read them if they are not in memory.
  void use(const GrowingMemory& memory, size_t offset, size_t length);
  /// Give pages back if too many are in memory.
  void trim(const GrowingMemory& memory) {
    if (resident_ > budget_) release_coldest(memory);
  }
  /// The bytes in memory.
  size_t bytes() const;

 private:
  void release_coldest(const GrowingMemory& memory);

  const size_t budget_;              // in pages
  std::vector<uint32_t> last_uses_;  // by page: the time of its last use; 0: not in memory
  size_t resident_ = 0;
  uint32_t time_ = 1, uses_ = 0;  // the time grows with the uses; uses since the time was increased
};

}  // namespace lane
