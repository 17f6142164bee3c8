// An agent's part in transfers between hosts: it keeps two copies of a channel alike, see channel.h.
//
// What a worker of its host has written to a ring goes to the same place of the same ring on the reader's host
// (Message::kRingData); how much the reader has consumed comes back (kRingCredit), and makes room.  So the ring bounds
// what is under way, and both agents read and write nothing but the two rings.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "connection.h"
#include "channel.h"
#include "membership.h"

namespace lane {

class ChannelRelay {
 public:
  /// `peer` gives the connection with an agent.
  ChannelRelay(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer);
  ~ChannelRelay();

  /// Map a channel, by the ranks of its ends: one is a worker of this host, with that number there, the other is on the
  /// host `other`.
  void open(uint32_t worker, bool outgoing, uint32_t from, uint32_t to, uint32_t other, int descriptor);

  /// Look at what workers of this host have changed.
  void progress(const std::vector<Memory>& workers);
  /// Whether they have changed anything that `progress` has not seen.
  bool has_work(const std::vector<Memory>& workers) const;

  /// Messages kRingData and kRingCredit of an agent, see MessageSink.
  void begin(const Header& header, uint32_t from, Segment segments[2]);
  /// With the workers of this host, for one of which there is news.
  void end(const Header& header, uint32_t from, const std::vector<Memory>& workers);

 private:
  struct RingState;
  struct ChannelEnd;
  /// A ring with something to send, and its place among its worker's changes, relative to the last one seen.
  struct PendingRing {
    int32_t turn;
    ChannelEnd* end;
    uint32_t number;
  };

  ChannelEnd& channel_end(const Header& header, uint32_t agent);
  void send_data(ChannelEnd& end, uint32_t number);
  void send_credit(ChannelEnd& end, uint32_t number);

  const uint32_t agent_, host_;
  const Membership& membership_;
  const std::function<Connection&(uint32_t)> peer_;
  std::map<std::pair<uint32_t, uint32_t>, ChannelEnd> ends_;  // by ranks
  std::vector<uint32_t> seen_;                         // by worker: WorkerBlock::channel_changes
  std::vector<PendingRing> pending_;                       // within `progress`
};

}  // namespace lane
