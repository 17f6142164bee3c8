#include "operators/joint_norm_operator.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/end_process.h"

namespace lane {
namespace {

[[noreturn]] void fail(const char* problem) { end_process("a BatchNorm over several workers failed", problem); }

unsigned parameters_of(const JointNormOperator::Settings& settings) {
  return static_cast<unsigned>(settings.fixes_gamma ? 1 : 2) * settings.shape.at(settings.axis);
}

ArrayOperator::Shape statistics_of(const JointNormOperator::Settings& settings) {
  return {static_cast<unsigned>(1 + settings.shares.size()) * 2 * settings.shape.at(settings.axis)};
}

ArrayOperator::Shape output_of(const JointNormOperator::Settings& settings) {
  ArrayOperator::Shape shape = settings.shape;
  if (settings.pools) {
    if (shape.size() != 4 || settings.axis != 1 || shape[2] % 2 != 0 || shape[3] % 2 != 0) {
      throw std::runtime_error("a BatchNorm with pooling needs images with an even number of rows and of columns");
    }
    shape[2] /= 2;
    shape[3] /= 2;
  }
  return shape;
}

}  // namespace

/// A pass that is under way.  MXNet holds its arrays until it is complete, and deletes it then.
struct JointNormOperator::Pass {
  const JointNormOperator& norm;
  const ArrayTransfer* const transfer;
  const bool goes_back;
  const float *data, *parameters;
  float* statistics;
  /// The output, or its gradient, and the gradient of the data.
  float *output, *gradient;
  /// The values that are sent, and those that are received unless that is a part of `statistics`.
  std::vector<float> sent, received = {};
  Affine affine = {};
  OnComplete complete = {};

  void finish() {
    if (goes_back) {
      norm.compute_gradient(*this);
    } else {
      norm.normalize_part(*this);
    }
    const OnComplete after = complete;
    after();
  }
};

namespace {

/// The pass whose transfer this thread begins.
thread_local const void* beginning = nullptr;

/// The mean and variance of a channel of several parts.
struct JointMoments {
  double mean = 0, variance = 0;
};

/// Return the joint moments of a channel.  `shares` are the shares of the parts in all elements; `moments` are those of
/// the parts, of shape (parts, 2, channels).
JointMoments joint_moments(const std::vector<double>& shares, size_t channels, size_t channel, const float* moments) {
  JointMoments joint;
  for (size_t part = 0; part < shares.size(); ++part) {
    joint.mean += shares[part] * moments[2 * part * channels + channel];
  }
  for (size_t part = 0; part < shares.size(); ++part) {
    const double deviation_of_part = moments[2 * part * channels + channel] - joint.mean;
    joint.variance +=
        shares[part] * (moments[(2 * part + 1) * channels + channel] + deviation_of_part * deviation_of_part);
  }
  return joint;
}

}  // namespace

JointNormOperator::JointNormOperator(Settings settings, std::shared_ptr<ArrayTransfer> forward,
                                     std::shared_ptr<ArrayTransfer> backward, ArrayFunctions arrays,
                                     PushFunction push)
    : ArrayOperator({{1}, settings.shape, {parameters_of(settings)}},
                    {{1}, output_of(settings), statistics_of(settings)}, {{1, 2}, {2}}, arrays),
      settings_(std::move(settings)),
      shape_(norm_shape_of(settings_.shape, settings_.axis)),
      windows_(settings_.pools ? Windows{settings_.shape[2], settings_.shape[3]} : Windows{0, 0}),
      forward_(std::move(forward)),
      backward_(std::move(backward)),
      push_(push) {}

void JointNormOperator::forward(const Arrays& inputs, const Arrays& outputs) const {
  const size_t size = 2 * shape_.channels;
  auto pass = std::unique_ptr<Pass>(new Pass{*this, forward_.get(), false, inputs[1], inputs[2], outputs[2], outputs[1],
                                             nullptr, std::vector<float>(size)});
  compute_moments(shape_, pass->data, pass->sent.data());
  if (!pass->transfer) {
    for (size_t part = 0; part < parts(); ++part) {
      std::copy(pass->sent.begin(), pass->sent.end(), pass->statistics + (1 + part) * size);
    }
  }
  begin(std::move(pass), outputs.handles);
}

JointNormOperator::Affine JointNormOperator::join(const float* parameters, const float* moments, float* joint) const {
  const size_t channels = shape_.channels;
  float *means = joint, *variances = means + channels;
  const float* beta = parameters + (settings_.fixes_gamma ? 0 : channels);
  Affine affine = {std::vector<float>(channels), std::vector<float>(channels)};
  for (size_t channel = 0; channel < channels; ++channel) {
    const auto [mean, variance] = joint_moments(settings_.shares, channels, channel, moments);
    means[channel] = static_cast<float>(mean);
    variances[channel] = static_cast<float>(variance);
    const double scale = gamma(parameters, channel) / std::sqrt(variance + settings_.epsilon);
    affine.scale[channel] = static_cast<float>(scale);
    affine.shift[channel] = static_cast<float>(beta[channel] + (static_cast<double>(means[channel]) - mean) * scale);
  }
  return affine;
}

void JointNormOperator::normalize_part(const Pass& pass) const {
  const Affine affine = join(pass.parameters, pass.statistics + 2 * shape_.channels, pass.statistics);
  normalize(shape_, windows_, pass.data, coefficients(affine, pass.statistics), pass.output);
}

void JointNormOperator::backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                                 const Arrays& input_gradients) const {
  const size_t channels = shape_.channels, size = 2 * channels;
  auto pass = std::unique_ptr<Pass>(new Pass{*this, backward_.get(), true, inputs[1], inputs[2], outputs[2],
                                             output_gradients[1], input_gradients[1],
                                             std::vector<float>(parts() * size), std::vector<float>(size)});
  const float *means = pass->statistics, *variances = means + channels, *moments = means + size;
  float* gamma_gradient = settings_.fixes_gamma ? nullptr : input_gradients[2];
  float* beta_gradient = input_gradients[2] + (settings_.fixes_gamma ? 0 : channels);
  std::vector<double> sums(channels), products(channels);
  std::vector<float> joint(size);
  pass->affine = join(pass->parameters, moments, joint.data());  // the same values as in the forward pass
  gradient_sums(shape_, windows_, pass->data, pass->output, coefficients(pass->affine, means), sums.data(),
                products.data());
  for (size_t channel = 0; channel < channels; ++channel) {
    const double standard_deviation = std::sqrt(variances[channel] + settings_.epsilon);
    const double scale = gamma(pass->parameters, channel) / standard_deviation;
    const double mean_gradient = -sums[channel] * scale;
    const double variance_gradient = -products[channel] * scale / (2 * standard_deviation * standard_deviation);
    for (size_t part = 0; part < parts(); ++part) {
      const size_t index = part * size + channel;
      const double share = settings_.shares[part], deviation_of_part = moments[index] - means[channel];
      pass->sent[index] = static_cast<float>(share * (mean_gradient + 2 * deviation_of_part * variance_gradient));
      pass->sent[index + channels] = static_cast<float>(share * variance_gradient);
    }
    if (gamma_gradient) gamma_gradient[channel] = static_cast<float>(products[channel] / standard_deviation);
    beta_gradient[channel] = static_cast<float>(sums[channel]);
  }
  if (!pass->transfer) {
    for (size_t i = 0; i < pass->sent.size(); ++i) pass->received[i % size] += pass->sent[i];
  }
  begin(std::move(pass), input_gradients.handles);
}

void JointNormOperator::compute_gradient(const Pass& pass) const {
  const float* moments = pass.statistics + 2 * shape_.channels * (1 + settings_.position);
  normalized_gradient(shape_, windows_, pass.data, pass.output, coefficients(pass.affine, pass.statistics), moments,
                      pass.received.data(), pass.gradient);
}

/// Begin the transfer of a pass, and compute the rest once it is complete.
void JointNormOperator::begin(std::unique_ptr<Pass> pass, const std::vector<void*>& written) const {
  const auto start = [](void*, void* on_complete, void* parameter) {
    auto& pass = *static_cast<Pass*>(parameter);
    pass.complete = *static_cast<OnComplete*>(on_complete);
    if (!pass.transfer) {
      pass.finish();
      return;
    }
    const JointNormOperator& norm = pass.norm;
    const auto& transfer = pass.goes_back ? norm.backward_ : norm.forward_;
    float* target = pass.goes_back ? pass.received.data() : pass.statistics + 2 * norm.shape_.channels;
    const auto arrived = [](void* engine_pass, void*, const void*) {
      auto& arrived_pass = *static_cast<Pass*>(engine_pass);
      if (beginning == engine_pass) {
        arrived_pass.finish();
        return;
      }
      const auto finish = [](void*, void* on_finished, void* finished_pass) {
        const OnComplete after = *static_cast<OnComplete*>(on_finished);
        static_cast<Pass*>(finished_pass)->finish();
        after();
      };
      if (arrived_pass.norm.push_(finish, engine_pass, nullptr, &kCpuContext, nullptr, 0, nullptr, 0,
                                  &kNormalOperation, 0, "mxhybrid_joint_norm", false) != 0) {
        fail("MXEnginePushAsyncND failed");
      }
    };
    // Another thread may complete and delete the pass as soon as the transfer has begun.
    const void* outer = std::exchange(beginning, &pass);
    transfer->start(reinterpret_cast<const char*>(pass.sent.data()), reinterpret_cast<char*>(target),
                    {arrived, &pass, nullptr});
    beginning = outer;
  };
  const auto remove = [](void* parameter) { delete static_cast<Pass*>(parameter); };
  if (push_(start, pass.release(), remove, &kCpuContext, nullptr, 0, const_cast<void**>(written.data()),
            static_cast<int>(written.size()), &kAsyncOperation, 0, "mxhybrid_joint_norm", false) != 0) {
    fail("MXEnginePushAsyncND failed");
  }
}

}  // namespace lane
