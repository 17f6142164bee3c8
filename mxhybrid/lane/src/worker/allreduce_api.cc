// The C interface of allreduces and gradient buckets; see api.cc for its conventions.
#include <memory>
#include <utility>
#include <vector>

#include "base/api_errors.h"
#include "dense/gradient_bucket.h"
#include "worker/worker.h"

using lane::DenseUpdate;
using lane::functions_of;
using lane::GradientBucket;
using lane::guarded;
using lane::Worker;
using lane::WorkerAllreduce;
using lane::WrittenArrays;

namespace {

/// An update of weights with the sums of a bucket, or with their gradients if `bucket` is null.
struct WorkerUpdate {
  std::shared_ptr<GradientBucket> bucket;
  DenseUpdate update;
};

}  // namespace

extern "C" {

/// Return the agent of the worker's host that handles an allreduce.
int lane_worker_allreduce_agent(void* worker, uint64_t number) {
  return guarded([&] { return static_cast<int>(static_cast<Worker*>(worker)->allreduce_agent(number)); }, -1);
}
/// Return the descriptor of the input.
int lane_worker_open_allreduce(void* worker, uint64_t number, uint32_t dtype, uint64_t count) {
  return guarded(
      [&] {
        Worker& self = *static_cast<Worker*>(worker);
        return self.allreduce().open(number, self.position(self.allreduce_agent(number)),
                                     static_cast<lane::Dtype>(dtype), count);
      },
      -1);
}
/// Return the buffer of the allreduce, for the functions below.
void* lane_worker_attach_allreduce(void* worker, uint64_t number, int descriptor) {
  return guarded([&]() -> void* {
    WorkerAllreduce& allreduce = static_cast<Worker*>(worker)->allreduce();
    allreduce.attach(number, descriptor);
    return &allreduce.buffer(number);
  }, nullptr);
}
int lane_worker_drop_allreduce(void* worker, uint64_t number) {
  return guarded([&] { static_cast<Worker*>(worker)->allreduce().drop(number); return 0; }, -1);
}
void* lane_allreduce_input(void* buffer) { return static_cast<WorkerAllreduce::Buffer*>(buffer)->input(); }
void* lane_allreduce_output(void* buffer) { return static_cast<WorkerAllreduce::Buffer*>(buffer)->output(); }
void lane_allreduce_set_priority(void* buffer, int32_t priority) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->set_priority(priority);
}
/// Write the sums of squares of the values that this host quantized in the last round, and of the residuals left over.
void lane_allreduce_squares(void* buffer, double* squares) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->read_squares(squares);
}
/// EngineAsyncFunc of MXNet's include/mxnet/c_api.h.
void lane_allreduce_start(void*, void* on_complete, void* buffer) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->start(*static_cast<lane::OnComplete*>(on_complete));
}

/// EngineAsyncFunc of a reduce-scatter, and of an allgather.
void lane_allreduce_scatter(void*, void* on_complete, void* buffer) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->start(*static_cast<lane::OnComplete*>(on_complete),
                                                       lane::AllreduceKind::kScatter);
}
void lane_allreduce_gather(void*, void* on_complete, void* buffer) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->start(*static_cast<lane::OnComplete*>(on_complete),
                                                       lane::AllreduceKind::kGather);
}

/// Return a reference to a new bucket, which takes over the arrays of gradients.
void* lane_bucket_new(void* buffer, uint32_t dtype, int halves, void* get_data, void* free, uint32_t count,
                      void** gradients, const uint64_t* sizes) {
  return guarded([&]() -> void* {
    const lane::ArrayFunctions functions = functions_of(get_data, free);
    auto bucket = std::make_shared<GradientBucket>(*static_cast<WorkerAllreduce::Buffer*>(buffer),
                                                   static_cast<lane::Dtype>(dtype), halves != 0, functions);
    for (uint32_t i = 0; i < count; ++i) bucket->add(gradients[i], sizes[i]);
    return new std::shared_ptr<GradientBucket>(std::move(bucket));
  }, nullptr);
}
/// Return another reference, for lane_bucket_start.
void* lane_bucket_share(void* share) {
  return guarded(
      [&]() -> void* {
        return new std::shared_ptr<GradientBucket>(*static_cast<std::shared_ptr<GradientBucket>*>(share));
      },
      nullptr);
}
/// Release a reference; EngineFuncParamDeleter.
void lane_bucket_close(void* share) { delete static_cast<std::shared_ptr<GradientBucket>*>(share); }
/// EngineAsyncFunc.
void lane_bucket_start(void*, void* on_complete, void* share) {
  (*static_cast<std::shared_ptr<GradientBucket>*>(share))->start(*static_cast<lane::OnComplete*>(on_complete));
}
/// EngineAsyncFunc; the sum is a reduce-scatter.
void lane_bucket_scatter(void*, void* on_complete, void* share) {
  (*static_cast<std::shared_ptr<GradientBucket>*>(share))
      ->start(*static_cast<lane::OnComplete*>(on_complete), lane::AllreduceKind::kScatter);
}
/// Return a reference to arrays that updates write, which it takes over; an array may be null.  `reorder` is
/// NDArray::Chunk::Reorder2Default, or null if all arrays are in the default layout.
void* lane_arrays_new(void* get_data, void* free, void* reorder, uint32_t count, void** arrays) {
  return guarded(
      [&]() -> void* {
        return new std::shared_ptr<WrittenArrays>(
            std::make_shared<WrittenArrays>(functions_of(get_data, free), reinterpret_cast<void (*)(void*)>(reorder),
                                           std::vector<void*>(arrays, arrays + count)));
      },
      nullptr);
}
void lane_arrays_close(void* arrays) { delete static_cast<std::shared_ptr<WrittenArrays>*>(arrays); }
/// Return an update for lane_update_run.  `arrays` is a result of lane_arrays_new with the five arrays of each of `count`
/// weights, see DenseUpdate.  `share` is the bucket with whose sums it is made, or null: then it reads the gradients.
void* lane_update_new(void* share, uint32_t dtype, uint32_t kind, const double* settings, int in_lists, uint32_t count,
                      void* arrays, const uint64_t* sizes, const double* lrs, const double* wds) {
  return guarded(
      [&]() -> void* {
        auto update = std::make_unique<WorkerUpdate>();
        if (share != nullptr) update->bucket = *static_cast<std::shared_ptr<GradientBucket>*>(share);
        update->update = {lane::make_rule(kind, settings), static_cast<lane::Dtype>(dtype), in_lists != 0,
                          *static_cast<std::shared_ptr<WrittenArrays>*>(arrays), {sizes, sizes + count}, {}};
        for (uint32_t i = 0; i < count; ++i) update->update.rates.push_back({lrs[i], wds[i]});
        return update.release();
      },
      nullptr);
}
/// EngineFuncParamDeleter.
void lane_update_close(void* update) { delete static_cast<WorkerUpdate*>(update); }
/// EngineSyncFunc.
void lane_update_run(void*, void* update) {
  const WorkerUpdate& worker_update = *static_cast<WorkerUpdate*>(update);
  if (worker_update.bucket != nullptr) {
    worker_update.bucket->update(worker_update.update);
  } else {
    worker_update.update.run();
  }
}

}  // extern "C"
