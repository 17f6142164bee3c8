// The C interface of channels and persistent transfers; see api.cc for its conventions.
#include <memory>
#include <vector>

#include "base/api_errors.h"
#include "memory/box.h"
#include "worker/worker.h"

using lane::ArrayTransfer;
using lane::Box;
using lane::Dtype;
using lane::guarded;
using lane::PersistentTransfer;
using lane::TransferRun;
using lane::Worker;

namespace {

/// A reference to a transfer, which lane_transfer_new makes.
using Share = std::shared_ptr<ArrayTransfer>;

PersistentTransfer& transfer_of(Share* share) { return static_cast<PersistentTransfer&>(**share); }

Box::Position position_of(uint32_t dimensions, uint64_t offset, const uint64_t* strides) {
  return {offset, std::vector<size_t>(strides, strides + dimensions)};
}

/// Return a box of the source or the target of a transfer.
Box box_of(Share* share, uint32_t dimensions, const uint64_t* shape, uint64_t offset, const uint64_t* strides) {
  return Box(size_of((*share)->dtype()), {shape, shape + dimensions}, position_of(dimensions, offset, strides));
}

}  // namespace

extern "C" {

/// Return the descriptor of the channel from another worker, or of the channel to a worker of another host.
int lane_worker_open_channel(Worker* worker, uint32_t rank, int outgoing, uint64_t room) {
  return guarded([&] { return worker->channels()->open(rank, outgoing != 0, room); });
}
int lane_worker_link(Worker* worker, uint32_t rank, int channel, int block) {
  return guarded([&] { worker->channels()->link(rank, channel, block); });
}
/// Return the agent of the worker's host that relays the channel between two ranks.
int lane_worker_channel_agent(Worker* worker, uint32_t from, uint32_t to) {
  return guarded([&] { return static_cast<int>(worker->channel_agent(from, to)); });
}
/// Link with a worker of another host; an agent has mapped the channels to and from it.
int lane_worker_link_by_agents(Worker* worker, uint32_t rank, uint32_t agent) {
  return guarded([&] { worker->channels()->link_by_agent(rank, worker->position(agent)); });
}
/// Return a reference to a new transfer, which the functions below describe, and lane_transfer_open completes.
Share* lane_transfer_new(Worker* worker, uint32_t rank, uint64_t tag, Dtype dtype, int adds, uint64_t target_bytes) {
  return guarded([&] {
    return new Share(
        std::make_shared<PersistentTransfer>(worker->channels(), rank, tag, dtype, adds != 0, target_bytes));
  });
}
int lane_transfer_send(Share* share, uint32_t rank, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                       const uint64_t* strides) {
  return guarded([&] { transfer_of(share).send(rank, box_of(share, dimensions, shape, offset, strides)); });
}
int lane_transfer_receive(Share* share, uint32_t rank, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                          const uint64_t* strides) {
  return guarded([&] { transfer_of(share).receive(rank, box_of(share, dimensions, shape, offset, strides)); });
}
int lane_transfer_copy_local(Share* share, uint32_t dimensions, const uint64_t* shape, uint64_t from,
                             const uint64_t* from_strides, uint64_t to, const uint64_t* to_strides) {
  return guarded([&] {
    const Box both(size_of((*share)->dtype()), {shape, shape + dimensions}, position_of(dimensions, from, from_strides),
                   position_of(dimensions, to, to_strides));
    transfer_of(share).copy_local(both, box_of(share, dimensions, shape, to, to_strides));
  });
}
/// The first bytes of `value` are the element.
int lane_transfer_fill(Share* share, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                       const uint64_t* strides, uint64_t value) {
  return guarded([&] { transfer_of(share).fill(box_of(share, dimensions, shape, offset, strides), value); });
}
int lane_transfer_open(Share* share) {
  return guarded([&] { transfer_of(share).open(); });
}
int lane_transfer_is_under_way(Share* share) { return transfer_of(share).is_under_way(); }
void lane_transfer_cancel(Share* share) { transfer_of(share).cancel(); }
/// Release a reference.
void lane_transfer_close(Share* share) { delete share; }
/// Return a run for lane_transfer_start.
TransferRun* lane_transfer_run_new(Share* share, const char* source, char* target) {
  return guarded([&] { return new TransferRun{*share, source, target}; });
}
/// EngineFuncParamDeleter.
void lane_transfer_run_close(void* run) { TransferRun::remove(run); }
/// EngineAsyncFunc.
void lane_transfer_start(void* engine, void* on_complete, void* run) { TransferRun::start(engine, on_complete, run); }

}  // extern "C"
