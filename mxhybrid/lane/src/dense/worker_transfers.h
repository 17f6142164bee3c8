// A worker's channels, and the persistent transfers through them.
//
// A transfer is described once and then run again and again, as requests of MPI_Send_init and MPI_Recv_init are.  A run
// is an operation of MXNet's engine.  The engine calls `start` in one of its threads when the arrays are ready, and is
// told when the run is complete.  That thread does what can be done at once.  The rest is done by the completion thread
// of the worker, whenever another worker has written or consumed data.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "dense/array_stream.h"
#include "dense/completion_thread.h"
#include "kernels/add.h"
#include "memory/box.h"
#include "memory/channel.h"
#include "operators/array_transfer.h"

namespace lane {

class PersistentTransfer;

/// The channels between this worker and other workers.
class WorkerChannels {
 public:
  /// `notify_agent` notifies an agent of this host by its position.
  WorkerChannels(WorkerBlock& block, CompletionThread& completions, std::function<void(uint32_t)> notify_agent)
      : block_(block), completions_(completions), notify_agent_(std::move(notify_agent)) {}

  /// Create the channel from another worker to this one, or, if it is `outgoing`, from this worker to a worker of
  /// another host; its rings have `room` bytes.  Returns the descriptor of its memory, which is open until the workers
  /// are linked.
  int open(uint32_t rank, bool outgoing, size_t room);
  /// Link with a worker of this host: `channel` is the memory of the channel to that worker, `block` its WorkerBlock.
  void link(uint32_t rank, int channel, int block);
  /// Link with a worker of another host: the agent at position `agent` has mapped the channels to and from it.
  void link_by_agent(uint32_t rank, uint32_t agent);
  /// End with the worker.  Transfers may outlive it.
  void close();

 private:
  friend class PersistentTransfer;

  struct Link {
    std::unique_ptr<Channel> in, out;
    Memory block;        // of the other worker, if it is on this host
    uint32_t agent = 0;  // the position of the agent that relays, otherwise
    bool linked = false;
  };

  Link& link(uint32_t rank);
  void notify_written(Link& link, uint32_t ring) { notify(link, *link.out, ring, &ChannelHeader::reader_waiting); }
  void notify_consumed(Link& link, uint32_t ring) { notify(link, *link.in, ring, &ChannelHeader::writer_waiting); }
  /// Wake the other worker of the host if it waits, or let the agent relay the change of a ring.
  void notify(Link& link, Channel& channel, uint32_t ring, Flag ChannelHeader::*waiting);

  WorkerBlock& block_;
  CompletionThread& completions_;
  const std::function<void(uint32_t)> notify_agent_;
  std::mutex mutex_;  // guards the members below and the rings of channels
  std::map<uint32_t, Link> links_;
  bool closed_ = false;
};

/// A transfer as this worker sees it.  Runs that are under way share it.
class PersistentTransfer : public ArrayTransfer, public std::enable_shared_from_this<PersistentTransfer> {
 public:
  /// Create a transfer with a tag that no other transfer has or had: the reader would find the other one's ring.  The
  /// target has `target_bytes` bytes.  With `adds`, the target is the sum of the received boxes, added in the order of
  /// ranks, where `rank` is this worker's; otherwise every element of the target is received once.
  PersistentTransfer(std::shared_ptr<WorkerChannels> channels, uint32_t rank, uint64_t tag, Dtype dtype, bool adds,
                     size_t target_bytes)
      : channels_(std::move(channels)),
        rank_(rank),
        tag_(tag),
        dtype_(dtype),
        adds_(adds),
        target_bytes_(target_bytes) {}
  ~PersistentTransfer() override;
  PersistentTransfer(const PersistentTransfer&) = delete;
  PersistentTransfer& operator=(const PersistentTransfer&) = delete;

  Dtype dtype() const override { return dtype_; }
  /// Describe the transfer.  Both workers describe the boxes that one sends to the other in the same order.
  void send(uint32_t rank, const Box& from) { sends_[rank].add(from); }
  void receive(uint32_t rank, const Box& to) { receives_[rank].add(to); }
  /// Copy a box from the source to the target of this worker; `to` is the box in the target alone.
  void copy_local(const Box& from_to, const Box& to) {
    local_.boxes.push_back(from_to);
    local_.bytes = local_.padded = local_.bytes + from_to.bytes();
    local_targets_.push_back(to);
  }
  /// Fill a box of the target with an element, the first bytes of `value`.
  void fill(const Box& box, uint64_t value) { fills_.push_back({box, value}); }
  /// Complete the description; throws std::runtime_error if the transfer is not possible.
  void open();

  void start(const char* source, char* target, const OnComplete& complete) override;
  /// Complete the runs under way and all later ones at once, because another worker does not make its part of them.  All
  /// bits of their targets are set: real numbers are NaN.  Any thread may call it.
  void cancel();
  /// Return whether a run was started and is not complete.
  bool is_under_way();

 private:
  /// The data that is sent to, or received from, one worker.
  struct PeerStream : ArrayStream {
    WorkerChannels::Link* link = nullptr;
    uint32_t ring = kMaxRings;
    char* data = nullptr;
    uint32_t reported = kFirst;  // bytes consumed, as the agent was told
  };

  struct Fill {
    Box box;
    uint64_t value;
  };

  struct Run {
    const char* source;
    char* target;
    OnComplete complete;
  };

  bool advance();
  void begin_run();
  bool progress();
  bool transfer_some();
  void prepare();
  bool write_ring(PeerStream& to);
  bool read_ring(PeerStream& from, Apply apply, size_t end);
  bool copy_local_bytes(Apply apply, size_t end);
  bool add_some();
  bool ended();
  void announce_waiting();
  size_t portion(size_t left, size_t possible) const;
  template <typename Function>
  static void each(PeerStream& stream, size_t count, size_t position, size_t capacity, Function apply);

  const std::shared_ptr<WorkerChannels> channels_;
  const uint32_t rank_;
  const uint64_t tag_;
  const Dtype dtype_;
  const bool adds_;
  const size_t target_bytes_;
  std::map<uint32_t, PeerStream> sends_, receives_;  // by rank
  ArrayStream local_;               // the data that stays on this worker
  std::vector<Box> local_targets_;  // the boxes of `local_` in the target alone
  std::vector<Fill> fills_;
  /// The partial sums in the order of ranks; one of them may be `local_`.
  PartialSums partials_;
  /// Whether the first partial sum covers the whole target.
  bool first_covers_ = false;

  std::atomic<bool> cancelled_{false};  // is never cleared
  std::mutex mutex_;         // guards the next two members
  std::deque<Run> runs_;     // in the order of their starts
  bool is_running_ = false;  // a thread works on the runs; it alone uses the members below
  Run run_ = {};             // the current run
  bool started_ = false, prepared_ = false;
  uint32_t seen_ = 0;  // the doorbell before this worker announced that it waits
};

}  // namespace lane
