#include "kernels/add.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace lane {
namespace {

/// The number of elements that are added at a time, so that they stay in the first-level cache.
constexpr size_t kBlock = 2048;

template <typename T>
void add(char* to, const char* from, size_t bytes) {
  T* result = reinterpret_cast<T*>(to);
  const T* values = reinterpret_cast<const T*>(from);
  // C++ adds integers smaller than int as int; the cast cuts the sum.
  for (size_t i = 0; i < bytes / sizeof(T); ++i) result[i] = static_cast<T>(result[i] + values[i]);
}

template <typename T>
void add_to_zero(char* to, const char* from, size_t bytes) {
  T* result = reinterpret_cast<T*>(to);
  const T* values = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) result[i] = static_cast<T>(T(0) + values[i]);
}

template <typename T>
void add_pair(const char* first, const char* second, size_t count, char* result) {
  const T *a = reinterpret_cast<const T*>(first), *b = reinterpret_cast<const T*>(second);
  T* total = reinterpret_cast<T*>(result);
  for (size_t i = 0; i < count; ++i) total[i] = static_cast<T>(a[i] + b[i]);
}

template <typename T>
void add_blocks(const std::vector<const char*>& sources, size_t count, char* result) {
  if (sources.size() == 2) return add_pair<T>(sources[0], sources[1], count, result);
  T total[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t size = std::min(kBlock, count - start);
    std::memcpy(total, sources[0] + start * sizeof(T), size * sizeof(T));
    for (size_t which = 1; which < sources.size(); ++which) {
      add<T>(reinterpret_cast<char*>(total), sources[which] + start * sizeof(T), size * sizeof(T));
    }
    std::memcpy(result + start * sizeof(T), total, size * sizeof(T));
  }
}

void add_float16_blocks(const char* const* sources, size_t num_sources, size_t count, char* result) {
  float total[kBlock], wide[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t size = std::min(kBlock, count - start);
    widen(reinterpret_cast<const uint16_t*>(sources[0]) + start, total, size);
    for (size_t which = 1; which < num_sources; ++which) {
      widen(reinterpret_cast<const uint16_t*>(sources[which]) + start, wide, size);
      for (size_t i = 0; i < size; ++i) total[i] += wide[i];
    }
    narrow(total, reinterpret_cast<uint16_t*>(result) + start, size);
  }
}

void add_float16(char* to, const char* from, size_t bytes) {
  const char* const sources[] = {to, from};
  add_float16_blocks(sources, 2, bytes / sizeof(uint16_t), to);
}

void add_float16_to_zero(char* to, const char* from, size_t bytes) {
  std::memset(to, 0, bytes);
  add_float16(to, from, bytes);
}

/// Return the result of a function, which is called with a zero of a type other than float16.  Integers are unsigned,
/// so that sums that do not fit wrap around.
template <typename Function>
auto with_type(Dtype dtype, Function function) {
  switch (dtype) {
    case Dtype::kFloat32:
      return function(float());
    case Dtype::kFloat64:
      return function(double());
    case Dtype::kInt8:
      return function(uint8_t());
    case Dtype::kInt16:
      return function(uint16_t());
    case Dtype::kInt32:
      return function(uint32_t());
    default:
      return function(uint64_t());
  }
}

}  // namespace

void copy_elements(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

Apply adder(Dtype dtype) {
  if (dtype == Dtype::kFloat16) return add_float16;
  return with_type(dtype, [](auto zero) -> Apply { return add<decltype(zero)>; });
}

Apply zero_adder(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return add_float16_to_zero;
    case Dtype::kFloat32:
      return add_to_zero<float>;
    case Dtype::kFloat64:
      return add_to_zero<double>;
    default:
      return copy_elements;
  }
}

void add_arrays(Dtype dtype, const std::vector<const char*>& sources, size_t count, char* result) {
  if (sources.size() == 1) {
    if (sources[0] != result) std::memcpy(result, sources[0], count * size_of(dtype));
    return;
  }
  if (dtype == Dtype::kFloat16) return add_float16_blocks(sources.data(), sources.size(), count, result);
  with_type(dtype, [&](auto zero) { add_blocks<decltype(zero)>(sources, count, result); });
}

}  // namespace lane
