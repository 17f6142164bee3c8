#include "operators/softmax_operators.h"

namespace lane {
namespace {

ArrayOperator::Shape parts_shape(ArrayOperator::Shape shape, size_t axis, size_t count) {
  shape.at(axis) = static_cast<unsigned>(count);
  shape.insert(shape.begin(), 2);
  return shape;
}

}  // namespace

SoftmaxPartsOperator::SoftmaxPartsOperator(const Shape& shape, size_t axis, ArrayFunctions arrays)
    : ArrayOperator({shape}, {shape, parts_shape(shape, axis, 1)}, {{0}, {1}}, arrays),
      norm_shape_(norm_shape_of(shape, axis)) {}

void SoftmaxPartsOperator::forward(const Arrays& inputs, const Arrays& outputs) const {
  softmax_parts(norm_shape_, inputs[0], outputs[0], outputs[1]);
}

void SoftmaxPartsOperator::backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                                    const Arrays& input_gradients) const {
  softmax_parts_gradient(norm_shape_, inputs[0], outputs[1], output_gradients[0], output_gradients[1],
                         input_gradients[0]);
}

SoftmaxOperator::SoftmaxOperator(const Shape& shape, size_t axis, size_t count, bool is_log, ArrayFunctions arrays)
    : ArrayOperator({shape, parts_shape(shape, axis, count)}, {shape},
                    {{1}, is_log ? std::vector<int>{} : std::vector<int>{0}}, arrays),
      norm_shape_(norm_shape_of(shape, axis)),
      count_(count),
      is_log_(is_log) {}

void SoftmaxOperator::forward(const Arrays& inputs, const Arrays& outputs) const {
  softmax_of_parts(norm_shape_, count_, is_log_, inputs[0], inputs[1], outputs[0]);
}

void SoftmaxOperator::backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                               const Arrays& input_gradients) const {
  // The gradient of the logarithm does not depend on the output, which has no memory then.
  softmax_of_parts_gradient(norm_shape_, count_, is_log_, inputs[1], is_log_ ? output_gradients[0] : outputs[0],
                            output_gradients[0], input_gradients[0], input_gradients[1]);
}

}  // namespace lane
