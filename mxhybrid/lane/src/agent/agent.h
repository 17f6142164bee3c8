// A host agent: holds partitions of tables in memory that the workers of its host map.  It sums the rows that these
// workers push, updates its own partitions, forwards sums for other partitions to the agents that own them, and caches
// rows of those agents for all workers of its host.
//
// An agent lives in a parameter server, and has the server's number.
//
// One thread serves.  While it does, any other thread may call any function of Agent.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/agent_allreduce.h"
#include "agent/channel_relay.h"
#include "agent/request_view.h"
#include "kernels/update.h"
#include "memory/membership.h"
#include "memory/rows.h"
#include "network/connection.h"
#include "network/receive_windows.h"
#include "store/row_store.h"

namespace lane {

class Agent {
 public:
  /// Updates rows of a partition whose rule is RuleKind::kCallback.  The thread that serves calls it, so that all other
  /// work waits.
  using Callback = std::function<void(uint32_t table, uint32_t part, const RowList& gradient)>;
  /// Called after an update with: table, partition, begin and end in nanoseconds of the monotonic clock, number of
  /// rows.
  using Observer = std::function<void(uint32_t, uint32_t, int64_t, int64_t, uint32_t)>;
  /// Called with the reason when the agent can serve no more.
  using Failed = std::function<void(const std::string& why)>;

  Agent(uint32_t number, Membership membership, Callback callback, Failed failed);
  ~Agent();

  /// For workers: the doorbell, an eventfd that they ring, and the memory of the AgentBlock.
  int doorbell() const { return doorbell_; }
  const Memory& block() const { return block_; }

  /// Take over the connection with another agent.
  void connect(uint32_t peer, int socket);
  /// Map the WorkerBlock of a worker of this host, by its local number.
  void add_worker(uint32_t worker, int descriptor);
  /// Add a table, before any worker attaches to it.
  void add_table(uint32_t number, const TableShape& shape);
  /// Add a dynamic table; each partition that this agent owns gets a row store with `options`, and `name` is for errors
  /// of the stores.
  void add_dynamic_table(uint32_t number, const TableShape& shape, const std::string& name,
                         const RowStoreOptions& options);
  /// Return a descriptor of the memory of a table, which has the layout AgentTableLayout; the caller closes it.  Called
  /// once for each worker of the host; then the agent closes its own.
  int share_table(uint32_t number);
  /// Map the memory of a worker for a table, which has the layout WorkerTableLayout, if this agent handles any
  /// partition of the table.
  void attach(uint32_t number, uint32_t worker, int descriptor);
  /// Drop a table that no process uses any more.
  void drop_table(uint32_t number);

  /// See AgentAllreduce.
  int open_allreduce(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor,
                     const std::vector<uint64_t>& ends = {}, bool quantized = false);
  void drop_allreduce(uint64_t number);
  /// See ChannelRelay.
  void open_channel(uint32_t worker, bool outgoing, uint32_t from, uint32_t to, uint32_t other, int descriptor);

  /// Return the rows of a partition that this agent owns.
  char* shard(uint32_t number, uint32_t part);
  /// Call a function with the row store of a partition of a dynamic table that this agent owns.  During the call, the
  /// agent does no other work.
  void with_store(uint32_t number, uint32_t part, const std::function<void(RowStore&)>& use);
  /// Set the rule for pushes to a partition from now on.
  void set_rule(uint32_t number, uint32_t part, const Rule& rule);
  /// Set the memory of optimizer state number `slot`, rows of `row_bytes` bytes, which stays.
  void set_state(uint32_t number, uint32_t part, uint32_t slot, char* rows, size_t row_bytes);
  /// Set the number of updates of a partition so far.
  void set_updates(uint32_t number, uint32_t part, uint64_t count);

  /// Observe every update; called before `start`.
  void observe(Observer observer) { observer_ = std::move(observer); }
  void start();
  /// Serve once, in the caller's thread instead of one of its own; wait up to `milliseconds` for work.  Returns false
  /// once the agent has ended.  Throws the error that `failed` would be called with.
  bool run_once(int milliseconds);
  /// End, and tell the other agents so.  Returns whether that was done within `milliseconds`.
  bool close(int milliseconds);
  /// Describe the work that keeps the agent from ending.
  std::string pending_work();

 private:
  struct Pushed;        // rows that another host pushed
  struct Part;          // a partition as this agent sees it
  struct WorkerView;    // the memory that a worker of this host shares for a table
  struct RemoteOwner;   // another agent that owns partitions of a table
  struct OutgoingPull;  // a pull that this agent has sent to another one
  struct IncomingPull;  // a pull that another agent has sent
  struct LocalRequest;  // a row request of a worker of this host
  struct Table;
  struct Peer;

  std::shared_ptr<Table> new_table(uint32_t number, const TableShape& shape);
  void serve();
  void send_bye();
  void receive(Peer& peer);
  void adapt_to_link();  // receive windows and thresholds of wake-ups, by the rate
  bool progress();
  bool progress(Table& table);
  bool has_work();
  void collect_requests(Table& table);
  bool too_many_pulls(Table& table, uint32_t peer);
  bool start_requests(Table& table);
  bool start_request(Table& table, const LocalRequest& waiting);  // false if the request waits for room
  template <typename Id>
  void start_keyed_request(Table& table, const LocalRequest& waiting);
  bool reserve_uncached(Table& table, const RequestView<int32_t>& request, const LocalRequest& local);
  void pull_uncached(Table& table, const RequestView<int32_t>::Piece& piece);
  void pull_missing(Table& table, const RequestView<int32_t>::Piece& piece);
  template <typename Id>
  uint32_t pull_missing_keys(Table& table, const RequestView<Id>& request,
                             const typename RequestView<Id>::Piece& piece, LocalRequest& local);
  std::vector<uint64_t> send_fences(Table& table, uint32_t version, uint32_t used_at);
  bool complete_requests(Table& table);
  bool round_is_complete(const Table& table) const;
  void accept_round(Table& table);
  void clear_cache(Table& table);
  template <typename Id>
  void forward_push(Table& table, uint32_t part);
  void update(Table& table, uint32_t part);
  template <typename Id>
  void update_with(Table& table, uint32_t part);
  uint32_t apply(Table& table, uint32_t part, const std::vector<RowList>& lists);
  uint32_t apply(Table& table, uint32_t part, const std::vector<KeyedRowList>& lists);
  uint32_t apply_to_store(Table& table, uint32_t part, const std::vector<KeyedRowList>& lists);
  void answer_pulls(Table& table);
  void answer_own_pull(Table& table, const IncomingPull& pull);
  void read_rows(const Table& table, const IncomingPull& pull, char* rows);
  void send_pull(Table& table, uint32_t part, uint32_t version, uint8_t flags, const void* ids, uint32_t count,
                 char* to, uint32_t used_at, uint64_t mark = 0);
  void note_version(Table& table, uint64_t number, const OutgoingPull& pull);
  bool publish(Table& table);
  void notify_workers();
  const std::shared_ptr<Table>& shared_table(uint32_t number);
  Table& table(uint32_t number);
  Part& owned_part(uint32_t number, uint32_t part);
  Peer& peer(uint32_t number);

  const uint32_t number_, host_;
  const Membership membership_;
  const uint32_t local_;  // this agent's position among those of its host
  const Callback callback_;
  const Failed failed_;
  Observer observer_;

  std::mutex mutex_;
  Memory block_;
  int doorbell_ = -1, epoll_ = -1;
  std::vector<Memory> workers_;  // WorkerBlocks
  std::map<uint32_t, std::shared_ptr<Table>> tables_;
  AgentAllreduce allreduce_;
  ChannelRelay relay_;
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
  ReceiveRate receive_rate_;
  uint64_t pulls_sent_ = 0;
  std::atomic<bool> closing_{false};
  bool bye_sent_ = false;
  bool memory_freed_ = false;  // whether a message no longer reads memory of workers
  std::thread thread_;
  Flag ended_{0};  // 1 once the thread has ended its work
};

}  // namespace lane
