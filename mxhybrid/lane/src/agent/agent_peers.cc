// Messages from other agents.  Every message is checked before it is used.
#include <stdexcept>

#include "agent/agent_tables.h"

namespace lane {

void Agent::Peer::begin(const Header& header, Segment segments[2]) {
  if (header.kind == Message::kBye) return;
  if (header.kind == Message::kContribution || header.kind == Message::kResult) {
    return agent.allreduce_.begin(header, number, segments);
  }
  if (header.kind == Message::kRingData || header.kind == Message::kRingCredit) {
    return agent.relay_.begin(header, number, segments);
  }
  auto& arriving_table = arriving_tables[priority_of(header.kind)];
  arriving_table = agent.shared_table(header.table);
  Table& table = *arriving_table;
  if (header.part >= table.parts.size()) throw std::runtime_error("a message about an unknown partition");
  Part& part = table.parts[header.part];
  const TableShape& shape = table.shape;
  switch (header.kind) {
    case Message::kPush: {
      const uint32_t host = agent.membership_.agent_hosts[number];
      if (!part.is_owned || agent.membership_.handler(host, agent.number_) != number ||
          agent.membership_.worker_counts[host] == 0) {
        throw std::runtime_error("a push to a partition of another server");
      }
      if (header.count > shape.max_rows_of(header.part, agent.membership_.worker_counts[host])) {
        throw std::runtime_error("a push of too many rows");
      }
      if (part.pushes[host].size() >= table.max_pushes_ahead()) {
        throw std::runtime_error("too many pushes before other hosts have sent theirs");
      }
      push = {header.count, Buffer(header.count * shape.id_bytes()),
              Buffer(header.count * shape.wire_row_bytes(header.flags & kExactRows))};
      segments[0] = {push.ids.data(), push.ids.size()};
      segments[1] = {push.rows.data(), push.rows.size()};
      return;
    }
    case Message::kPull:
      if (!part.is_owned) throw std::runtime_error("a pull from a partition of another server");
      if (header.count > shape.max_rows_of(header.part, 1)) throw std::runtime_error("a pull of too many rows");
      if (agent.too_many_pulls(table, number)) throw std::runtime_error("too many pulls at a time");
      pull = {number, header.part, header.version, header.count, header.flags, header.number,
              Buffer(header.count * shape.id_bytes())};
      segments[0] = {pull.ids.data(), pull.ids.size()};
      return;
    case Message::kRows: {
      auto entry = table.outgoing_pulls.find(header.number);
      if (entry == table.outgoing_pulls.end() || entry->second.peer != number || entry->second.part != header.part ||
          entry->second.count != header.count || entry->second.flags != header.flags) {
        throw std::runtime_error("an answer to an unknown pull");
      }
      OutgoingPull& pull = entry->second;
      const size_t size = pull.count * shape.wire_row_bytes(pull.flags & kUncached);
      if (shape.rounds(pull.flags & kUncached)) {
        pull.rounded = Buffer(size);
        segments[0] = {pull.rounded.data(), size};
      } else {
        segments[0] = {pull.to, size};
      }
      return;
    }
    default:
      throw std::runtime_error("a message of an unknown kind");
  }
}

void Agent::Peer::end(const Header& header) {
  if (header.kind == Message::kBye) {
    has_left = true;
    return;
  }
  if (header.kind == Message::kContribution || header.kind == Message::kResult) {
    return agent.allreduce_.end(header, number);
  }
  if (header.kind == Message::kRingData || header.kind == Message::kRingCredit) {
    return agent.relay_.end(header, number, agent.workers_);
  }
  const std::shared_ptr<Table> arrived_table = std::move(arriving_tables[priority_of(header.kind)]);
  Table& table = *arrived_table;
  const TableShape& shape = table.shape;
  switch (header.kind) {
    case Message::kPush:
      if (!well_formed(shape, header.part, push.ids.as<void>(), push.count)) {
        throw std::runtime_error("a push with malformed local ids");
      }
      if (shape.rounds(header.flags & kExactRows)) {
        Buffer rows(push.count * shape.row_bytes());
        decode_rows(shape, push.rows.data(), push.count, rows.data());
        push.rows = std::move(rows);
      }
      table.parts[header.part].pushes[agent.membership_.agent_hosts[number]].push_back(std::move(push));
      return;
    case Message::kPull:
      if (!well_formed(shape, header.part, pull.ids.as<void>(), pull.count)) {
        throw std::runtime_error("a pull with malformed local ids");
      }
      table.incoming_pulls.push_back(std::move(pull));
      ++*table.unanswered[number];
      return;
    default: {
      auto entry = table.outgoing_pulls.find(header.number);
      OutgoingPull& pull = entry->second;
      if (pull.rounded.size()) decode_rows(shape, pull.rounded.data(), pull.count, pull.to);
      agent.note_version(table, header.number, pull);
      table.count_lag(pull, header.version);
      table.outgoing_pulls.erase(entry);
    }
  }
}

}  // namespace lane
