// Maps memory that processes share: a file of its own, since ThreadSanitizer knows memory by its addresses, and tests
// therefore map each piece once a process.
#pragma once

#include <cstddef>

namespace lane {

/// Map the memory behind a descriptor; MAP_FAILED, and an errno, where that cannot be.
void* map_memory(int descriptor, size_t size);
void unmap_memory(void* base, size_t size);

}  // namespace lane
