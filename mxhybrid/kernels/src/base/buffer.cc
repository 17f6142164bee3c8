#include "base/buffer.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace lane {
namespace {

constexpr size_t kReserve = 32 << 20;

/// The reserve takes address space, but no memory.
std::atomic<void*> reserve{mmap(nullptr, kReserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};

std::string limit_of(int resource) {
  struct rlimit limit = {};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

}  // namespace

std::string refusal_text(const char* what, size_t size, int error) {
  if (error == ENOMEM) {  // first, since the text needs memory
    void* const reserved = reserve.exchange(MAP_FAILED);
    if (reserved != MAP_FAILED) munmap(reserved, kReserve);
  }
  std::string text = what;
  if (size) text += " of " + std::to_string(size) + " bytes";
  text += std::string(": ") + std::strerror(error);
  switch (error) {
    case EFBIG:
      return text + "; shared memory counts as a file: raise the limit of their size, ulimit -f (it is " +
             limit_of(RLIMIT_FSIZE) + " now, in bytes)";
    case EMFILE:
      return text + "; shared memory counts as an open file: raise their number, ulimit -n (it is " +
             limit_of(RLIMIT_NOFILE) + " now)";
    case ENOMEM:
      return text + "; raise the limit of address space, ulimit -v (it is " + limit_of(RLIMIT_AS) +
             " now, in bytes), or give the machine, or the container, more memory";
    default:
      return text;
  }
}

// `new` is not used: it would throw, and fail to allocate the exception, before the reserve is released.
Buffer::Buffer(size_t size) : Buffer(size ? static_cast<char*>(std::malloc(size)) : nullptr, size) {}

Buffer::Buffer(size_t size, size_t alignment)
    : Buffer(static_cast<char*>(std::aligned_alloc(alignment, rounded_up(size, alignment))), size) {}

Buffer::Buffer(char* data, size_t size) : data_(data), size_(size) {
  if (size && !data) throw MemoryRefused(refusal_text("cannot get memory", size, ENOMEM));
}

void fail_with_errno(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

}  // namespace lane
