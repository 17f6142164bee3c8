// Bytes of boxes one after the other, and the order in which several such streams are added to one array.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/buffer.h"
#include "memory/box.h"

namespace lane {

/// The boxes that a run of a transfer sends to one worker, receives from it, or copies, and the progress of the run.
struct ArrayStream {
  /// The size of the largest element.
  static constexpr size_t kPadding = 8;

  std::vector<Box> boxes;
  size_t bytes = 0;
  size_t padded = 0;  // bytes of a run, padded so that the next run is aligned
  // Progress: the bytes that were copied, the current box, and the bytes before it.
  size_t done = 0, box = 0, start = 0;

  void add(const Box& added) {
    boxes.push_back(added);
    bytes += added.bytes();
    padded = rounded_up(bytes, kPadding);
  }
  void reset() { done = box = start = 0; }
  bool ended() const { return done == padded; }

  /// Continue by `count` bytes: call `apply(box, first, size)` for bytes `first` to `first` + `size` - 1 of each box.
  /// `most()` returns the most bytes of the next call.
  template <typename Most, typename Function>
  void advance(size_t count, Most most, Function apply) {
    while (count > 0 && done < bytes) {
      const Box& current = boxes[box];
      const size_t first = done - start, size = std::min({count, current.bytes() - first, most()});
      apply(current, first, size);
      done += size;
      count -= size;
      if (done - start == current.bytes()) {
        ++box;
        start = done;
      }
    }
    done += count;  // padding
  }
};

/// Partial sums of one array in the order in which they are added.  Each element adds up its partial sums in this order,
/// but they advance side by side: a ring holds less than a large partial sum, so its writer would wait until all earlier
/// ones have arrived completely, and the links of the workers would be used one after the other.
class PartialSums {
 public:
  /// Add a partial sum; `targets` are its boxes in the array.  Both must stay.
  void add(ArrayStream* partial, const std::vector<Box>& targets) {
    follows_.push_back(last_targets_ != nullptr && targets == *last_targets_);
    partials_.push_back(partial);
    last_targets_ = &targets;
  }
  void reset() { ended_ = 0; }

  size_t size() const { return partials_.size(); }
  ArrayStream& operator[](size_t number) const { return *partials_[number]; }
  /// Return the number of the first partial sum that is not added completely, or `size()`.
  size_t first_unended() {
    while (ended_ < partials_.size() && partials_[ended_]->ended()) ++ended_;
    return ended_;
  }
  /// Return the end of the bytes of a partial sum to whose elements all earlier partial sums have been added.
  size_t addable_bytes(size_t number) const {
    const ArrayStream& partial = *partials_[number];
    if (number == 0 || partials_[number - 1]->ended()) return partial.padded;
    return follows_[number] ? std::min(partials_[number - 1]->done, partial.bytes) : 0;
  }

 private:
  std::vector<ArrayStream*> partials_;
  /// Whether byte i of each partial sum belongs to the same element as byte i of the partial sum before it.
  std::vector<bool> follows_;
  const std::vector<Box>* last_targets_ = nullptr;
  size_t ended_ = 0;  // partial sums that were added completely, from the first one on
};

}  // namespace lane
