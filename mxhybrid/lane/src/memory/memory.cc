#include "memory/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/system_calls.h"
#include "memory/mapping.h"

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
Buffer::Buffer(size_t size) : data_(size ? static_cast<char*>(std::malloc(size)) : nullptr), size_(size) {
  if (size && !data_) throw MemoryRefused(refusal_text("cannot get memory", size, ENOMEM));
}

void fail_with_errno(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

size_t size_of_file(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) fail_with_errno("fstat");
  return static_cast<size_t>(status.st_size);
}

Memory::Memory(size_t size) : size_((size + Layout::kPage - 1) / Layout::kPage * Layout::kPage) {
  // The system call, since older C libraries have no function for it; 1 is MFD_CLOEXEC.
  int descriptor = static_cast<int>(syscall(SYS_memfd_create, "mxhybrid-lane", 1U));
  if (descriptor < 0) throw MemoryRefused(refusal_text("cannot make shared memory", size_, errno));
  descriptor_ = descriptor;
  if (uninterrupted([&] { return ftruncate(descriptor, static_cast<off_t>(size_)); }) != 0) {
    release();
    throw MemoryRefused(refusal_text("cannot make shared memory", size_, errno));
  }
  map(descriptor);
}

Memory::Memory(int descriptor, size_t size) : size_((size + Layout::kPage - 1) / Layout::kPage * Layout::kPage) {
  map(descriptor);
}

void Memory::map(int descriptor) {
  void* base = map_memory(descriptor, size_);
  if (base == MAP_FAILED) {
    release();
    throw MemoryRefused(refusal_text("cannot map shared memory", size_, errno));
  }
  base_ = static_cast<char*>(base);
}

void Memory::release() {
  if (base_ != nullptr) unmap_memory(base_, size_);
  if (descriptor_ >= 0) {
    int saved = errno;
    close(descriptor_);
    errno = saved;
  }
  base_ = nullptr;
  descriptor_ = -1;
}

void Memory::close_descriptor() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Memory::~Memory() { release(); }

void Memory::discard(size_t offset, size_t length) {
  size_t first = (offset + Layout::kPage - 1) / Layout::kPage * Layout::kPage;
  size_t last = (offset + length) / Layout::kPage * Layout::kPage;
  // A failure costs memory, nothing else.
  if (last > first) madvise(base_ + first, last - first, MADV_REMOVE);
}

}  // namespace lane
