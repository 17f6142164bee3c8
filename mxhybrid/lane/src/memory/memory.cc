#include "memory/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/system_calls.h"
#include "memory/mapping.h"

namespace lane {

size_t size_of_file(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) fail_with_errno("fstat");
  return static_cast<size_t>(status.st_size);
}

Memory::Memory(size_t size) : size_(rounded_up(size, Layout::kPage)) {
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

Memory::Memory(int descriptor, size_t size) : size_(rounded_up(size, Layout::kPage)) { map(descriptor); }

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
  size_t first = rounded_up(offset, Layout::kPage);
  size_t last = (offset + length) / Layout::kPage * Layout::kPage;
  // A failure costs memory, nothing else.
  if (last > first) madvise(base_ + first, last - first, MADV_REMOVE);
}

}  // namespace lane
