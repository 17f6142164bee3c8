// Memory of this process, and errors of the system.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

namespace lane {

/// Throw std::runtime_error with the text of errno.
[[noreturn]] void fail_with_errno(const std::string& what);

/// Return the message for memory that the system refused: the size in bytes, if `size` is not 0, the limit that was
/// hit, and how to raise it.  `error` is an errno.  This releases a reserve of address space, so that the process can
/// still report the message: threads and Python abort where they get no memory at all.
std::string refusal_text(const char* what, size_t size, int error);

/// Return the least multiple of a unit that is not less than a size.
constexpr size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/// The system refused memory.
struct MemoryRefused : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Uninitialized memory of this process.
class Buffer {
 public:
  Buffer() = default;
  /// Allocate `size` bytes; throws MemoryRefused.
  explicit Buffer(size_t size);
  Buffer(size_t size, size_t alignment);
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

  Buffer(char* data, size_t size);

  std::unique_ptr<char, Free> data_;
  size_t size_ = 0;
};

}  // namespace lane
