#include "growing_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "memory.h"

namespace lane {
namespace {

/// Regions grow at least by this factor, and to a multiple of a huge page where they are large.  Pages that were not
/// touched take no memory.
constexpr double kGrowth = 1.25;
constexpr size_t kHugePage = 2 << 20;

size_t rounded_up(size_t size) {
  const size_t unit = size < 4 * kHugePage ? Layout::kPage : kHugePage;
  return (size + unit - 1) / unit * unit;
}

}  // namespace

void GrowingMemory::grow(size_t size) {
  if (size <= size_) return;
  const size_t grown = rounded_up(std::max(size, static_cast<size_t>(static_cast<double>(size_) * kGrowth)));
  void* base = size_ == 0 ? mmap(nullptr, grown, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                 -1, 0)
                          : mremap(base_, size_, grown, MREMAP_MAYMOVE);
  if (base == MAP_FAILED) throw MemoryRefused(refusal_text("cannot get memory for rows", grown, errno));
  base_ = static_cast<char*>(base);
  size_ = grown;
}

GrowingMemory::GrowingMemory(GrowingMemory&& other) noexcept { *this = std::move(other); }

GrowingMemory& GrowingMemory::operator=(GrowingMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

GrowingMemory::~GrowingMemory() {
  if (base_ != nullptr) munmap(base_, size_);
}

}  // namespace lane
