#include "agent/channel_relay.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lane {
namespace {

/// The most bytes of a message.  Larger data is sent in several messages, so that the reader can begin early.
constexpr size_t kMaxMessageBytes = 256 << 10;

uint8_t logarithm(uint32_t capacity) { return static_cast<uint8_t>(__builtin_ctz(capacity)); }

}  // namespace

/// The agent's own copy of a ring's state, so that it never reads a length twice from shared memory.
struct ChannelRelay::RingState {
  uint32_t capacity = 0;  // 0 while it is unknown
  uint64_t tag = 0;
  char* data = nullptr;
  uint32_t sent = kFirst;      // bytes that were sent; for an incoming channel, bytes that were received
  uint32_t consumed = kFirst;  // bytes consumed, as far as the other agent has reported or was told
};

/// The end of a channel on this host.
struct ChannelRelay::ChannelEnd {
  const uint32_t from, to;  // ranks
  const uint32_t worker;    // its number on this host
  const bool outgoing;
  const uint32_t peer;  // the agent at the other end
  Channel channel;
  uint32_t changed = kFirst;
  std::vector<RingState> rings = {};

  RingState& ring_state(uint32_t number) {
    if (number >= rings.size()) rings.resize(number + 1);
    return rings[number];
  }
};

ChannelRelay::ChannelRelay(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer)
    : agent_(agent), host_(membership.agent_hosts.at(agent)), membership_(membership), peer_(std::move(peer)),
      seen_(membership.worker_counts.at(host_), kFirst) {}

ChannelRelay::~ChannelRelay() = default;

void ChannelRelay::open(uint32_t worker, bool outgoing, uint32_t from, uint32_t to, uint32_t other, int descriptor) {
  if (worker >= seen_.size() || other >= membership_.worker_counts.size() || other == host_ ||
      membership_.channel_agent(host_, from, to) != agent_) {
    throw std::runtime_error("another server relays the channel from worker " + std::to_string(from) + " to worker " +
                             std::to_string(to));
  }
  const uint32_t peer = membership_.channel_agent(other, from, to);
  ChannelEnd end{from, to, worker, outgoing, peer, Channel::map(descriptor)};
  if (!ends_.try_emplace({from, to}, std::move(end)).second) {
    throw std::runtime_error("the channel from worker " + std::to_string(from) + " to worker " + std::to_string(to) +
                             " is opened twice");
  }
}

bool ChannelRelay::has_work(const std::vector<Memory>& workers) const {
  for (uint32_t worker = 0; worker < workers.size(); ++worker) {
    if (workers[worker].mapped() && workers[worker].at<WorkerBlock>(0)->channel_changes.load() != seen_[worker]) {
      return true;
    }
  }
  return false;
}

void ChannelRelay::progress(const std::vector<Memory>& workers) {
  if (!has_work(workers)) return;
  for (uint32_t worker = 0; worker < workers.size(); ++worker) {
    if (workers[worker].mapped()) seen_[worker] = workers[worker].at<WorkerBlock>(0)->channel_changes.load();
  }
  pending_.clear();
  for (auto& [ranks, end] : ends_) {
    ChannelHeader& channel_header = end.channel.header();
    const uint32_t changed = channel_header.changed.load();
    if (changed == end.changed) continue;
    end.changed = changed;
    const uint32_t rings = std::min(channel_header.rings.load(), kMaxRings);
    for (uint32_t first = 0; first < rings; first += 64) {
      if (channel_header.dirty[first / 64].load() == 0) continue;
      for (uint64_t bits = channel_header.dirty[first / 64].exchange(0); bits != 0; bits &= bits - 1) {
        const uint32_t number = first + static_cast<uint32_t>(__builtin_ctzll(bits));
        // Rings may have been added since `rings` was loaded.
        if (number >= rings && number >= std::min(channel_header.rings.load(), kMaxRings)) {
          throw std::runtime_error("a worker of this host changed an unknown ring of a channel");
        }
        if (end.outgoing) {
          const uint32_t change = end.channel.ring(number).change_number.load() - seen_[end.worker];
          pending_.push_back({static_cast<int32_t>(change), &end, number});  // modulo 2^32
        } else {
          send_credit(end, number);
        }
      }
    }
  }
  // The numbers of rings are not in the order of the transfers: the backward pass runs through them in reverse.
  std::stable_sort(pending_.begin(), pending_.end(), [](const auto& a, const auto& b) { return a.change < b.change; });
  for (const PendingRing& ring : pending_) send_data(*ring.end, ring.number);
}

void ChannelRelay::send_data(ChannelEnd& end, uint32_t number) {
  RingState& state = end.ring_state(number);
  RingHeader& ring = end.channel.ring(number);
  const uint32_t written = ring.written.load();
  if (state.capacity == 0) {
    state.data = end.channel.ring_data(number);
    state.capacity = ring.capacity;
  }
  if (written - state.consumed > state.capacity) {
    throw std::runtime_error("a worker of this host wrote more bytes than a ring holds");
  }
  const uint64_t tag = ring.tag.load(std::memory_order_acquire) - 1;
  while (state.sent != written) {
    auto message = std::make_unique<OutgoingMessage>();
    const size_t size = std::min<size_t>(written - state.sent, kMaxMessageBytes);
    const size_t position = state.sent % state.capacity, first = std::min(size, state.capacity - position);
    // The bytes stay in the ring until the other agent reports that they were consumed.
    message->segments[0] = {state.data + position, first};
    message->segments[1] = {state.data, size - first};
    Header& header = message->header;
    header.kind = Message::kRingData;
    header.flags = logarithm(state.capacity);
    header.table = end.from;
    header.part = end.to;
    header.count = static_cast<uint32_t>(size);
    header.ring = number;
    header.number = tag;
    peer_(end.peer).send(std::move(message));
    state.sent += static_cast<uint32_t>(size);
  }
}

void ChannelRelay::send_credit(ChannelEnd& end, uint32_t number) {
  RingState& state = end.ring_state(number);
  const uint32_t consumed = end.channel.ring(number).consumed.load();
  if (consumed - state.consumed > state.sent - state.consumed) {
    throw std::runtime_error("a worker of this host consumed more bytes than it received");
  }
  if (consumed == state.consumed) return;
  auto message = std::make_unique<OutgoingMessage>();
  message->header.kind = Message::kRingCredit;
  message->header.table = end.from;
  message->header.part = end.to;
  message->header.count = consumed - state.consumed;
  message->header.ring = number;
  peer_(end.peer).send(std::move(message));
  state.consumed = consumed;
}

ChannelRelay::ChannelEnd& ChannelRelay::channel_end(const Header& header, uint32_t agent) {
  const auto entry = ends_.find({header.table, header.part});
  if (entry == ends_.end() || entry->second.peer != agent ||
      entry->second.outgoing != (header.kind == Message::kRingCredit)) {
    throw std::runtime_error("data of an unknown channel");
  }
  return entry->second;
}

void ChannelRelay::begin(const Header& header, uint32_t from, Segment segments[2]) {
  ChannelEnd& end = channel_end(header, from);
  if (header.kind == Message::kRingCredit) {
    if (header.ring >= end.rings.size() ||
        header.count > end.rings[header.ring].sent - end.rings[header.ring].consumed) {
      throw std::runtime_error("a credit for more bytes than a ring was sent");
    }
    return;
  }
  if (header.ring >= kMaxRings || header.flags < kMinRingLog2 || header.flags > kMaxRingLog2) {
    throw std::runtime_error("data of a malformed ring");
  }
  RingState& state = end.ring_state(header.ring);
  const uint32_t capacity = 1U << header.flags;
  if (state.capacity == 0 || state.tag != header.number) {
    end.channel.define_ring(header.ring, header.number, capacity);
    state.capacity = capacity;
    state.tag = header.number;
    state.data = end.channel.ring_data(header.ring);
  }
  const uint32_t used = state.sent - end.channel.ring(header.ring).consumed.load();
  if (state.capacity != capacity || used > capacity || header.count > capacity - used ||
      header.count == 0) {
    throw std::runtime_error("data that does not fit its ring");
  }
  const size_t position = state.sent % capacity, first = std::min<size_t>(header.count, capacity - position);
  segments[0] = {state.data + position, first};
  segments[1] = {state.data, header.count - first};
}

void ChannelRelay::end(const Header& header, uint32_t from, const std::vector<Memory>& workers) {
  ChannelEnd& end = channel_end(header, from);
  RingState& state = end.ring_state(header.ring);
  RingHeader& ring = end.channel.ring(header.ring);
  ChannelHeader& channel_header = end.channel.header();
  Flag* waiting;
  if (header.kind == Message::kRingCredit) {
    state.consumed += header.count;
    ring.consumed.store(state.consumed);
    waiting = &channel_header.writer_waiting;
  } else {
    state.sent += header.count;  // one message at a time, see priority_of
    ring.written.store(state.sent);
    waiting = &channel_header.reader_waiting;
  }
  if (waiting->exchange(0) && workers[end.worker].mapped()) notify(*workers[end.worker].at<WorkerBlock>(0));
}

}  // namespace lane
