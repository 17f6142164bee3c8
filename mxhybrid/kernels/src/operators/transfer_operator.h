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
#include "operators/norm_operators.h"

namespace lane {

/// A transfer operator.  Its inputs are a token and an array, its outputs a token and an array; either array may be
/// missing.  MXNet keeps the address of the object as long as a graph may run.
class TransferOperator : public ArrayOperator {
 public:
  TransferOperator(std::shared_ptr<ArrayTransfer> forward, std::shared_ptr<ArrayTransfer> backward,
                   std::vector<Shape> inputs, std::vector<Shape> outputs, ArrayFunctions arrays, PushFunction push);

 protected:
  void forward(const Arrays& inputs, const Arrays& outputs) const override;
  void backward(const Arrays& output_gradients, const Arrays& inputs, const Arrays& outputs,
                const Arrays& input_gradients) const override;

 private:
  void begin(const std::shared_ptr<ArrayTransfer>& transfer, const Arrays& from, const Arrays& to) const;

  const std::shared_ptr<ArrayTransfer> forward_, backward_;
  const PushFunction push_;
};

}  // namespace lane
