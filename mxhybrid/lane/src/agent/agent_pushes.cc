// Pushes: sums of this host's workers, which are applied to partitions of this agent or forwarded to their owners.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "agent/agent_tables.h"

namespace lane {

bool Agent::round_is_complete(const Table& table) const {
  if (table.views.empty() || (table.unsent > 0 && table.shape.staleness == 0)) return false;
  for (const auto& [agent, owner] : table.owners) {
    if (!reached(owner.version + table.max_pushes_ahead(), table.rounds + 1)) return false;
  }
  for (const WorkerView& view : table.views) {
    if (view.shared == nullptr || !reached(view.shared->pushed.load(std::memory_order_acquire), table.rounds + 1)) {
      return false;
    }
  }
  return true;
}

void Agent::accept_round(Table& table) {
  const uint32_t parts = table.shape.partitions();
  for (uint32_t worker = 0; worker < table.views.size(); ++worker) {
    const uint32_t* bounds = table.bounds_of(worker);
    bool is_valid = bounds[0] == 0 && bounds[parts] <= table.shape.max_rows();
    for (uint32_t part = 0; is_valid && part < parts; ++part) {
      is_valid = table.parts[part].handled
                     ? table.is_valid(bounds, part, table.views[worker].memory, table.worker_layout.push_ids)
                     : bounds[part] <= bounds[part + 1];
    }
    if (!is_valid) throw std::runtime_error("a worker of this host pushed rows with malformed local ids");
  }
  ++table.rounds;
  clear_cache(table);
  for (uint32_t part = 0; part < parts; ++part) {
    if (table.parts[part].is_remote()) {
      table.shape.dynamic ? forward_push<int64_t>(table, part) : forward_push<int32_t>(table, part);
    } else if (table.parts[part].is_owned && table.shape.staleness > 0) {
      table.parts[part].pushes[host_].push_back(table.shape.dynamic ? table.sums_of(table.pushed<int64_t>(part))
                                                                    : table.sums_of(table.pushed<int32_t>(part)));
    }
  }
  for (auto& [agent, owner] : table.owners) {  // early enough for one more round in the meantime
    if (owner.is_queried || reached(owner.version + table.max_pushes_ahead() - 2, table.rounds)) continue;
    owner.is_queried = true;
    send_pull(table, owner.part, table.rounds, kFence, nullptr, 0, nullptr, table.rounds, kProgressQuery);
  }
}

void Agent::note_version(Table& table, uint64_t number, const OutgoingPull& pull) {
  RemoteOwner& owner = table.owners.at(pull.peer);
  if (number & kProgressQuery) owner.is_queried = false;
  // An answer with rows is about one partition only.  If that partition includes a push, all hosts have made that push,
  // and therefore all of them had made the push before it to all partitions.
  const uint32_t version = pull.flags & kFence ? pull.version : pull.version - 1;
  if (reached(version, owner.version)) owner.version = version;
}

template <typename Id>
void Agent::forward_push(Table& table, uint32_t part) {
  const TableShape& shape = table.shape;
  auto message = std::make_unique<OutgoingMessage>();
  const std::vector<RowListOf<Id>> lists = table.pushed<Id>(part);
  const uint32_t flags = table.push_flags();
  const bool is_exact = flags & kExactRows, is_rounded = shape.rounds(is_exact);
  const size_t row_bytes = shape.wire_row_bytes(is_exact);
  const bool reads_workers = lists.size() == 1 && !is_rounded && shape.staleness == 0;  // sent from the worker's memory
  RowListOf<Id> sent_rows = lists[0];
  if (!reads_workers) {
    const RoundingContext rounding{table.number, host_, table.rounds};
    Pushed sums = table.sums_of(lists, row_bytes, [&](Id id, const char* row, char* to) {
      if (is_rounded) {
        encode_push(shape, rounding, row_number(shape, part, id), row, to);
      } else {
        std::memcpy(to, row, row_bytes);
      }
    });
    sent_rows = sums.list<Id>();
    message->buffers[0] = std::move(sums.ids);
    message->buffers[1] = std::move(sums.rows);
  }
  message->segments[0] = {reinterpret_cast<char*>(const_cast<Id*>(sent_rows.ids)), sent_rows.count * sizeof(Id)};
  message->segments[1] = {const_cast<char*>(sent_rows.rows), sent_rows.count * row_bytes};
  message->header.kind = Message::kPush;
  message->header.flags = static_cast<uint8_t>(flags);
  message->header.table = table.number;
  message->header.part = part;
  message->header.count = sent_rows.count;
  ++table.unsent;
  table.reading += reads_workers;
  message->sent = [this, sent = &table, reads_workers] {
    --sent->unsent;
    sent->reading -= reads_workers;
    memory_freed_ = true;
  };
  peer(table.parts[part].owner).connection.send(std::move(message));
}

void Agent::update(Table& table, uint32_t number) {
  table.shape.dynamic ? update_with<int64_t>(table, number) : update_with<int32_t>(table, number);
}

template <typename Id>
void Agent::update_with(Table& table, uint32_t number) {
  Part& part = table.parts[number];
  std::vector<RowListOf<Id>> local_lists, lists;
  const bool is_kept = table.shape.staleness > 0;  // by accept_round
  if (!is_kept) local_lists = table.pushed<Id>(number);
  Pushed local_sums;
  const bool is_local_only = std::all_of(part.pushes.begin(), part.pushes.end(),
                                 [](const std::deque<Pushed>& queue) { return queue.empty(); });
  if (local_lists.size() > 1 && !is_local_only) {
    // Other hosts sum their workers' rows first, too, so sums do not depend on the host of a partition.
    local_sums = table.sums_of(local_lists);
    local_lists = {local_sums.list<Id>()};
  }
  for (uint32_t host = 0; host < part.pushes.size(); ++host) {
    if (host == host_ && !is_kept) {
      lists.insert(lists.end(), local_lists.begin(), local_lists.end());
    } else if (!part.pushes[host].empty()) {
      lists.push_back(part.pushes[host].front().template list<Id>());
    }
  }
  const int64_t begin = observer_ ? now() : 0;
  const uint32_t touched = apply(table, number, lists);
  if (observer_) observer_(table.number, number, begin, now(), touched);
  for (auto& queue : part.pushes) {
    if (!queue.empty()) queue.pop_front();
  }
  ++part.version;
}

uint32_t Agent::apply(Table& table, uint32_t number, const std::vector<RowList>& lists) {
  Part& part = table.parts[number];
  const Rule& rule = part.rule;
  const size_t row_bytes = table.shape.row_bytes();
  uint32_t touched = 0;
  switch (rule.kind) {
    case RuleKind::kIgnore:
      return touched;
    case RuleKind::kReplace:
      std::memset(part.shard, 0, table.shape.rows_of(number) * row_bytes);
      [[fallthrough]];
    case RuleKind::kAssign:
      table.merger.each(lists, [&](int32_t local_id, const char* row) {
        std::memcpy(part.shard + local_id * row_bytes, row, row_bytes);
        ++touched;
      });
      return touched;
    case RuleKind::kAssignState: {
      char* state = rule.slot < 2 ? part.state[rule.slot] : nullptr;
      if (state == nullptr) {
        throw std::runtime_error("partition " + std::to_string(number) + " has no optimizer state number " +
                                 std::to_string(rule.slot));
      }
      const size_t size = part.state_bytes[rule.slot];
      table.merger.each(lists, [&](int32_t local_id, const char* row) {
        std::memcpy(state + local_id * size, row, std::min(size, row_bytes));
        ++touched;
      });
      return touched;
    }
    case RuleKind::kCallback: {
      const Pushed sums = table.sums_of(lists);
      callback_(table.number, number, sums.list<int32_t>());
      return sums.count;
    }
    default:
      break;
  }
  const UpdateKernel update = kernel(rule.kind, table.shape.dtype);
  if (update == nullptr) {
    throw std::runtime_error(std::string("rule '") + rule_name(static_cast<uint32_t>(rule.kind)) +
                             "' has no kernel for " + kDtypeNames[static_cast<uint32_t>(table.shape.dtype)]);
  }
  const UpdateSettings settings(rule, ++part.updates);
  table.merger.each(lists, [&](int32_t local_id, const char* row) {
    char* weight = part.shard + local_id * row_bytes;
    ++touched;
    update(settings, {weight, {part.state[0] ? part.state[0] + local_id * part.state_bytes[0] : nullptr,
                               part.state[1] ? part.state[1] + local_id * part.state_bytes[1] : nullptr},
                      row, table.shape.width});
  });
  return touched;
}

uint32_t Agent::apply(Table& table, uint32_t number, const std::vector<KeyedRowList>& lists) {
  return table.with_name([&] { return apply_to_store(table, number, lists); });
}

uint32_t Agent::apply_to_store(Table& table, uint32_t number, const std::vector<KeyedRowList>& lists) {
  Part& part = table.parts[number];
  if (part.rule.kind == RuleKind::kIgnore) return 0;
  RowStore& store = *part.store;
  if (lists.size() == 1) return store.update(part.rule, lists[0].ids, lists[0].rows, lists[0].count);
  const size_t row_bytes = table.shape.row_bytes();
  const size_t block = store.block();
  Buffer sums(block * row_bytes);
  std::vector<int64_t> keys(block);
  std::vector<const char*> rows(block);
  uint32_t count = 0;
  store.begin_update(part.rule);
  table.merger.each(lists, [&](int64_t key, const char* row) {
    keys[count] = key;
    rows[count] = row;
    if (table.merger.is_sum(row)) {
      rows[count] = sums.data() + count * row_bytes;
      std::memcpy(sums.data() + count * row_bytes, row, row_bytes);
    }
    if (++count < block) return;
    store.update_block(keys.data(), rows.data(), count);
    count = 0;
  });
  store.update_block(keys.data(), rows.data(), count);
  return store.end_update();
}

}  // namespace lane
