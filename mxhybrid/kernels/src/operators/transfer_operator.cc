#include "operators/transfer_operator.h"

#include <cstdint>

#include "base/end_process.h"

namespace lane {
namespace {

char kTokenName[] = "token", kInputName[] = "input", kAfterName[] = "after", kOutputName[] = "output";

[[noreturn]] void fail(const char* problem) { end_process("a transfer in a graph cannot start", problem); }

}  // namespace

TransferOperator::TransferOperator(std::shared_ptr<ArrayTransfer> forward,
                                   std::shared_ptr<ArrayTransfer> backward, std::unique_ptr<Shape> input,
                                   std::unique_ptr<Shape> output, ArrayFunctions arrays, PushFunction push)
    : forward_(std::move(forward)),
      backward_(std::move(backward)),
      input_(std::move(input)),
      output_(std::move(output)),
      arrays_(arrays),
      push_(push),
      arguments_({kTokenName}),
      outputs_({kAfterName}) {
  if (input_) arguments_.push_back(kInputName);
  if (output_) outputs_.push_back(kOutputName);
  arguments_.push_back(nullptr);
  outputs_.push_back(nullptr);
  info_.forward = [](int count, void** arrays, int* tags, void* self) {
    auto& transfer = *static_cast<TransferOperator*>(self);
    transfer.begin(transfer.forward_, count, arrays, tags, kInput, kOutput);
    return true;
  };
  info_.backward = [](int count, void** arrays, int* tags, void* self) {
    auto& transfer = *static_cast<TransferOperator*>(self);
    transfer.begin(transfer.backward_, count, arrays, tags, kOutputGradient, kInputGradient);
    return true;
  };
  info_.infer_shape = [](int, int* dimensions, unsigned** shapes, void* self) {
    static_cast<TransferOperator*>(self)->infer(dimensions, shapes);
    return true;
  };
  info_.list_outputs = [](char*** names, void* self) {
    *names = static_cast<TransferOperator*>(self)->outputs_.data();
    return true;
  };
  info_.list_arguments = [](char*** names, void* self) {
    *names = static_cast<TransferOperator*>(self)->arguments_.data();
    return true;
  };
  info_.declare_backward_dependency = [](const int* out_gradients, const int*, const int*, int* count, int** needed,
                                         void* self) {
    // MXNet reads the numbers at once, and numbers arrays differently in every call.
    thread_local std::vector<int> needed_numbers;
    needed_numbers.assign(out_gradients, out_gradients + static_cast<TransferOperator*>(self)->outputs_.size() - 1);
    *count = static_cast<int>(needed_numbers.size());
    *needed = needed_numbers.data();
    return true;
  };
  for (void*& payload : info_.payloads) payload = this;
}

void TransferOperator::begin(const std::shared_ptr<ArrayTransfer>& transfer, int count, void** arrays,
                             const int* tags, Tag from, Tag to) {
  // The token is the first array with each tag.
  int inputs = 0;
  std::vector<void*> written;
  void *source = nullptr, *target = nullptr;
  for (int i = 0; i < count; ++i) {
    if (tags[i] == to) written.push_back(arrays[i]);
    const bool is_input = tags[i] == from && ++inputs == 2;
    const bool is_output = tags[i] == to && written.size() == 2;
    if ((is_input || is_output) && arrays_.get_data(arrays[i], is_input ? &source : &target) != 0) {
      fail("MXNDArrayGetData failed");
    }
  }
  auto* run = new TransferRun{transfer, static_cast<const char*>(source), static_cast<char*>(target)};
  if (push_(TransferRun::start, run, TransferRun::remove, &kCpuContext, nullptr, 0, written.data(),
            static_cast<int>(written.size()), &kAsyncOperation, 0, "mxhybrid_transfer", false) != 0) {
    fail("MXEnginePushAsyncND failed");
  }
  for (int i = 0; i < count; ++i) {
    if (arrays_.free(arrays[i]) != 0) fail("MXNDArrayFree failed");
  }
}

void TransferOperator::infer(int* dimensions, unsigned** shapes) {
  for (Shape* shape : {&token_, input_.get(), &token_, output_.get()}) {
    if (shape == nullptr) continue;
    *dimensions++ = static_cast<int>(shape->size());
    *shapes++ = shape->data();
  }
}

}  // namespace lane
