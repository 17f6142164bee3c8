#include "norm_operators.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace lane {
namespace {

/// Tags of arrays in ndarray_op.cc of MXNet 1.9.1.
enum Tag { kInput = 0, kOutput = 1, kInputGradient = 2, kOutputGradient = 3 };

[[noreturn]] void fail(const char* problem) {
  // The error cannot be reported: the engine would show it late, if at all, and other workers wait for this one.
  std::fprintf(stderr, "mxhybrid: an operator of a BatchNorm over several workers failed: %s\n", problem);
  std::abort();
}

using Shapes = std::vector<ArrayOperator::Shape>;

Shapes inputs_of(const std::vector<AverageOperator::Average>& averages) {
  Shapes found;
  for (const auto& average : averages) {
    found.insert(found.end(), average.factors.size() + 1, {static_cast<unsigned>(average.count)});
  }
  return found;
}

/// Return the positions of all inputs that have a factor.
std::vector<int> factored(const std::vector<AverageOperator::Average>& averages) {
  std::vector<int> found;
  int place = 0;
  for (const auto& average : averages) {
    ++place;
    for (size_t i = 0; i < average.factors.size(); ++i) found.push_back(place++);
  }
  return found;
}

NormShape norm_shape_of(const ArrayOperator::Shape& shape, size_t axis) {
  NormShape found = {1, shape.at(axis), 1};
  for (size_t i = 0; i < axis; ++i) found.outer *= shape[i];
  for (size_t i = axis + 1; i < shape.size(); ++i) found.inner *= shape[i];
  return found;
}

}  // namespace

ArrayOperator::ArrayOperator(std::vector<Shape> inputs, std::vector<Shape> outputs, Needs needs, ArrayFunctions arrays)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)), needs_(std::move(needs)), arrays_(arrays) {
  for (auto* every : {&inputs_, &outputs_}) {
    auto& names = every == &inputs_ ? input_names_ : output_names_;
    for (size_t i = 0; i < every->size(); ++i) {
      const std::string name = (every == &inputs_ ? "input" : "output") + std::to_string(i);
      names_.emplace_back(name.c_str(), name.c_str() + name.size() + 1);
      names.push_back(names_.back().data());
    }
    names.push_back(nullptr);
  }
  info_.forward = [](int count, void** arrays, int* tags, void* self) {
    static_cast<const ArrayOperator*>(self)->call(count, arrays, tags, false);
    return true;
  };
  info_.backward = [](int count, void** arrays, int* tags, void* self) {
    static_cast<const ArrayOperator*>(self)->call(count, arrays, tags, true);
    return true;
  };
  info_.infer_shape = [](int, int* dimensions, unsigned** shapes, void* self) {
    auto& made = *static_cast<ArrayOperator*>(self);
    for (auto* every : {&made.inputs_, &made.outputs_}) {
      for (Shape& shape : *every) {
        *dimensions++ = static_cast<int>(shape.size());
        *shapes++ = shape.data();
      }
    }
    return true;
  };
  info_.list_outputs = [](char*** names, void* self) {
    *names = static_cast<ArrayOperator*>(self)->output_names_.data();
    return true;
  };
  info_.list_arguments = [](char*** names, void* self) {
    *names = static_cast<ArrayOperator*>(self)->input_names_.data();
    return true;
  };
  info_.declare_backward_dependency = [](const int* output_gradients, const int* inputs, const int* outputs, int* count,
                                         int** needed, void* self) {
    const auto& made = *static_cast<const ArrayOperator*>(self);
    const Needs& needs = made.needs_;
    // MXNet reads the numbers at once, and numbers arrays differently in every call.
    thread_local std::vector<int> found;
    found.assign(output_gradients, output_gradients + made.outputs_.size());
    for (const int at : needs.inputs) found.push_back(inputs[at]);
    for (const int at : needs.outputs) found.push_back(outputs[at]);
    *count = static_cast<int>(found.size());
    *needed = found.data();
    return true;
  };
  for (void*& payload : info_.payloads) payload = this;
}

void ArrayOperator::call(int count, void** arrays, const int* tags, bool goes_back) const {
  Arrays found[4];
  for (int at = 0; at < count; ++at) {
    void* values = nullptr;
    const int place = static_cast<int>(found[tags[at]].size());
    const auto is_read = [&](const std::vector<int>& needed) {
      for (const int one : needed) {
        if (one == place) return true;
      }
      return false;
    };
    // In the backward pass the other arrays have no memory.
    const bool is_there = !goes_back || tags[at] == kInputGradient || tags[at] == kOutputGradient ||
                          is_read(tags[at] == kInput ? needs_.inputs : needs_.outputs);
    if (is_there && arrays_.get_data(arrays[at], &values) != 0) fail("MXNDArrayGetData failed");
    found[tags[at]].push_back(static_cast<float*>(values));
  }
  if (goes_back) {
    backward(found[kOutputGradient], found[kInput], found[kOutput], found[kInputGradient]);
  } else {
    forward(found[kInput], found[kOutput]);
  }
  for (int at = 0; at < count; ++at) {
    if (arrays_.free(arrays[at]) != 0) fail("MXNDArrayFree failed");
  }
}

MomentsOperator::MomentsOperator(const Shape& shape, size_t axis, ArrayFunctions arrays)
    : ArrayOperator({shape}, {{1, 2, shape.at(axis)}}, {{0}, {0}}, arrays), norm_shape_(norm_shape_of(shape, axis)) {}

void MomentsOperator::forward(const Arrays& inputs, const Arrays& outputs) const {
  compute_moments(norm_shape_, inputs[0], outputs[0]);
}

void MomentsOperator::backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                               const Arrays& input_gradients) const {
  moments_gradient(norm_shape_, inputs[0], outputs[0], output_gradients[0], input_gradients[0]);
}

JointOperator::JointOperator(std::vector<double> shares, size_t channels, double epsilon, ArrayFunctions arrays)
    : ArrayOperator({{static_cast<unsigned>(shares.size()), 2, static_cast<unsigned>(channels)},
                     {static_cast<unsigned>(channels)},
                     {static_cast<unsigned>(channels)}},
                    Shapes(4, {static_cast<unsigned>(channels)}), {{0, 1}, {2, 3}}, arrays),
      shares_(std::move(shares)),
      channels_(channels),
      epsilon_(epsilon) {}

void JointOperator::forward(const Arrays& inputs, const Arrays& outputs) const {
  const float *moments = inputs[0], *gamma = inputs[1], *beta = inputs[2];
  for (size_t channel = 0; channel < channels_; ++channel) {
    double mean = 0, variance = 0;
    for (size_t part = 0; part < shares_.size(); ++part) {
      mean += shares_[part] * moments[2 * part * channels_ + channel];
    }
    for (size_t part = 0; part < shares_.size(); ++part) {
      const double apart = moments[2 * part * channels_ + channel] - mean;
      variance += shares_[part] * (moments[(2 * part + 1) * channels_ + channel] + apart * apart);
    }
    const double scale = gamma[channel] / std::sqrt(variance + epsilon_);
    outputs[0][channel] = static_cast<float>(scale);
    outputs[1][channel] = static_cast<float>(beta[channel] - mean * scale);
    outputs[2][channel] = static_cast<float>(mean);
    outputs[3][channel] = static_cast<float>(variance);
  }
}

void JointOperator::backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                             const Arrays& input_gradients) const {
  const float *moments = inputs[0], *gamma = inputs[1], *means = outputs[2], *variances = outputs[3];
  for (size_t channel = 0; channel < channels_; ++channel) {
    const double mean = means[channel], deviation = std::sqrt(variances[channel] + epsilon_);
    const double of_shift = output_gradients[1][channel];
    const double of_scale = output_gradients[0][channel] - mean * of_shift;
    const double of_mean = -of_shift * gamma[channel] / deviation;
    const double of_variance = -of_scale * gamma[channel] / (2 * deviation * deviation * deviation);
    for (size_t part = 0; part < shares_.size(); ++part) {
      const size_t at = 2 * part * channels_ + channel;
      const double apart = moments[at] - mean;
      input_gradients[0][at] = static_cast<float>(shares_[part] * (of_mean + 2 * apart * of_variance));
      input_gradients[0][at + channels_] = static_cast<float>(shares_[part] * of_variance);
    }
    input_gradients[1][channel] = static_cast<float>(of_scale / deviation);
    input_gradients[2][channel] = static_cast<float>(of_shift);
  }
}

AverageOperator::AverageOperator(std::vector<Average> averages, ArrayFunctions arrays)
    : ArrayOperator(inputs_of(averages), {{1}}, {factored(averages), {}}, arrays), averages_(std::move(averages)) {}

void AverageOperator::forward(const Arrays&, const Arrays& outputs) const { outputs[0][0] = 0; }

void AverageOperator::backward(const Arrays&, const Arrays& inputs, const Arrays&,
                               const Arrays& input_gradients) const {
  size_t place = 0;
  for (const Average& average : averages_) {
    for (size_t i = 0; i < average.count; ++i) {
      double next = 0;
      for (size_t at = 0; at < average.factors.size(); ++at) next += average.factors[at] * inputs[place + 1 + at][i];
      input_gradients[place][i] = static_cast<float>(next);
    }
    place += 1 + average.factors.size();
  }
}

}  // namespace lane
