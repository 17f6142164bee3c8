#include "network/connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "base/system_calls.h"

namespace lane {
namespace {

/// The most unsent bytes in the kernel's queue, where urgent messages cannot overtake others, on a slow link.
constexpr int kUnsent = 1 << 15;
/// A smaller number of received bytes is not worth the system call that asks the kernel to gather it.
constexpr size_t kMinThreshold = 1 << 13;
/// The size of the buffer for what is not received at its place.  Copying as many bytes takes as long as about two system
/// calls.
constexpr size_t kStaging = 1 << 14;
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
  fragment_ = {};
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
  fragment_ = SentFragment(fragment_head(priority, queued_[priority]));
  return true;
}

bool Connection::write() {
  if (is_blocked_) return true;
  while (!fragment_.ended() || begin_fragment()) {
    SendPlan plan(fragment_);
    fill(plan);
    struct msghdr vector = {};
    vector.msg_iov = plan.parts();
    vector.msg_iovlen = plan.count();
    const ssize_t sent = uninterrupted([&] { return sendmsg(socket_, &vector, MSG_NOSIGNAL); });
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        is_blocked_ = true;
        return true;
      }
      lose(std::strerror(errno));
      return false;
    }
    is_blocked_ = static_cast<size_t>(sent) < plan.bytes();  // another call would say that the socket takes nothing
    note_sent(plan, sent);
    if (is_blocked_) return true;
  }
  return false;
}

/// Add the rest of the present fragment, and the next ones if they are of the same stream.
void Connection::fill(SendPlan& plan) {
  const uint32_t priority = stream_of(fragment_.head);
  size_t queued = queued_[priority] - fragment_.left, answers = answers_;  // after the fragments of the plan
  auto message = queues_[priority].begin();
  size_t position = (*message)->done;
  while (plan.has_room()) {
    if (plan.fragment_ended()) {
      if (queued == 0 || !plan.may_begin_fragment() || next_stream(answers) != priority) return;
      queued -= plan.begin_fragment(queued);
    }
    position += plan.add((*message)->bytes_at(position));
    if (position == (*message)->size()) {
      answers -= (*message)->header.kind == Message::kRows;
      ++message;
      position = 0;
    }
  }
}

/// Note that the socket took the first `sent` bytes of a plan.
void Connection::note_sent(const SendPlan& plan, size_t sent) {
  const uint32_t priority = stream_of(fragment_.head);
  auto& queue = queues_[priority];
  int number = 0;
  while (sent > 0) {
    if (fragment_.ended()) fragment_ = plan.fragment(++number);
    OutgoingMessage& message = *queue.front();
    const size_t head_bytes = std::min(sent, fragment_.head_left);
    const size_t size = std::min({sent - head_bytes, fragment_.left, message.size() - message.done});
    // The head of a fragment counts towards the message to which the first byte of the fragment belongs.
    Traffic::add(traffic_.sent[static_cast<int>(message.header.kind)], head_bytes + size);
    fragment_.head_left -= head_bytes;
    fragment_.left -= size;
    queued_[priority] -= size;
    message.done += size;
    sent -= head_bytes + size;
    if (message.done == message.size()) {
      if (message.sent) message.sent();
      answers_ -= message.header.kind == Message::kRows;
      queue.pop_front();
    }
  }
}

// ------------------------------------------------------------------------------------------------------ receiving

bool Connection::receive(ReceivePlan& plan, size_t* got) {
  struct msghdr vector = {};
  vector.msg_iov = plan.parts();
  vector.msg_iovlen = plan.count();
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
  for (int i = 0; i < kReads; ++i) {
    ReceivePlan plan = plan_receive();
    size_t got;
    if (!receive(plan, &got)) return false;
    place(plan, got);
    if (got < plan.bytes()) break;
  }
  set_low_water();
  return true;
}

ReceivePlan Connection::plan_receive() {
  Segment lacking;
  if (arriving_header_got_ == 0) {
    const IncomingMessage& in = incoming_[stream_of(arriving_)];  // to which the last fragment belongs
    if (in.got == sizeof(Header)) {
      const Segment& segment = in.segments[in.segment];
      lacking = {segment.data + in.done, segment.size - in.done};
    }
  }
  return ReceivePlan(lacking, arriving_left_, {staging_.data(), staging_.size()});
}

/// Take the bytes that were received by a plan.
void Connection::place(const ReceivePlan& plan, size_t got) {
  const uint32_t priority = stream_of(arriving_);
  if (plan.rest() > 0) {
    const size_t size = std::min(plan.rest(), got);
    take_in_place(incoming_[priority], size);
    got -= size;
  }
  for (int number = 0; number < plan.fragments() && got > 0; ++number) {
    const size_t head_bytes = std::min(got, sizeof(uint32_t));
    feed(plan.head(number), head_bytes);
    got -= head_bytes;
    if (got == 0) return;
    if (stream_of(arriving_) != priority || arriving_left_ < plan.size(number)) {
      const Buffer misplaced = plan.received_from(number, got);
      feed(misplaced.data(), got);
      return;
    }
    const size_t size = std::min(plan.size(number), got);
    take_in_place(incoming_[priority], size);
    got -= size;
  }
  feed(staging_.data(), got);
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
      arriving_left_ = size_of_fragment(arriving_);
      if (stream_of(arriving_) >= kPriorities || arriving_left_ == 0 || arriving_left_ > kFragment) {
        throw std::runtime_error("a malformed fragment");
      }
      count_received(incoming_[stream_of(arriving_)], sizeof arriving_);
      continue;
    }
    const size_t used = feed_message(stream_of(arriving_), data, std::min(size, arriving_left_));
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
