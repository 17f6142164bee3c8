// What a BatchNorm over several workers computes beside MXNet's own kernels, as operators in graphs that its engine
// calls without Python, see exchange_operator.h.
#pragma once

#include <memory>
#include <vector>

#include "moment_kernels.h"
#include "mxnet_api.h"

namespace lane {

/// An operator on arrays of float32.  Gradients are written, never added, as MXNet does not tell which is wanted.
class ArrayOperator {
 public:
  using Shape = std::vector<unsigned>;

  virtual ~ArrayOperator() = default;
  ArrayOperator(const ArrayOperator&) = delete;
  ArrayOperator& operator=(const ArrayOperator&) = delete;

  const NDArrayOpInfo* info() const { return &info_; }

 protected:
  /// Values of the arrays of one kind, in order.
  using Arrays = std::vector<float*>;

  /// Which inputs and outputs the backward pass reads, by their places, besides the gradients of all outputs, of which
  /// MXNet cannot do without any.
  struct Needs {
    std::vector<int> inputs, outputs;
  };

  ArrayOperator(std::vector<Shape> inputs, std::vector<Shape> outputs, Needs needs, ArrayFunctions arrays);

  virtual void forward(const Arrays& inputs, const Arrays& outputs) const = 0;
  virtual void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                        const Arrays& input_gradients) const = 0;

 private:
  void call(int count, void** arrays, const int* tags, bool goes_back) const;

  std::vector<Shape> inputs_, outputs_;
  const Needs needs_;
  const ArrayFunctions arrays_;
  std::vector<std::vector<char>> names_;
  std::vector<char*> input_names_, output_names_;  // and null
  NDArrayOpInfo info_;
};

/// Takes data, and gives (1, 2, channels): the mean and variance of each channel.
class MomentsOperator : public ArrayOperator {
 public:
  /// With the shape of data, and its dimension that has the channels.
  MomentsOperator(const Shape& shape, size_t axis, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  const NormShape norm_shape_;
};

/// Takes moments of several parts, of (parts, 2, channels), and gamma and beta; gives scale and shift of each channel,
/// and the joint mean and variance, which have no gradient.
class JointOperator : public ArrayOperator {
 public:
  /// With the share that each part has of all elements, and what is added to a variance.
  JointOperator(std::vector<double> shares, size_t channels, double epsilon, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  const std::vector<double> shares_;
  const size_t channels_;
  const double epsilon_;
};

/// For each of several running averages takes an array of any values, the average, and what goes into that; gives a
/// number without a meaning.  The gradients of the arrays are the next running averages, whatever that of the number
/// is.
class AverageOperator : public ArrayOperator {
 public:
  struct Average {
    size_t count;
    /// Of the average, and of what goes into it.
    std::vector<double> factors;
  };

  AverageOperator(std::vector<Average> averages, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  const std::vector<Average> averages_;
};

}  // namespace lane
