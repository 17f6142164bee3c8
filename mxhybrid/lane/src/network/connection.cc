#include "network/connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "base/system_calls.h"

namespace lane {
namespace {

/// The most bytes of a fragment.  A fragment begins with 32 bits: the priority in the highest 4, the size in the
/// others.
constexpr size_t kFragment = 1 << 16;
constexpr int kPriorityShift = 28;
constexpr uint32_t kSizeMask = (1U << kPriorityShift) - 1;
/// The most unsent bytes in the kernel's queue, where urgent messages cannot overtake others, on a slow link.
constexpr int kUnsent = 1 << 15;
/// A smaller number of received bytes is not worth the system call that asks the kernel to gather it.
constexpr size_t kMinThreshold = 1 << 13;
/// A segment that lacks at least this many bytes is received directly; smaller ones go through a buffer.
constexpr size_t kDirect = 1 << 13;
/// The size of that buffer.  Copying as many bytes takes as long as about two system calls.
constexpr size_t kStaging = 1 << 14;
/// The most fragments that one system call sends, and that one receives directly; and the most parts of sent fragments.
constexpr int kFragmentsAtOnce = 4, kPartsAtOnce = 64;
/// The orders in which streams are sent.  Answers to the other host, and the pushes before them, precede allreduces:
/// the other host is blocked on these rows, and without them it cannot reach its own inputs of the allreduces, for
/// which all hosts wait.
constexpr uint32_t kWithoutAnswers[] = {kCredits, kTransfers, kAllreduce, kPullRequests, kRowsInOrder},
                   kWithAnswers[] = {kCredits, kTransfers, kRowsInOrder, kAllreduce, kPullRequests};
/// The most reads of one connection before other connections are served.
constexpr int kReads = 16;

}  // namespace

Connection::Connection(int socket, MessageSink& sink, Traffic& traffic)
    : socket_(socket), sink_(sink), traffic_(traffic), staging_(kStaging) {
  fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
  // These calls fail for the sockets of tests, which are not of TCP.
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsent, sizeof kUnsent);
}

Connection::~Connection() { close(socket_); }

void Connection::lose(const std::string& cause) {
  if (cause_.empty()) cause_ = cause;
  for (auto& queue : queues_) {
    for (auto& message : queue) {
      if (message->sent) message->sent();
    }
    queue.clear();
  }
  std::fill(queued_, queued_ + kPriorities, 0);
  answers_ = 0;
  fragment_header_left_ = fragment_left_ = 0;
  is_blocked_ = false;
}

// ------------------------------------------------------------------------------------------------------- sending

void Connection::send(std::unique_ptr<OutgoingMessage> message) {
  if (!cause_.empty()) {
    if (message->sent) message->sent();
    return;
  }
  const Priority priority = priority_of(message->header.kind);
  queued_[priority] += message->size();
  answers_ += message->header.kind == Message::kRows;
  queues_[priority].push_back(std::move(message));
}

size_t Connection::unsent() const { return std::accumulate(queued_, queued_ + kPriorities, size_t{0}); }

/// Return the stream that is sent next while that number of answers is queued, or kPriorities.
uint32_t Connection::next_stream(size_t answers) const {
  for (uint32_t priority : answers > 0 ? kWithAnswers : kWithoutAnswers) {
    if (queued_[priority] > 0) return priority;
  }
  return kPriorities;
}

bool Connection::begin_fragment() {
  const uint32_t priority = next_stream(answers_);
  if (priority == kPriorities) return false;
  set_fragment(fragment_head(priority, queued_[priority]));
  return true;
}

/// Return the head of a fragment with as many of the queued bytes of a stream as fit.
uint32_t Connection::fragment_head(uint32_t priority, size_t queued) {
  return priority << kPriorityShift | static_cast<uint32_t>(std::min(queued, kFragment));
}

void Connection::set_fragment(uint32_t head) {
  fragment_ = head;
  fragment_header_left_ = sizeof fragment_;
  fragment_left_ = head & kSizeMask;
}

bool Connection::write() {
  if (is_blocked_) return true;
  while (fragment_left_ > 0 || fragment_header_left_ > 0 || begin_fragment()) {
    // One call also sends the next fragments, if they are of the same stream: their heads are heads[1], heads[2], ...
    const uint32_t priority = fragment_ >> kPriorityShift;
    auto& queue = queues_[priority];
    uint32_t heads[kFragmentsAtOnce] = {fragment_};
    struct iovec parts[kPartsAtOnce];
    int count = 0, fragments = 1;
    if (fragment_header_left_ > 0) {
      char* header = reinterpret_cast<char*>(&heads[0]);
      parts[count++] = {header + sizeof fragment_ - fragment_header_left_, fragment_header_left_};
    }
    size_t offered = fragment_header_left_, left_in_fragment = fragment_left_;
    size_t queued = queued_[priority] - fragment_left_, answers = answers_;  // after these fragments
    auto message = queue.begin();
    size_t position = (*message)->done;
    while (count + 1 < kPartsAtOnce) {
      if (left_in_fragment == 0) {
        if (queued == 0 || fragments == kFragmentsAtOnce || next_stream(answers) != priority) break;
        uint32_t& head = heads[fragments++];
        head = fragment_head(priority, queued);
        left_in_fragment = head & kSizeMask;
        queued -= left_in_fragment;
        parts[count++] = {&head, sizeof head};
        offered += sizeof head;
      }
      const Segment bytes = (*message)->bytes_at(position);
      const size_t size = std::min(bytes.size, left_in_fragment);
      parts[count++] = {bytes.data, size};
      offered += size;
      left_in_fragment -= size;
      position += size;
      if (position == (*message)->size()) {
        answers -= (*message)->header.kind == Message::kRows;
        ++message;
        position = 0;
      }
    }
    struct msghdr vector = {};
    vector.msg_iov = parts;
    vector.msg_iovlen = count;
    const ssize_t sent = uninterrupted([&] { return sendmsg(socket_, &vector, MSG_NOSIGNAL); });
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        is_blocked_ = true;
        return true;
      }
      lose(std::strerror(errno));
      return false;
    }
    is_blocked_ = static_cast<size_t>(sent) < offered;  // another call would say that the socket takes nothing
    int fragment = 0;
    for (size_t left = sent; left > 0;) {
      if (fragment_left_ == 0 && fragment_header_left_ == 0) set_fragment(heads[++fragment]);
      OutgoingMessage& message_out = *queue.front();
      const size_t header_bytes = std::min(left, fragment_header_left_);
      const size_t size = std::min({left - header_bytes, fragment_left_, message_out.size() - message_out.done});
      // The head of a fragment counts towards the message to which the first byte of the fragment belongs.
      Traffic::add(traffic_.sent[static_cast<int>(message_out.header.kind)], header_bytes + size);
      fragment_header_left_ -= header_bytes;
      fragment_left_ -= size;
      queued_[priority] -= size;
      message_out.done += size;
      left -= header_bytes + size;
      if (message_out.done == message_out.size()) {
        if (message_out.sent) message_out.sent();
        answers_ -= message_out.header.kind == Message::kRows;
        queue.pop_front();
      }
    }
    if (is_blocked_) return true;
  }
  return false;
}

// ------------------------------------------------------------------------------------------------------ receiving

/// Receive into several buffers, one after the other.
bool Connection::receive(struct iovec* rooms, int count, size_t* got) {
  struct msghdr vector = {};
  vector.msg_iov = rooms;
  vector.msg_iovlen = count;
  const ssize_t size = uninterrupted([&] { return recvmsg(socket_, &vector, 0); });
  *got = size > 0 ? size : 0;
  if (size > 0) return true;
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
  lose(size == 0 ? "it was closed" : std::strerror(errno));
  return false;
}

void Connection::set_threshold(size_t bytes) {
  if (bytes == threshold_) return;
  threshold_ = bytes;
  const int unsent = std::max(kUnsent, static_cast<int>(bytes));
  setsockopt(socket_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  set_low_water();
}

/// Make the socket readable from the threshold on, or when it has the rest of the messages that have begun to arrive: the
/// other end has queued all of that.
void Connection::set_low_water() {
  size_t expected = 0;
  for (const IncomingMessage& in : incoming_) {
    if (in.got < sizeof(Header)) continue;
    for (int i = in.segment; i < 2; ++i) expected += in.segments[i].size;
    expected -= in.done;
  }
  size_t low_water = std::min(expected, threshold_);
  if (low_water < kMinThreshold) low_water = 1;
  if (low_water == low_water_) return;
  low_water_ = low_water;
  const int value = static_cast<int>(low_water);
  setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value);
}

bool Connection::read() {
  const bool is_open = read_some();
  if (is_open) set_low_water();
  return is_open;
}

bool Connection::read_some() {
  for (int i = 0; i < kReads; ++i) {
    // The rest of a large segment is received directly, with the heads of fragments between its parts.  This expects
    // that the next fragments are of the same stream and hold as much of the segment as they can; if they do not, their
    // bytes lie in parts of the segment that are yet to be received, and are taken from there.
    const bool between_heads = arriving_header_got_ == 0;
    const uint32_t priority = between_heads ? arriving_ >> kPriorityShift : 0;  // of the last fragment
    IncomingMessage& in = incoming_[priority];
    size_t lacking = 0;
    if (between_heads && in.got == sizeof(Header)) lacking = in.segments[in.segment].size - in.done;
    uint32_t heads[kFragmentsAtOnce];
    struct iovec rooms[2 * kFragmentsAtOnce + 2];
    int count = 0, expected_heads = 0;
    size_t room = 0, first = 0;
    if (lacking >= kDirect) {
      char* to = in.segments[in.segment].data + in.done;
      first = std::min(lacking, arriving_left_);
      if (first > 0) rooms[count++] = {to, first};
      size_t size = first;
      for (bool ends = first == arriving_left_; ends && lacking > size && expected_heads < kFragmentsAtOnce;
           ends = size == kFragment) {
        to += size;
        lacking -= size;
        size = std::min(lacking, kFragment);
        rooms[count++] = {&heads[expected_heads++], sizeof(uint32_t)};
        rooms[count++] = {to, size};
      }
    }
    rooms[count++] = {staging_.data(), staging_.size()};
    for (int k = 0; k < count; ++k) room += rooms[k].iov_len;
    size_t got;
    if (!receive(rooms, count, &got)) return false;
    const bool is_all = got < room;
    const struct iovec* next = rooms;
    if (first > 0) {
      const size_t size = std::min(first, got);
      got -= size;
      ++next;
      take_in_place(in, size);
    }
    for (int k = 0; k < expected_heads && got > 0; ++k) {
      const size_t head_bytes = std::min(got, sizeof(uint32_t)), expected = next[1].iov_len;
      feed(reinterpret_cast<const char*>(&heads[k]), head_bytes);
      got -= head_bytes;
      ++next;
      if (got == 0) break;
      if (arriving_ >> kPriorityShift != priority || arriving_left_ < expected) {
        Buffer misplaced(got);
        for (size_t copied = 0; copied < got; ++next) {
          const size_t size = std::min(got - copied, next->iov_len);
          std::memcpy(misplaced.data() + copied, next->iov_base, size);
          copied += size;
        }
        feed(misplaced.data(), got);
        got = 0;
        break;
      }
      const size_t size = std::min(expected, got);
      got -= size;
      ++next;
      take_in_place(in, size);
    }
    feed(staging_.data(), got);
    if (is_all) return true;
  }
  return true;
}

/// Note bytes of a segment that were received at their place.
void Connection::take_in_place(IncomingMessage& in, size_t size) {
  in.done += size;
  arriving_left_ -= size;
  count_received(in, size);
  finish_segments(in);
}

void Connection::feed(const char* data, size_t size) {
  while (size > 0) {
    if (arriving_left_ == 0) {
      char* header = reinterpret_cast<char*>(&arriving_);
      const size_t copied = std::min(size, sizeof arriving_ - arriving_header_got_);
      std::memcpy(header + arriving_header_got_, data, copied);
      arriving_header_got_ += copied;
      data += copied;
      size -= copied;
      if (arriving_header_got_ < sizeof arriving_) return;
      arriving_header_got_ = 0;
      arriving_left_ = arriving_ & kSizeMask;
      if (arriving_ >> kPriorityShift >= kPriorities || arriving_left_ == 0 || arriving_left_ > kFragment) {
        throw std::runtime_error("a malformed fragment");
      }
      count_received(incoming_[arriving_ >> kPriorityShift], sizeof arriving_);
      continue;
    }
    const size_t used = feed_message(arriving_ >> kPriorityShift, data, std::min(size, arriving_left_));
    arriving_left_ -= used;
    data += used;
    size -= used;
  }
}

size_t Connection::feed_message(uint32_t priority, const char* data, size_t size) {
  IncomingMessage& in = incoming_[priority];
  if (in.got < sizeof(Header)) {
    const size_t copied = std::min(size, sizeof(Header) - in.got);
    std::memcpy(reinterpret_cast<char*>(&in.header) + in.got, data, copied);
    in.got += copied;
    in.uncounted += copied;
    if (in.got == sizeof(Header)) {
      in.segments[0] = in.segments[1] = Segment();
      in.segment = 0;
      in.done = 0;
      if (priority_of(in.header.kind) != priority) {
        throw std::runtime_error("a message in the wrong stream");
      }
      sink_.begin(in.header, in.segments);
      count_received(in, 0);
      finish_segments(in);
    }
    return copied;
  }
  Segment& segment = in.segments[in.segment];
  const size_t copied = std::min(size, segment.size - in.done);
  std::memcpy(segment.data + in.done, data, copied);
  in.done += copied;
  count_received(in, copied);
  finish_segments(in);
  return copied;
}

void Connection::count_received(IncomingMessage& in, size_t size) {
  in.uncounted += size;
  if (in.got < sizeof(Header)) return;
  Traffic::add(traffic_.received[static_cast<int>(in.header.kind)], in.uncounted);
  in.uncounted = 0;
}

void Connection::finish_segments(IncomingMessage& in) {
  while (in.segment < 2 && in.done == in.segments[in.segment].size) {
    ++in.segment;
    in.done = 0;
  }
  if (in.segment == 2) {
    in.got = 0;
    in.segment = 0;
    sink_.end(in.header);
  }
}

}  // namespace lane
