// Channels through which workers send each other pieces of arrays.
//
// A *channel* leads from one worker, its writer, to another, its reader, through shared memory.  It has a ring buffer
// for each tag, so that data that waits under one tag blocks no other tag.
//
// A channel between workers of one host is one region that both map.  A channel between hosts has two copies: the
// writer shares one with an agent of its host, the reader shares the other with an agent of its own host, and these
// agents keep the copies equal, see channel_relay.h.  So the rules are the same for the workers at both ends.
//
// A ring is full when `capacity` bytes were written and not yet consumed.  Its writer continues once the reader has
// consumed some of them.  So data under way never needs memory beyond the ring.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "memory/shared.h"

namespace lane {

/// The most rings of a channel.
constexpr uint32_t kMaxRings = 1 << 14;
/// The binary logarithms of the smallest and the largest capacity of a ring.
constexpr uint32_t kMinRingLog2 = 8, kMaxRingLog2 = 20;

/// The head of a channel.
struct ChannelHeader {
  /// The number of rings that were ever used; stored by the writer after their heads.
  alignas(64) Flag rings;
  /// Set to 1 by the reader before it sleeps until data, or a ring, is there; a writer that adds some clears it and
  /// wakes the reader.
  alignas(64) Flag reader_waiting;
  /// Set to 1 by the writer before it sleeps until a ring has room; a reader that consumes data clears it and wakes the
  /// writer.
  alignas(64) Flag writer_waiting;
  /// For channels between hosts: the number of changes that the worker has made and that its agent must relay, and the
  /// rings that were changed.  The worker sets the bit of a ring and then adds 1; the agent clears bits and then reads
  /// the rings.
  alignas(64) Counter changed;
  alignas(64) std::atomic<uint64_t> dirty[kMaxRings / 64];
};

/// The head of a ring.
///
/// `written` and `consumed` count bytes, modulo 2^32.  The writer stores `written` after the bytes are in the ring; the
/// reader stores `consumed` after it has copied them.  Hence 0 <= written - consumed <= capacity.  Byte number n is at
/// position n % capacity.  Every run of a transfer begins at a multiple of 8.
struct RingHeader {
  /// The ring's tag plus 1.  It is stored after `offset` and `capacity`, which never change afterwards.  The writer may
  /// give the ring another tag once everything in it was consumed.  A reader that has set `reader_waiting` looks for
  /// the tag once more, see shared.h.
  alignas(64) std::atomic<uint64_t> tag;
  uint64_t offset;
  uint32_t capacity;
  alignas(64) Counter written;
  alignas(64) Counter consumed;
  /// For channels to other hosts: the number of changes of all channels of the worker before its last change of this
  /// ring.  The agent sends rings in this order.
  Counter change_number;
};

/// A channel as one side sees it.
class Channel {
 public:
  /// Create a channel with `room` bytes for its rings.
  explicit Channel(size_t room) : memory_(kData + room) {}
  /// Map a channel that another process created, by the descriptor of its memory.
  static Channel map(int descriptor) { return Channel(Memory(descriptor, size_of_file(descriptor))); }

  ChannelHeader& header() const { return *memory_.at<ChannelHeader>(0); }
  RingHeader& ring(uint32_t number) const { return memory_.at<RingHeader>(kHeaders)[number]; }
  /// Return the bytes of a ring; throws std::runtime_error if its head is malformed.
  char* ring_data(uint32_t number) const;
  const Memory& memory() const { return memory_; }
  Memory& memory() { return memory_; }

  /// Open a ring for transfers of `bytes` each, and return its number; only for the writer, one thread at a time.  The
  /// ring has room for two transfers, up to the largest capacity.  Throws std::runtime_error if the channel has no
  /// room, or has a ring with this tag already: the reader would find that ring instead.
  uint32_t open_ring(uint64_t tag, uint64_t bytes);
  /// Close a ring; it may get another tag later.
  void close_ring(uint32_t number) { closed_.push_back(number); }
  /// Create a ring with a number, or give the ring another tag; throws std::runtime_error if the ring is in use or
  /// there is no room.
  void define_ring(uint32_t number, uint64_t tag, uint32_t capacity);
  /// Return the number of the ring with a tag, kMaxRings if there is none yet; only for the reader.
  uint32_t find_ring(uint64_t tag) const;
  /// Tell the agent that relays the channel that a ring has changed, after `change_number` earlier changes of the
  /// worker's channels.
  void mark_changed(uint32_t number, uint32_t change_number);

 private:
  static constexpr size_t kHeaders = rounded_up(sizeof(ChannelHeader), Layout::kPage);
  static constexpr size_t kData = kHeaders + kMaxRings * sizeof(RingHeader);
  static_assert(kData % Layout::kPage == 0, "rings come after it");

  explicit Channel(Memory memory) : memory_(std::move(memory)) {}

  Memory memory_;
  size_t used_ = 0;               // bytes of rings that the writer has created
  std::vector<uint32_t> closed_;  // rings that may get another tag
};

}  // namespace lane
