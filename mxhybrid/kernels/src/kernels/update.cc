#include "kernels/update.h"

#include <cmath>

#include "kernels/attribute.h"
#include "kernels/avx2.h"

namespace lane {
namespace {

template <typename T>
T clipped(T value, T limit) {
  return value > limit ? limit : value < -limit ? -limit : value;
}

template <typename T>
struct Arrays {
  explicit Arrays(const RowUpdate& row)
      : w(reinterpret_cast<T*>(row.weight)),
        s(reinterpret_cast<T*>(row.state[0])),
        t(reinterpret_cast<T*>(row.state[1])),
        g(reinterpret_cast<const T*>(row.gradient)),
        n(row.width) {}
  T* __restrict w;
  T* __restrict s;
  T* __restrict t;
  const T* __restrict g;
  size_t n;
};

template <typename T>
LANE_INLINE void sgd(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip;
  if (clip >= 0) {
    for (size_t j = 0; j < a.n; ++j) a.w[j] = (1.f - lr * wd) * a.w[j] - lr * clipped<T>(rescale * a.g[j], clip);
  } else {
    for (size_t j = 0; j < a.n; ++j) a.w[j] = (1.f - lr * wd) * a.w[j] - (lr * rescale) * a.g[j];
  }
}

template <typename T>
LANE_INLINE void momentum(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip, momentum = set.momentum;
  const T rate = lr * wd;
  for (size_t j = 0; j < a.n; ++j) {
    if (clip >= 0) {
      a.s[j] = momentum * a.s[j] - rate * a.w[j] - lr * clipped<T>(rescale * a.g[j], clip);
    } else {
      a.s[j] = momentum * a.s[j] - rate * a.w[j] - lr * rescale * a.g[j];
    }
    a.w[j] = a.w[j] + a.s[j];
  }
}

template <typename T>
LANE_INLINE void adam(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip;
  const T beta1 = set.beta1, beta2 = set.beta2, epsilon = set.epsilon;
  for (size_t j = 0; j < a.n; ++j) {
    const T g = a.g[j] * rescale + a.w[j] * wd;
    if (clip >= 0) {
      const T c = clipped<T>(g, clip);
      a.s[j] = beta1 * a.s[j] + (1.f - beta1) * c;
      a.t[j] = beta2 * a.t[j] + (1.f - beta2) * (c * c);
    } else {
      a.s[j] = beta1 * a.s[j] + (1.f - beta1) * g;
      a.t[j] = beta2 * a.t[j] + (1.f - beta2) * g * g;
    }
    a.w[j] = a.w[j] - lr * a.s[j] / (std::sqrt(a.t[j]) + epsilon);
  }
}

/// The same as sgd, in the order of operations of `multi_sgd_update`.
template <typename T>
LANE_INLINE void multi_sgd(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip;
  const T rate = lr * wd, scale = lr * rescale;
  if (clip >= 0) {
    for (size_t j = 0; j < a.n; ++j) a.w[j] = a.w[j] + (T(0) - rate * a.w[j] - lr * clipped<T>(rescale * a.g[j], clip));
  } else {
    for (size_t j = 0; j < a.n; ++j) a.w[j] = a.w[j] + (T(0) - rate * a.w[j] - scale * a.g[j]);
  }
}

template <typename T>
LANE_INLINE void dense_adam(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip;
  const T beta1 = set.beta1, beta2 = set.beta2, epsilon = set.epsilon;
  for (size_t j = 0; j < a.n; ++j) {
    T g = a.g[j] * rescale + a.w[j] * wd;
    if (clip >= 0) g = clipped<T>(g, clip);
    a.s[j] = beta1 * a.s[j] + (1.f - beta1) * g;
    a.t[j] = beta2 * a.t[j] + (1.f - beta2) * g * g;
    a.w[j] = a.w[j] - lr * a.s[j] / (std::sqrt(a.t[j]) + epsilon);
  }
}

template <typename T>
LANE_INLINE void adagrad(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, rescale = set.rescale, clip = set.clip, epsilon = set.epsilon;
  for (size_t j = 0; j < a.n; ++j) {
    T g = a.g[j] * rescale;
    if (clip >= 0) g = clipped<T>(g, clip);
    a.s[j] += g * g;
    const T div = g / std::sqrt(a.s[j] + epsilon);
    a.w[j] = a.w[j] - div * lr;
  }
}

template <typename T>
LANE_INLINE void group_adagrad(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, rescale = set.rescale, clip = set.clip, epsilon = set.epsilon;
  T squares = 0;
  for (size_t j = 0; j < a.n; ++j) {
    T g = a.g[j] * rescale;
    if (clip >= 0) g = clipped<T>(g, clip);
    squares += g * g;
  }
  a.s[0] += squares / static_cast<int64_t>(a.n);
  for (size_t j = 0; j < a.n; ++j) {
    T g = a.g[j] * rescale;
    if (clip >= 0) g = clipped<T>(g, clip);
    a.w[j] = a.w[j] - lr * g / std::sqrt(a.s[0] + epsilon);
  }
}

template <typename T>
LANE_INLINE void ftrl(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);  // s is z, t is n
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip;
  const T lamda1 = set.lamda1, beta = set.beta;
  for (size_t j = 0; j < a.n; ++j) {
    T g = a.g[j] * rescale;
    if (clip >= 0) g = clipped<T>(g, clip);
    a.s[j] += g - (std::sqrt(a.t[j] + g * g) - std::sqrt(a.t[j])) * a.w[j] / lr;
    a.t[j] += g * g;
    const T sign = a.s[j] < 0 ? T(-1) : a.s[j] > 0 ? T(1) : T(0);
    const T large = std::fabs(a.s[j]) > lamda1 ? T(1) : T(0);
    a.w[j] = (sign * lamda1 - a.s[j]) / ((beta + std::sqrt(a.t[j])) / lr + wd) * large;
  }
}

/// class AdaGrad of python/mxnet/optimizer/optimizer.py, which consists of operators: each rounds its result.
template <typename T>
LANE_INLINE void dense_adagrad(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip, epsilon = set.epsilon;
  for (size_t j = 0; j < a.n; ++j) {
    T g = a.g[j] * rescale;
    if (clip >= 0) g = clipped<T>(g, clip);
    a.s[j] += g * g;
    const T div = g / std::sqrt(a.s[j] + epsilon);
    a.w[j] += (div + a.w[j] * wd) * -lr;
  }
}

/// A kind of rule: its name in Python, and, if it is an optimizer, its kernels and its arrays of state.
struct RuleRow {
  RuleKind kind;
  const char* name;
  /// Kernels for all processors, then copies of them for processors with AVX2.
  UpdateKernel float32[2], float64[2];
  uint32_t states;
};

/// Return the row of a rule that is no optimizer.
constexpr RuleRow row_of(RuleKind kind, const char* name) {
  return {kind, name, {nullptr, nullptr}, {nullptr, nullptr}, 0};
}
template <UpdateKernel kFloat32, UpdateKernel kFloat64>
constexpr RuleRow row_of(RuleKind kind, const char* name, uint32_t states) {
  return {kind, name, {kFloat32, Fast<kFloat32>::kernel}, {kFloat64, Fast<kFloat64>::kernel}, states};
}

/// All rules, in the order of RuleKind.  To add an optimizer's kernel, add its enumerator, its kernel and its row here.
constexpr RuleRow kRules[] = {
    row_of(RuleKind::kIgnore, "ignore"),
    row_of(RuleKind::kAssign, "assign"),
    row_of(RuleKind::kReplace, "replace"),
    row_of(RuleKind::kAssignState, "assign state"),
    row_of(RuleKind::kCallback, "callback"),
    row_of<sgd<float>, sgd<double>>(RuleKind::kSgd, "sgd", 0),
    row_of<momentum<float>, momentum<double>>(RuleKind::kMomentum, "momentum", 1),
    row_of<adam<float>, adam<double>>(RuleKind::kAdam, "adam", 2),
    row_of<adagrad<float>, adagrad<double>>(RuleKind::kAdagrad, "adagrad", 1),
    row_of<group_adagrad<float>, group_adagrad<double>>(RuleKind::kGroupAdagrad, "group adagrad", 1),
    row_of<ftrl<float>, ftrl<double>>(RuleKind::kFtrl, "ftrl", 2),
    row_of<multi_sgd<float>, multi_sgd<double>>(RuleKind::kMultiSgd, "multi sgd", 0),
    row_of<dense_adam<float>, dense_adam<double>>(RuleKind::kDenseAdam, "dense adam", 2),
    // Its operators get doubles: float32 settings are too coarse for float64 weights.
    {RuleKind::kDenseAdagrad, "dense adagrad", {dense_adagrad<float>, Fast<dense_adagrad<float>>::kernel}, {}, 1},
};
constexpr uint32_t kNumRules = sizeof kRules / sizeof *kRules;

constexpr bool rules_are_in_order() {
  for (uint32_t i = 0; i < kNumRules; ++i) {
    if (static_cast<uint32_t>(kRules[i].kind) != i) return false;
  }
  return true;
}
static_assert(rules_are_in_order(), "the row of a rule stands at its number");

/// A setting of rules, as Python gives it and as kernels get it.  To add a setting, add a field to both structures and
/// a row here.
struct SettingRow {
  const char* name;
  double Rule::*exact;
  float UpdateSettings::*rounded;
};

constexpr SettingRow kSettings[] = {
    {"lr", &Rule::lr, &UpdateSettings::lr},
    {"wd", &Rule::wd, &UpdateSettings::wd},
    {"rescale", &Rule::rescale, &UpdateSettings::rescale},
    {"clip", &Rule::clip, &UpdateSettings::clip},
    {"momentum", &Rule::momentum, &UpdateSettings::momentum},
    {"beta1", &Rule::beta1, &UpdateSettings::beta1},
    {"beta2", &Rule::beta2, &UpdateSettings::beta2},
    {"epsilon", &Rule::epsilon, &UpdateSettings::epsilon},
    {"lamda1", &Rule::lamda1, &UpdateSettings::lamda1},
    {"beta", &Rule::beta, &UpdateSettings::beta},
};
constexpr uint32_t kNumSettings = sizeof kSettings / sizeof *kSettings;

}  // namespace

const char* rule_name(uint32_t number) { return number < kNumRules ? kRules[number].name : nullptr; }

const char* rule_setting_name(uint32_t number) {
  return number < kNumSettings ? kSettings[number].name : nullptr;
}

Rule make_rule(RuleKind kind, const double* settings, uint32_t slot) {
  Rule rule = {kind, slot};
  for (const SettingRow& setting : kSettings) rule.*setting.exact = *settings++;
  return rule;
}

UpdateSettings::UpdateSettings(const Rule& rule, uint64_t count) {
  for (const SettingRow& setting : kSettings) this->*setting.rounded = attribute(rule.*setting.exact);
  if (rule.kind == RuleKind::kAdam) {  // as in class Adam of python/mxnet/optimizer/optimizer.py
    const double first = 1. - std::pow(rule.beta1, count), second = 1. - std::pow(rule.beta2, count);
    lr = attribute(rule.lr * (std::sqrt(second) / first));
  }
  if (rule.kind == RuleKind::kDenseAdagrad) {  // operators with a scalar parse a double
    rescale = static_cast<float>(rule.rescale);
    epsilon = static_cast<float>(rule.epsilon);
  }
}

UpdateKernel kernel(RuleKind kind, Dtype dtype) {
  const RuleRow& row = kRules[static_cast<uint32_t>(kind)];
  return dtype == Dtype::kFloat32 ? row.float32[kFast] : dtype == Dtype::kFloat64 ? row.float64[kFast] : nullptr;
}

size_t state_width(RuleKind kind, uint32_t slot, size_t width) {
  if (slot >= kRules[static_cast<uint32_t>(kind)].states) return 0;
  return kind == RuleKind::kGroupAdagrad ? 1 : width;
}

}  // namespace lane
