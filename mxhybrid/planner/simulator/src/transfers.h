// The transfers that give each rank the boxes that it needs.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "transfer_structs.h"

// Returns the number of elements that two boxes have in common.
int64_t overlap(const int64_t* box, const int64_t* other, int64_t dimensions);

// Returns the indices of ranks that hold the same box, group by group, in order of the first one.
std::vector<std::vector<int64_t>> group_by_box(const PlannerRankBoxes& held);

// Sets, by rank, the number of elements that its held and its needed box have in common; 0 for ranks without both.
void find_own(const PlannerRankBoxes& held, const PlannerRankBoxes& needed, std::vector<int64_t>& own_elements);

// Sets the numbers of all ranks but some, which are in ascending order, to 0.
void keep_only(const int32_t* ranks, int64_t count, std::vector<int64_t>& own_elements);

// The transfers of gradients: those of the outputs, in the opposite direction, from some of the targets.
class ReversedTransfers {
 public:
  explicit ReversedTransfers(int64_t ranks) : has_gradient_(ranks) {}

  // The arrays of the result are valid until the next call.
  PlannerTransfers reverse(const PlannerTransfers& forward, const int32_t* gradient_ranks, int64_t count) {
    std::fill(has_gradient_.begin(), has_gradient_.end(), false);
    for (int64_t index = 0; index < count; ++index) has_gradient_[gradient_ranks[index]] = true;
    sources_.clear(), targets_.clear(), elements_.clear();
    for (int64_t index = 0; index < forward.count; ++index) {
      if (!has_gradient_[forward.targets[index]]) continue;
      sources_.push_back(forward.targets[index]);
      targets_.push_back(forward.sources[index]);
      elements_.push_back(forward.elements[index]);
    }
    return {sources_.data(), targets_.data(), elements_.data(), static_cast<int64_t>(sources_.size())};
  }

 private:
  std::vector<bool> has_gradient_;
  std::vector<int32_t> sources_, targets_;
  std::vector<int64_t> elements_;
};
