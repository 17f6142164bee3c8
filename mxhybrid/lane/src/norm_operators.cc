#include "norm_operators.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace lane {
namespace {

/// Tags of arrays, as ndarray_op.cc of MXNet 1.9.1 has them.
enum Tag { kInput = 0, kOutput = 1, kInputGradient = 2, kOutputGradient = 3 };

// As many as an operator has at most: MXNet wants different ones.
char kNames[][8] = {"data", "center", "scale", "shift"};

[[noreturn]] void fail(const char* problem) {
  // Nobody could be told: an error of the engine's comes to light later, if at all, and others wait for this worker.
  std::fprintf(stderr, "mxhybrid: a normalisation cannot be computed: %s\n", problem);
  std::abort();
}

std::vector<char*> names_of(size_t count) {
  std::vector<char*> found;
  for (size_t i = 0; i < count; ++i) found.push_back(kNames[i]);
  found.push_back(nullptr);
  return found;
}

Channels channels_of(const ArrayOperator::Shape& shape, size_t axis) {
  Channels found = {1, shape.at(axis), 1};
  for (size_t i = 0; i < axis; ++i) found.before *= shape[i];
  for (size_t i = axis + 1; i < shape.size(); ++i) found.behind *= shape[i];
  return found;
}

}  // namespace

ArrayOperator::ArrayOperator(std::vector<Shape> inputs, std::vector<Shape> outputs, ArrayFunctions arrays)
    : inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      arrays_(arrays),
      input_names_(names_of(inputs_.size())),
      output_names_(names_of(outputs_.size())) {
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
    auto& made = *static_cast<const ArrayOperator*>(self);
    // Which is read at once; MXNet numbers arrays differently from call to call.
    thread_local std::vector<int> found;
    found.assign(output_gradients, output_gradients + made.outputs_.size());
    for (const int at : made.needed_inputs()) found.push_back(inputs[at]);
    for (const int at : made.needed_outputs()) found.push_back(outputs[at]);
    *count = static_cast<int>(found.size());
    *needed = found.data();
    return true;
  };
  for (void*& payload : info_.payloads) payload = this;
}

void ArrayOperator::call(int count, void** arrays, const int* tags, bool goes_back) const {
  Arrays found[4];
  for (int at = 0; at < count; ++at) found[tags[at]].push_back(arrays[at]);
  if (goes_back) {
    backward(found[kOutputGradient], found[kInput], found[kOutput], found[kInputGradient]);
  } else {
    forward(found[kInput], found[kOutput]);
  }
  for (int at = 0; at < count; ++at) {
    if (arrays_.free(arrays[at]) != 0) fail("an array cannot be freed");
  }
}

float* ArrayOperator::values(void* array) const {
  void* found = nullptr;
  if (arrays_.get_data(array, &found) != 0) fail("an array cannot be read");
  return static_cast<float*>(found);
}

MomentsOperator::MomentsOperator(const Shape& shape, size_t axis, ArrayFunctions arrays)
    : ArrayOperator({shape}, {shape, {1, 2, shape.at(axis)}}, arrays), channels_(channels_of(shape, axis)) {}

void MomentsOperator::forward(const Arrays& inputs, const Arrays& outputs) const {
  copy_with_moments(channels_, values(inputs[0]), values(outputs[0]), values(outputs[1]));
}

void MomentsOperator::backward(const Arrays& output_gradients, const Arrays&, const Arrays& outputs,
                               const Arrays& input_gradients) const {
  moments_gradient(channels_, values(outputs[0]), values(outputs[1]), values(output_gradients[0]),
                   values(output_gradients[1]), values(input_gradients[0]));
}

ScaleOperator::ScaleOperator(const Shape& shape, size_t axis, ArrayFunctions arrays)
    : ArrayOperator({shape, {shape.at(axis)}, {shape.at(axis)}, {shape.at(axis)}}, {shape}, arrays),
      channels_(channels_of(shape, axis)) {}

void ScaleOperator::forward(const Arrays& inputs, const Arrays& outputs) const {
  scale_channels(channels_, values(inputs[0]), values(inputs[1]), values(inputs[2]), values(inputs[3]),
                 values(outputs[0]));
}

void ScaleOperator::backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays&,
                             const Arrays& input_gradients) const {
  scale_gradients(channels_, values(inputs[0]), values(inputs[1]), values(inputs[2]), values(output_gradients[0]),
                  values(input_gradients[0]), values(input_gradients[2]), values(input_gradients[3]));
}

}  // namespace lane
