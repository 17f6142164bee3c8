// Memory of this process that grows without being copied.
#pragma once

#include <cstddef>

namespace lane {

/// A region that begins empty.  Growing it may move it; new bytes read as zeros.
class GrowingMemory {
 public:
  GrowingMemory() = default;
  GrowingMemory(GrowingMemory&& other) noexcept;
  GrowingMemory& operator=(GrowingMemory&& other) noexcept;
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;
  ~GrowingMemory();

  /// Make the region at least `size` bytes long; throws MemoryRefused, and the region stays as it was.
  void grow(size_t size);
  char* data() const { return base_; }
  size_t size() const { return size_; }

 private:
  char* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lane
