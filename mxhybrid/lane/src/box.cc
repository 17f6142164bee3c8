#include "box.h"

#include <cstring>
#include <stdexcept>

#include "half.h"

namespace lane {
namespace {

template <typename T>
void add(char* to, const char* from, size_t bytes) {
  T* result = reinterpret_cast<T*>(to);
  const T* values = reinterpret_cast<const T*>(from);
  // Integers smaller than int are added as int, and cut.
  for (size_t i = 0; i < bytes / sizeof(T); ++i) result[i] = static_cast<T>(result[i] + values[i]);
}

template <typename T>
void add_to_zero(char* to, const char* from, size_t bytes) {
  T* result = reinterpret_cast<T*>(to);
  const T* values = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) result[i] = static_cast<T>(T(0) + values[i]);
}

void add_halves(char* to, const char* from, size_t bytes) {
  lane::add_halves(reinterpret_cast<uint16_t*>(to), reinterpret_cast<const uint16_t*>(from), bytes / sizeof(uint16_t));
}

void add_halves_to_zero(char* to, const char* from, size_t bytes) {
  std::memset(to, 0, bytes);
  add_halves(to, from, bytes);
}

std::vector<size_t> packed(size_t element, const std::vector<uint64_t>& shape) {
  std::vector<size_t> strides(shape.size());
  for (size_t d = shape.size(); d-- > 0; element *= shape[d]) strides[d] = element;
  return strides;
}

}  // namespace

size_t size_of(Element element) {
  switch (element) {
    case Element::kInt8:
      return 1;
    case Element::kFloat16:
    case Element::kInt16:
      return 2;
    case Element::kFloat32:
    case Element::kInt32:
      return 4;
    default:
      return 8;
  }
}

void copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

Apply adding(Element element) {
  switch (element) {
    case Element::kFloat16:
      return add_halves;
    case Element::kFloat32:
      return add<float>;
    case Element::kFloat64:
      return add<double>;
    case Element::kInt8:
      return add<uint8_t>;
    case Element::kInt16:
      return add<uint16_t>;
    case Element::kInt32:
      return add<uint32_t>;
    default:
      return add<uint64_t>;
  }
}

Apply adding_to_zero(Element element) {
  switch (element) {
    case Element::kFloat16:
      return add_halves_to_zero;
    case Element::kFloat32:
      return add_to_zero<float>;
    case Element::kFloat64:
      return add_to_zero<double>;
    default:
      return copy;
  }
}

Box::Box(size_t element, const std::vector<uint64_t>& shape, const Side& one)
    : Box(element, shape, one, {0, packed(element, shape)}) {}

Box::Box(size_t element, const std::vector<uint64_t>& shape, const Side& one, const Side& other)
    : one_(one.offset), other_(other.offset), run_(element), bytes_(element) {
  if (shape.size() > kMostDimensions) throw std::runtime_error("an array of more than 32 dimensions");
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) throw std::runtime_error("a piece without elements");
    bytes_ *= shape[d];
    if (shape[d] == 1) continue;
    if (dimensions_.empty() && one.strides[d] == run_ && other.strides[d] == run_) {
      run_ *= shape[d];
      continue;
    }
    if (!dimensions_.empty()) {
      Dimension& inner = dimensions_.back();
      if (one.strides[d] == inner.count * inner.one && other.strides[d] == inner.count * inner.other) {
        inner.count *= shape[d];
        continue;
      }
    }
    dimensions_.push_back({shape[d], one.strides[d], other.strides[d]});
  }
  std::reverse(dimensions_.begin(), dimensions_.end());
}

}  // namespace lane
