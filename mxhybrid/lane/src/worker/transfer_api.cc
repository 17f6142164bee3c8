// The C interface of channels and persistent transfers; see api.cc for its conventions.
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/api_errors.h"
#include "memory/box.h"
#include "worker/worker.h"

using lane::ArrayTransfer;
using lane::Box;
using lane::guarded;
using lane::PersistentTransfer;
using lane::TransferRun;
using lane::Worker;

namespace {

/// Return the transfer of a reference, which lane_transfer_new made.
PersistentTransfer& transfer_of(void* share) {
  return static_cast<PersistentTransfer&>(**static_cast<std::shared_ptr<ArrayTransfer>*>(share));
}

Box::Position position_of(uint32_t dimensions, uint64_t offset, const uint64_t* strides) {
  return {offset, std::vector<size_t>(strides, strides + dimensions)};
}

}  // namespace

extern "C" {

/// Return the descriptor of the channel from another worker.
int lane_worker_open_incoming(void* worker, uint32_t rank, uint64_t room) {
  return guarded([&] { return static_cast<Worker*>(worker)->channels()->open_incoming(rank, room); }, -1);
}
/// Return the descriptor of the channel to a worker of another host.
int lane_worker_open_outgoing(void* worker, uint32_t rank, uint64_t room) {
  return guarded([&] { return static_cast<Worker*>(worker)->channels()->open_outgoing(rank, room); }, -1);
}
int lane_worker_link(void* worker, uint32_t rank, int channel, int block) {
  return guarded([&] { static_cast<Worker*>(worker)->channels()->link(rank, channel, block); return 0; }, -1);
}
/// Return the agent of the worker's host that relays the channel between two ranks.
int lane_worker_channel_agent(void* worker, uint32_t from, uint32_t to) {
  return guarded([&] { return static_cast<int>(static_cast<Worker*>(worker)->channel_agent(from, to)); }, -1);
}
/// Link with a worker of another host; an agent has mapped the channels to and from it.
int lane_worker_link_by_agents(void* worker, uint32_t rank, uint32_t agent) {
  return guarded([&] {
    Worker& self = *static_cast<Worker*>(worker);
    self.channels()->link_by_agent(rank, self.position(agent));
    return 0;
  }, -1);
}
/// Return a reference to a new transfer, which the functions below describe, and lane_transfer_open completes.
void* lane_transfer_new(void* worker, uint32_t rank, uint64_t tag, uint32_t dtype, int adds, uint64_t target_bytes) {
  return guarded([&]() -> void* {
    if (dtype >= lane::kDtypes) throw std::runtime_error("no dtype has number " + std::to_string(dtype));
    return new std::shared_ptr<ArrayTransfer>(
        std::make_shared<PersistentTransfer>(static_cast<Worker*>(worker)->channels(), rank, tag,
                                             static_cast<lane::Dtype>(dtype), adds != 0, target_bytes));
  }, nullptr);
}
int lane_transfer_send(void* share, uint32_t rank, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                   const uint64_t* strides) {
  return guarded([&] {
    transfer_of(share).send(rank, Box(size_of(transfer_of(share).dtype()), {shape, shape + dimensions},
                                  position_of(dimensions, offset, strides)));
    return 0;
  }, -1);
}
int lane_transfer_receive(void* share, uint32_t rank, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                      const uint64_t* strides) {
  return guarded([&] {
    transfer_of(share).receive(rank, Box(size_of(transfer_of(share).dtype()), {shape, shape + dimensions},
                                     position_of(dimensions, offset, strides)));
    return 0;
  }, -1);
}
int lane_transfer_copy_local(void* share, uint32_t dimensions, const uint64_t* shape, uint64_t from,
                             const uint64_t* from_strides, uint64_t to, const uint64_t* to_strides) {
  return guarded([&] {
    const size_t element = size_of(transfer_of(share).dtype());
    const std::vector<uint64_t> lengths(shape, shape + dimensions);
    const Box::Position target = position_of(dimensions, to, to_strides);
    transfer_of(share).copy_local(Box(element, lengths, position_of(dimensions, from, from_strides), target),
                                  Box(element, lengths, target));
    return 0;
  }, -1);
}
/// The first bytes of `value` are the element.
int lane_transfer_fill(void* share, uint32_t dimensions, const uint64_t* shape, uint64_t offset,
                       const uint64_t* strides, uint64_t value) {
  return guarded([&] {
    transfer_of(share).fill(Box(size_of(transfer_of(share).dtype()), {shape, shape + dimensions},
                            position_of(dimensions, offset, strides)), value);
    return 0;
  }, -1);
}
int lane_transfer_open(void* share) {
  return guarded([&] { transfer_of(share).open(); return 0; }, -1);
}
int lane_transfer_is_under_way(void* share) { return transfer_of(share).is_under_way(); }
void lane_transfer_cancel(void* share) { transfer_of(share).cancel(); }
/// Release a reference.
void lane_transfer_close(void* share) { delete static_cast<std::shared_ptr<ArrayTransfer>*>(share); }
/// Return a run for lane_transfer_start.
void* lane_transfer_run_new(void* share, const void* source, void* target) {
  return guarded([&]() -> void* {
    return new TransferRun{*static_cast<std::shared_ptr<ArrayTransfer>*>(share), static_cast<const char*>(source),
                       static_cast<char*>(target)};
  }, nullptr);
}
/// EngineFuncParamDeleter.
void lane_transfer_run_close(void* run) { TransferRun::remove(run); }
/// EngineAsyncFunc.
void lane_transfer_start(void* engine, void* on_complete, void* run) { TransferRun::start(engine, on_complete, run); }

}  // extern "C"
