// Mapping of shared memory.  It has a file of its own because tests replace it: ThreadSanitizer identifies memory by
// its address, so tests map each region only once per process.
#pragma once

#include <cstddef>

namespace lane {

/// Map the memory behind a descriptor; return MAP_FAILED, with errno set, on failure.
void* map_memory(int descriptor, size_t size);
void unmap_memory(void* base, size_t size);

}  // namespace lane
