// The relay of channels between hosts: an agent keeps the copies of a channel on two hosts equal, see channel.h.
//
// Bytes that a worker of this host has written to a ring are sent to the same position of the same ring on the reader's
// host (Message::kRingData).  The number of bytes that the reader has consumed comes back (Message::kRingCredit) and
// makes room.  So the ring bounds the data under way, and both agents read and write only the two rings.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "memory/channel.h"
#include "memory/membership.h"
#include "network/connection.h"

namespace lane {

class ChannelRelay {
 public:
  /// `peer` returns the connection with another agent.
  ChannelRelay(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer);
  ~ChannelRelay();

  /// Map a channel from rank `from` to rank `to`.  One of them is the worker of this host with the local number
  /// `worker`, the other is on host `other`.
  void open(uint32_t worker, bool outgoing, uint32_t from, uint32_t to, uint32_t other, int descriptor);

  /// Relay the changes of the workers of this host.
  void progress(const std::vector<Memory>& workers);
  /// Return whether workers have made changes since the last `progress`.
  bool has_work(const std::vector<Memory>& workers) const;

  /// Receive a message kRingData or kRingCredit from another agent, see MessageSink.
  void begin(const Header& header, uint32_t from, Segment segments[2]);
  /// `workers` are the blocks of the workers of this host, one of which may have to be woken.
  void end(const Header& header, uint32_t from, const std::vector<Memory>& workers);

 private:
  struct RingState;
  struct ChannelEnd;
  /// A ring with data to send, and the number of its change, relative to the last change that was seen.
  struct PendingRing {
    int32_t change;
    ChannelEnd* end;
    uint32_t number;
  };

  ChannelEnd& channel_end(const Header& header, uint32_t agent);
  void send_data(ChannelEnd& end, uint32_t number);
  void send_credit(ChannelEnd& end, uint32_t number);

  const uint32_t agent_, host_;
  const Membership& membership_;
  const std::function<Connection&(uint32_t)> peer_;
  std::map<std::pair<uint32_t, uint32_t>, ChannelEnd> ends_;  // by the ranks of writer and reader
  std::vector<uint32_t> seen_;                                // WorkerBlock::channel_changes of each worker
  std::vector<PendingRing> pending_;                          // used within `progress`
};

}  // namespace lane
