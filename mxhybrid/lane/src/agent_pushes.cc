// What an agent does with rows that are pushed: merges, sends on, updates.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "half.h"
#include "agent_tables.h"

namespace lane {

bool Agent::round_is_complete(const Table& table) const {
  if (table.views.empty() || table.unsent > 0) return false;
  for (const auto& [agent, owner] : table.owners) {
    if (!reached(owner.version + kMostAhead, table.taken + 1)) return false;
  }
  for (const WorkerView& view : table.views) {
    if (view.shared == nullptr || !reached(view.shared->pushed.load(std::memory_order_acquire), table.taken + 1)) {
      return false;
    }
  }
  return true;
}

void Agent::take_round(Table& table) {
  const uint32_t parts = table.shape.partitions();
  for (uint32_t worker = 0; worker < table.views.size(); ++worker) {
    const uint32_t* bounds = table.bounds_of(worker);
    bool fine = bounds[0] == 0 && bounds[parts] <= table.shape.rows;
    for (uint32_t part = 0; fine && part < parts; ++part) {
      fine = bounds[part] <= bounds[part + 1];
      if (!fine || !table.parts[part].handled) continue;
      const List list = table.pushed(worker, part);
      fine = well_formed(list.places, list.count, table.shape.rows_of(part));
    }
    if (!fine) throw std::runtime_error("a worker of this host pushed malformed rows");
  }
  ++table.taken;
  forget_rows(table);
  for (uint32_t part = 0; part < parts; ++part) {
    if (table.parts[part].elsewhere()) send_on(table, part);
  }
  for (auto& [agent, owner] : table.owners) {  // in time, so that one more round can be taken meanwhile
    if (owner.is_queried || reached(owner.version + kMostAhead - 2, table.taken)) continue;
    owner.is_queried = true;
    send_pull(table, owner.part, table.taken, kFence, {}, nullptr, kProgressQuery);
  }
}

void Agent::note_version(Table& table, uint64_t number, const OutgoingPull& pull) {
  RemoteOwner& owner = table.owners.at(pull.peer);
  if (number & kProgressQuery) owner.is_queried = false;
  // Rows tell of one partition.  That it shows a push means that all hosts have made it, and so have made the one
  // before to all partitions.
  const uint32_t version = pull.flags & kFence ? pull.version : pull.version - 1;
  if (reached(version, owner.version)) owner.version = version;
}

void Agent::send_on(Table& table, uint32_t part) {
  const TableShape& shape = table.shape;
  auto message = std::make_unique<Outgoing>();
  std::vector<List> lists;
  uint32_t most = 0;
  for (uint32_t worker = 0; worker < table.views.size(); ++worker) {
    lists.push_back(table.pushed(worker, part));
    most += lists.back().count;
  }
  uint32_t count = most;
  bool reads_workers = false;
  if (lists.size() == 1 && !shape.halves) {  // from where they are
    message->pieces[0].data = const_cast<char*>(reinterpret_cast<const char*>(lists[0].places));
    message->pieces[1].data = const_cast<char*>(lists[0].rows);
    reads_workers = true;
  } else {
    const size_t row_bytes = shape.travelling_bytes(false);
    message->buffers[0] = Buffer(most * sizeof(int32_t));
    message->buffers[1] = Buffer(most * row_bytes);
    int32_t* places = message->buffers[0].as<int32_t>();
    char* rows = message->buffers[1].data();
    count = 0;
    table.merger.each(lists, [&](int32_t place, const char* row) {
      places[count] = place;
      if (shape.halves) {
        narrow(reinterpret_cast<const float*>(row), reinterpret_cast<uint16_t*>(rows + count * row_bytes), shape.width);
      } else {
        std::memcpy(rows + count * row_bytes, row, row_bytes);
      }
      ++count;
    });
    message->pieces[0].data = message->buffers[0].data();
    message->pieces[1].data = rows;
  }
  message->pieces[0].size = count * sizeof(int32_t);
  message->pieces[1].size = count * shape.travelling_bytes(false);
  message->header.kind = Message::kPush;
  message->header.table = table.number;
  message->header.part = part;
  message->header.count = count;
  ++table.unsent;
  table.reading += reads_workers;
  message->sent = [this, sent = &table, reads_workers] {
    --sent->unsent;
    sent->reading -= reads_workers;
    freed_ = true;
  };
  peer(table.parts[part].owner).connection.send(std::move(message));
}

void Agent::take_push(Table& table, uint32_t part, uint32_t host, Pushed pushed) {
  table.parts[part].arrived[host].push_back(std::move(pushed));
}

void Agent::update(Table& table, uint32_t number) {
  Part& part = table.parts[number];
  std::vector<List> mine, lists;
  for (uint32_t worker = 0; worker < table.views.size(); ++worker) mine.push_back(table.pushed(worker, number));
  Buffer places, rows;
  const bool alone = std::all_of(part.arrived.begin(), part.arrived.end(),
                                 [](const std::deque<Pushed>& queue) { return queue.empty(); });
  if (mine.size() > 1 && !alone) {
    // As other hosts do before they send: sums are the same wherever a partition lies.
    uint32_t most = 0, count = 0;
    for (const List& list : mine) most += list.count;
    places = Buffer(most * sizeof(int32_t));
    rows = Buffer(most * table.merger.row_bytes());
    table.merger.each(mine, [&](int32_t place, const char* row) {
      places.as<int32_t>()[count] = place;
      std::memcpy(rows.data() + count++ * table.merger.row_bytes(), row, table.merger.row_bytes());
    });
    mine = {{places.as<int32_t>(), rows.data(), count}};
  }
  for (uint32_t host = 0; host < part.arrived.size(); ++host) {
    if (host == host_) {
      lists.insert(lists.end(), mine.begin(), mine.end());
    } else if (!part.arrived[host].empty()) {
      const Pushed& pushed = part.arrived[host].front();
      lists.push_back({pushed.places.as<int32_t>(), pushed.rows.data(), pushed.count});
    }
  }
  const int64_t begin = observer_ ? now() : 0;
  const uint32_t touched = apply(table, number, lists);
  if (observer_) observer_(table.number, number, begin, now(), touched);
  for (auto& queue : part.arrived) {
    if (!queue.empty()) queue.pop_front();
  }
  ++part.version;
}

uint32_t Agent::apply(Table& table, uint32_t number, const std::vector<List>& lists) {
  Part& part = table.parts[number];
  const Rule& rule = part.rule;
  const size_t row_bytes = table.shape.row_bytes();
  uint32_t touched = 0;
  switch (rule.kind) {
    case Kind::kIgnore:
      return touched;
    case Kind::kReplace:
      std::memset(part.shard, 0, table.shape.rows_of(number) * row_bytes);
      [[fallthrough]];
    case Kind::kAssign:
      table.merger.each(lists, [&](int32_t place, const char* row) {
        std::memcpy(part.shard + place * row_bytes, row, row_bytes);
        ++touched;
      });
      return touched;
    case Kind::kAssignState: {
      char* state = rule.slot < 2 ? part.state[rule.slot] : nullptr;
      if (state == nullptr) throw std::runtime_error("state is assigned that no optimizer has");
      const size_t size = part.state_bytes[rule.slot];
      table.merger.each(lists, [&](int32_t place, const char* row) {
        std::memcpy(state + place * size, row, std::min(size, row_bytes));
        ++touched;
      });
      return touched;
    }
    case Kind::kCallback: {
      uint32_t most = 0;
      for (const List& list : lists) most += list.count;
      Buffer places(most * sizeof(int32_t)), rows(most * row_bytes);
      table.merger.each(lists, [&](int32_t place, const char* row) {
        places.as<int32_t>()[touched] = place;
        std::memcpy(rows.data() + touched++ * row_bytes, row, row_bytes);
      });
      callback_(table.number, number, {places.as<int32_t>(), rows.data(), touched});
      return touched;
    }
    default:
      break;
  }
  const Update update = kernel(rule.kind, table.shape.dtype);
  if (update == nullptr) throw std::runtime_error("no kernel for this rule and dtype");
  const Settings settings(rule, ++part.updates);
  table.merger.each(lists, [&](int32_t place, const char* row) {
    char* weight = part.shard + place * row_bytes;
    ++touched;
    update(settings, {weight, {part.state[0] ? part.state[0] + place * part.state_bytes[0] : nullptr,
                               part.state[1] ? part.state[1] + place * part.state_bytes[1] : nullptr},
                      row, table.shape.width});
  });
  return touched;
}

}  // namespace lane
