// The state of an agent, for the files that make up Agent: tables, views of workers, connections with other agents.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "agent/key_cache.h"
#include "agent/request_view.h"
#include "store/row_store.h"

namespace lane {

/// Return the time of the monotonic clock in nanoseconds.
inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The most pushes of a host to a partition that wait at the owner for pushes of other hosts; the staleness of the table
/// is added.  The host sends no further push before it knows that the owner has applied some of these.  So the slowest
/// host sets the pace, and queues stay short.
constexpr uint32_t kMaxPushesAhead = 4;
/// Marks the number of a pull by which an agent asks an owner for its version.  No worker waits for the answer, and its
/// number is larger than those of all other pulls of the table.
constexpr uint64_t kProgressQuery = uint64_t(1) << 63;

struct Agent::Pushed {
  uint32_t count = 0;
  Buffer ids, rows;

  template <typename Id>
  RowListOf<Id> list() const {
    return {ids.as<Id>(), rows.data(), count};
  }
};

struct Agent::RemoteOwner {
  uint32_t part;              // one of its partitions
  uint32_t version = kFirst;  // pushes that it has applied to all its partitions, as far as known
  bool is_queried = false;    // for its version
};

struct Agent::Part {
  uint32_t owner;
  bool is_owned = false, handled = false;

  // If this agent owns the partition.
  char* shard = nullptr;
  /// The rows and optimizer state, instead of `shard` and `state`, of a partition of a dynamic table.
  std::unique_ptr<RowStore> store;
  Rule rule;
  char* state[2] = {nullptr, nullptr};
  size_t state_bytes[2] = {0, 0};
  uint32_t version = kFirst;  // pushes that were applied
  uint64_t updates = 0;
  /// The pushes of each host that were not applied yet.  The entry of this host stays empty, except in a table with
  /// staleness: there the workers of this host may push again before the push before is applied.
  std::vector<std::deque<Pushed>> pushes;

  // If this agent handles the partition for its owner.
  uint64_t first_slot = 0;  // the position of its rows in Table::slots

  bool is_remote() const { return handled && !is_owned; }
};

struct Agent::WorkerView {
  Memory memory;
  WorkerTable* shared = nullptr;
  uint32_t activity = kFirst;
  /// RowRequest::posted of each request; empty if this agent serves no requests, see TableShape.
  std::vector<uint32_t> posted;
  /// Where all rows are requested: the region of the cache from which each request takes its slots; kNoRegion for none.
  std::vector<uint32_t> regions;
  static constexpr uint32_t kNoRegion = UINT32_MAX;
};

struct Agent::OutgoingPull {
  uint32_t peer, part, version, count;
  uint8_t flags;
  char* to;
  Buffer rounded;  // rows that arrive rounded
  uint32_t used_at;  // RowRequest::used_at
};

/// A pull of another agent or, where all rows are requested, of this agent from its own partition, for workers of its
/// host.
struct Agent::IncomingPull {
  uint32_t peer, part, version, count;
  uint8_t flags;
  uint64_t number;
  Buffer ids;
};

struct Agent::LocalRequest {
  uint32_t worker, request;
  uint32_t posted;         // its RowRequest::posted
  uint64_t last_pull = 0;  // the last pull whose answer it needs
  /// Where all rows are requested: instead, all pulls whose answers it needs.  It must not wait for others: they may
  /// need a push that its worker makes after it has got these rows.
  std::vector<uint64_t> pulls = {};
};

struct Agent::Table {
  Table(uint32_t number, const TableShape& shape, uint32_t agent, const std::vector<uint8_t>& handled,
        uint32_t workers)
      : number(number),
        shape(shape),
        layout(shape, agent, handled, workers),
        worker_layout(shape),
        memory(layout.size),
        shared(memory.at<AgentTable>(0)),
        merger(shape.dtype, shape.width) {}

  const uint32_t number;
  const TableShape shape;
  const AgentTableLayout layout;
  const WorkerTableLayout worker_layout;
  Memory memory;
  AgentTable* const shared;
  Merger merger;
  std::vector<Part> parts;
  /// One for each worker of this host; empty if this agent handles no partition, see TableShape.
  std::vector<WorkerView> views;
  /// The number of workers that were given the memory.
  uint32_t shared_with = 0;
  /// The number of rounds of this host's workers that this agent has accepted.
  uint32_t rounds = kFirst;
  /// The number of pushes to other hosts that are not sent yet, and of those among them that read memory of workers.
  uint32_t unsent = 0, reading = 0;
  uint32_t version = kFirst;
  /// The agents of other hosts whose partitions this agent handles, by number.
  std::map<uint32_t, RemoteOwner> owners;

  /// For each row of the remote partitions: its slot in the cache plus 1, or 0 if it is not cached.
  Memory slots;
  std::vector<uint64_t> cached;
  uint32_t num_cached = 0, cached_before = 0;
  std::string name;  // of a dynamic table
  /// Where all rows are requested, so that slots, cached and uncached requests are unused.  The key of a row of a table
  /// that is not dynamic is its number.
  std::unique_ptr<KeyCache> key_cache;
  uint32_t uncached_rows = 0;
  std::vector<LocalRequest> uncached_requests;  // requests that use uncached rows
  bool pull_waiting = false;                    // a copy of the flag in `shared`

  std::deque<LocalRequest> waiting_requests;   // not started yet
  std::vector<LocalRequest> started_requests;  // not completed yet
  std::map<uint64_t, OutgoingPull> outgoing_pulls;
  std::deque<IncomingPull> incoming_pulls;
  /// The number of pulls of each agent whose answers were not sent yet.
  std::map<uint32_t, std::shared_ptr<uint32_t>> unanswered;

  /// The most pushes of a host that wait at an owner, see kMaxPushesAhead.
  uint32_t max_pushes_ahead() const { return kMaxPushesAhead + shape.staleness; }
  /// Count rows that a worker gets, by their lag.
  void count_lag(const OutgoingPull& pull, uint32_t version) {
    if (shape.staleness == 0 || pull.flags & kFence) return;
    const uint32_t lag = reached(version, pull.used_at) ? 0 : std::min(pull.used_at - version, kMaxStaleness);
    shared->lags[lag].fetch_add(pull.count, std::memory_order_relaxed);
  }
  /// Return the result of a function; begin the message of an error with the name of the table.
  template <typename Function>
  auto with_name(Function function) const {
    try {
      return function();
    } catch (const std::bad_alloc&) {
      throw std::runtime_error(name + ": " + refusal_text("cannot get memory for rows", 0, ENOMEM));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(name + ": " + error.what());
    }
  }
  uint32_t* bounds_of(uint32_t worker) const { return views[worker].memory.at<uint32_t>(worker_layout.push_bounds); }
  /// Return the PushFlags of the current round.
  uint32_t push_flags() const {
    uint32_t flags = 0;
    for (const WorkerView& view : views) flags |= view.shared->push_flags;
    return flags;
  }
  /// Return the rows that each worker pushed to a partition in the current round.
  template <typename Id>
  std::vector<RowListOf<Id>> pushed(uint32_t part) const {
    std::vector<RowListOf<Id>> lists;
    for (uint32_t worker = 0; worker < views.size(); ++worker) {
      const Memory& memory = views[worker].memory;
      const uint32_t first = bounds_of(worker)[part], last = bounds_of(worker)[part + 1];
      lists.push_back({memory.at<Id>(worker_layout.push_ids) + first,
                       memory.at<char>(worker_layout.push_rows) + first * shape.row_bytes(), last - first});
    }
    return lists;
  }
  /// Return the sums of lists of rows; `write(id, sum, to)` writes each of them, which takes `sum_bytes`.
  template <typename Id, typename Write>
  Pushed sums_of(const std::vector<RowListOf<Id>>& lists, size_t sum_bytes, Write write) {
    uint32_t max_rows = 0;
    for (const RowListOf<Id>& list : lists) max_rows += list.count;
    Pushed sums{0, Buffer(max_rows * sizeof(Id)), Buffer(max_rows * sum_bytes)};
    merger.each(lists, [&](Id id, const char* sum) {
      sums.ids.template as<Id>()[sums.count] = id;
      write(id, sum, sums.rows.data() + sums.count++ * sum_bytes);
    });
    return sums;
  }
  template <typename Id>
  Pushed sums_of(const std::vector<RowListOf<Id>>& lists) {
    const size_t row_bytes = merger.row_bytes();
    return sums_of(lists, row_bytes, [&](Id, const char* sum, char* to) { std::memcpy(to, sum, row_bytes); });
  }
  /// Return the row request of a worker.
  template <typename Id>
  RequestView<Id> view_of(const LocalRequest& local) const {
    return RequestView<Id>(shape, worker_layout, views[local.worker].memory, local.request);
  }
  /// Return the row in a slot of the cache.
  char* cached_row(uint32_t slot) const { return memory.at<char>(layout.cache) + slot * shape.row_bytes(); }
  /// Return whether the ids of a partition in a push of a worker are well formed.
  bool is_valid(const uint32_t* bounds, uint32_t part, const Memory& memory, size_t ids) const {
    return bounds[part] <= bounds[part + 1] && bounds[part + 1] <= shape.max_rows() &&
           well_formed(shape, part, memory.at<const void>(ids + bounds[part] * shape.id_bytes()),
                       bounds[part + 1] - bounds[part]);
  }
  /// Return whether a request that was not released has slots in a region of `key_cache`.
  bool region_in_use(uint32_t region) const {
    for (const WorkerView& view : views) {
      for (uint32_t i = 0; i < view.regions.size(); ++i) {
        if (view.regions[i] == region && !reached(view.shared->requests[i].released.load(), view.posted[i])) {
          return true;
        }
      }
    }
    return false;
  }
};

struct Agent::Peer : public MessageSink {
  Peer(Agent& agent, uint32_t number, int socket)
      : agent(agent), number(number), connection(socket, *this, agent.block_.at<AgentBlock>(0)->traffic) {}

  void begin(const Header& header, Segment segments[2]) override;
  void end(const Header& header) override;

  Agent& agent;
  const uint32_t number;
  Connection connection;
  bool writing = false, has_left = false;
  uint32_t receive_window = 0;  // in bytes; 0 if it is not limited
  // Messages being received, at most one of a kind.
  Pushed push;
  IncomingPull pull;
  /// The table of the message that each stream receives, which stays until the message is complete.
  std::shared_ptr<Table> arriving_tables[kPriorities];
};

}  // namespace lane
