#include "add.h"

#include <algorithm>
#include <cstring>

#include "half.h"

namespace lane {
namespace {

/// Elements that are added at once, so that they stay in the processor's nearest cache.
constexpr size_t kBlock = 2048;

template <typename T>
void add_blocks(const std::vector<const char*>& sources, size_t count, char* result) {
  T total[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t size = std::min(kBlock, count - start);
    std::memcpy(total, sources[0] + start * sizeof(T), size * sizeof(T));
    for (size_t which = 1; which < sources.size(); ++which) {
      const T* source = reinterpret_cast<const T*>(sources[which]) + start;
      for (size_t i = 0; i < size; ++i) total[i] += source[i];
    }
    std::memcpy(result + start * sizeof(T), total, size * sizeof(T));
  }
}

void add_halves(const std::vector<const char*>& sources, size_t count, char* result) {
  float total[kBlock], wide[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t size = std::min(kBlock, count - start);
    widen(reinterpret_cast<const uint16_t*>(sources[0]) + start, total, size);
    for (size_t which = 1; which < sources.size(); ++which) {
      widen(reinterpret_cast<const uint16_t*>(sources[which]) + start, wide, size);
      for (size_t i = 0; i < size; ++i) total[i] += wide[i];
    }
    narrow(total, reinterpret_cast<uint16_t*>(result) + start, size);
  }
}

}  // namespace

void add(Dtype dtype, const std::vector<const char*>& sources, size_t count, char* result) {
  if (sources.size() == 1) {
    if (sources[0] != result) std::memcpy(result, sources[0], count * size_of(dtype));
    return;
  }
  switch (dtype) {
    case Dtype::kFloat16:
      return add_halves(sources, count, result);
    case Dtype::kFloat32:
      return add_blocks<float>(sources, count, result);
    case Dtype::kFloat64:
      return add_blocks<double>(sources, count, result);
    // Without signs, so that what does not fit wraps around.
    case Dtype::kInt32:
      return add_blocks<uint32_t>(sources, count, result);
    case Dtype::kInt64:
      return add_blocks<uint64_t>(sources, count, result);
  }
}

}  // namespace lane
