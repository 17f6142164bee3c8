// A BatchNorm over several workers as one operator of MXNet's graphs, which also transfers its statistics, see
// transfer_operator.h.
#pragma once

#include <memory>
#include <vector>

#include "operators/array_transfer.h"
#include "operators/norm_operators.h"

namespace lane {

/// Normalizes a part of the data by the statistics of all parts.
///
/// The inputs are a token, the part, and gamma and beta, one after the other; beta alone if gamma is fixed at 1.  The
/// outputs are the token, the normalized part, and an array of statistics: the joint mean and variance of each channel,
/// then those of each part.  Statistics have no gradient.
///
/// A pass computes the statistics of its part, or their gradients, and begins a transfer of these.  If the transfer is
/// complete at once, the same thread computes the rest.  Otherwise a thread of the engine does, so that the completion
/// thread is free for other transfers.
class JointNormOperator : public ArrayOperator {
 public:
  struct Settings {
    Shape shape;
    size_t axis;
    /// The shares of the parts in all elements, and the position of this worker's part.
    std::vector<double> shares;
    size_t position;
    double epsilon;
    bool fixes_gamma;
    /// Whether the output is 0 where the normalized part is negative.
    bool rectifies;
    /// Whether the output has the largest value of each window of two rows and two columns of images, whose channels are
    /// dimension 1.
    bool pools;
  };

  /// `forward` sends the moments of this part and receives those of all parts, `backward` sends the gradients of the
  /// moments of all parts and receives the sum for this part.  Without transfers all parts are like this one.
  JointNormOperator(Settings settings, std::shared_ptr<ArrayTransfer> forward,
                    std::shared_ptr<ArrayTransfer> backward, ArrayFunctions arrays, PushFunction push);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  struct Pass;

  size_t parts() const { return settings_.shares.size(); }
  double gamma(const float* parameters, size_t channel) const {
    return settings_.fixes_gamma ? 1.0 : static_cast<double>(parameters[channel]);
  }
  /// The scale and shift of all channels.
  struct Affine {
    std::vector<float> scale, shift;
  };

  /// Return the scale and shift of all channels, and store their joint moments.  `moments` are those of the parts.
  Affine join(const float* parameters, const float* moments, float* joint) const;
  NormCoefficients coefficients(const Affine& affine, const float* statistics) const {
    return {statistics, affine.scale.data(), affine.shift.data(), settings_.rectifies};
  }
  void begin(std::unique_ptr<Pass> pass, const std::vector<void*>& written) const;
  void normalize_part(const Pass& pass) const;
  void compute_gradient(const Pass& pass) const;

  const Settings settings_;
  const NormShape shape_;
  const Windows windows_;
  const std::shared_ptr<ArrayTransfer> forward_, backward_;
  const PushFunction push_;
};

}  // namespace lane
