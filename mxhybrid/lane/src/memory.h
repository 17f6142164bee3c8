// Memory that processes of one host share.  It has no name, so nothing is left behind however its owners end, and no
// limit of /dev/shm applies.  It is sparse: only pages that were written take memory, so a region may be as large as
// the largest contents that it could ever have, and never grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

namespace lane {

/// A mapped piece of shared memory, which ends with the object.
class Memory {
 public:
  Memory() = default;
  /// A new one that reads as zeros; throws MemoryRefused.
  explicit Memory(size_t size);
  /// One that another process made, by its descriptor, which stays open.
  Memory(int descriptor, size_t size);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// To be given to another process; -1 if another process made the memory.
  int descriptor() const { return descriptor_; }
  /// All have it that need it; the memory stays.
  void close_descriptor();
  size_t size() const { return size_; }
  bool mapped() const { return base_ != nullptr; }

  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  /// Give the pages inside [offset, offset + length) back to the system; they read as zeros.
  void discard(size_t offset, size_t length);

 private:
  void map(int descriptor);
  void release();

  char* base_ = nullptr;
  size_t size_ = 0;
  int descriptor_ = -1;
};

/// Offsets of several things in one region, each aligned so that no two share a cache line.
class Layout {
 public:
  /// Room for `bytes`; its offset.
  size_t reserve(size_t bytes) {
    size_t offset = size_;
    size_ = (size_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  /// From here on on a page of its own, so that it can be given back by itself.
  void align_to_page() { size_ = (size_ + kPage - 1) / kPage * kPage; }
  size_t size() const { return size_; }

  static constexpr size_t kAlignment = 64;
  static constexpr size_t kPage = 4096;

 private:
  size_t size_ = 0;
};

/// Bytes of what a descriptor stands for; throws std::runtime_error.
size_t size_of_file(int descriptor);

/// std::runtime_error with the text of errno.
[[noreturn]] void fail_with_errno(const std::string& what);

/// What to say of memory that was refused, `size` bytes if that is known, with the limit that did it; `error` is an
/// errno.  Gives up a reserve of address space, without which a process could not even say so: a thread, or Python,
/// that gets no memory at all aborts.
std::string refusal_text(const char* what, size_t size, int error);

/// Memory was refused.
struct MemoryRefused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Memory of the process's own without contents, to be written.
class Buffer {
 public:
  Buffer() = default;
  /// Throws MemoryRefused.
  explicit Buffer(size_t size);
  char* data() const { return data_.get(); }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };

  std::unique_ptr<char, Free> data_;
  size_t size_ = 0;
};

}  // namespace lane
