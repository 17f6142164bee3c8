// A worker: pushes and pulls rows through memory that it shares with the agents of its host.
//
// A function that may wait takes a time limit in milliseconds and returns whether it is done, so that callers can check
// for signals between calls.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "dense/worker_allreduce.h"
#include "dense/worker_transfers.h"
#include "memory/membership.h"
#include "memory/rows.h"
#include "worker/keyed_rows.h"

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
  struct Deliveries;

  /// `local` is the number of the worker among those of its host.
  Worker(Membership membership, uint32_t host, uint32_t local);
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

  /// Push rows to tables, one after another, once the rows of all their requests are delivered; return the number of
  /// tables that were pushed to.  Rows with the same id are summed.  All workers push, each from one thread at a time.
  /// A push is done once the rows are copied.
  uint32_t push(const TableRows* pushes, uint32_t tables, int milliseconds);
  /// Push rows, of shape (count, width), of sorted unique ids to one table, and wait for no delivery.  `flags` are
  /// PushFlags.
  bool push(uint32_t number, const int64_t* ids, uint32_t count, const char* rows, int milliseconds,
            uint32_t flags = 0);
  /// Post a request for rows of sorted unique ids, which are to include all pushes so far; rows without pushes of this
  /// worker may lack the last `staleness` pushes, which is at most the staleness of the table.  The worker will use the
  /// rows after `ahead` more pushes.  Returns the handle of the request, or -1 while all requests of the table are in
  /// use.  Call `wait` next, or `deliver` if `delivered` is true.
  int post(uint32_t number, const int64_t* ids, uint32_t count, uint32_t flags, bool delivered = false,
           uint32_t staleness = 0, uint32_t ahead = 0);
  /// Post a request of each table whose entry of `handles` is negative, for `deliver`, and write its handle there;
  /// `stalenesses` has the staleness of each request.  Return whether all requests are posted; otherwise all requests of
  /// a table are in use.
  bool post(const TableRows* requests, const uint32_t* stalenesses, uint32_t tables, int* handles);
  /// Give up requests that were posted, since a later call has failed; those with a negative handle were not.
  void abandon(const TableRows* requests, uint32_t tables, const int* handles);
  void abandon(uint32_t number, int handle);
  /// Wait for a request, write its rows, of shape (count, width), to `out`, and release the request.
  bool wait(uint32_t number, int handle, char* out, int milliseconds);
  /// Do the same for requests of several tables in the completion thread, which writes the row of its id to each row,
  /// and then calls `complete`.
  void deliver(std::unique_ptr<Deliveries> deliveries, const OnComplete& complete);
  /// Write the number of rows that agents got by requests of this host's workers, by their lag, to `lags`, which has
  /// kMaxStaleness + 1 elements.
  void read_lags(uint32_t number, uint64_t* lags);
  /// Return the flags of Overflow that were found since the last call, for a table whose rows travel as float16.
  uint32_t overflows(uint32_t number);
  /// Wait until the rows of all requests are delivered.
  bool wait_for_deliveries(uint32_t number, int milliseconds);

  /// Write the bytes between this host and others so far, by kind of message, to `sent` and `received`.
  void read_traffic(uint64_t* sent, uint64_t* received) const;

  /// Write the sums of the CacheCounts of this host for a dynamic table: `requested`, and `cached`.
  void read_cache_counts(uint32_t number, uint64_t* counts);

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
  class Doorbells;

  std::shared_ptr<Table> table(uint32_t number);
  void notify_agent(uint32_t agent);
  /// Return whether `done` becomes true within `milliseconds`.
  template <typename Done>
  bool wait_until(Done done, int milliseconds);
  bool may_push(const Table& table, bool after_deliveries);
  void write_push(Table& table, const TableRows& push, uint32_t flags);
  void announce_push(Table& table, Doorbells& doorbells);
  int post(Table& table, const int64_t* ids, uint32_t count, uint32_t flags, bool delivered, uint32_t staleness,
           uint32_t ahead, Doorbells& doorbells);
  void split_request(Table& table, int handle, const int64_t* ids, uint32_t count, uint32_t staleness);
  bool is_completed(const Table& table, int handle);
  bool is_delivered(const Table& table);
  template <typename Write>
  void each_row(Table& table, int handle, Write write);
  void write(Table& table, int handle, char* out);
  void write(Table& table, int handle, const TableRows& rows);
  void free_rows(Table& table, int handle);
  void release(Table& table, int handle);

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

/// Requests of several tables that the completion thread delivers together.
struct Worker::Deliveries {
  /// Copies the positions and segments of `rows`; `handles` are those of posted requests.
  Deliveries(Worker& worker, const TableRows* rows, uint32_t tables, const int* handles);

  Worker& worker;
  std::vector<TableRows> rows;
  std::vector<int> handles;

 private:
  friend class Worker;
  bool write_completed();

  std::vector<std::shared_ptr<Table>> tables_;
  std::vector<std::vector<int32_t>> positions_;
  std::vector<std::vector<int64_t>> bounds_;
  std::vector<std::vector<char>> factors_;
  std::vector<uint32_t> left_;  // requests that are not written yet
};

}  // namespace lane
