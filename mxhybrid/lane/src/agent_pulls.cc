// What an agent does with rows that are pulled: its own, and those it asks other agents for; answers to theirs.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "half.h"
#include "agent_tables.h"

namespace lane {
namespace {

/// Times as many rows as in the round before after which memory is given back: a whole table, say.
constexpr uint32_t kUnusual = 4;
/// How many rows ahead memory is asked for.
constexpr uint32_t kAhead = 4;

}  // namespace

void Agent::look(Table& table) {
  for (uint32_t worker = 0; worker < table.sides.size(); ++worker) {
    Side& side = table.sides[worker];
    if (side.shared == nullptr) continue;
    const uint32_t activity = side.shared->activity.load(std::memory_order_acquire);
    if (activity == side.activity) continue;
    side.activity = activity;
    for (uint32_t i = 0; i < side.asked.size(); ++i) {
      const uint32_t asked = side.shared->tickets[i].asked.load(std::memory_order_acquire);
      if (asked == side.asked[i]) continue;
      side.asked[i] = asked;
      table.pulls.push_back({worker, i, asked, 0});
    }
  }
}

bool Agent::take_pulls(Table& table) {
  bool any_waits = false;
  for (size_t i = 0; i < table.pulls.size();) {
    const Pull pull = table.pulls[i];
    const bool due = reached(table.taken, table.sides[pull.worker].shared->tickets[pull.ticket].want);
    if (!due || !take_pull(table, pull)) {
      any_waits = any_waits || due;
      ++i;
      continue;
    }
    table.pulls.erase(table.pulls.begin() + i);
  }
  if (table.pull_waiting && !any_waits) {
    table.pull_waiting = false;
    table.shared->pull_waiting.store(0);
  }
  return finish_pulls(table);
}

bool Agent::take_pull(Table& table, const Pull& taken) {
  Pull pull = taken;
  const Side& side = table.sides[pull.worker];
  const Ticket& ticket = side.shared->tickets[pull.ticket];
  const uint32_t want = ticket.want, flags = ticket.flags;
  const uint32_t* bounds = side.memory.at<uint32_t>(table.sides_layout.ticket_bounds[pull.ticket]);
  const int32_t* places = side.memory.at<int32_t>(table.sides_layout.ticket_places[pull.ticket]);
  uint32_t* slots = side.memory.at<uint32_t>(table.sides_layout.ticket_slots[pull.ticket]);
  const TableShape& shape = table.shape;
  const size_t row_bytes = shape.row_bytes();
  if (flags & kExact) {
    if (!table.pull_waiting) {  // before this looks at what was released: a ticket that is given back later rings
      table.pull_waiting = true;
      table.shared->pull_waiting.store(1);
    }
    // Room that was set aside is free again once nobody reads it.
    auto& beside = table.beside;
    beside.erase(std::remove_if(beside.begin(), beside.end(), [&](const Pull& other) {
      return reached(table.sides[other.worker].shared->tickets[other.ticket].released.load(), other.asked);
    }), beside.end());
    if (beside.empty()) table.aside = 0;
    uint64_t rows = 0, all = 0;
    for (uint32_t part = 0; part < shape.partitions(); ++part) {
      if (!table.parts[part].elsewhere()) continue;
      rows += bounds[part + 1] - bounds[part];
      all += shape.rows_of(part);
    }
    if (table.aside + rows > all && !beside.empty()) return false;
    if (rows > 0) beside.push_back(pull);
  }
  std::vector<int32_t> missing;
  std::vector<uint8_t> fenced(membership_.agent_hosts.size(), 0);
  for (uint32_t part = 0; part < shape.partitions(); ++part) {
    const Part& there = table.parts[part];
    if (!there.elsewhere()) continue;
    if (flags & kFence) {
      if (!fenced[there.owner]) ask(table, part, want, kFence, missing, nullptr);
      fenced[there.owner] = 1;
      continue;
    }
    const uint32_t first = bounds[part], count = bounds[part + 1] - first;
    if (bounds[part + 1] < first || bounds[part + 1] > shape.rows ||
        !well_formed(places + first, count, shape.rows_of(part))) {
      throw std::runtime_error("a worker of this host asked for malformed rows");
    }
    if (count == 0) continue;
    if (flags & kExact) {
      missing.assign(places + first, places + first + count);
      for (uint32_t i = 0; i < count; ++i) slots[first + i] = table.aside + i;
      ask(table, part, want, kExact, missing, table.memory.at<char>(table.layout.aside) + table.aside * row_bytes);
      table.aside += count;
      continue;
    }
    missing.clear();
    uint32_t* known = table.slots.at<uint32_t>(0) + there.first_slot;
    const uint32_t start = table.used;
    for (uint32_t i = 0; i < count; ++i) {
      const int32_t place = places[first + i];
      if (known[place] == 0) {
        known[place] = ++table.used;
        table.held.push_back(there.first_slot + place);
        missing.push_back(place);
      }
      slots[first + i] = known[place] - 1;
    }
    if (missing.empty()) continue;
    ask(table, part, want, 0, missing, table.memory.at<char>(table.layout.cache) + start * row_bytes);
  }
  pull.last = questions_;
  table.under_way.push_back(pull);
  return true;
}

void Agent::ask(Table& table, uint32_t part, uint32_t want, uint8_t flags, const std::vector<int32_t>& places,
               char* to, uint64_t own) {
  const uint32_t owner = table.parts[part].owner, count = static_cast<uint32_t>(places.size());
  auto message = std::make_unique<Outgoing>();
  Header& header = message->header;
  header.kind = Message::kPull;
  header.flags = flags;
  header.table = table.number;
  header.part = part;
  header.count = count;
  header.want = want;
  header.number = own | ++questions_;
  message->buffers[0] = Buffer(count * sizeof(int32_t));
  if (count) std::memcpy(message->buffers[0].data(), places.data(), count * sizeof(int32_t));
  message->pieces[0] = {message->buffers[0].data(), message->buffers[0].size()};
  Asked& asked = table.asked[header.number];
  asked.peer = owner;
  asked.part = part;
  asked.want = want;
  asked.count = count;
  asked.flags = flags;
  asked.to = to;
  peer(owner).connection.send(std::move(message));
}

bool Agent::finish_pulls(Table& table) {
  bool news = false;
  for (size_t i = 0; i < table.under_way.size();) {
    const Pull& pull = table.under_way[i];
    if (!table.asked.empty() && table.asked.begin()->first <= pull.last) {
      ++i;
      continue;
    }
    table.sides[pull.worker].shared->tickets[pull.ticket].answered[local_].store(pull.asked);
    table.under_way.erase(table.under_way.begin() + i);
    news = true;
  }
  return news;
}

void Agent::forget_rows(Table& table) {
  if (!table.under_way.empty()) {
    throw std::runtime_error("a worker pushed before the rows that it asked for were there");
  }
  uint32_t* slots = table.slots.at<uint32_t>(0);
  for (uint64_t at : table.held) slots[at] = 0;
  table.held.clear();
  if (table.used > kUnusual * std::max<uint32_t>(table.used_before, 1024)) {
    table.memory.give_back(table.layout.cache, table.used * table.shape.row_bytes());
    std::vector<uint64_t>().swap(table.held);
  }
  if (table.used) table.used_before = table.used;
  table.used = 0;
}

bool Agent::too_many_questions(Table& table, uint32_t peer) {
  auto& unanswered = table.unanswered[peer];
  if (!unanswered) unanswered = std::make_shared<uint32_t>(0);
  // Each ticket of a worker asks for each partition once at a time, and the agent asks for itself.
  return *unanswered >
         uint64_t(kTickets) * membership_.worker_counts[membership_.agent_hosts[peer]] * table.shape.partitions();
}

void Agent::answer(Table& table) {
  const TableShape& shape = table.shape;
  for (size_t i = 0; i < table.questions.size();) {
    Question& question = table.questions[i];
    const Part& part = table.parts[question.part];
    if (!reached(question.flags & kFence ? table.version : part.version, question.want)) {
      ++i;
      continue;
    }
    const bool exact = question.flags & kExact;
    const size_t row_bytes = shape.row_bytes(), travelling = shape.travelling_bytes(exact);
    auto message = std::make_unique<Outgoing>();
    message->header.kind = Message::kRows;
    message->header.flags = question.flags;
    message->header.table = table.number;
    message->header.part = question.part;
    message->header.count = question.count;
    message->header.number = question.number;
    message->buffers[0] = Buffer(question.count * travelling);
    char* rows = message->buffers[0].data();
    const int32_t* places = question.places.as<int32_t>();
    if (travelling == row_bytes) {
      gather(part.shard, places, question.count, row_bytes, rows);
    } else {
      for (uint32_t k = 0; k < question.count; ++k) {
        if (k + kAhead < question.count) __builtin_prefetch(part.shard + places[k + kAhead] * row_bytes);
        narrow(reinterpret_cast<const float*>(part.shard + places[k] * row_bytes),
               reinterpret_cast<uint16_t*>(rows + k * travelling), shape.width);
      }
    }
    message->pieces[0] = {rows, message->buffers[0].size()};
    message->sent = [unanswered = table.unanswered[question.peer]] { --*unanswered; };
    peer(question.peer).connection.send(std::move(message));
    table.questions.erase(table.questions.begin() + i);
  }
}

}  // namespace lane
