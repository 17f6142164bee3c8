#include "update.h"

#include <cmath>

#include "attribute.h"

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
void sgd(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);
  const T lr = set.lr, wd = set.wd, rescale = set.rescale, clip = set.clip;
  if (clip >= 0) {
    for (size_t j = 0; j < a.n; ++j) a.w[j] = (1.f - lr * wd) * a.w[j] - lr * clipped<T>(rescale * a.g[j], clip);
  } else {
    for (size_t j = 0; j < a.n; ++j) a.w[j] = (1.f - lr * wd) * a.w[j] - (lr * rescale) * a.g[j];
  }
}

template <typename T>
void momentum(const UpdateSettings& set, const RowUpdate& row) {
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
void adam(const UpdateSettings& set, const RowUpdate& row) {
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

/// As sgd, as ``multi_sgd_update`` writes it.
template <typename T>
void multi_sgd(const UpdateSettings& set, const RowUpdate& row) {
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
void dense_adam(const UpdateSettings& set, const RowUpdate& row) {
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
void adagrad(const UpdateSettings& set, const RowUpdate& row) {
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
void group_adagrad(const UpdateSettings& set, const RowUpdate& row) {
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
void ftrl(const UpdateSettings& set, const RowUpdate& row) {
  const Arrays<T> a(row);  // z, then n
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

template <typename T>
UpdateKernel kernel_for(RuleKind kind) {
  switch (kind) {
    case RuleKind::kSgd:
      return sgd<T>;
    case RuleKind::kMomentum:
      return momentum<T>;
    case RuleKind::kAdam:
      return adam<T>;
    case RuleKind::kAdagrad:
      return adagrad<T>;
    case RuleKind::kGroupAdagrad:
      return group_adagrad<T>;
    case RuleKind::kFtrl:
      return ftrl<T>;
    case RuleKind::kMultiSgd:
      return multi_sgd<T>;
    case RuleKind::kDenseAdam:
      return dense_adam<T>;
    default:
      return nullptr;
  }
}

}  // namespace

UpdateSettings::UpdateSettings(const Rule& rule, uint64_t count)
    : lr(attribute(rule.lr)),
      wd(attribute(rule.wd)),
      rescale(attribute(rule.rescale)),
      clip(attribute(rule.clip)),
      momentum(attribute(rule.momentum)),
      beta1(attribute(rule.beta1)),
      beta2(attribute(rule.beta2)),
      epsilon(attribute(rule.epsilon)),
      lamda1(attribute(rule.lamda1)),
      beta(attribute(rule.beta)) {
  if (rule.kind == RuleKind::kAdam) {  // as class Adam of python/mxnet/optimizer/optimizer.py
    const double first = 1. - std::pow(rule.beta1, count), second = 1. - std::pow(rule.beta2, count);
    lr = attribute(rule.lr * (std::sqrt(second) / first));
  }
}

UpdateKernel kernel(RuleKind kind, Dtype dtype) {
  return dtype == Dtype::kFloat32 ? kernel_for<float>(kind) : dtype == Dtype::kFloat64 ? kernel_for<double>(kind)
                                                                                       : nullptr;
}

}  // namespace lane
