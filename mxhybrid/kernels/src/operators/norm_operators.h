// Operators of MXNet's graphs on arrays, which the engine calls without Python, see transfer_operator.h, and the operator
// that updates the running averages of a BatchNorm.
#pragma once

#include <vector>

#include "kernels/moment_kernels.h"
#include "operators/mxnet_api.h"

namespace lane {

/// An operator on arrays of float32.  It overwrites gradients and never adds to them, since MXNet does not say which is
/// required.
class ArrayOperator {
 public:
  using Shape = std::vector<unsigned>;

  virtual ~ArrayOperator() = default;
  ArrayOperator(const ArrayOperator&) = delete;
  ArrayOperator& operator=(const ArrayOperator&) = delete;

  const NDArrayOpInfo* info() const { return &info_; }

 protected:
  /// The arrays with one tag, in order: their values, and MXNet's handles, which are valid during the call.
  struct Arrays {
    std::vector<float*> values;
    std::vector<void*> handles;

    float* operator[](size_t number) const { return values[number]; }
  };

  /// The positions of the inputs and outputs that the backward pass reads besides the gradients of all outputs, which
  /// MXNet requires.
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
  std::vector<char*> input_names_, output_names_;  // then null
  NDArrayOpInfo info_;
};

/// Return a shape as seen from one of its dimensions.
NormShape norm_shape_of(const ArrayOperator::Shape& shape, size_t axis);

/// Computes the next values of running averages in its backward pass.  The inputs are arrays of statistics, and then for
/// each average an array of any values and the average.  The output is a number without a meaning.  The gradient of the
/// array of any values is the next running average, whatever the gradient of the output is.  MXNet's own update of
/// averages is invisible to its engine in graphs with static_alloc: while a redistribution waits, a read could come
/// before it.
class AverageOperator : public ArrayOperator {
 public:
  /// Statistics that go into an average: a part of an array.
  struct Term {
    size_t array, offset;
    double factor;
  };

  struct Average {
    size_t count;
    /// The factor of the average.
    double factor;
    std::vector<Term> terms;
  };

  /// `sizes` are those of the arrays of statistics.
  AverageOperator(const std::vector<size_t>& sizes, std::vector<Average> averages, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  const size_t arrays_;
  const std::vector<Average> averages_;
};

}  // namespace lane
