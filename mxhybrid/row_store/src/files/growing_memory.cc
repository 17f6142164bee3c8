#include "files/growing_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/buffer.h"
#include "files/available_memory.h"
#include "files/scratch_file.h"

namespace lane {
namespace {

/// Regions grow at least by this factor, files by at most kFileStep, and large regions to a multiple of a huge page.
/// Pages of memory that were not touched take none.
constexpr double kGrowth = 1.25;
constexpr size_t kFileStep = 64 << 20;
constexpr size_t kPage = 4096, kHugePage = 2 << 20;
/// Growth of memory by less is not compared with the memory that is left, of which this part is for other uses.
constexpr size_t kCheckedGrowth = 1 << 20;
constexpr uint64_t kReserve = 16 << 20;
/// Memory that is left is taken in parts of this share, so that others in the same container get some, too.
constexpr uint64_t kShare = 8;

size_t in_pages(size_t size) { return rounded_up(size, size < 4 * kHugePage ? kPage : kHugePage); }

/// Return the size, `enlarged` at most, to which memory of `size` bytes may grow, of which `needed` bytes will be used;
/// throw MemoryRefused if the system would soon end the process, rather than let it use them.
size_t allowed_size(size_t size, size_t needed, size_t enlarged) {
  if (enlarged - size < kCheckedGrowth) return enlarged;
  const AvailableMemory available = available_memory();
  const uint64_t left = available.bytes - std::min(available.bytes, kReserve);
  if (enlarged - size <= left / kShare) return enlarged;
  const size_t allowed = in_pages(std::max<size_t>(needed, size + left / kShare / kHugePage * kHugePage));
  if (std::min(allowed, enlarged) - size <= left) return std::min(allowed, enlarged);
  throw MemoryRefused(
      "cannot get memory for rows of " + std::to_string(needed) + " bytes: " + std::to_string(available.bytes) +
      " bytes are left of the " + std::to_string(available.limit_bytes) + " of " +
      (available.file.empty() ? "this machine" : "the container (" + available.file + ")") +
      ". Give it more memory, use more servers on other hosts, or keep rows in files (MXHYBRID_STORAGE)");
}

}  // namespace

void GrowingMemory::grow(size_t size) {
  if (size <= size_) return;
  size_t enlarged = static_cast<size_t>(static_cast<double>(size_) * kGrowth);
  if (is_file()) enlarged = std::min(enlarged, size_ + kFileStep);
  size_t grown = in_pages(std::max(size, enlarged));
  if (!is_file()) grown = allowed_size(size_, size, grown);
  if (is_file()) grow_file(descriptor_, name_, size_, grown);
  const int flags = is_file() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* base = size_ == 0 ? mmap(nullptr, grown, PROT_READ | PROT_WRITE, flags, descriptor_, 0)
                          : mremap(base_, size_, grown, MREMAP_MAYMOVE);
  if (base == MAP_FAILED) {
    const std::string text = refusal_text("cannot get memory for rows", grown, errno);
    throw MemoryRefused(text + (is_file() ? "" : "; or use more servers, or keep rows in files (MXHYBRID_STORAGE)"));
  }
  base_ = static_cast<char*>(base);
  size_ = grown;
  // Rows are far apart: the pages around one that is read would take memory for nothing.
  if (is_file()) madvise(base_, size_, MADV_RANDOM);
}

void GrowingMemory::expect_order() const {
  if (is_file()) madvise(base_, size_, MADV_SEQUENTIAL);
}

GrowingMemory::GrowingMemory(GrowingMemory&& other) noexcept { *this = std::move(other); }

GrowingMemory& GrowingMemory::operator=(GrowingMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(name_, other.name_);
  return *this;
}

GrowingMemory::~GrowingMemory() {
  if (base_ != nullptr) munmap(base_, size_);
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace lane
