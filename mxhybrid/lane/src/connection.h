// Messages between two hosts, over one socket, the urgent ones first.
//
// Each priority is a stream of messages of its own.  Streams are cut into fragments, so that a message of megabytes
// does not stand in the way of a more urgent one, and the kernel is given little more than it can send at once.
//
// This is all that agents know of a network: whatever else is to carry messages, RDMA say, has to offer `send`, `write`
// and `read`, and to place what comes where its sink says.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "memory.h"
#include "shared.h"

namespace lane {

enum class Message : uint8_t {
  /// Rows that a host's workers push, summed.
  kPush = 1,
  /// A question for rows, or a fence.
  kPull = 2,
  /// The answer.
  kRows = 3,
  /// The other agent ends in order.
  kBye = 4,
  /// What a host gives of a segment of a dense sum, and the result.
  kContribution = 5,
  kResult = 6,
  /// Bytes of a ring between two workers, and how many of them were taken.
  kRingData = 7,
  kRingCredit = 8,
};
static_assert(static_cast<int>(Message::kRingCredit) + 1 == kMessageKinds, "each kind is counted");

/// Streams, the most urgent one first; while answers are to be sent, the last one goes before dense sums.
enum Priority : uint32_t {
  /// Transfers between workers: forward and backward wait for them.
  kTransfers = 0,
  /// Dense sums.
  kAllreduce = 1,
  kPullRequests = 2,
  /// Pushes, and answers behind them: a host that answers first and pushes later has all others wait, since their
  /// answers need its pushes.
  kRowsInOrder = 3,
  kPriorities = 4
};

/// The stream of a kind of messages, in which alone they may come: so only one of a kind arrives at a time.
inline Priority priority_of(Message kind) {
  if (kind == Message::kRingData || kind == Message::kRingCredit) return kTransfers;
  if (kind == Message::kContribution || kind == Message::kResult) return kAllreduce;
  return kind == Message::kPull ? kPullRequests : kRowsInOrder;
}

/// What a message begins with; kinds use the fields that they need.
struct Header {
  Message kind;
  uint8_t flags = 0;
  uint16_t unused = 0;
  uint32_t table = 0, part = 0, count = 0;
  uint32_t version = 0, ring = 0;
  uint64_t number = 0;
};
static_assert(sizeof(Header) == 32, "headers have no gaps");

struct Segment {
  char* data = nullptr;
  size_t size = 0;
};

/// A message to be sent: header and two segments, in `buffers` or in memory that stays until `sent` is called.
struct OutgoingMessage {
  Header header;
  Segment segments[2];
  Buffer buffers[2];
  std::function<void()> sent;
  size_t done = 0;

  size_t size() const { return sizeof(Header) + segments[0].size + segments[1].size; }
};

/// Where messages go.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  /// A message begins: where its two segments go.  Throws std::runtime_error if it is none that may come.
  virtual void begin(const Header& header, Segment segments[2]) = 0;
  /// It is there.
  virtual void end(const Header& header) = 0;
};

class Connection {
 public:
  /// Takes over a connected stream socket, whose other end is known to be of this job; counts in `traffic`.
  Connection(int socket, MessageSink& sink, Traffic& traffic);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int descriptor() const { return socket_; }
  void send(std::unique_ptr<OutgoingMessage> message);
  /// Send as much as there is room for; returns whether something is left.  Nothing is, once the connection is lost.
  bool write();
  /// Bytes of messages that are yet to be sent.
  size_t unsent() const;
  /// Read what is there; returns false once the connection is lost.  Throws std::runtime_error for what is malformed.
  bool read();
  /// Why the connection was lost.
  const std::string& cause() const { return cause_; }

 private:
  struct IncomingMessage {
    Header header;
    size_t got = 0;  // of the header
    size_t uncounted = 0;  // bytes of which only the header will tell what they are
    Segment segments[2];
    int segment = 0;
    size_t done = 0;  // of the segment
  };

  bool begin_fragment();
  bool receive(char* to, size_t room, size_t* got);
  void feed(const char* data, size_t size);
  size_t feed_message(uint32_t priority, const char* data, size_t size);
  void count_received(IncomingMessage& in, size_t size);
  void finish_segments(IncomingMessage& in);
  void lose(const std::string& cause);

  int socket_;
  MessageSink& sink_;
  Traffic& traffic_;
  std::string cause_;

  std::deque<std::unique_ptr<OutgoingMessage>> queues_[kPriorities];
  size_t queued_[kPriorities] = {};
  size_t answers_ = 0;          // kRows in the queues
  uint32_t fragment_ = 0;       // as sent: priority and size
  size_t fragment_header_left_ = 0, fragment_left_ = 0;

  IncomingMessage incoming_[kPriorities];
  uint32_t arriving_ = 0;
  size_t arriving_header_got_ = 0, arriving_left_ = 0;
  Buffer staging_;
};

}  // namespace lane
