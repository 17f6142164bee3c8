// Messages between two hosts over one socket, urgent ones first.
//
// Each priority is a stream of messages of its own.  Streams are sent in fragments, so that a message of megabytes does
// not delay a more urgent one, and the kernel's queue holds little more than it can send at once.
//
// Agents use the network only through this class.  Another carrier, such as RDMA, would have to offer `send`, `write`
// and `read`, and to place received data where the message sink says.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "memory/memory.h"
#include "memory/shared.h"
#include "network/fragment_plan.h"

namespace lane {

/// Kinds of messages.
enum class Message : uint8_t {
  /// The sum of the rows that the workers of a host push.
  kPush = 1,
  /// A request for rows, or a fence.
  kPull = 2,
  /// The answer to a kPull.
  kRows = 3,
  /// The other agent ends, as it should.
  kBye = 4,
  /// A host's contribution to a chunk of an allreduce, and the result of the chunk.
  kContribution = 5,
  kResult = 6,
  /// Data of a ring between two workers, and the number of its bytes that were consumed.
  kRingData = 7,
  kRingCredit = 8,
};
static_assert(static_cast<int>(Message::kRingCredit) + 1 == kMessageKinds, "each kind is counted");

/// Streams, the most urgent first.  While answers are queued, the last stream is sent before allreduces.
enum Priority : uint32_t {
  /// Reports of the bytes that a reader of a ring has consumed.  The other host waits for them when its ring is full:
  /// if they followed the transfers of this host, only one of the two hosts would send at a time.
  kCredits = 0,
  /// Transfers between workers, for which the forward and backward pass wait.
  kTransfers = 1,
  /// Allreduces of dense arrays.
  kAllreduce = 2,
  kPullRequests = 3,
  /// Pushes, and the answers after them.  A host that answered first and pushed later would delay all other hosts,
  /// since their answers depend on its pushes.
  kRowsInOrder = 4,
  kPriorities = 5
};

/// Return the stream of a kind of messages.  Messages of a kind come in this stream only, so at most one of a kind is
/// being received at a time.
inline Priority priority_of(Message kind) {
  if (kind == Message::kRingCredit) return kCredits;
  if (kind == Message::kRingData) return kTransfers;
  if (kind == Message::kContribution || kind == Message::kResult) return kAllreduce;
  return kind == Message::kPull ? kPullRequests : kRowsInOrder;
}

/// The head of a message.  Its fields by kind:
///
///   kPush                   flags (PushFlags), table, part, count (rows)
///   kPull, kRows            flags (PullFlags), table, part, count (rows), number (of the pull), version (the number of
///                           pushes that the rows must include, and, of tables with staleness, that they include)
///   kContribution, kResult  flags (Dtype, and kQuantized), part (chunk), count (elements), number (of the allreduce)
///   kRingData, kRingCredit  table (rank of the writer), part (rank of the reader), ring, count (bytes); kRingData:
///                           flags (binary logarithm of the capacity), number (tag)
struct Header {
  Message kind;
  uint8_t flags = 0;
  uint16_t unused = 0;
  uint32_t table = 0, part = 0, count = 0;
  uint32_t version = 0, ring = 0;
  uint64_t number = 0;
};
static_assert(sizeof(Header) == 32, "headers have no gaps");

/// A flag of kContribution and kResult: elements of float32 travel as int8, see int8.h.
constexpr uint8_t kQuantized = 0x80;

/// A message to send: a header and two segments, which lie in `buffers` or in memory that stays until `sent` is called.
struct OutgoingMessage {
  Header header;
  Segment segments[2];
  Buffer buffers[2];
  std::function<void()> sent;
  size_t done = 0;

  size_t size() const { return sizeof(Header) + segments[0].size + segments[1].size; }
  /// Return the contiguous bytes from a position, which is less than the size.
  Segment bytes_at(size_t position) {
    if (position < sizeof(Header)) return {reinterpret_cast<char*>(&header) + position, sizeof(Header) - position};
    position -= sizeof(Header);
    const Segment& segment = segments[position >= segments[0].size];
    if (&segment == &segments[1]) position -= segments[0].size;
    return {segment.data + position, segment.size - position};
  }
};

/// The receiver of messages.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  /// Say where the two segments of a message go.  Throws std::runtime_error if the message is not allowed.
  virtual void begin(const Header& header, Segment segments[2]) = 0;
  /// Take the complete message.
  virtual void end(const Header& header) = 0;
};

class Connection {
 public:
  /// Take over a connected stream socket, whose other end is known to belong to this job; count bytes in `traffic`.
  Connection(int socket, MessageSink& sink, Traffic& traffic);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int descriptor() const { return socket_; }
  void send(std::unique_ptr<OutgoingMessage> message);
  /// Send as much as the socket takes; return whether anything is left.  Nothing is once the connection is lost.  While
  /// the socket is known to take nothing, this makes no system call.
  bool write();
  /// Note that the socket takes data again, after `write` has left something.
  void set_writable() { is_blocked_ = false; }
  /// Return the number of bytes that are yet to be sent.
  size_t unsent() const;
  /// Read the data that has arrived; return false once the connection is lost.  Throws std::runtime_error for malformed
  /// messages.
  bool read();
  /// Let the kernel gather this number of bytes before it wakes the agent: received bytes, if the other end has
  /// queued enough of them, and room for bytes to send.  0 for as few as possible.
  void set_threshold(size_t bytes);
  /// Return the reason why the connection was lost.
  const std::string& cause() const { return cause_; }

 private:
  struct IncomingMessage {
    Header header;
    size_t got = 0;  // bytes of the header
    size_t uncounted = 0;  // bytes that are counted once the header gives their kind
    Segment segments[2];
    int segment = 0;
    size_t done = 0;  // bytes of the segment
  };

  uint32_t next_stream(size_t answers) const;
  bool begin_fragment();
  void fill(SendPlan& plan);
  void note_sent(const SendPlan& plan, size_t sent);
  ReceivePlan plan_receive();
  void place(const ReceivePlan& plan, size_t got);
  void take_in_place(IncomingMessage& in, size_t size);
  bool receive(ReceivePlan& plan, size_t* got);
  void feed(const char* data, size_t size);
  size_t feed_message(uint32_t priority, const char* data, size_t size);
  void count_received(IncomingMessage& in, size_t size);
  void finish_segments(IncomingMessage& in);
  void set_low_water();
  void lose(const std::string& cause);

  int socket_;
  MessageSink& sink_;
  Traffic& traffic_;
  std::string cause_;

  std::deque<std::unique_ptr<OutgoingMessage>> queues_[kPriorities];
  size_t queued_[kPriorities] = {};
  size_t answers_ = 0;          // messages kRows in the queues
  SentFragment fragment_;
  bool is_blocked_ = false;     // whether the socket took nothing at the last try

  IncomingMessage incoming_[kPriorities];
  uint32_t arriving_ = 0;
  size_t arriving_header_got_ = 0, arriving_left_ = 0;
  Buffer staging_;
  size_t threshold_ = 0;      // see set_threshold
  size_t low_water_ = 1;  // the number of received bytes from which the socket is readable
};

}  // namespace lane
