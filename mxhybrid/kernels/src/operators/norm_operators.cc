#include "operators/norm_operators.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/end_process.h"

namespace lane {
namespace {

/// Tags of arrays in ndarray_op.cc of MXNet 1.9.1.
enum Tag { kInput = 0, kOutput = 1, kInputGradient = 2, kOutputGradient = 3 };

[[noreturn]] void fail(const char* problem) { end_process("an operator over several workers failed", problem); }

using Shapes = std::vector<ArrayOperator::Shape>;

Shapes inputs_of(const std::vector<size_t>& sizes, const std::vector<AverageOperator::Average>& averages) {
  Shapes shapes;
  for (const size_t size : sizes) shapes.push_back({static_cast<unsigned>(size)});
  for (const auto& average : averages) shapes.insert(shapes.end(), 2, {static_cast<unsigned>(average.count)});
  return shapes;
}

/// Return the positions of all statistics and averages among the inputs.
std::vector<int> read_inputs(size_t arrays, size_t averages) {
  std::vector<int> positions;
  for (size_t i = 0; i < arrays; ++i) positions.push_back(static_cast<int>(i));
  for (size_t i = 0; i < averages; ++i) positions.push_back(static_cast<int>(arrays + 2 * i + 1));
  return positions;
}

}  // namespace

NormShape norm_shape_of(const ArrayOperator::Shape& shape, size_t axis) {
  NormShape norm_shape = {1, shape.at(axis), 1};
  for (size_t i = 0; i < axis; ++i) norm_shape.outer *= shape[i];
  for (size_t i = axis + 1; i < shape.size(); ++i) norm_shape.inner *= shape[i];
  return norm_shape;
}

ArrayOperator::ArrayOperator(std::vector<Shape> inputs, std::vector<Shape> outputs, Needs needs, ArrayFunctions arrays)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)), needs_(std::move(needs)), arrays_(arrays) {
  for (auto* shapes : {&inputs_, &outputs_}) {
    auto& names = shapes == &inputs_ ? input_names_ : output_names_;
    for (size_t i = 0; i < shapes->size(); ++i) {
      const std::string name = (shapes == &inputs_ ? "input" : "output") + std::to_string(i);
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
    auto& array_operator = *static_cast<ArrayOperator*>(self);
    for (auto* array_shapes : {&array_operator.inputs_, &array_operator.outputs_}) {
      for (Shape& shape : *array_shapes) {
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
    const auto& array_operator = *static_cast<const ArrayOperator*>(self);
    const Needs& needs = array_operator.needs_;
    // MXNet reads the numbers at once, and numbers arrays differently in every call.
    thread_local std::vector<int> needed_numbers;
    needed_numbers.assign(output_gradients, output_gradients + array_operator.outputs_.size());
    for (const int number : needs.inputs) needed_numbers.push_back(inputs[number]);
    for (const int number : needs.outputs) needed_numbers.push_back(outputs[number]);
    *count = static_cast<int>(needed_numbers.size());
    *needed = needed_numbers.data();
    return true;
  };
  for (void*& payload : info_.payloads) payload = this;
}

void ArrayOperator::call(int count, void** arrays, const int* tags, bool goes_back) const {
  Arrays by_tag[4];
  for (int i = 0; i < count; ++i) {
    void* values = nullptr;
    const int position = static_cast<int>(by_tag[tags[i]].values.size());
    const auto is_read = [&](const std::vector<int>& needed) {
      return std::find(needed.begin(), needed.end(), position) != needed.end();
    };
    // In the backward pass the other arrays have no memory.
    const bool is_there = !goes_back || tags[i] == kInputGradient || tags[i] == kOutputGradient ||
                          is_read(tags[i] == kInput ? needs_.inputs : needs_.outputs);
    if (is_there && arrays_.get_data(arrays[i], &values) != 0) fail("MXNDArrayGetData failed");
    by_tag[tags[i]].values.push_back(static_cast<float*>(values));
    by_tag[tags[i]].handles.push_back(arrays[i]);
  }
  if (goes_back) {
    backward(by_tag[kOutputGradient], by_tag[kInput], by_tag[kOutput], by_tag[kInputGradient]);
  } else {
    forward(by_tag[kInput], by_tag[kOutput]);
  }
  for (int i = 0; i < count; ++i) {
    if (arrays_.free(arrays[i]) != 0) fail("MXNDArrayFree failed");
  }
}

AverageOperator::AverageOperator(const std::vector<size_t>& sizes, std::vector<Average> averages, ArrayFunctions arrays)
    : ArrayOperator(inputs_of(sizes, averages), {{1}}, {read_inputs(sizes.size(), averages.size()), {}}, arrays),
      arrays_(sizes.size()),
      averages_(std::move(averages)) {}

void AverageOperator::forward(const Arrays&, const Arrays& outputs) const { outputs[0][0] = 0; }

void AverageOperator::backward(const Arrays&, const Arrays& inputs, const Arrays&,
                               const Arrays& input_gradients) const {
  for (size_t number = 0; number < averages_.size(); ++number) {
    const Average& average = averages_[number];
    const size_t input = arrays_ + 2 * number;
    for (size_t i = 0; i < average.count; ++i) {
      double next = average.factor * inputs[input + 1][i];
      for (const Term& term : average.terms) next += term.factor * inputs[term.array][term.offset + i];
      input_gradients[input][i] = static_cast<float>(next);
    }
  }
}

}  // namespace lane
