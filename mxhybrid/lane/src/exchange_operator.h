// An exchange of pieces as an operator in a graph of MXNet's, called by its engine without Python: a transfer forwards,
// and another one backwards.
//
// MXNet's operator _NDArray (src/operator/custom/ndarray_op.cc of MXNet 1.9.1) calls the functions of a NDArrayOpInfo
// of include/mxnet/c_api.h in a thread of the engine, with arrays that are computed and in their default layout, and
// goes on once what the functions had the engine write is written.  So no thread waits, and no other one has to be
// woken for a transfer to begin.  It has no types but float32, and does not say what is to be added: whoever builds the
// graph sees to it that nothing is.
#pragma once

#include <memory>
#include <vector>

#include "mxnet_api.h"
#include "worker_transfers.h"

namespace lane {

/// Inputs are a token and what is given, outputs a token and what is taken, each of which may not be there.  MXNet
/// keeps its address for as long as a graph may run.
class ExchangeOperator {
 public:
  using Shape = std::vector<unsigned>;

  /// With the shapes of what is given and taken, null if it is nothing.
  ExchangeOperator(std::shared_ptr<PersistentTransfer> forward, std::shared_ptr<PersistentTransfer> backward,
                   std::unique_ptr<Shape> input, std::unique_ptr<Shape> output, ArrayFunctions arrays,
                   PushFunction push);
  ExchangeOperator(const ExchangeOperator&) = delete;
  ExchangeOperator& operator=(const ExchangeOperator&) = delete;

  const NDArrayOpInfo* info() const { return &info_; }

 private:
  /// Tags of arrays, as ndarray_op.cc has them.
  enum Tag { kInput = 0, kOutput = 1, kInputGradient = 2, kOutputGradient = 3 };

  void begin(const std::shared_ptr<PersistentTransfer>& transfer, int count, void** arrays, const int* tags, Tag from,
             Tag to);
  void infer(int* dimensions, unsigned** shapes);

  const std::shared_ptr<PersistentTransfer> forward_, backward_;
  const std::unique_ptr<Shape> input_, output_;
  const ArrayFunctions arrays_;
  const PushFunction push_;
  Shape token_ = {1};
  std::vector<char*> arguments_, outputs_;  // names, and null
  NDArrayOpInfo info_;
};

}  // namespace lane
