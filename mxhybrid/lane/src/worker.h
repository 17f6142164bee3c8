// A worker's side: pushes and pulls of rows through memory that it shares with the agents of its host.
//
// Waits are cut into pieces: a function that may wait takes a number of milliseconds and says whether it is done, so
// that callers can look for signals in between.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "membership.h"
#include "rows.h"
#include "worker_allreduce.h"
#include "worker_transfers.h"

namespace lane {

/// What of a table does not fit into float16.
enum Overflow : uint32_t {
  /// A row that was pushed is finite, and will be infinite.
  kPushedOverflow = 1,
  /// A row that was pulled is not finite.
  kPulledOverflow = 2,
};

class Worker {
 public:
  Worker(Membership membership, uint32_t host);
  ~Worker();

  /// The memory of the WorkerBlock, for agents.
  const Memory& block() const { return block_; }
  /// Get to know an agent of this host: its doorbell, which is taken over, and the memory of its AgentBlock.
  void add_agent(uint32_t agent, int doorbell, int descriptor);
  /// Learn a table; its memory, for agents, has the layout WorkerTableLayout.
  int add_table(uint32_t number, const TableShape& shape);
  /// Map the memory of an agent of this host for a table, of which the layout is AgentTableLayout.
  void attach(uint32_t number, uint32_t agent, int descriptor);
  /// What the rows of a table are.
  Dtype dtype(uint32_t number);
  /// Drop a table; nothing is under way.
  void drop_table(uint32_t number);

  /// Push rows, (count, width), of sorted unique ids; by all workers, and by one thread at a time.  Done once they are
  /// copied.
  bool push(uint32_t number, const int64_t* ids, uint32_t count, const char* rows, int milliseconds);
  /// Ask for rows of sorted unique ids, as of all pushes so far; returns a handle, or -1 while all are under way.  They
  /// will be taken, or `delivered`.
  int post(uint32_t number, const int64_t* ids, uint32_t count, uint32_t flags, bool delivered = false);
  /// Wait for what was asked for and write the rows, (count, width), to `out`.  Gives the handle back when done.
  bool wait(uint32_t number, int handle, char* out, int milliseconds);
  /// As `take`, in a thread of its own, which then calls `complete`.
  void deliver(uint32_t number, int handle, char* out, const OnComplete& complete);
  /// What was found since the last call, of a table of which float16 travels: flags of Overflow.
  uint32_t overflows(uint32_t number);
  /// Wait until all is delivered that was asked for.
  bool wait_for_deliveries(uint32_t number, int milliseconds);

  /// Bytes between this host and others so far, by kind of message, added to `sent` and `received`.
  void add_traffic(uint64_t* sent, uint64_t* received) const;

  /// Dense sums.
  WorkerAllreduce& allreduce() { return allreduce_; }
  /// The agent of this host that takes care of one, and its position among those of this host.
  uint32_t allreduce_agent(uint64_t number) const { return membership_.allreduce_agent(host_, number); }
  uint32_t position(uint32_t agent) const;
  /// Transfers between workers.
  const std::shared_ptr<WorkerChannels>& channels() { return channels_; }
  /// The agent of this host that takes care of channels to and from other hosts.
  uint32_t channel_agent(uint32_t from, uint32_t to) const { return membership_.channel_agent(host_, from, to); }

 private:
  struct PostedRequest;
  struct AgentView;
  struct Table;

  std::shared_ptr<Table> table(uint32_t number);
  void notify_agent(uint32_t agent);
  /// Whether `done` becomes true within so many milliseconds.
  template <typename Done>
  bool wait_until(Done done, int milliseconds);
  bool is_completed(const Table& table, int handle);
  void write(Table& table, int handle, char* out);

  const Membership membership_;
  const uint32_t host_;
  const std::vector<uint32_t> agents_;  // of this host
  Memory block_;
  std::mutex mutex_;
  std::vector<Memory> blocks_;  // of the agents of this host, in order
  std::vector<int> doorbells_;
  std::map<uint32_t, std::shared_ptr<Table>> tables_;
  CompletionThread completions_;
  WorkerAllreduce allreduce_;
  const std::shared_ptr<WorkerChannels> channels_;  // shared with transfers
};

}  // namespace lane
