// Memory that processes of one host share.  It has no name, so it disappears with its owners, however they end, and no
// limit of /dev/shm applies.  It is sparse: only pages that were written take memory.  So a region has from the start
// the size of the largest contents that it could ever have, and never grows.
#pragma once

#include <cstddef>

#include "base/buffer.h"

namespace lane {

/// A mapped region of shared memory, which is unmapped with the object.
class Memory {
 public:
  Memory() = default;
  /// Create a region that reads as zeros; throws MemoryRefused.
  explicit Memory(size_t size);
  /// Map a region that another process created, by its descriptor, which stays open.
  Memory(int descriptor, size_t size);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// The descriptor to give to another process; -1 if another process created the region.
  int descriptor() const { return descriptor_; }
  /// Close the descriptor, once all processes that need it have it; the region stays.
  void close_descriptor();
  size_t size() const { return size_; }
  bool mapped() const { return base_ != nullptr; }

  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  /// Give the pages inside [offset, offset + length) back to the system; they then read as zeros.
  void discard(size_t offset, size_t length);

 private:
  void map(int descriptor);
  void release();

  char* base_ = nullptr;
  size_t size_ = 0;
  int descriptor_ = -1;
};

/// Offsets of several objects in one region, aligned so that no two of them share a cache line.
class Layout {
 public:
  /// Reserve `bytes` and return their offset.
  size_t reserve(size_t bytes) {
    size_t offset = size_;
    size_ = rounded_up(size_ + bytes, kAlignment);
    return offset;
  }
  /// Begin a new page, so that the next object can be discarded without its neighbours.
  void align_to_page() { size_ = rounded_up(size_, kPage); }
  size_t size() const { return size_; }

  static constexpr size_t kAlignment = 64;
  static constexpr size_t kPage = 4096;

 private:
  size_t size_ = 0;
};

/// Return the size of the file behind a descriptor; throws std::runtime_error.
size_t size_of_file(int descriptor);

}  // namespace lane
