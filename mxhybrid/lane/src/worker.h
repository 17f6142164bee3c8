// A worker: pushes and pulls rows through memory that it shares with the agents of its host.
//
// A function that may wait takes a time limit in milliseconds and returns whether it is done, so that callers can check
// for signals between calls.
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

/// Values of a table that do not fit into float16.
enum Overflow : uint32_t {
  /// A pushed row is finite, but becomes infinite as float16.
  kPushedOverflow = 1,
  /// A pulled row is not finite.
  kPulledOverflow = 2,
};

class Worker {
 public:
  Worker(Membership membership, uint32_t host);
  ~Worker();

  /// The memory of the WorkerBlock, for agents to map.
  const Memory& block() const { return block_; }
  /// Add an agent of this host: its doorbell, which is taken over, and the memory of its AgentBlock.
  void add_agent(uint32_t agent, int doorbell, int descriptor);
  /// Add a table; return the memory for agents to map, which has the layout WorkerTableLayout.
  int add_table(uint32_t number, const TableShape& shape);
  /// Map the memory of an agent of this host for a table, which has the layout AgentTableLayout.
  void attach(uint32_t number, uint32_t agent, int descriptor);
  /// Return the type of the elements of a table.
  Dtype dtype(uint32_t number);
  /// Drop a table, of which no operation is under way.
  void drop_table(uint32_t number);

  /// Push rows, of shape (count, width), of sorted unique ids.  All workers push, each from one thread at a time.  The
  /// push is done once the rows are copied.
  bool push(uint32_t number, const int64_t* ids, uint32_t count, const char* rows, int milliseconds);
  /// Post a request for rows of sorted unique ids, which are to include all pushes so far.  Returns the handle of the
  /// request, or -1 while all requests of the table are in use.  Call `wait` next, or `deliver` if `delivered` is true.
  int post(uint32_t number, const int64_t* ids, uint32_t count, uint32_t flags, bool delivered = false);
  /// Wait for a request, write its rows, of shape (count, width), to `out`, and release the request.
  bool wait(uint32_t number, int handle, char* out, int milliseconds);
  /// Do the same in the completion thread, which then calls `complete`.
  void deliver(uint32_t number, int handle, char* out, const OnComplete& complete);
  /// Return the flags of Overflow that were found since the last call, for a table whose rows travel as float16.
  uint32_t overflows(uint32_t number);
  /// Wait until the rows of all requests are delivered.
  bool wait_for_deliveries(uint32_t number, int milliseconds);

  /// Add the bytes between this host and others so far, by kind of message, to `sent` and `received`.
  void add_traffic(uint64_t* sent, uint64_t* received) const;

  /// Allreduces of dense arrays.
  WorkerAllreduce& allreduce() { return allreduce_; }
  /// Return the agent of this host that handles an allreduce, and the position of an agent among those of this host.
  uint32_t allreduce_agent(uint64_t number) const { return membership_.allreduce_agent(host_, number); }
  uint32_t position(uint32_t agent) const;
  /// Channels to and from other workers.
  const std::shared_ptr<WorkerChannels>& channels() { return channels_; }
  /// Return the agent of this host that relays a channel to or from another host.
  uint32_t channel_agent(uint32_t from, uint32_t to) const { return membership_.channel_agent(host_, from, to); }

 private:
  struct PostedRequest;
  struct AgentView;
  struct Table;

  std::shared_ptr<Table> table(uint32_t number);
  void notify_agent(uint32_t agent);
  /// Return whether `done` becomes true within `milliseconds`.
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
