// The memory that workers and agents of one host share, and the rules for it.
//
// There are two kinds of processes.  A *host agent* ("agent" for short) holds partitions of tables and lives in a
// parameter server.  A *worker* pushes and pulls rows.  Every worker of a host maps the memory of all agents of the
// host.  An agent maps the memory of a worker for the tables, allreduces and channels that it handles.
//
// Counters only grow, modulo 2^32.  They are compared with `reached`; nothing else depends on their values.  Each
// counter is written by one side, with release order, after the data that it announces, and read by the other side with
// acquire order.
//
// Sleeping follows one protocol.  A process that is about to sleep first sets its flag (`asleep`, `sleepers`,
// `pull_waiting`, `reader_waiting` or `writer_waiting`) and then checks its condition once more.  The other side first
// changes the condition and then reads the flag.  At least one of them must see the store of the other, so these
// accesses are sequentially consistent: a load with acquire order could be executed before the store that precedes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "kernels/int8.h"
#include "memory/memory.h"

namespace lane {

/// A flag or a current number, unlike a Counter.
using Flag = std::atomic<uint32_t>;
static_assert(Flag::is_always_lock_free, "flags in shared memory must be lock-free");

/// Sleep while `flag` has the value `seen`, for at most `milliseconds`.
void sleep_while(Flag& flag, uint32_t seen, int milliseconds);
/// Wake all threads that sleep on a flag.
void wake(Flag& flag);

// Tests let counters begin just before they wrap, since nothing may depend on their values.
#ifndef LANE_FIRST_COUNT
#define LANE_FIRST_COUNT 0
#endif
/// The first value of every counter, a multiple of 8.
constexpr uint32_t kFirst = LANE_FIRST_COUNT;
static_assert(kFirst % 8 == 0, "elements in rings are aligned");

/// A counter modulo 2^32 in shared memory.  In new memory, which is all zeros, it reads as `kFirst`.
class Counter {
 public:
  uint32_t load(std::memory_order order = std::memory_order_seq_cst) const { return stored_.load(order) + kFirst; }
  void store(uint32_t value, std::memory_order order = std::memory_order_seq_cst) {
    stored_.store(value - kFirst, order);
  }
  /// Add 1, with sequential consistency.
  void add() { stored_.fetch_add(1); }
  /// Sleep while the counter has the value `seen`, for at most `milliseconds`.
  void sleep_while(uint32_t seen, int milliseconds) { lane::sleep_while(stored_, seen - kFirst, milliseconds); }
  /// Wake all threads that sleep on the counter.
  void wake() { lane::wake(stored_); }

 private:
  Flag stored_;
};

/// The number of arrivals of workers in all rounds so far.  A round is complete at each multiple of the number of
/// workers.  That number need not divide 2^32, so the counter has 64 bits and never wraps.
using Arrivals = std::atomic<uint64_t>;
static_assert(Arrivals::is_always_lock_free, "counters in shared memory must be lock-free");

/// Count the arrival of a worker; return whether it completes the round.
inline bool completes_round(Arrivals& arrived, uint32_t workers) { return (arrived.fetch_add(1) + 1) % workers == 0; }

/// Return whether a counter has reached a target; the two are less than 2^31 apart.
inline bool reached(uint32_t value, uint32_t target) { return static_cast<int32_t>(value - target) >= 0; }

/// The most agents of one host.
constexpr int kMaxLocalAgents = 16;
/// The most row requests of one worker for one table at a time.
constexpr int kMaxRowRequests = 8;
/// Return the number of slots in the cache of a table where all rows are requested, for `workers` workers: in the regions
/// of key_cache.h, each of which has room for a request.
inline uint64_t cache_slots(uint64_t max_batch_rows, uint32_t workers) {
  return (uint64_t{kMaxRowRequests} * workers + 1) * max_batch_rows;
}
/// The largest staleness of a table.
constexpr uint32_t kMaxStaleness = 16;

/// The form in which rows, of float32 unless they are exact, travel between hosts.
enum class RowFormat : uint32_t {
  kExact,
  kFloat16,
  /// int8 with a scale for each row, see int8.h.  Pushed rows are rounded at random, pulled rows to nearest.
  kInt8,
  /// The same for a table of sums of gradients: pulled rows are rounded at random, too.
  kInt8Sums,
};

/// The shape of a table, and the owners of its partitions.
///
/// With P partitions, row r is row r / P of partition r % P; r / P is its *local id*.  On every host exactly one agent
/// *handles* each partition: the owner, if it is on this host; otherwise the agent that forwards pushes of this host's
/// workers to the owner, and pulls rows from it.
///
/// Workers wait only for agents that take part in their operation.  Therefore an agent that handles no partition of a
/// table maps no worker's memory for it and takes no rounds of it, and an agent that handles no partition of another
/// host's agents reads no row requests of a table.  Rows of a dynamic table are always requested.
///
/// A dynamic table has rows for int64 keys that were pushed, and only their owners hold rows.  `rows` is 0.
/// `partition_of` in row_store.h gives the partition of a key; a key has no local id.  Where a table has the local ids
/// of rows, a dynamic table has their keys.
///
/// With a `staleness` of k, a pull may return rows that lack the last k rounds, but never rows that lack a push of the
/// worker that pulls them.  A request therefore has its rows in k + 1 groups: the rows of group g must include all but
/// the last k - g of the worker's pushes.  The rows of such a table are always requested, too, because the rows of its
/// partitions may change at any time.
struct TableShape {
  uint64_t rows = 0;
  uint32_t width = 0;
  /// A floating-point type.
  Dtype dtype = Dtype::kFloat32;
  RowFormat format = RowFormat::kExact;
  /// The number of the agent that owns each partition.
  std::vector<uint32_t> owners;
  bool dynamic = false;
  /// The most rows of a worker in one push or request of a dynamic table; 0 for other tables.
  uint32_t max_batch_rows = 0;
  uint32_t staleness = 0;

  uint32_t partitions() const { return static_cast<uint32_t>(owners.size()); }
  /// Whether workers request all rows, and read none in place.
  bool requested() const { return dynamic || staleness > 0; }
  /// The number of groups of rows in a request.
  uint32_t groups() const { return staleness + 1; }
  /// The most rows of a worker in one push or request.
  uint64_t max_rows() const { return dynamic ? max_batch_rows : rows; }
  /// The most rows that `workers` workers together push to a partition, or that one of them requests from it.
  uint64_t max_rows_of(uint32_t part, uint32_t workers) const {
    return dynamic ? uint64_t{max_batch_rows} * workers : rows_of(part);
  }
  /// Bytes of a local id or of a key.
  size_t id_bytes() const { return dynamic ? sizeof(int64_t) : sizeof(int32_t); }
  uint64_t rows_of(uint32_t part) const { return (rows - part + partitions() - 1) / partitions(); }
  size_t row_bytes() const { return width * size_of(dtype); }
  /// Return whether rows are rounded between hosts, unless they are to be `exact`.
  bool rounds(bool exact) const { return format != RowFormat::kExact && !exact; }
  /// Bytes of a row between hosts.
  size_t wire_row_bytes(bool exact) const {
    if (!rounds(exact)) return row_bytes();
    return format == RowFormat::kFloat16 ? width * sizeof(uint16_t) : int8_row_bytes(width);
  }
};

// ------------------------------------------------------------------------------------------------ an agent's memory

/// The size of arrays that are indexed by kind of message, see enum Message in connection.h; index 0 is unused.
constexpr int kMessageKinds = 9;

/// Bytes that were sent to other hosts and received from them so far, by kind of message.  They include all headers
/// except those of TCP.  Only the agent writes them; any process reads them.
struct Traffic {
  using Bytes = std::atomic<uint64_t>;
  static_assert(Bytes::is_always_lock_free, "counters in shared memory must be lock-free");

  Bytes sent[kMessageKinds], received[kMessageKinds];

  uint64_t total_received() const {
    uint64_t total = 0;
    for (const Bytes& bytes : received) total += bytes.load(std::memory_order_relaxed);
    return total;
  }
  static void add(Bytes& bytes, uint64_t more) {
    bytes.store(bytes.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
};

/// The block of an agent.
struct AgentBlock {
  /// Set to 1 by the agent before it sleeps; a worker that then has work for the agent must ring its doorbell.
  alignas(64) Flag asleep;
  alignas(64) Traffic traffic;
};

/// Rows of a dynamic table that requests of a host's workers have asked an agent for so far, and those of them that were
/// in the agent's cache, or under way there for an earlier request.  Only the agent writes them.
struct CacheCounts {
  std::atomic<uint64_t> requested, cached;

  void add(uint64_t more_requested, uint64_t more_cached) {
    requested.store(requested.load(std::memory_order_relaxed) + more_requested, std::memory_order_relaxed);
    cached.store(cached.load(std::memory_order_relaxed) + more_cached, std::memory_order_relaxed);
  }
};

/// The head of the memory of an agent for a table.
struct AgentTable {
  /// The number of pushes that were applied to all partitions that this agent owns.  Rows in `shards` change only
  /// between a push of a worker and the moment at which `version` reaches the worker's number of pushes: a worker that
  /// has waited for that can read them.
  alignas(64) Counter version;
  /// The number of pushes of this host's workers that this agent no longer reads: workers may then overwrite them with
  /// the next one.
  alignas(64) Counter consumed;
  /// The workers that have pushed.  The worker that completes a round notifies the agent.
  alignas(64) Arrivals arrived;
  /// Set to 1 by the agent while an uncached pull waits for room; a worker that releases a row request then notifies
  /// the agent.
  alignas(64) Flag pull_waiting;
  alignas(64) CacheCounts cache_counts;
  /// The number of rows that workers of this host got by requests, by their lag: the pushes that the worker had made
  /// when it used them and that they may lack.  For tables with staleness.
  alignas(64) std::atomic<uint64_t> lags[kMaxStaleness + 1];
};

/// Offsets in the memory of an agent for a table.
struct AgentTableLayout {
  /// The cache: slots with rows of remote partitions, as of the pushes that all workers of this host have made.  Where
  /// all rows are requested: of all partitions that the agent handles, in regions, see key_cache.h.
  size_t cache = 0;
  /// Slots of uncached pulls, which no other request reads.  Where all rows are requested they are slots of the cache.
  size_t uncached = 0;
  /// The rows of each partition that this agent owns, except in a dynamic table.
  std::vector<size_t> shards;
  size_t size = 0;

  /// `workers` is the number of workers of the host.
  AgentTableLayout(const TableShape& shape, uint32_t agent, const std::vector<uint8_t>& handled, uint32_t workers);
};

// ---------------------------------------------------------------------------------------------- a worker's memory

/// The block of a worker.
struct WorkerBlock {
  /// Agents, other workers and the worker's own threads add 1 after every event that a thread of the worker may wait
  /// for.
  alignas(64) Counter doorbell;
  /// The number of threads of the worker that sleep on `doorbell` or are about to.
  alignas(64) Flag sleepers;
  /// The worker adds 1 after it has written the input of an allreduce; if all workers are on one host, after it has
  /// written the output of one.
  alignas(64) Counter allreduce_inputs;
  /// The worker adds 1 after every change of a channel to or from another host, see channel.h.
  alignas(64) Counter channel_changes;
};

enum PullFlags : uint32_t {
  /// A request without rows, which is completed once all agents have applied the pushes up to its version.
  kFence = 1,
  /// Rows are not rounded on the wire, and are not cached.
  kUncached = 2,
};

enum PushFlags : uint32_t {
  /// Rows are not rounded on the wire: they are weights or optimizer state.
  kExactRows = 1,
};

/// A request of a worker for rows.
///
/// The worker writes `version`, `flags`, bounds and ids, and then adds 1 to `posted`.  An agent writes the slots,
/// then the rows, and then sets its `completed` to `posted`.  From then on the rows in these slots stay, until the
/// worker sets `released` to `posted`.
struct RowRequest {
  alignas(64) Counter posted;
  Counter released;
  /// The number of pushes that the rows must include; with staleness, those of the last group.
  uint32_t version;
  uint32_t flags;
  /// The number of pushes that the worker will have made when it uses the rows.
  uint32_t used_at;
  /// One counter for each agent of this host, in order.
  alignas(64) Counter completed[kMaxLocalAgents];
};

/// The head of the memory of a worker for a table.
struct WorkerTable {
  /// The number of pushes and row requests so far.  Agents look for new ones when it has changed.
  alignas(64) Counter activity;
  /// The number of pushes so far.  The rows of a push stay until all agents of the host have `consumed` them.
  alignas(64) Counter pushed;
  /// The PushFlags of the last push, the same on all workers; written before `pushed`.
  uint32_t push_flags;
  RowRequest requests[kMaxRowRequests];
};

/// Offsets in the memory of a worker for a table.  Rows stand in the order of their partitions and, within a partition,
/// of their ids: those of partition p are at bounds[p] to bounds[p + 1] - 1.  Bounds are uint32, ids are local ids
/// (int32) or keys (int64).  A request has the rows of each group in this order, one group after the other: group g has
/// the bounds from position g * partitions on.
struct WorkerTableLayout {
  size_t push_bounds = 0, push_ids = 0, push_rows = 0;
  size_t request_bounds[kMaxRowRequests] = {}, request_ids[kMaxRowRequests] = {},
         request_slots[kMaxRowRequests] = {};
  size_t size = 0;

  explicit WorkerTableLayout(const TableShape& shape);
};

// ------------------------------------------------------------------------------------------------------ allreduce

// If the job has several hosts, the agent of a host adds up the inputs of its workers.  If all workers are on one host,
// they need no agent for that: the last worker whose input is complete writes the output, and the agent only tells the
// others.  All inputs are then in the memory of the output, see AllreduceLayout.

/// The head of a worker's input of an allreduce.  Among several hosts the values follow it; they stay from the moment at
/// which the worker adds 1 to `rounds` until the result is complete.
struct AllreduceInput {
  alignas(64) Counter rounds;
  std::atomic<int32_t> priority;
  /// The kind of the round, the same on all workers, an AllreduceKind; written before `rounds`.
  std::atomic<uint32_t> kind;
};

/// Kinds of rounds of an allreduce.
enum class AllreduceKind : uint32_t {
  /// Every worker gets the sum of all inputs.
  kSum,
  /// A reduce-scatter: the workers of a host get the sums of the chunks that belong to their host.
  kScatter,
  /// An allgather: every worker gets the range of each worker from that worker's input.  It needs ranges.
  kGather,
};

/// The head of a host's output of an allreduce.  The result follows it; it stays until all workers of the host have
/// given the input of the next round.
struct AllreduceOutput {
  /// The number of results so far.  If all workers are on one host, the worker that completes a round writes it.
  alignas(64) Counter rounds;
  /// For an allreduce that travels as int8: the sums of squares of the values that this host quantized in the last round,
  /// and of the residuals that were left over; written before `rounds`.
  std::atomic<double> value_squares, residual_squares;
  /// The workers of the host that have given their inputs.  The worker that completes a round notifies the agent, or,
  /// if all workers are on one host, writes the output: only this worker, and only then.
  alignas(64) Arrivals arrived;
};

/// The offset of the values in an input or output.
constexpr size_t kAllreduceData = 128;
static_assert(sizeof(AllreduceInput) <= kAllreduceData && sizeof(AllreduceOutput) <= kAllreduceData,
              "values come after it");

/// Offsets in the memory of an output, which begins with an AllreduceOutput, if all workers are on one host.
struct AllreduceLayout {
  /// The values of each worker; they stay from the worker's arrival until the result is complete.
  std::vector<size_t> inputs;
  /// The ends of the ranges of all workers, uint64; zeros if workers own no ranges.
  size_t ends = 0;
  size_t size = 0;

  /// `bytes` is the size of an input.
  AllreduceLayout(size_t bytes, uint32_t workers);
};

// --------------------------------------------------------------------------------------------------------- waiting

/// The longest sleep of a thread: if a wake-up were ever lost, training would be slow, but would not hang.  Tests set a
/// long one, so that a lost wake-up fails them.
#ifndef LANE_FALLBACK_MS
#define LANE_FALLBACK_MS 1000
#endif
constexpr int kFallbackMs = LANE_FALLBACK_MS;

/// Ring the doorbell of a worker: wake its threads, which check their conditions.
void notify(WorkerBlock& worker);

}  // namespace lane
