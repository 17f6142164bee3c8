// Memory of this process, or of a file, that grows without being copied.
#pragma once

#include <cstddef>
#include <string>

namespace lane {

/// A region that begins empty.  Growing it may move it; new bytes read as zeros.
class GrowingMemory {
 public:
  GrowingMemory() = default;
  /// Use an empty file, by its descriptor, which the object closes; `name` stands in messages.
  GrowingMemory(int descriptor, const std::string& name) : descriptor_(descriptor), name_(name) {}
  GrowingMemory(GrowingMemory&& other) noexcept;
  GrowingMemory& operator=(GrowingMemory&& other) noexcept;
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;
  ~GrowingMemory();

  /// Make the region at least `size` bytes long; throws MemoryRefused, and the region stays as it was.  The blocks of a
  /// file are reserved on the disk, since a process ends when it writes to a page of a file that the disk cannot hold.
  void grow(size_t size);
  /// Tell the system that the pages of a file will be read in their order, until the region grows.
  void expect_order() const;
  char* data() const { return base_; }
  size_t size() const { return size_; }
  /// Return whether the memory is that of a file.
  bool is_file() const { return descriptor_ >= 0; }

 private:
  char* base_ = nullptr;
  size_t size_ = 0;
  int descriptor_ = -1;
  std::string name_;
};

}  // namespace lane
