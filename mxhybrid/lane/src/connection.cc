#include "connection.h"

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

namespace lane {
namespace {

/// The most bytes of a fragment.  A fragment begins with 32 bits: the priority in the highest 4, the size in the
/// others.
constexpr size_t kFragment = 1 << 16;
constexpr int kPriorityShift = 28;
/// The most unsent bytes in the kernel's queue, where urgent messages cannot overtake others, on a slow link.
constexpr int kUnsent = 1 << 15;
/// A smaller number of received bytes is not worth the system call that asks the kernel to gather it.
constexpr size_t kMinThreshold = 1 << 13;
/// A segment that lacks at least this many bytes is received directly; smaller ones go through a buffer.
constexpr size_t kDirect = 1 << 13;
constexpr int kSegmentsAtOnce = 32;
/// The orders in which streams are sent.  Answers to the other host, and the pushes before them, precede allreduces:
/// the other host is blocked on these rows, and without them it cannot reach its own inputs of the allreduces, for
/// which all hosts wait.
constexpr uint32_t kWithoutAnswers[] = {kCredits, kTransfers, kAllreduce, kPullRequests, kRowsInOrder},
                   kWithAnswers[] = {kCredits, kTransfers, kRowsInOrder, kAllreduce, kPullRequests};
/// The most reads of one connection before other connections are served.
constexpr int kReads = 16;

}  // namespace

Connection::Connection(int socket, MessageSink& sink, Traffic& traffic)
    : socket_(socket), sink_(sink), traffic_(traffic), staging_(kFragment) {
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

bool Connection::begin_fragment() {
  for (uint32_t priority : answers_ > 0 ? kWithAnswers : kWithoutAnswers) {
    if (queued_[priority] == 0) continue;
    fragment_left_ = std::min(queued_[priority], kFragment);
    fragment_ = priority << kPriorityShift | static_cast<uint32_t>(fragment_left_);
    fragment_header_left_ = sizeof fragment_;
    return true;
  }
  return false;
}

bool Connection::write() {
  if (is_blocked_) return true;
  while (fragment_left_ > 0 || fragment_header_left_ > 0 || begin_fragment()) {
    const uint32_t priority = fragment_ >> kPriorityShift;
    auto& queue = queues_[priority];
    struct iovec segments[kSegmentsAtOnce];
    int count = 0;
    if (fragment_header_left_ > 0) {
      char* header = reinterpret_cast<char*>(&fragment_);
      segments[count++] = {header + sizeof fragment_ - fragment_header_left_, fragment_header_left_};
    }
    size_t left_in_fragment = fragment_left_;
    for (auto message = queue.begin(); message != queue.end() && left_in_fragment > 0; ++message) {
      OutgoingMessage& message_out = **message;
      size_t skip = message_out.done;
      const Segment parts[3] = {{reinterpret_cast<char*>(&message_out.header), sizeof(Header)},
                                message_out.segments[0],
                                message_out.segments[1]};
      for (const Segment& segment : parts) {
        if (skip >= segment.size) {
          skip -= segment.size;
          continue;
        }
        const size_t size = std::min(segment.size - skip, left_in_fragment);
        if (size == 0 || count == kSegmentsAtOnce) break;
        segments[count++] = {segment.data + skip, size};
        left_in_fragment -= size;
        skip = 0;
      }
      if (count == kSegmentsAtOnce) break;
    }
    struct msghdr vector = {};
    vector.msg_iov = segments;
    vector.msg_iovlen = count;
    const size_t offered = std::accumulate(segments, segments + count, size_t{0},
                                           [](size_t sum, const struct iovec& segment) { return sum + segment.iov_len; });
    const ssize_t sent = sendmsg(socket_, &vector, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        is_blocked_ = true;
        return true;
      }
      lose(std::strerror(errno));
      return false;
    }
    size_t left = sent;
    is_blocked_ = left < offered;  // another call would say that the socket takes nothing
    const size_t header_bytes = std::min(left, fragment_header_left_);
    // The head of a fragment counts towards the message to which the first byte of the fragment belongs.
    Traffic::add(traffic_.sent[static_cast<int>(queue.front()->header.kind)], header_bytes);
    fragment_header_left_ -= header_bytes;
    left -= header_bytes;
    fragment_left_ -= left;
    queued_[priority] -= left;
    while (left > 0) {
      OutgoingMessage& message_out = *queue.front();
      const size_t size = std::min(left, message_out.size() - message_out.done);
      Traffic::add(traffic_.sent[static_cast<int>(message_out.header.kind)], size);
      message_out.done += size;
      left -= size;
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
  const ssize_t size = recvmsg(socket_, &vector, 0);
  *got = size > 0 ? size : 0;
  if (size > 0) return true;
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
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
    size_t got, direct = 0;
    IncomingMessage& in = incoming_[arriving_left_ > 0 ? arriving_ >> kPriorityShift : 0];
    if (arriving_left_ >= kDirect && in.got == sizeof(Header) && in.segments[in.segment].size - in.done >= kDirect) {
      direct = std::min(in.segments[in.segment].size - in.done, arriving_left_);
    }
    // The same call receives the bytes that follow the segment.
    struct iovec rooms[2] = {{direct > 0 ? in.segments[in.segment].data + in.done : nullptr, direct},
                             {staging_.data(), staging_.size()}};
    const bool any_direct = direct > 0;
    if (!receive(any_direct ? rooms : rooms + 1, any_direct ? 2 : 1, &got)) return false;
    const size_t room = direct + staging_.size();
    direct = std::min(direct, got);
    if (direct > 0) {
      in.done += direct;
      arriving_left_ -= direct;
      count_received(in, direct);
      finish_segments(in);
    }
    feed(staging_.data(), got - direct);
    if (got < room) return true;
  }
  return true;
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
      arriving_left_ = arriving_ & ((1U << kPriorityShift) - 1);
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
