#include "memory/mapping.h"

#include <sys/mman.h>

namespace lane {

void* map_memory(int descriptor, size_t size) {
  return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
}

void unmap_memory(void* base, size_t size) { munmap(base, size); }

}  // namespace lane
