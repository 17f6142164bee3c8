// What workers and agents of one host share, and the rules by which they do.
//
// Two kinds of processes meet here.  A *agent* holds partitions of tables; it lives in a parameter server, or in a
// worker of a host that has no server.  A *worker* pushes and pulls rows.  All workers of a host map the memory of all
// its agents, and agents map that of the workers in whose tables, sums and transfers they have a part.
//
// Counters only ever grow, modulo 2^32: `reached` compares them, and nothing else depends on their values.  Each is
// written by one side, with release order after whatever it announces, and read by the other with acquire order.
//
// A process that is about to sleep says so (`asleep`, `sleepers`, `pull_waiting`, `reader_waiting`, `writer_waiting`)
// and then looks once more; the other side changes something and then looks whether anybody sleeps.  One of them has to
// see what the other stored, so all of them are sequentially consistent: a load with acquire order may be made before
// the store that precedes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "dtype.h"
#include "memory.h"

namespace lane {

/// A flag, or a number of things that are there: no counter.
using Flag = std::atomic<uint32_t>;
static_assert(Flag::is_always_lock_free, "flags in shared memory must be lock-free");

/// Sleep while `flag` has the value `seen`, at most so long.
void sleep_while(Flag& flag, uint32_t seen, int milliseconds);
/// Wake all that sleep on a flag.
void wake(Flag& flag);

// Tests begin just before the wrap, which nothing may depend on.
#ifndef LANE_FIRST_COUNT
#define LANE_FIRST_COUNT 0
#endif
/// The first value of each counter, a multiple of 8.
constexpr uint32_t kFirst = LANE_FIRST_COUNT;
static_assert(kFirst % 8 == 0, "elements in rings are aligned");

/// A counter modulo 2^32 in shared memory.  New memory, all zeros, reads as `kFirst`.
class Counter {
 public:
  uint32_t load(std::memory_order order = std::memory_order_seq_cst) const { return stored_.load(order) + kFirst; }
  void store(uint32_t value, std::memory_order order = std::memory_order_seq_cst) {
    stored_.store(value - kFirst, order);
  }
  /// Add 1, sequentially consistent.
  void add() { stored_.fetch_add(1); }
  /// Sleep while it has the value `seen`, at most so long.
  void sleep_while(uint32_t seen, int milliseconds) { lane::sleep_while(stored_, seen - kFirst, milliseconds); }
  /// Wake all that sleep.
  void wake() { lane::wake(stored_); }

 private:
  Flag stored_;
};

/// Counts the workers that have arrived in all rounds so far.  A round is complete at a multiple of the number of
/// workers, which need not divide 2^32; 2^64 is never reached.
using Arrivals = std::atomic<uint64_t>;
static_assert(Arrivals::is_always_lock_free, "counters in shared memory must be lock-free");

/// Count a worker; returns whether the round is complete.
inline bool completes_round(Arrivals& arrived, uint32_t workers) { return (arrived.fetch_add(1) + 1) % workers == 0; }

inline bool reached(uint32_t value, uint32_t target) { return static_cast<int32_t>(value - target) >= 0; }

/// Agents that one host may have; pulls of one table that one worker may have under way.
constexpr int kMaxLocalAgents = 16;
constexpr int kMaxRowRequests = 8;

/// The shape of a table, and who holds and who handles its partitions.
///
/// Row r is row r / P of partition r % P.  Of a host's agents, exactly one *handles* each partition: its owner, if that
/// is on this host, else the one that sends what this host's workers push on to the owner.
///
/// Workers wait for the agents that have a part in what they do, and for no others.  So an agent that handles no
/// partition of a table maps no worker's memory for it, and takes no rounds; an agent that handles no partition of
/// another host reads no row requests.
struct TableShape {
  uint64_t rows = 0;
  uint32_t width = 0;
  /// A float.
  Dtype dtype = Dtype::kFloat32;
  /// Whether rows, of float32, travel between hosts as float16.
  bool halves = false;
  /// By partition: the number of the agent that owns it.
  std::vector<uint32_t> owners;

  uint32_t partitions() const { return static_cast<uint32_t>(owners.size()); }
  uint64_t rows_of(uint32_t part) const { return (rows - part + partitions() - 1) / partitions(); }
  size_t row_bytes() const { return width * size_of(dtype); }
  /// Bytes of a row between hosts.
  size_t wire_row_bytes(bool uncached) const { return halves && !uncached ? width * sizeof(uint16_t) : row_bytes(); }
};

// ------------------------------------------------------------------------------------------------ an agent's memory

/// Kinds of messages between hosts, by which their bytes are counted, and one more: enum Message, see connection.h.
constexpr int kMessageKinds = 9;

/// Bytes that went to other hosts and came from them so far, by kind of message, as the connections carried them: with
/// all headers but those of TCP.  The agent writes, anybody reads.
struct Traffic {
  using Bytes = std::atomic<uint64_t>;
  static_assert(Bytes::is_always_lock_free, "counters in shared memory must be lock-free");

  Bytes sent[kMessageKinds], received[kMessageKinds];

  static void add(Bytes& bytes, uint64_t more) {
    bytes.store(bytes.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
};

/// One of each agent.
struct AgentBlock {
  /// 1 while the agent sleeps, or is about to: who has work for it has to ring its doorbell then.
  alignas(64) Flag asleep;
  alignas(64) Traffic traffic;
};

/// One of each agent and table.
struct AgentTable {
  /// Pushes that all partitions which this agent owns show.  Rows in `shards` change only between a worker's push and
  /// the moment at which this has reached its number of pushes: whoever waits for that can read them.
  alignas(64) Counter version;
  /// Pushes of this host's workers that this agent does not need to see again: they may write the next one.
  alignas(64) Counter consumed;
  /// Workers count themselves with each push: the one that makes a round complete rings.
  alignas(64) Arrivals arrived;
  /// 1 while a pull waits for room beside the cache: who gives a row request back has to ring then.
  alignas(64) Flag pull_waiting;
};

/// Where things are in the memory of an agent for a table.
struct AgentTableLayout {
  /// Rows of partitions that other hosts own, in slots, as of the pushes that all workers of this host have made.
  size_t cache = 0;
  /// The same, for rows that nobody else will ask for.
  size_t uncached = 0;
  /// By partition: its rows, if this agent owns it.
  std::vector<size_t> shards;
  size_t size = 0;

  AgentTableLayout(const TableShape& shape, uint32_t agent, const std::vector<uint8_t>& handled);
};

// ---------------------------------------------------------------------------------------------- a worker's memory

/// One of each worker.
struct WorkerBlock {
  /// Agents, and the worker's own threads, add 1 whenever something has happened that one of its threads may wait for.
  alignas(64) Counter doorbell;
  /// Threads of the worker that sleep on `doorbell`, or are about to.
  alignas(64) Flag sleepers;
  /// The worker adds 1 whenever it has given values of a dense sum.
  alignas(64) Counter allreduce_inputs;
  /// The worker adds 1 whenever agents have to look at its channels to and from other hosts, see channel.h.
  alignas(64) Counter channel_changes;
};

enum PullFlags : uint32_t {
  /// No rows: answered once all agents show the pushes that were asked for.
  kFence = 1,
  /// Rows are not rounded on their way, and nobody keeps them.
  kUncached = 2,
};

/// A pull of a worker.  It writes `version`, `flags`, bounds and local_ids, then adds 1 to `posted`. Agents write
/// slots, then the rows, then set `completed` to `posted`; from then on until the worker adds 1 to `released`, the rows
/// in those slots stay.
struct RowRequest {
  alignas(64) Counter posted;
  Counter released;
  uint32_t version;
  uint32_t flags;
  /// By agent of this host, in order.
  alignas(64) Counter completed[kMaxLocalAgents];
};

/// One of each worker and table.
struct WorkerTable {
  /// Pushes and pulls so far: agents look further where this has changed.
  alignas(64) Counter activity;
  /// Pushes so far.  What is pushed stays until all agents of the host have `consumed` it.
  alignas(64) Counter pushed;
  RowRequest requests[kMaxRowRequests];
};

/// Where things are in the memory of a worker for a table.  Rows are in order of partition and, in each, of local_id:
/// those of partition p are from bounds[p] to bounds[p + 1], which are uint32; local_ids are int32, rows of the
/// partition.
struct WorkerTableLayout {
  size_t push_bounds = 0, push_local_ids = 0, push_rows = 0;
  size_t request_bounds[kMaxRowRequests] = {}, request_local_ids[kMaxRowRequests] = {},
         request_slots[kMaxRowRequests] = {};
  size_t size = 0;

  explicit WorkerTableLayout(const TableShape& shape);
};

// ------------------------------------------------------------------------------------------------------ dense sums

/// One of each worker and sum; its values follow, which stay from the moment at which it adds 1 to `rounds` until the
/// result is there.
struct AllreduceInput {
  alignas(64) Counter rounds;
  std::atomic<int32_t> priority;
};

/// One of each host and sum; the result follows, which stays until all workers have given again.
struct AllreduceOutput {
  /// Results so far.
  alignas(64) Counter rounds;
  /// Workers of the host count themselves when they give: the one that makes a round complete rings.
  alignas(64) Arrivals arrived;
};

/// Where values begin in the memory of either.
constexpr size_t kAllreduceData = 128;
static_assert(sizeof(AllreduceInput) <= kAllreduceData && sizeof(AllreduceOutput) <= kAllreduceData,
              "values come after it");

// --------------------------------------------------------------------------------------------------------- waiting

/// How long threads sleep at most: should a ring ever be missed, training would be slow, and not hang.  Tests find
/// missed rings, and so have it long.
#ifndef LANE_FALLBACK_MS
#define LANE_FALLBACK_MS 1000
#endif
constexpr int kFallbackMs = LANE_FALLBACK_MS;

/// Tell a worker that something has happened.
void notify(WorkerBlock& worker);

}  // namespace lane
