// Programs for hostile hosts: the bytes of an input of fuzz_messages.cc, and the steps that they stand for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "network/connection.h"

namespace fuzz {

using namespace lane;

using Input = std::vector<uint8_t>;

constexpr uint32_t kHosts = 3;
/// The most keys of the dynamic table in a push or request.
constexpr uint32_t kKeys = 16;
/// The most bytes of a fragment.
constexpr size_t kFragment = 1 << 16;
/// Fragments of this size or more are sent in two parts.
constexpr size_t kLarge = 1 << 14;
/// Bytes of all rings of a channel: room for a few.
constexpr size_t kChannelBytes = 1 << 14;
/// The number of calls of run_once after which an agent has done all its work.
constexpr int kTurns = 8;

/// The kinds of steps of a program; the lowest bit of a step selects one of the other hosts.
enum Step : uint8_t {
  /// A message, see `say`.
  kSay = 0,
  /// Bytes in a stream: the stream, the number of bytes, and the bytes.
  kBytes = 1,
  /// Bytes outside of streams: their number, and the bytes.
  kNoise = 2,
  /// Send bytes that a stream holds back: the stream, and the number of bytes.
  kGoOn = 3,
  /// The host stops reading, or reads again.
  kDeaf = 4,
  /// The host closes its connection.
  kGone = 5,
  // Steps of the honest worker, each with the number of a table or allreduce.
  kPushRows = 6,
  kPostRequest = 7,
  kWaitForRows = 8,
  kStartAllreduce = 9,
  kReopenAllreduce = 10,
  kReopenTable = 11,
  // Transfers of the same worker with that of the other host: the tag and the number of bytes; or all received bytes.
  kWriteBytes = 12,
  kReadBytes = 13,
  kSteps = 14
};

/// The messages of kSay, before bytes are changed.
constexpr Message kAPush = Message::kPush, kAPull = Message::kPull, kAnAnswer = Message::kRows,
                  kABye = Message::kBye, kAContribution = Message::kContribution, kAResult = Message::kResult,
                  kARingData = Message::kRingData, kARingCredit = Message::kRingCredit;

/// The part of a message that kSay holds back; the first number of a stream that is not the message's own.
constexpr uint8_t kNothingBack = 0, kHalfBack = 128, kAnotherStream = 251;

/// Reads a program; after its end it reads zeros.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::string bytes(size_t most) {
    const size_t size = std::min(most, left_);
    const std::string found(reinterpret_cast<const char*>(data_), size);
    data_ += size;
    left_ -= size;
    return found;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace fuzz
