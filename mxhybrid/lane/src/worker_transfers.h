// A worker's side of transfers, in which workers give each other pieces of arrays.
//
// A transfer is described once, and then made again and again; each time is an operation of MXNet's engine, which calls
// `begin` in one of its threads when the arrays are there, and is told when the transfer is made.  What can be done at
// once is done in that thread; the rest in the worker's CompletionThread, whenever another worker has written, or
// consumed, something.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "add.h"
#include "box.h"
#include "channel.h"
#include "completion_thread.h"

namespace lane {

class PersistentTransfer;

/// Channels between this worker and others.
class WorkerChannels {
 public:
  /// With the worker's block, and what rings an agent of its host, by its position.
  WorkerChannels(WorkerBlock& block, CompletionThread& completions, std::function<void(uint32_t)> notify_agent)
      : block_(block), completions_(completions), notify_agent_(std::move(notify_agent)) {}

  /// Make the channel from a worker of any host to this one; its memory, which is kept until the channel is linked.
  int open_incoming(uint32_t rank, size_t room);
  /// Make the channel from this worker to one of another host; likewise.
  int open_outgoing(uint32_t rank, size_t room);
  /// Link with a worker of this host: the memory of its channel for this worker, and of its WorkerBlock.
  void link(uint32_t rank, int channel, int block);
  /// Link with a worker of another host, both channels to and from which the agent at that position has mapped.
  void link_by_agent(uint32_t rank, uint32_t agent);
  /// The worker ends, before its transfers may.
  void close();

 private:
  friend class PersistentTransfer;

  struct Link {
    std::unique_ptr<Channel> in, out;
    Memory block;       // of a worker of this host
    uint32_t agent = 0;  // that leads to another host
    bool linked = false;
  };

  Link& link(uint32_t rank);
  void notify_written(Link& link, uint32_t ring);
  void notify_consumed(Link& link, uint32_t ring);

  WorkerBlock& block_;
  CompletionThread& completions_;
  const std::function<void(uint32_t)> notify_agent_;
  std::mutex mutex_;  // of what follows, and of the rings of channels
  std::map<uint32_t, Link> links_;
  bool closed_ = false;
};

/// A transfer as this worker sees it.  Uses that are under way share it.
class PersistentTransfer : public std::enable_shared_from_this<PersistentTransfer> {
 public:
  /// Under a tag that no other transfer has or had, whose ring the reader would find; the target has so many bytes.
  /// With `adds`, what comes is added up in the order of ranks, `rank` being this worker's; else each element comes
  /// once.
  PersistentTransfer(std::shared_ptr<WorkerChannels> all, uint32_t rank, uint64_t tag, Dtype dtype, bool adds,
                     size_t target_bytes)
      : channels_(std::move(all)),
        rank_(rank),
        tag_(tag),
        dtype_(dtype),
        adds_(adds),
        target_bytes_(target_bytes) {}
  ~PersistentTransfer();
  PersistentTransfer(const PersistentTransfer&) = delete;
  PersistentTransfer& operator=(const PersistentTransfer&) = delete;

  Dtype dtype() const { return dtype_; }
  /// Describe it.  Several pieces between two workers travel in the order in which they were described, on both sides.
  void send(uint32_t rank, const Box& from) { sends_[rank].add(from); }
  void receive(uint32_t rank, const Box& to) { receives_[rank].add(to); }
  /// From the source to the target of this worker.
  void copy_local(const Box& from_to) { local_.push_back(from_to); }
  /// A box of the target in which all elements are `value`, the first bytes of it.
  void fill(const Box& at, uint64_t value) { fills_.push_back({at, value}); }
  /// The description is complete; throws std::runtime_error if the transfer cannot be made.
  void open();

  /// Both arrays are there, and stay until `complete` is called.
  void start(const char* source, char* target, const OnComplete& complete);

 private:
  /// Of the largest element.
  static constexpr size_t kPadding = 8;

  /// What goes to, or comes from, one worker.
  struct PeerStream {
    std::vector<Box> boxes;
    size_t bytes = 0;
    size_t padded = 0;  // those of a use in the ring, so that the next one, of any type, begins aligned
    WorkerChannels::Link* link = nullptr;
    uint32_t ring = kMaxRings;
    char* data = nullptr;
    // Of the use at hand: bytes that were copied; the box at which that is, and where that begins.
    size_t done = 0, box = 0, start = 0;
    uint32_t reported = kFirst;  // to the agent: what was consumed

    void add(const Box& box) {
      boxes.push_back(box);
      bytes += box.bytes();
      padded = (bytes + kPadding - 1) / kPadding * kPadding;
    }
    bool ended() const { return done == padded; }
  };

  struct Fill {
    Box at;
    uint64_t value;
  };

  struct Run {
    const char* source;
    char* target;
    OnComplete complete;
  };

  void reset();
  bool advance();
  bool progress();
  bool transfer_some();
  void prepare();
  bool write_ring(PeerStream& to);
  bool read_ring(PeerStream& from, Apply apply);
  bool ended() const;
  void announce_waiting();
  void apply_local(Apply apply);
  template <typename Function>
  static void each(PeerStream& stream, size_t count, size_t position, size_t capacity, Function apply);

  const std::shared_ptr<WorkerChannels> channels_;
  const uint32_t rank_;
  const uint64_t tag_;
  const Dtype dtype_;
  const bool adds_;
  const size_t target_bytes_;
  std::map<uint32_t, PeerStream> sends_, receives_;  // by rank
  std::vector<Box> local_;
  std::vector<Fill> fills_;
  /// What is added up, in the order of ranks; null for what this worker keeps.
  std::vector<PeerStream*> partials_;
  /// Whether the first of them is all of the target.
  bool first_covers_ = false;

  std::mutex mutex_;      // of the next two
  std::deque<Run> runs_;  // in the order in which they began
  bool is_running_ = false;  // a thread goes on with them: what follows is its own
  Run run_ = {};           // at hand
  bool started_ = false, prepared_ = false;
  size_t partials_added_ = 0;   // addends
  uint32_t seen_ = 0;  // the doorbell, before others were asked to wake this worker
};

/// A run of a transfer that MXNet's engine is to start, with its arrays.
struct TransferRun {
  std::shared_ptr<PersistentTransfer> transfer;
  const char* source;
  char* target;

  /// EngineAsyncFunc of MXNet's include/mxnet/c_api.h.
  static void start(void* engine, void* on_complete, void* run);
  /// EngineFuncParamDeleter.
  static void remove(void* run) { delete static_cast<TransferRun*>(run); }
};

}  // namespace lane
