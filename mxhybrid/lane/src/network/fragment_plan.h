// Fragments of messages as the parts of one system call, see connection.h.
//
// A fragment begins with a head of 32 bits: the stream in the highest 4, the size in the others.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/buffer.h"

namespace lane {

/// The most bytes of a fragment, without its head.
constexpr size_t kFragment = 1 << 16;
/// The most fragments that one system call sends, and that one receives at their place.
constexpr int kFragmentsAtOnce = 4;

/// A contiguous part of a message.
struct Segment {
  char* data = nullptr;
  size_t size = 0;
};

constexpr int kStreamShift = 28;
/// Return the head of a fragment with as many of `queued` bytes of a stream as fit.
inline uint32_t fragment_head(uint32_t stream, size_t queued) {
  return stream << kStreamShift | static_cast<uint32_t>(std::min(queued, kFragment));
}
inline uint32_t stream_of(uint32_t head) { return head >> kStreamShift; }
inline size_t size_of_fragment(uint32_t head) { return head & ((1U << kStreamShift) - 1); }

/// The fragment that is being sent.
struct SentFragment {
  uint32_t head = 0;
  size_t head_left = 0, left = 0;  // bytes of the head, and after it

  SentFragment() = default;
  explicit SentFragment(uint32_t head) : head(head), head_left(sizeof head), left(size_of_fragment(head)) {}
  bool ended() const { return head_left == 0 && left == 0; }
};

/// The bytes that one system call sends: the rest of a fragment, and then further fragments of the same stream.
class SendPlan {
 public:
  explicit SendPlan(const SentFragment& first);
  SendPlan(const SendPlan&) = delete;
  SendPlan& operator=(const SendPlan&) = delete;

  /// Return whether `begin_fragment`, or `add`, may be called.
  bool has_room() const { return count_ + 2 <= kMostParts; }
  /// Return whether the last fragment has all of its bytes.
  bool fragment_ended() const { return left_ == 0; }
  bool may_begin_fragment() const { return fragments_ < kFragmentsAtOnce; }
  /// Begin a fragment with as many of `queued` bytes as fit; return its size.
  size_t begin_fragment(size_t queued);
  /// Add the bytes of a message that come next, as many as the fragment takes; return their number.
  size_t add(Segment bytes);

  struct iovec* parts() { return parts_; }
  int count() const { return count_; }
  size_t bytes() const { return bytes_; }
  /// Return fragment number `number`, from 1 on; number 0 is the first one.
  SentFragment fragment(int number) const { return SentFragment(heads_[number]); }

 private:
  static constexpr int kMostParts = 64;

  void push(void* data, size_t size);

  uint32_t heads_[kFragmentsAtOnce];
  struct iovec parts_[kMostParts];
  int fragments_ = 1, count_ = 0;
  size_t left_, bytes_ = 0;
};

/// The places for the bytes that one system call receives.
///
/// The rest of a large segment is received at its place, with the heads of fragments between its parts.  This expects
/// that the next fragments are of the same stream and hold as much of the segment as they can.  If they do not, their
/// bytes lie in parts of the segment that are yet to be received, and `received_from` takes them from there.  All other
/// bytes are received into a buffer.
class ReceivePlan {
 public:
  /// A segment that lacks at least this many bytes is received at its place.
  static constexpr size_t kDirect = 1 << 13;

  /// `lacking` is the rest of the segment that is being received, `left` what is left of the fragment.
  ReceivePlan(Segment lacking, size_t left, Segment buffer);
  ReceivePlan(const ReceivePlan&) = delete;
  ReceivePlan& operator=(const ReceivePlan&) = delete;

  struct iovec* parts() { return parts_; }
  int count() const { return count_; }
  size_t bytes() const { return bytes_; }
  /// Return the bytes of the present fragment that are received at their place.
  size_t rest() const { return rest_; }
  /// Return the number of fragments that are expected after it; the address of the head of one of them, and the bytes of
  /// the segment that it holds.
  int fragments() const { return fragments_; }
  const char* head(int number) const { return reinterpret_cast<const char*>(&heads_[number]); }
  size_t size(int number) const { return parts_[part_of(number) + 1].iov_len; }
  /// Return the `count` bytes that were received after the head of an expected fragment.
  Buffer received_from(int number, size_t count) const;

 private:
  /// Return the part that has the head of an expected fragment.
  int part_of(int number) const { return (rest_ > 0) + 2 * number; }
  void push(void* data, size_t size);

  uint32_t heads_[kFragmentsAtOnce];
  struct iovec parts_[2 * kFragmentsAtOnce + 2];
  int fragments_ = 0, count_ = 0;
  size_t rest_ = 0, bytes_ = 0;
};

}  // namespace lane
