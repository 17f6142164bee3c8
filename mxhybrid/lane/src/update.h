// What a push does to rows of a partition, and a sum to dense weights, with the same numbers as MXNet 1.9.1's kernels
// for row_sparse and dense gradients (src/operator/optimizer_op-inl.h and src/operator/contrib/optimizer_op-inl.h):
// each formula stands as it stands there, operations in the same order, and nothing is contracted (-ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace lane {

/// What pushes, or summed gradients, do to rows.  Each kind has a row in kRules of update.cc.
enum class RuleKind : uint32_t {
  /// Pushes change nothing.
  kIgnore,
  /// Pushed rows overwrite.
  kAssign,
  /// Pushed rows overwrite, all others become zeros.
  kReplace,
  /// Pushed rows overwrite state number `slot`; of wider ones the first elements count.
  kAssignState,
  /// The owner's own function updates.
  kCallback,
  kSgd,
  kMomentum,
  kAdam,
  kAdagrad,
  kGroupAdagrad,
  kFtrl,
  // Those of dense gradients where they differ.
  kMultiSgd,
  kDenseAdam,
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
  float lr = 0, wd = 0, rescale = 0, clip = 0, momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0, lamda1 = 0, beta = 0;

  /// Those of update number `count`, from 1 on: adam's rate depends on it.
  UpdateSettings(const Rule& rule, uint64_t count);
};

/// The name of a rule by its number, and of a setting by its place in what make_rule takes; null behind the last one.
const char* rule_name(uint32_t number);
const char* rule_setting_name(uint32_t number);
/// Make a rule of a number and all its settings in order; throws std::runtime_error for a number that no rule has.
Rule make_rule(uint32_t kind, const double* settings);

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
