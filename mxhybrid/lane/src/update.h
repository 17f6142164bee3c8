// What a push does to rows of a partition, and a sum to dense weights, with the same numbers as MXNet 1.9.1's kernels
// for row_sparse and dense gradients (src/operator/optimizer_op-inl.h and src/operator/contrib/optimizer_op-inl.h):
// each formula stands as it stands there, operations in the same order, and nothing is contracted (-ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstdint>

#include "shared.h"

namespace lane {

enum class RuleKind : uint32_t {
  /// Pushes change nothing.
  kIgnore = 0,
  /// Pushed rows overwrite.
  kAssign = 1,
  /// Pushed rows overwrite, all others become zeros.
  kReplace = 2,
  /// Pushed rows overwrite state number `slot`; of wider ones the first elements count.
  kAssignState = 3,
  /// The owner's own function updates.
  kCallback = 4,
  kSgd = 5,
  kMomentum = 6,
  kAdam = 7,
  kAdagrad = 8,
  kGroupAdagrad = 9,
  kFtrl = 10,
  // Those of dense gradients where they differ.
  kMultiSgd = 11,
  kDenseAdam = 12,
};

/// What is done with pushes to a partition.
struct Rule {
  RuleKind kind = RuleKind::kIgnore;
  uint32_t slot = 0;
  double lr = 0, wd = 0, rescale = 1, clip = -1;  // no clipping below 0
  double momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0, lamda1 = 0, beta = 0;
};

/// UpdateSettings of one update: float32, as the operators of MXNet get them, see attribute.h.
struct UpdateSettings {
  float lr, wd, rescale, clip, momentum, beta1, beta2, epsilon, lamda1, beta;

  /// Those of update number `count`, from 1 on: adam's rate depends on it.
  UpdateSettings(const Rule& rule, uint64_t count);
};

/// One row with its state, and its gradient.
struct RowUpdate {
  char* weight;
  char* state[2];
  const char* gradient;
  size_t width;
};

using UpdateKernel = void (*)(const UpdateSettings& settings, const RowUpdate& row);
/// The kernel for a rule; null if the rule is none of an optimizer, or `dtype` is float16.
UpdateKernel kernel(RuleKind kind, Dtype dtype);

}  // namespace lane
