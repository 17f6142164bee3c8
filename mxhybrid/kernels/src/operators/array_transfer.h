// Transfers of arrays between workers, as operators of graphs see them.
#pragma once

#include <memory>

#include "base/dtype.h"
#include "operators/mxnet_api.h"

namespace lane {

/// A transfer that can be run again and again.  The lane implements it, see worker_transfers.h.
class ArrayTransfer {
 public:
  virtual ~ArrayTransfer() = default;
  virtual Dtype dtype() const = 0;
  /// Start a run.  Both arrays are ready, and stay until `complete` is called, which may be before this returns.
  virtual void start(const char* source, char* target, const OnComplete& complete) = 0;
};

/// A run of a transfer, with its arrays, that MXNet's engine starts.
struct TransferRun {
  std::shared_ptr<ArrayTransfer> transfer;
  const char* source;
  char* target;

  /// EngineAsyncFunc of MXNet's include/mxnet/c_api.h.
  static void start(void*, void* on_complete, void* run) {
    const TransferRun& transfer_run = *static_cast<TransferRun*>(run);
    transfer_run.transfer->start(transfer_run.source, transfer_run.target, *static_cast<OnComplete*>(on_complete));
  }
  /// EngineFuncParamDeleter.
  static void remove(void* run) { delete static_cast<TransferRun*>(run); }
};

}  // namespace lane
