// The C interface of allreduces and gradient buckets; see api.cc for its conventions.
#include <memory>
#include <utility>
#include <vector>

#include "base/api_errors.h"
#include "dense/gradient_bucket.h"
#include "worker/worker.h"

using lane::AllreduceKind;
using lane::DenseUpdate;
using lane::Dtype;
using lane::functions_of;
using lane::GradientBucket;
using lane::guarded;
using lane::OnComplete;
using lane::Worker;
using lane::WorkerAllreduce;
using lane::WrittenArrays;

namespace {

void start_buffer(void* buffer, void* on_complete, AllreduceKind kind) {
  static_cast<WorkerAllreduce::Buffer*>(buffer)->start(*static_cast<OnComplete*>(on_complete), kind);
}
void start_bucket(void* share, void* on_complete, AllreduceKind kind) {
  (*static_cast<std::shared_ptr<GradientBucket>*>(share))->start(*static_cast<OnComplete*>(on_complete), kind);
}

}  // namespace

extern "C" {

/// Return the agent of the worker's host that handles an allreduce.
int lane_worker_allreduce_agent(Worker* worker, uint64_t number) {
  return guarded([&] { return static_cast<int>(worker->allreduce_agent(number)); });
}
/// Return the descriptor of the input.
int lane_worker_open_allreduce(Worker* worker, uint64_t number, Dtype dtype, uint64_t count) {
  return guarded([&] {
    return worker->allreduce().open(number, worker->position(worker->allreduce_agent(number)), dtype, count);
  });
}
/// Return the buffer of the allreduce, for the functions below.
WorkerAllreduce::Buffer* lane_worker_attach_allreduce(Worker* worker, uint64_t number, int descriptor) {
  return guarded([&] { return &worker->allreduce().attach(number, descriptor); });
}
int lane_worker_drop_allreduce(Worker* worker, uint64_t number) {
  return guarded([&] { worker->allreduce().drop(number); });
}
char* lane_allreduce_input(WorkerAllreduce::Buffer* buffer) { return buffer->input(); }
char* lane_allreduce_output(WorkerAllreduce::Buffer* buffer) { return buffer->output(); }
void lane_allreduce_set_priority(WorkerAllreduce::Buffer* buffer, int32_t priority) { buffer->set_priority(priority); }
/// Write the sums of squares of the values that this host quantized in the last round, and of the residuals left over.
void lane_allreduce_squares(WorkerAllreduce::Buffer* buffer, double* squares) { buffer->read_squares(squares); }
/// EngineAsyncFunc of MXNet's include/mxnet/c_api.h: a sum, a reduce-scatter and an allgather.
void lane_allreduce_start(void*, void* on_complete, void* buffer) {
  start_buffer(buffer, on_complete, AllreduceKind::kSum);
}
void lane_allreduce_scatter(void*, void* on_complete, void* buffer) {
  start_buffer(buffer, on_complete, AllreduceKind::kScatter);
}
void lane_allreduce_gather(void*, void* on_complete, void* buffer) {
  start_buffer(buffer, on_complete, AllreduceKind::kGather);
}

/// Return a reference to a new bucket, which takes over the arrays of gradients.
void* lane_bucket_new(WorkerAllreduce::Buffer* buffer, Dtype dtype, int halves, void* get_data, void* free,
                      uint32_t count, void** gradients, const uint64_t* sizes) {
  return guarded([&]() -> void* {
    auto bucket = std::make_shared<GradientBucket>(*buffer, dtype, halves != 0, functions_of(get_data, free));
    for (uint32_t i = 0; i < count; ++i) bucket->add(gradients[i], sizes[i]);
    return new std::shared_ptr<GradientBucket>(std::move(bucket));
  });
}
/// Return another reference, for lane_bucket_start.
void* lane_bucket_share(std::shared_ptr<GradientBucket>* share) {
  return guarded([&]() -> void* { return new std::shared_ptr<GradientBucket>(*share); });
}
/// Release a reference; EngineFuncParamDeleter.
void lane_bucket_close(void* share) { delete static_cast<std::shared_ptr<GradientBucket>*>(share); }
/// EngineAsyncFunc: a sum and a reduce-scatter.
void lane_bucket_start(void*, void* on_complete, void* share) { start_bucket(share, on_complete, AllreduceKind::kSum); }
void lane_bucket_scatter(void*, void* on_complete, void* share) {
  start_bucket(share, on_complete, AllreduceKind::kScatter);
}
/// Return a reference to arrays that updates write, which it takes over; an array may be null.  `reorder` is
/// NDArray::Chunk::Reorder2Default, or null if all arrays are in the default layout.
void* lane_arrays_new(void* get_data, void* free, void* reorder, uint32_t count, void** arrays) {
  return guarded([&]() -> void* {
    return new std::shared_ptr<WrittenArrays>(
        std::make_shared<WrittenArrays>(functions_of(get_data, free), reinterpret_cast<void (*)(void*)>(reorder),
                                        std::vector<void*>(arrays, arrays + count)));
  });
}
void lane_arrays_close(std::shared_ptr<WrittenArrays>* arrays) { delete arrays; }
/// Return an update for lane_update_run.  `arrays` is a result of lane_arrays_new with the five arrays of each of `count`
/// weights, see DenseUpdate.  `share` is the bucket with whose sums it is made, or null: then it reads the gradients.
void* lane_update_new(std::shared_ptr<GradientBucket>* share, Dtype dtype, lane::RuleKind kind, const double* settings,
                      int in_lists, uint32_t count, std::shared_ptr<WrittenArrays>* arrays, const uint64_t* sizes,
                      const double* lrs, const double* wds) {
  return guarded([&]() -> void* {
    std::vector<lane::Rates> rates;
    for (uint32_t i = 0; i < count; ++i) rates.push_back({lrs[i], wds[i]});
    return new DenseUpdate{lane::make_rule(kind, settings), dtype, in_lists != 0, *arrays, {sizes, sizes + count},
                           std::move(rates), share == nullptr ? nullptr : *share};
  });
}
/// EngineFuncParamDeleter.
void lane_update_close(void* update) { delete static_cast<DenseUpdate*>(update); }
/// EngineSyncFunc.
void lane_update_run(void*, void* update) { static_cast<DenseUpdate*>(update)->run(); }

}  // extern "C"
