// In place of src/mapping.cc: maps each piece of memory once a process.  ThreadSanitizer finds races by addresses, and
// agents and workers that are threads of one process would map the same memory at several.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "mapping.h"

namespace lane {
namespace {

struct Mapping {
  void* base;
  size_t size;
  int users;
};

std::mutex mutex;

/// By the file's number; never destroyed, since threads may still run at exit.
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
