#include "memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace lane {

void fail_with_errno(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

Memory::Memory(size_t size) : size_((size + Layout::kPage - 1) / Layout::kPage * Layout::kPage) {
  // The system call, since older C libraries have no function for it; 1 is MFD_CLOEXEC.
  int descriptor = static_cast<int>(syscall(SYS_memfd_create, "mxhybrid-lane", 1U));
  if (descriptor < 0) fail_with_errno("memfd_create");
  descriptor_ = descriptor;
  if (ftruncate(descriptor, static_cast<off_t>(size_)) != 0) {
    release();
    fail_with_errno("cannot make shared memory of " + std::to_string(size_) + " bytes");
  }
  map(descriptor);
}

Memory::Memory(int descriptor, size_t size) : size_((size + Layout::kPage - 1) / Layout::kPage * Layout::kPage) {
  map(descriptor);
}

void Memory::map(int descriptor) {
  void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base == MAP_FAILED) {
    release();
    fail_with_errno("cannot map shared memory of " + std::to_string(size_) + " bytes");
  }
  base_ = static_cast<char*>(base);
}

void Memory::release() {
  if (base_ != nullptr) munmap(base_, size_);
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

void Memory::give_back(size_t offset, size_t length) {
  size_t first = (offset + Layout::kPage - 1) / Layout::kPage * Layout::kPage;
  size_t last = (offset + length) / Layout::kPage * Layout::kPage;
  // What cannot be given back is only not saved.
  if (last > first) madvise(base_ + first, last - first, MADV_REMOVE);
}

}  // namespace lane
