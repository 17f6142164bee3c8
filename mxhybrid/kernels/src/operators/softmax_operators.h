// A softmax, or its logarithm, along an axis whose parts are on several workers, as two operators of MXNet's graphs:
// one before the redistribution of maxima and sums, and one after it.
#pragma once

#include "kernels/softmax_kernels.h"
#include "operators/norm_operators.h"

namespace lane {

/// Computes the maxima and sums of a part.  The first output is a copy of the part.  The second one has the maxima,
/// then the sums, each in the shape of the part with an axis of length 1.  All other operators read the copy, so that the
/// gradients of both outputs arrive together.
class SoftmaxPartsOperator : public ArrayOperator {
 public:
  SoftmaxPartsOperator(const Shape& shape, size_t axis, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  const NormShape norm_shape_;
};

/// Computes the softmax of a part.  The inputs are the part, and the maxima and sums of all parts.
class SoftmaxOperator : public ArrayOperator {
 public:
  /// `count` is the number of all parts.
  SoftmaxOperator(const Shape& shape, size_t axis, size_t count, bool is_log, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  const NormShape norm_shape_;
  const size_t count_;
  const bool is_log_;
};

}  // namespace lane
