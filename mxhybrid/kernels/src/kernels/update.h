// The effect of a push on rows of a partition, and of an allreduce on dense weights.
//
// Kernels give the same numbers as MXNet 1.9.1's kernels for row_sparse and dense gradients
// (src/operator/optimizer_op-inl.h and src/operator/contrib/optimizer_op-inl.h).  Each formula is written as it is
// there, with the operations in the same order, and nothing is contracted (-ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace lane {

/// Kinds of rules for pushed rows or summed gradients.  Each has a row in kRules of update.cc.
enum class RuleKind : uint32_t {
  /// Pushes change nothing.
  kIgnore,
  /// Pushed rows overwrite those of the partition.
  kAssign,
  /// Pushed rows overwrite those of the partition, and all other rows become zeros.
  kReplace,
  /// Pushed rows overwrite optimizer state number `slot`; if they are wider, their first elements do.
  kAssignState,
  /// A function of the server updates the rows.
  kCallback,
  kSgd,
  kMomentum,
  kAdam,
  kAdagrad,
  kGroupAdagrad,
  kFtrl,
  // Kernels for dense gradients, where they differ.
  kMultiSgd,
  kDenseAdam,
  kDenseAdagrad,
};

/// A rule with its settings.
struct Rule {
  RuleKind kind = RuleKind::kIgnore;
  uint32_t slot = 0;
  double lr = 0, wd = 0, rescale = 1, clip = -1;  // clip < 0: no clipping
  double momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0, lamda1 = 0, beta = 0;
};

/// The settings of one update as float32, as the operators of MXNet get them, see attribute.h.
struct UpdateSettings {
  float lr = 0, wd = 0, rescale = 0, clip = 0, momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0, lamda1 = 0, beta = 0;

  /// Round the settings of a rule for update number `count`, counted from 1: adam's learning rate depends on it.
  UpdateSettings(const Rule& rule, uint64_t count);
};

/// Return the name of a rule by its number, or of a setting by its position; null after the last one.
const char* rule_name(uint32_t number);
const char* rule_setting_name(uint32_t number);
/// Return the rule of a kind with all settings, in order.
Rule make_rule(RuleKind kind, const double* settings, uint32_t slot = 0);

/// A row, its optimizer state and its gradient.
struct RowUpdate {
  char* weight;
  char* state[2];
  const char* gradient;
  size_t width;
};

/// Updates a row.
using UpdateKernel = void (*)(const UpdateSettings& settings, const RowUpdate& row);
/// Return the kernel of a rule; null if the rule is not an optimizer's, or `dtype` is float16.
UpdateKernel kernel(RuleKind kind, Dtype dtype);
/// Return the number of elements of optimizer state number `slot`, 0 or 1, that a rule's kernel uses for a row.
size_t state_width(RuleKind kind, uint32_t slot, size_t width);

}  // namespace lane
