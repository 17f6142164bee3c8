// What an agent has of a table, of its workers and of other agents, for the files that make up Agent.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "agent.h"

namespace lane {

/// In nanoseconds of the monotonic clock.
inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Pushes of a host to a partition that wait at its owner until other hosts have made theirs.  The host makes no more
/// before it knows that the owner shows some of them: so the slowest host sets the pace, and queues stay short.
constexpr uint32_t kMostAhead = 4;
/// Marks the number of a question by which an agent learns how far an owner is.  No worker waits for the answer, so it
/// comes behind all others of a table.
constexpr uint64_t kProgressQuery = uint64_t(1) << 63;

struct Agent::Pushed {
  uint32_t count;
  Buffer local_ids, rows;
};

struct Agent::RemoteOwner {
  uint32_t part;            // one of its partitions
  uint32_t version = kFirst;  // pushes that all its partitions are known to show
  bool is_queried = false;    // for more
};

struct Agent::Part {
  uint32_t owner;
  bool is_owned = false, handled = false;

  // Of a partition that this agent owns.
  char* shard = nullptr;
  Rule rule;
  char* state[2] = {nullptr, nullptr};
  size_t state_bytes[2] = {0, 0};
  uint32_t version = kFirst;  // pushes that it shows
  uint64_t updates = 0;
  /// By host: what came from there and was not taken into account yet.  This host's entry stays empty.
  std::vector<std::deque<Pushed>> pushes;

  // Of one that this agent handles for another.
  uint64_t first_slot = 0;  // of its local_ids in `slots`

  bool is_remote() const { return handled && !is_owned; }
};

struct Agent::WorkerView {
  Memory memory;
  WorkerTable* shared = nullptr;
  uint32_t activity = kFirst;
  /// By row request; empty if this agent answers no pulls, see TableShape.
  std::vector<uint32_t> posted;
};

struct Agent::OutgoingPull {
  uint32_t peer, part, version, count;
  uint8_t flags;
  char* to;
  Buffer halves;  // where rows arrive that have to be widened
};

struct Agent::IncomingPull {
  uint32_t peer, part, version, count;
  uint8_t flags;
  uint64_t number;
  Buffer local_ids;
};

struct Agent::LocalRequest {
  uint32_t worker, request;
  uint32_t posted;        // to be answered
  uint64_t last_pull = 0;     // question that has to be answered before
};

struct Agent::Table {
  Table(uint32_t number, const TableShape& shape, uint32_t agent, const std::vector<uint8_t>& handled)
      : number(number),
        shape(shape),
        layout(shape, agent, handled),
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
  /// By worker of this host; empty if this agent handles no partition, see TableShape.
  std::vector<WorkerView> views;
  /// Workers that were given its memory.
  uint32_t shared_with = 0;
  /// Rounds of this host's workers that were taken.
  uint32_t rounds = kFirst;
  /// Pushes to other hosts that were not sent yet, and those among them that still read the memory of workers.
  uint32_t unsent = 0, reading = 0;
  uint32_t version = kFirst;
  /// By agent of another host whose partitions this agent handles.
  std::map<uint32_t, RemoteOwner> owners;

  /// Slot + 1 of the cache by place of a partition of another host, 0 where the cache does not have the row.
  Memory slots;
  std::vector<uint64_t> cached;
  uint32_t num_cached = 0, cached_before = 0;
  uint32_t uncached_rows = 0;
  std::vector<LocalRequest> uncached_requests;  // pulls that use rows set aside
  bool pull_waiting = false;      // as `shared` says

  std::deque<LocalRequest> waiting_requests;       // to be taken
  std::vector<LocalRequest> started_requests;  // to be answered
  std::map<uint64_t, OutgoingPull> outgoing_pulls;
  std::deque<IncomingPull> incoming_pulls;
  /// By agent: questions whose answers were not sent yet.
  std::map<uint32_t, std::shared_ptr<uint32_t>> unanswered;

  uint32_t* bounds_of(uint32_t worker) const { return views[worker].memory.at<uint32_t>(worker_layout.push_bounds); }
  /// What a worker pushed to a partition in the round at hand.
  RowList pushed(uint32_t worker, uint32_t part) const {
    const Memory& memory = views[worker].memory;
    const uint32_t first = bounds_of(worker)[part], last = bounds_of(worker)[part + 1];
    return {memory.at<int32_t>(worker_layout.push_local_ids) + first,
            memory.at<char>(worker_layout.push_rows) + first * shape.row_bytes(), last - first};
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
  // Of messages that arrive, one of a kind at a time.
  Pushed push;     // a push
  IncomingPull pull;     // a question
  /// By stream: the table that a message is about, which stays until it is there.
  std::shared_ptr<Table> arriving_tables[kPriorities];
};

}  // namespace lane
