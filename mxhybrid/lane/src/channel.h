// How workers hand pieces of arrays to each other.  A *channel* leads from one worker to another one, through memory
// that both map; it has a ring of bytes for each tag, so that what waits under one tag stands in the way of no other.
//
// Of a channel between workers of one host there is one copy.  Between hosts there are two, one that the writer shares
// with an agent of its host, and one that such an agent shares with the reader: agents keep them alike, see
// channel_relay.h.  So the rules are the same for the worker at either end.
//
// A ring is full when `capacity` bytes were written and not consumed: its writer goes on once the reader has consumed
// some, and nothing but the ring's own memory is needed for what is under way.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "memory.h"
#include "shared.h"

namespace lane {

/// Of one channel.
constexpr uint32_t kMaxRings = 1 << 14;
/// Binary logarithms of capacities.
constexpr uint32_t kMinRingLog2 = 8, kMaxRingLog2 = 20;
/// Bytes of all rings of a channel: addresses, not memory.
constexpr size_t kDefaultRingBytes = size_t(1) << 32;

/// What a channel begins with.
struct ChannelHeader {
  /// Heads of rings that were ever used, all before this one; by the writer.
  alignas(64) Flag rings;
  /// 1 while the reader waits for bytes, or for a ring: who writes then puts 0 here and has to wake it.
  alignas(64) Flag reader_waiting;
  /// 1 while the writer waits for room: who takes then puts 0 here and has to wake it.
  alignas(64) Flag writer_waiting;
  /// Of channels to and from other hosts: changes that the worker made and its agent has to look at, and in which
  /// rings. The worker sets the ring's bit and then adds 1; the agent takes bits away and then looks.
  alignas(64) Counter changed;
  alignas(64) std::atomic<uint64_t> dirty[kMaxRings / 64];
};

/// Of each ring.  Both counters are bytes, modulo 2^32; `written` is stored after the bytes are in their place,
/// `consumed` after the reader has copied them, so that 0 <= written - consumed <= capacity.  Byte number n lies at n %
/// capacity; each use of a transfer begins at a multiple of 8.
struct RingHeader {
  /// Whose it is, plus 1; stored after the two fields below, which never change afterwards.  The writer may give the
  /// ring another tag when everything in it was consumed.  A reader that is `reader_waiting` looks for it: see
  /// shared.h.
  alignas(64) std::atomic<uint64_t> tag;
  uint64_t offset;
  uint32_t capacity;
  alignas(64) Counter written;
  alignas(64) Counter consumed;
  /// Of channels to other hosts: how many changes the worker had made, in all its channels, before its last one here;
  /// what it began first is sent first.
  Counter change_number;
};

/// The view that one side has of a channel.
class Channel {
 public:
  /// A new one.
  explicit Channel(size_t room) : memory_(kData + room) {}
  /// Another process's, by the descriptor of its memory.
  static Channel map(int descriptor) { return Channel(Memory(descriptor, size_of_file(descriptor))); }

  ChannelHeader& header() const { return *memory_.at<ChannelHeader>(0); }
  RingHeader& ring(uint32_t number) const { return memory_.at<RingHeader>(kHeaders)[number]; }
  /// The bytes of a ring; throws std::runtime_error if its head is malformed.
  char* ring_data(uint32_t number) const;
  const Memory& memory() const { return memory_; }
  Memory& memory() { return memory_; }

  /// For the writer, one thread at a time: a ring for transfers of so many bytes, at best twice as large.  Throws
  /// std::runtime_error where there is no room, or a ring with that tag, which is all that the reader would find.
  uint32_t open_ring(uint64_t tag, uint64_t bytes);
  /// It is used no more.
  void close_ring(uint32_t number) { closed_.push_back(number); }
  /// Make a ring with that number, or give it another tag; throws std::runtime_error if that cannot be.
  void define_ring(uint32_t number, uint64_t tag, uint32_t capacity);
  /// For the reader: the ring of a tag, or kMaxRings as long as there is none.
  uint32_t find_ring(uint64_t tag) const;
  /// Have the agent look at a ring, after a worker's changes before that `turn`.
  void mark_changed(uint32_t number, uint32_t turn);

 private:
  static constexpr size_t kHeaders = (sizeof(ChannelHeader) + Layout::kPage - 1) / Layout::kPage * Layout::kPage;
  static constexpr size_t kData = kHeaders + kMaxRings * sizeof(RingHeader);
  static_assert(kData % Layout::kPage == 0, "rings come after it");

  explicit Channel(Memory memory) : memory_(std::move(memory)) {}

  Memory memory_;
  size_t used_ = 0;               // by rings, of the writer
  std::vector<uint32_t> closed_;  // rings that may be given another tag
};

}  // namespace lane
