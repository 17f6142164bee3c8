#include "operators/transfer_operator.h"

#include <utility>

#include "base/end_process.h"

namespace lane {

TransferOperator::TransferOperator(std::shared_ptr<ArrayTransfer> forward, std::shared_ptr<ArrayTransfer> backward,
                                   std::vector<Shape> inputs, std::vector<Shape> outputs, ArrayFunctions arrays,
                                   PushFunction push)
    : ArrayOperator(std::move(inputs), std::move(outputs), {}, arrays),
      forward_(std::move(forward)),
      backward_(std::move(backward)),
      push_(push) {}

void TransferOperator::forward(const Arrays& inputs, const Arrays& outputs) const { begin(forward_, inputs, outputs); }

void TransferOperator::backward(const Arrays& output_gradients, const Arrays&, const Arrays&,
                                const Arrays& input_gradients) const {
  begin(backward_, output_gradients, input_gradients);
}

void TransferOperator::begin(const std::shared_ptr<ArrayTransfer>& transfer, const Arrays& from,
                             const Arrays& to) const {
  // The first array is the token.
  const auto memory_of = [](const Arrays& arrays) {
    return reinterpret_cast<char*>(arrays.values.size() > 1 ? arrays[1] : nullptr);
  };
  auto* run = new TransferRun{transfer, memory_of(from), memory_of(to)};
  if (push_(TransferRun::start, run, TransferRun::remove, &kCpuContext, nullptr, 0,
            const_cast<void**>(to.handles.data()), static_cast<int>(to.handles.size()), &kAsyncOperation, 0,
            "mxhybrid_transfer", false) != 0) {
    end_process("a transfer in a graph cannot start", "MXEnginePushAsyncND failed");
  }
}

}  // namespace lane
