// Boxes of arrays: rectangular pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lane {

/// A box that two arrays have in common, whose elements are visited in order.  Offsets and strides are in bytes.
class Box {
 public:
  /// The position of the box in one array.
  struct Position {
    size_t offset;
    std::vector<size_t> strides;
  };

  Box(size_t element, const std::vector<uint64_t>& shape, const Position& first, const Position& second);
  /// A box of one array, where the other array has just the elements of the box.
  Box(size_t element, const std::vector<uint64_t>& shape, const Position& first);

  size_t bytes() const { return bytes_; }
  /// Return whether both boxes visit the same offsets in the same order, in both arrays.
  bool operator==(const Box& other) const {
    return first_ == other.first_ && second_ == other.second_ && run_ == other.run_ && bytes_ == other.bytes_ &&
           dimensions_ == other.dimensions_;
  }
  /// Call `function(offset in the first array, offset in the second one, bytes)` for the runs of contiguous elements
  /// that make up `count` bytes of the box from `position` on.
  template <typename Function>
  void each(size_t position, size_t count, Function function) const;

 private:
  struct Dimension {
    size_t count, first, second;

    bool operator==(const Dimension& other) const {
      return count == other.count && first == other.first && second == other.second;
    }
  };

  size_t first_, second_;              // offsets
  size_t run_;                         // bytes that are contiguous in both arrays
  size_t bytes_;
  std::vector<Dimension> dimensions_;  // the other dimensions, the last one fastest
};

constexpr size_t kMaxDimensions = 32;

template <typename Function>
void Box::each(size_t position, size_t count, Function function) const {
  size_t index[kMaxDimensions];
  size_t first = first_, second = second_, run = position / run_, within = position % run_;
  for (size_t d = dimensions_.size(); d-- > 0;) {
    const Dimension& dimension = dimensions_[d];
    index[d] = run % dimension.count;
    run /= dimension.count;
    first += index[d] * dimension.first;
    second += index[d] * dimension.second;
  }
  while (count > 0) {
    const size_t size = std::min(count, run_ - within);
    function(first + within, second + within, size);
    count -= size;
    within = 0;
    for (size_t d = dimensions_.size(); d-- > 0;) {
      const Dimension& dimension = dimensions_[d];
      first += dimension.first;
      second += dimension.second;
      if (++index[d] < dimension.count) break;
      index[d] = 0;
      first -= dimension.first * dimension.count;
      second -= dimension.second * dimension.count;
    }
  }
}

}  // namespace lane
