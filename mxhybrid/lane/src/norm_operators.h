// What a normalisation over several workers computes by itself, as operators in graphs of MXNet's that its engine calls
// without Python, see exchange_operator.h.
#pragma once

#include <memory>
#include <vector>

#include "bundle.h"
#include "channel_kernels.h"
#include "exchange_operator.h"

namespace lane {

/// An operator of float32.  Whatever a graph has it write is to be written, never added, as MXNet does not tell it.
class ArrayOperator {
 public:
  using Shape = std::vector<unsigned>;

  virtual ~ArrayOperator() = default;
  ArrayOperator(const ArrayOperator&) = delete;
  ArrayOperator& operator=(const ArrayOperator&) = delete;

  const NDArrayOpInfo* info() const { return &info_; }

 protected:
  /// Arrays of one kind that a call is given, in order.
  using Arrays = std::vector<void*>;

  ArrayOperator(std::vector<Shape> inputs, std::vector<Shape> outputs, ArrayFunctions arrays);

  virtual void forward(const Arrays& inputs, const Arrays& outputs) const = 0;
  virtual void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                        const Arrays& input_gradients) const = 0;
  /// Which inputs and outputs the gradient needs.
  virtual std::vector<int> needed_inputs() const { return {}; }
  virtual std::vector<int> needed_outputs() const { return {}; }

  float* values(void* array) const;

 private:
  void call(int count, void** arrays, const int* tags, bool goes_back) const;

  std::vector<Shape> inputs_, outputs_;
  const ArrayFunctions arrays_;
  std::vector<char*> input_names_, output_names_;  // and null
  NDArrayOpInfo info_;
};

/// Takes data, and gives a copy of it in the default layout and an array of (1, 2, channels): means and variances.
class MomentsOperator : public ArrayOperator {
 public:
  /// `shape` and `axis` are those of data.
  MomentsOperator(const Shape& shape, size_t axis, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;
  std::vector<int> needed_outputs() const override { return {0, 1}; }

 private:
  const Channels channels_;
};

/// Takes data, and a center, scale and shift for each channel, and gives (data - center) * scale + shift; the center has
/// no gradient.
class ScaleOperator : public ArrayOperator {
 public:
  ScaleOperator(const Shape& shape, size_t axis, ArrayFunctions arrays);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;
  std::vector<int> needed_inputs() const override { return {0, 1, 2}; }

 private:
  const Channels channels_;
};

}  // namespace lane
