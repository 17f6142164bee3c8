// A transfer of pieces of arrays as an operator of MXNet's graphs, which the engine calls without Python.  It runs one
// transfer in the forward pass, and another one in the backward pass.
//
// MXNet's operator _NDArray (src/operator/custom/ndarray_op.cc of MXNet 1.9.1) calls the functions of an NDArrayOpInfo
// in a thread of the engine, with arrays that are computed and in the default layout.  It continues once all operations
// that the functions pushed to the engine are complete.  So no thread waits, and no other thread has to be woken before
// a transfer starts.  _NDArray supports only float32, and does not say which outputs must be added to: the graph must
// be built so that none has to.
#pragma once

#include <memory>
#include <vector>

#include "operators/array_transfer.h"

namespace lane {

/// A transfer operator.  Its inputs are a token and an array, its outputs a token and an array; either array may be
/// missing.  MXNet keeps the address of the object as long as a graph may run.
class TransferOperator {
 public:
  using Shape = std::vector<unsigned>;

  /// `input` and `output` are the shapes of the arrays, null if there is none.
  TransferOperator(std::shared_ptr<ArrayTransfer> forward, std::shared_ptr<ArrayTransfer> backward,
                   std::unique_ptr<Shape> input, std::unique_ptr<Shape> output, ArrayFunctions arrays,
                   PushFunction push);
  TransferOperator(const TransferOperator&) = delete;
  TransferOperator& operator=(const TransferOperator&) = delete;

  const NDArrayOpInfo* info() const { return &info_; }

 private:
  /// Tags of arrays in ndarray_op.cc.
  enum Tag { kInput = 0, kOutput = 1, kInputGradient = 2, kOutputGradient = 3 };

  void begin(const std::shared_ptr<ArrayTransfer>& transfer, int count, void** arrays, const int* tags, Tag from,
             Tag to);
  void infer(int* dimensions, unsigned** shapes);

  const std::shared_ptr<ArrayTransfer> forward_, backward_;
  const std::unique_ptr<Shape> input_, output_;
  const ArrayFunctions arrays_;
  const PushFunction push_;
  Shape token_ = {1};
  std::vector<char*> arguments_, outputs_;  // names, then null
  NDArrayOpInfo info_;
};

}  // namespace lane
