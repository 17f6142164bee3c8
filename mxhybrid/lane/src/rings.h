// How workers hand pieces of arrays to each other.  A *way* leads from one worker to another one, through memory that
// both map; it has a ring of bytes for each tag, so that what waits under one tag stands in the way of no other.
//
// Of a way between workers of one host there is one copy.  Between hosts there are two, one that the writer shares with a
// agent of its host, and one that such an agent shares with the reader: agents keep them alike, see moves.h.  So the rules
// are the same for the worker at either end.
//
// A ring is full when `capacity` bytes were written and not taken: its writer goes on once the reader has taken some,
// and nothing but the ring's own memory is needed for what is under way.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "memory.h"
#include "shared.h"

namespace lane {

/// Of one way.
constexpr uint32_t kMostRings = 1 << 14;
/// Binary logarithms of capacities.
constexpr uint32_t kSmallestRing = 8, kLargestRing = 20;
/// Bytes of all rings of a way: addresses, not memory.
constexpr size_t kRoom = size_t(1) << 32;

/// What a way begins with.
struct WayHead {
  /// Heads of rings that were ever used, all before this one; by the writer.
  alignas(64) Flag rings;
  /// 1 while the reader waits for bytes, or for a ring: who writes then puts 0 here and has to wake it.
  alignas(64) Flag hungry;
  /// 1 while the writer waits for room: who takes then puts 0 here and has to wake it.
  alignas(64) Flag crowded;
  /// Of ways to and from other hosts: changes that the worker made and its agent has to look at, and in which rings.
  /// The worker sets the ring's bit and then adds 1; the agent takes bits away and then looks.
  alignas(64) Counter changed;
  alignas(64) std::atomic<uint64_t> dirty[kMostRings / 64];
};

/// Of each ring.  Both counters are bytes, modulo 2^32; `written` is stored after the bytes are in their place, `taken`
/// after the reader has copied them, so that 0 <= written - taken <= capacity.  Byte number n lies at n % capacity; each
/// use of a move begins at a multiple of 8.
struct RingHead {
  /// Whose it is, plus 1; stored after the two fields below, which never change afterwards.  The writer may give the
  /// ring another tag when everything in it was taken.  A reader that is `hungry` looks for it: see shared.h.
  alignas(64) std::atomic<uint64_t> tag;
  uint64_t offset;
  uint32_t capacity;
  alignas(64) Counter written;
  alignas(64) Counter taken;
  /// Of ways to other hosts: how many changes the worker had made, in all its ways, before its last one here; what it
  /// began first is sent first.
  Counter turn;
};

/// The view that one side has of a way.
class Way {
 public:
  /// A new one.
  explicit Way(size_t room) : memory_(kData + room) {}
  /// Another process's, by the descriptor of its memory.
  static Way of(int descriptor) { return Way(Memory(descriptor, size_of_file(descriptor))); }

  WayHead& head() const { return *memory_.at<WayHead>(0); }
  RingHead& ring(uint32_t number) const { return memory_.at<RingHead>(kHeads)[number]; }
  /// The bytes of a ring; throws std::runtime_error if its head is malformed.
  char* data(uint32_t number) const;
  const Memory& memory() const { return memory_; }
  Memory& memory() { return memory_; }

  /// For the writer, one thread at a time: a ring for moves of so many bytes, at best twice as large.  Throws
  /// std::runtime_error where there is no room, or a ring with that tag, which is all that the reader would find.
  uint32_t open(uint64_t tag, uint64_t bytes);
  /// It is used no more.
  void close(uint32_t number) { closed_.push_back(number); }
  /// Make a ring with that number, or give it another tag; throws std::runtime_error if that cannot be.
  void define(uint32_t number, uint64_t tag, uint32_t capacity);
  /// For the reader: the ring of a tag, or kMostRings as long as there is none.
  uint32_t find(uint64_t tag) const;
  /// Have the agent look at a ring, after a worker's changes before that `turn`.
  void mark(uint32_t number, uint32_t turn);

 private:
  static constexpr size_t kHeads = (sizeof(WayHead) + Layout::kPage - 1) / Layout::kPage * Layout::kPage;
  static constexpr size_t kData = kHeads + kMostRings * sizeof(RingHead);
  static_assert(kData % Layout::kPage == 0, "rings come after it");

  explicit Way(Memory memory) : memory_(std::move(memory)) {}

  Memory memory_;
  size_t used_ = 0;               // by rings, of the writer
  std::vector<uint32_t> closed_;  // rings that may be given another tag
};

}  // namespace lane
