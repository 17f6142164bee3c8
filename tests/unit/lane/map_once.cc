// Replaces lane/src/memory/mapping.cc: maps each region of memory once in a process.  ThreadSanitizer finds races by
// addresses, but agents and workers that are threads of one process would map a region at several addresses.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "memory/mapping.h"

namespace lane {
namespace {

struct Mapping {
  void* base;
  size_t size;
  int users;
};

std::mutex mutex;

/// Mappings by the inode of the file; never destroyed, since threads may still run at exit.
std::map<ino_t, Mapping>& mappings() {
  static auto* const all = new std::map<ino_t, Mapping>;
  return *all;
}

}  // namespace

void* map_memory(int descriptor, size_t size) {
  struct stat file;
  if (fstat(descriptor, &file) != 0) return MAP_FAILED;
  std::lock_guard<std::mutex> lock(mutex);
  const auto mapped = mappings().find(file.st_ino);
  if (mapped != mappings().end()) {
    if (mapped->second.size < size) std::abort();
    ++mapped->second.users;
    return mapped->second.base;
  }
  void* const base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base != MAP_FAILED) mappings()[file.st_ino] = {base, size, 1};
  return base;
}

void unmap_memory(void* base, size_t) {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& [number, mapping] : mappings()) {
    if (mapping.base != base) continue;
    if (--mapping.users > 0) return;
    munmap(base, mapping.size);
    mappings().erase(number);
    return;
  }
}

}  // namespace lane
