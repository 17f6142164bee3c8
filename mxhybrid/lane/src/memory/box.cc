#include "memory/box.h"

#include <stdexcept>
#include <string>

namespace lane {
namespace {

std::vector<size_t> packed(size_t element, const std::vector<uint64_t>& shape) {
  std::vector<size_t> strides(shape.size());
  for (size_t d = shape.size(); d-- > 0; element *= shape[d]) strides[d] = element;
  return strides;
}

}  // namespace

Box::Box(size_t element, const std::vector<uint64_t>& shape, const Position& first)
    : Box(element, shape, first, {0, packed(element, shape)}) {}

Box::Box(size_t element, const std::vector<uint64_t>& shape, const Position& first, const Position& second)
    : first_(first.offset), second_(second.offset), run_(element), bytes_(element) {
  if (shape.size() > kMaxDimensions) {
    throw std::runtime_error("an array has " + std::to_string(shape.size()) + " dimensions, but " +
                             std::to_string(kMaxDimensions) + " are the most");
  }
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) throw std::runtime_error("a box has no elements");
    bytes_ *= shape[d];
    if (shape[d] == 1) continue;
    if (dimensions_.empty() && first.strides[d] == run_ && second.strides[d] == run_) {
      run_ *= shape[d];
      continue;
    }
    if (!dimensions_.empty()) {
      Dimension& inner = dimensions_.back();
      if (first.strides[d] == inner.count * inner.first && second.strides[d] == inner.count * inner.second) {
        inner.count *= shape[d];
        continue;
      }
    }
    dimensions_.push_back({shape[d], first.strides[d], second.strides[d]});
  }
  std::reverse(dimensions_.begin(), dimensions_.end());
}

}  // namespace lane
