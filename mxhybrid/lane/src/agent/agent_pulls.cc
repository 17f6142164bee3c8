// Pulls: row requests of this host's workers, pulls from other agents for them, and answers to pulls of other agents.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "agent/agent_tables.h"

namespace lane {
namespace {

/// Memory of the cache is given back if it had this many times the rows of the round before, such as a whole table.
constexpr uint32_t kUnusualGrowth = 4;
/// The number of rows by which prefetching is ahead.
constexpr uint32_t kPrefetchedRows = 4;
/// The number of keys by which prefetching of the cache of a dynamic table is ahead.
constexpr uint32_t kPrefetchedKeys = 12;
/// Rows of a dynamic table up to this size are read again for each request if this agent owns them: a search in the cache
/// takes as long.
constexpr size_t kRereadRowBytes = 256;

}  // namespace

void Agent::collect_requests(Table& table) {
  for (uint32_t worker = 0; worker < table.views.size(); ++worker) {
    WorkerView& view = table.views[worker];
    if (view.shared == nullptr) continue;
    const uint32_t activity = view.shared->activity.load(std::memory_order_acquire);
    if (activity == view.activity) continue;
    view.activity = activity;
    for (uint32_t i = 0; i < view.posted.size(); ++i) {
      const uint32_t posted = view.shared->requests[i].posted.load(std::memory_order_acquire);
      if (posted == view.posted[i]) continue;
      view.posted[i] = posted;
      if (!view.regions.empty()) view.regions[i] = WorkerView::kNoRegion;  // the request before was released
      table.waiting_requests.push_back({worker, i, posted, 0});
    }
  }
}

bool Agent::start_requests(Table& table) {
  bool any_waits = false;
  for (size_t i = 0; i < table.waiting_requests.size();) {
    const LocalRequest local = table.waiting_requests[i];
    const bool due = table.shape.staleness > 0 ||
                     reached(table.rounds, table.views[local.worker].shared->requests[local.request].version);
    if (!due || !start_request(table, local)) {
      any_waits = any_waits || due;
      ++i;
      continue;
    }
    table.waiting_requests.erase(table.waiting_requests.begin() + i);
  }
  if (table.pull_waiting && !any_waits) {
    table.pull_waiting = false;
    table.shared->pull_waiting.store(0);
  }
  return complete_requests(table);
}

bool Agent::start_request(Table& table, const LocalRequest& waiting) {
  if (table.shape.requested()) {
    table.shape.dynamic ? start_keyed_request<int64_t>(table, waiting) : start_keyed_request<int32_t>(table, waiting);
    return true;
  }
  const auto request = table.view_of<int32_t>(waiting);
  LocalRequest local = waiting;
  if (request.is_uncached() && !reserve_uncached(table, request, local)) return false;
  if (request.is_fence()) send_fences(table, request.version(), request.version());
  for (uint32_t number = 0; !request.is_fence() && number < request.pieces(); ++number) {
    if (!table.parts[request.part_of(number)].is_remote()) continue;
    request.check(number);
    const auto piece = request.piece(number);
    if (piece.count == 0) continue;
    request.is_uncached() ? pull_uncached(table, piece) : pull_missing(table, piece);
  }
  local.last_pull = pulls_sent_;
  table.started_requests.push_back(std::move(local));
  return true;
}

/// Reserve memory for the rows of a request that needs uncached ones; return whether there is enough.
bool Agent::reserve_uncached(Table& table, const RequestView<int32_t>& request, const LocalRequest& local) {
  if (!table.pull_waiting) {  // set before `released` is read: a worker that releases later notifies this agent
    table.pull_waiting = true;
    table.shared->pull_waiting.store(1);
  }
  // Uncached rows are free once all requests that use them are released.
  auto& using_rows = table.uncached_requests;
  using_rows.erase(std::remove_if(using_rows.begin(), using_rows.end(),
                                  [&](const LocalRequest& other) {
                                    return reached(
                                        table.views[other.worker].shared->requests[other.request].released.load(),
                                        other.posted);
                                  }),
                   using_rows.end());
  if (using_rows.empty()) table.uncached_rows = 0;
  uint64_t num_rows = 0, max_rows = 0;
  for (uint32_t part = 0; part < table.shape.partitions(); ++part) {
    if (!table.parts[part].is_remote()) continue;
    num_rows += request.count(part);
    max_rows += table.shape.rows_of(part);
  }
  if (table.uncached_rows + num_rows > max_rows && !using_rows.empty()) return false;
  if (num_rows > 0) using_rows.push_back(local);
  return true;
}

/// Pull all rows of a piece into memory for uncached rows.
void Agent::pull_uncached(Table& table, const RequestView<int32_t>::Piece& piece) {
  const uint32_t first_slot = table.uncached_rows;
  std::iota(piece.slots, piece.slots + piece.count, first_slot);
  table.uncached_rows += piece.count;
  send_pull(table, piece.part, piece.version, kUncached, piece.ids, piece.count,
            table.memory.at<char>(table.layout.uncached) + first_slot * table.shape.row_bytes(), piece.version);
}

/// Pull the rows of a piece that are not in the cache, whose next slots they get.
void Agent::pull_missing(Table& table, const RequestView<int32_t>::Piece& piece) {
  const Part& partition = table.parts[piece.part];
  uint32_t* cached_slots = table.slots.at<uint32_t>(0) + partition.first_slot;
  const uint32_t first_slot = table.num_cached;
  std::vector<int32_t> missing;
  for (uint32_t i = 0; i < piece.count; ++i) {
    const int32_t local_id = piece.ids[i];
    if (cached_slots[local_id] == 0) {
      cached_slots[local_id] = ++table.num_cached;
      table.cached.push_back(partition.first_slot + local_id);
      missing.push_back(local_id);
    }
    piece.slots[i] = cached_slots[local_id] - 1;
  }
  if (missing.empty()) return;
  send_pull(table, piece.part, piece.version, 0, missing.data(), static_cast<uint32_t>(missing.size()),
            table.memory.at<char>(table.layout.cache) + first_slot * table.shape.row_bytes(), piece.version);
}

/// Ask the owner of each partition that this agent handles for another host whether all pushes up to `version` are
/// applied; return the numbers of the pulls.
std::vector<uint64_t> Agent::send_fences(Table& table, uint32_t version, uint32_t used_at) {
  std::vector<uint8_t> fenced(membership_.agent_hosts.size(), 0);
  std::vector<uint64_t> pulls;
  for (uint32_t part = 0; part < table.shape.partitions(); ++part) {
    const Part& partition = table.parts[part];
    if (!partition.is_remote() || fenced[partition.owner]) continue;
    send_pull(table, part, version, kFence, nullptr, 0, nullptr, used_at);
    pulls.push_back(pulls_sent_);
    fenced[partition.owner] = 1;
  }
  return pulls;
}

template <typename Id>
void Agent::start_keyed_request(Table& table, const LocalRequest& waiting) {
  LocalRequest local = waiting;
  const auto request = table.view_of<Id>(waiting);
  if (request.is_fence()) {
    local.pulls = send_fences(table, request.version(), request.used_at());
    table.started_requests.push_back(std::move(local));
    return;
  }
  const TableShape& shape = table.shape;
  uint64_t num_rows = 0, num_cached = 0;
  for (uint32_t number = 0; number < request.pieces(); ++number) {
    if (!table.parts[request.part_of(number)].handled) continue;
    request.check(number);
    num_rows += request.count(number);
  }
  if (num_rows > shape.max_rows()) throw std::runtime_error("a worker of this host requested too many rows");
  if (num_rows > 0) {
    KeyCache& cache = *table.key_cache;
    cache.make_room(static_cast<uint32_t>(num_rows), [&](uint32_t region) { return table.region_in_use(region); });
    table.views[local.worker].regions[local.request] = cache.region();
  }
  // First the rows that may be sent at once.
  const bool rereads = shape.dynamic && shape.row_bytes() <= kRereadRowBytes && shape.staleness == 0;
  for (uint32_t number = 0; num_rows > 0 && number < request.pieces(); ++number) {
    const auto piece = request.piece(number);
    const Part& partition = table.parts[piece.part];
    if (!partition.handled || piece.count == 0) continue;
    if (request.is_uncached() || (rereads && partition.is_owned)) {
      const uint32_t first_slot = table.key_cache->take(piece.count);
      std::iota(piece.slots, piece.slots + piece.count, first_slot);
      send_pull(table, piece.part, piece.version, request.pull_flags(), piece.ids, piece.count,
                table.cached_row(first_slot), request.used_at());
      local.pulls.push_back(pulls_sent_);
    } else {
      num_cached += pull_missing_keys(table, request, piece, local);
    }
  }
  if (!request.is_uncached()) table.shared->cache_counts.add(num_rows, num_cached);
  std::sort(local.pulls.begin(), local.pulls.end());
  local.pulls.erase(std::unique(local.pulls.begin(), local.pulls.end()), local.pulls.end());
  table.started_requests.push_back(std::move(local));
}

/// Pull the rows of a piece that are not in the cache; add all pulls that bring rows of the piece to the request.  Return
/// the number of rows that are in the cache, or on their way into it.
template <typename Id>
uint32_t Agent::pull_missing_keys(Table& table, const RequestView<Id>& request,
                                  const typename RequestView<Id>::Piece& piece, LocalRequest& local) {
  const TableShape& shape = table.shape;
  KeyCache& cache = *table.key_cache;
  const auto key_of = [&](uint32_t i) {
    return shape.dynamic ? int64_t{piece.ids[i]} : int64_t{piece.ids[i]} * shape.partitions() + piece.part;
  };
  std::vector<Id> missing;
  uint32_t first_slot = 0;
  for (uint32_t i = 0; i < piece.count; ++i) {
    if (i + kPrefetchedKeys < piece.count) cache.prefetch(key_of(i + kPrefetchedKeys));
    const KeyCache::CachedRow row = cache.row_of(key_of(i), piece.version, request.version(), pulls_sent_ + 1);
    piece.slots[i] = row.slot;
    if (local.pulls.empty() || local.pulls.back() != row.pull) local.pulls.push_back(row.pull);
    if (row.pull <= pulls_sent_) continue;
    if (missing.empty()) first_slot = row.slot;
    missing.push_back(piece.ids[i]);
  }
  if (!missing.empty()) {
    send_pull(table, piece.part, piece.version, 0, missing.data(), static_cast<uint32_t>(missing.size()),
              table.cached_row(first_slot), request.used_at());
  }
  return piece.count - static_cast<uint32_t>(missing.size());
}

void Agent::send_pull(Table& table, uint32_t part, uint32_t version, uint8_t flags, const void* ids, uint32_t count,
                      char* to, uint32_t used_at, uint64_t mark) {
  const uint32_t owner = table.parts[part].owner;
  const uint64_t number = mark | ++pulls_sent_;
  Buffer sent_ids(count * table.shape.id_bytes());
  if (count) std::memcpy(sent_ids.data(), ids, sent_ids.size());
  table.outgoing_pulls[number] = {owner, part, version, count, flags, to, Buffer(), used_at};
  if (owner == number_) {
    table.incoming_pulls.push_back({owner, part, version, count, flags, number, std::move(sent_ids)});
    return;
  }
  auto message = std::make_unique<OutgoingMessage>();
  Header& header = message->header;
  header.kind = Message::kPull;
  header.flags = flags;
  header.table = table.number;
  header.part = part;
  header.count = count;
  header.version = version;
  header.number = number;
  message->buffers[0] = std::move(sent_ids);
  message->segments[0] = {message->buffers[0].data(), message->buffers[0].size()};
  peer(owner).connection.send(std::move(message));
}

bool Agent::complete_requests(Table& table) {
  bool has_news = false;
  for (size_t i = 0; i < table.started_requests.size();) {
    const LocalRequest& local = table.started_requests[i];
    const bool waits = table.shape.requested()
                           ? std::any_of(local.pulls.begin(), local.pulls.end(),
                                         [&](uint64_t pull) { return table.outgoing_pulls.count(pull) > 0; })
                           : !table.outgoing_pulls.empty() && table.outgoing_pulls.begin()->first <= local.last_pull;
    if (waits) {
      ++i;
      continue;
    }
    table.views[local.worker].shared->requests[local.request].completed[local_].store(local.posted);
    table.started_requests.erase(table.started_requests.begin() + i);
    has_news = true;
  }
  return has_news;
}

void Agent::clear_cache(Table& table) {
  if (!table.started_requests.empty() && table.shape.staleness == 0) {
    throw std::runtime_error("a worker of this host pushed before its row requests were completed");
  }
  if (table.shape.requested()) {
    const size_t row_bytes = table.shape.row_bytes();
    table.key_cache->begin_round([&](uint32_t region) { return table.region_in_use(region); },
                                 [&](uint64_t first, uint64_t count) {
                                   table.memory.discard(table.layout.cache + first * row_bytes, count * row_bytes);
                                 });
    return;
  }
  uint32_t* slots = table.slots.at<uint32_t>(0);
  for (uint64_t row : table.cached) slots[row] = 0;
  table.cached.clear();
  if (table.num_cached > kUnusualGrowth * std::max<uint32_t>(table.cached_before, 1024)) {
    table.memory.discard(table.layout.cache, table.num_cached * table.shape.row_bytes());
    std::vector<uint64_t>().swap(table.cached);
  }
  if (table.num_cached) table.cached_before = table.num_cached;
  table.num_cached = 0;
}

bool Agent::too_many_pulls(Table& table, uint32_t peer) {
  auto& unanswered = table.unanswered[peer];
  if (!unanswered) unanswered = std::make_shared<uint32_t>(0);
  // A row request of a worker pulls from each partition once for each group, and the agent sends progress queries of
  // its own.
  return *unanswered > uint64_t(kMaxRowRequests) * membership_.worker_counts[membership_.agent_hosts[peer]] *
                           table.shape.partitions() * table.shape.groups();
}

void Agent::answer_pulls(Table& table) {
  const TableShape& shape = table.shape;
  for (size_t i = 0; i < table.incoming_pulls.size();) {
    IncomingPull& pull = table.incoming_pulls[i];
    const Part& part = table.parts[pull.part];
    if (!reached(pull.flags & kFence ? table.version : part.version, pull.version)) {
      ++i;
      continue;
    }
    if (pull.peer == number_) {
      answer_own_pull(table, pull);
      table.incoming_pulls.erase(table.incoming_pulls.begin() + i);
      continue;
    }
    auto message = std::make_unique<OutgoingMessage>();
    message->header.kind = Message::kRows;
    message->header.flags = pull.flags;
    message->header.table = table.number;
    message->header.part = pull.part;
    message->header.count = pull.count;
    if (shape.staleness > 0) message->header.version = part.version;
    message->header.number = pull.number;
    message->buffers[0] = Buffer(pull.count * shape.wire_row_bytes(pull.flags & kUncached));
    char* rows = message->buffers[0].data();
    read_rows(table, pull, rows);
    message->segments[0] = {rows, message->buffers[0].size()};
    message->sent = [unanswered = table.unanswered[pull.peer]] { --*unanswered; };
    peer(pull.peer).connection.send(std::move(message));
    table.incoming_pulls.erase(table.incoming_pulls.begin() + i);
  }
}

void Agent::read_rows(const Table& table, const IncomingPull& pull, char* rows) {
  const TableShape& shape = table.shape;
  const Part& part = table.parts[pull.part];
  const size_t row_bytes = shape.row_bytes(), wire_bytes = shape.wire_row_bytes(pull.flags & kUncached);
  const bool is_rounded = shape.rounds(pull.flags & kUncached);
  const RoundingContext rounding{table.number, kAnswers, pull.version};
  if (shape.dynamic) {
    const int64_t* keys = pull.ids.as<int64_t>();
    if (!is_rounded) {
      part.store->read(keys, pull.count, rows);
      return;
    }
    Buffer full(pull.count * row_bytes);
    part.store->read(keys, pull.count, full.data());
    for (uint32_t k = 0; k < pull.count; ++k) {
      encode_answer(shape, rounding, row_number(shape, pull.part, keys[k]), full.data() + k * row_bytes,
                    rows + k * wire_bytes);
    }
    return;
  }
  const int32_t* local_ids = pull.ids.as<int32_t>();
  if (!is_rounded) {
    gather(part.shard, local_ids, pull.count, row_bytes, rows);
    return;
  }
  for (uint32_t k = 0; k < pull.count; ++k) {
    if (k + kPrefetchedRows < pull.count) __builtin_prefetch(part.shard + local_ids[k + kPrefetchedRows] * row_bytes);
    encode_answer(shape, rounding, row_number(shape, pull.part, local_ids[k]), part.shard + local_ids[k] * row_bytes,
                  rows + k * wire_bytes);
  }
}

void Agent::answer_own_pull(Table& table, const IncomingPull& pull) {
  auto outgoing = table.outgoing_pulls.find(pull.number);
  char* const to = outgoing->second.to;
  const TableShape& shape = table.shape;
  const Part& part = table.parts[pull.part];
  table.count_lag(outgoing->second, part.version);
  // Other hosts get rounded rows, and all workers have to see the same values.
  const RoundingContext rounding{table.number, kAnswers, pull.version};
  const auto round_all = [&](auto ids) {
    for (uint32_t k = 0; shape.rounds(pull.flags & kUncached) && k < pull.count; ++k) {
      char* row = to + k * shape.row_bytes();
      round_answer(shape, rounding, row_number(shape, pull.part, ids[k]), row, row);
    }
  };
  if (shape.dynamic) {
    part.store->read(pull.ids.as<int64_t>(), pull.count, to);
    round_all(pull.ids.as<int64_t>());
  } else {
    gather(part.shard, pull.ids.as<int32_t>(), pull.count, shape.row_bytes(), to);
    round_all(pull.ids.as<int32_t>());
  }
  table.outgoing_pulls.erase(outgoing);
}

}  // namespace lane
