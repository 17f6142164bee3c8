// Parts of a connection alone: plans of system calls that send and receive fragments, against streams of bytes that are
// made one by one; receive windows of connections that share a link, and thresholds of wake-ups, at given rates.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "network/fragment_plan.h"
#include "network/receive_windows.h"

using namespace lane;

namespace {

/// Return a size that is often small, often near a fragment's, and sometimes that of several fragments.
size_t random_size() {
  const size_t sizes[] = {1 + random_below(64), kFragment - 2 + random_below(4), 1 + random_below(8 * kFragment)};
  return sizes[random_below(3)];
}

std::vector<char> random_bytes(size_t size) {
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(random_bits());
  return bytes;
}

void append_head(std::vector<char>& bytes, uint32_t head) {
  bytes.insert(bytes.end(), reinterpret_cast<char*>(&head), reinterpret_cast<char*>(&head) + sizeof head);
}

/// A plan sends the rest of a fragment, also of its head, and further fragments: together the next bytes of the stream.
void check_sending() {
  constexpr uint32_t kStream = 3;
  const size_t queued = random_size();
  SentFragment first(fragment_head(kStream, queued));
  const size_t total = first.left;
  if (random_below(2)) {  // a part of it was sent before
    first.head_left = random_below(sizeof first.head + 1);
    if (first.head_left == 0) first.left -= random_below(total);
  }
  std::vector<char> message = random_bytes(first.left + queued - total), expected;
  append_head(expected, first.head);
  expected.erase(expected.begin(), expected.begin() + sizeof first.head - first.head_left);
  SendPlan plan(first);
  size_t position = 0, fragments = 1;
  while (plan.has_room() && position < message.size()) {
    if (plan.fragment_ended()) {
      if (!plan.may_begin_fragment()) break;
      const size_t left = message.size() - position, size = plan.begin_fragment(left);
      check(size == std::min(left, kFragment), "a fragment does not hold as much as it can");
      append_head(expected, fragment_head(kStream, left));
      check(plan.fragment(static_cast<int>(fragments)).left == size, "a fragment has another size in the plan");
      ++fragments;
    }
    const size_t added = plan.add({message.data() + position, 1 + random_below(message.size() - position)});
    expected.insert(expected.end(), message.begin() + position, message.begin() + position + added);
    position += added;
  }
  check(fragments <= kFragmentsAtOnce, "a plan has too many fragments");
  std::vector<char> sent;
  for (int i = 0; i < plan.count(); ++i) {
    const char* data = static_cast<const char*>(plan.parts()[i].iov_base);
    sent.insert(sent.end(), data, data + plan.parts()[i].iov_len);
  }
  check(sent == expected && sent.size() == plan.bytes(), "a plan sends other bytes");
}

/// If the next fragments are those that a plan expects, the segment is received at its place; `received_from` returns
/// what came after a head, whatever that is.
void check_receiving() {
  const size_t lacking = random_size(), left = 1 + random_below(kFragment);
  const std::vector<char> message = random_bytes(lacking);
  std::vector<char> segment(lacking, 0), buffer(100), stream;
  ReceivePlan plan({segment.data(), lacking}, left, {buffer.data(), buffer.size()});
  size_t position = std::min(lacking, left);
  stream.insert(stream.end(), message.begin(), message.begin() + position);
  std::vector<size_t> after_heads;
  while (position < lacking) {
    const uint32_t head = fragment_head(1, lacking - position);
    append_head(stream, head);
    after_heads.push_back(stream.size());
    stream.insert(stream.end(), message.begin() + position, message.begin() + position + size_of_fragment(head));
    position += size_of_fragment(head);
  }
  const std::vector<char> later = random_bytes(plan.bytes());
  stream.insert(stream.end(), later.begin(), later.end());
  size_t received = 0;
  for (int i = 0; i < plan.count(); ++i) {
    std::memcpy(plan.parts()[i].iov_base, stream.data() + received, plan.parts()[i].iov_len);
    received += plan.parts()[i].iov_len;
  }
  check(received == plan.bytes(), "the parts of a plan have another size than the plan");
  size_t in_place = plan.rest();
  for (int number = 0; number < plan.fragments(); ++number) {
    uint32_t head;
    std::memcpy(&head, plan.head(number), sizeof head);
    check(head == fragment_head(1, lacking - in_place), "a head is received at another place");
    check(plan.size(number) == size_of_fragment(head), "a fragment is expected with another size");
    in_place += plan.size(number);
    const size_t count = 1 + random_below(received - after_heads[number]);
    const Buffer taken = plan.received_from(number, count);
    check(std::memcmp(taken.data(), stream.data() + after_heads[number], count) == 0, "other bytes came after a head");
  }
  check(lacking >= ReceivePlan::kDirect ? in_place > 0 : in_place == 0, "a segment is received at the wrong place");
  check(in_place == lacking || lacking < ReceivePlan::kDirect || plan.fragments() == kFragmentsAtOnce || left > lacking,
        "a plan ends before the segment");
  check(std::equal(segment.begin(), segment.begin() + in_place, message.begin()), "a segment has other bytes");
}

/// The smallest window in bytes, and the longest time in seconds of a link's bytes that all windows hold together.
constexpr double kSmallest = 1 << 15, kSpanS = 0.04;
constexpr double kNoLimit = 0;
/// The time in seconds of a link's bytes that are the sum of all thresholds, and the largest threshold in bytes.
constexpr double kThresholdSpanS = 0.01, kLargestThreshold = 1 << 18;

using Numbers = std::vector<double>;

struct Sizes {
  Numbers windows, thresholds;
};

/// Return windows and thresholds after each of several intervals with given numbers of received bytes.
Sizes sizes(const Numbers& bytes_per_interval, double interval_s, size_t connections, double min_rtt_s = 0) {
  uint64_t received = 12345;
  int64_t now_ns = 1000000000;
  ReceiveRate rate;
  rate.note(received, now_ns);
  Sizes result;
  for (double bytes : bytes_per_interval) {
    received += static_cast<uint64_t>(bytes);
    now_ns += std::llround(interval_s * 1e9);
    rate.note(received, now_ns);
    result.windows.push_back(receive_window(rate.bytes_per_s(), min_rtt_s, connections));
    result.thresholds.push_back(static_cast<double>(wake_threshold(rate.bytes_per_s(), connections)));
  }
  return result;
}

using lane::check;

/// Check that the numbers are the expected ones, of which fractions are cut off.
void check(const Numbers& found, const Numbers& expected, const char* what) {
  check(found.size() == expected.size(), what);
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string difference = std::to_string(found[i]) + " instead of " + std::to_string(expected[i]);
    check(std::fabs(found[i] - expected[i]) <= 1, (std::string(what) + ": " + difference).c_str());
  }
}

void check_windows() {
  const double rate = 125e6;
  for (size_t connections : {2, 7}) {
    check(sizes(Numbers(3, rate * 0.1), 0.1, connections).windows,
          Numbers(3, rate * kSpanS / static_cast<double>(connections)), "windows hold 40 ms of the rate");
  }
  check(sizes({12.5e5}, 0.1, 5, 0.1).windows, {12.5e6 * 0.2 / 5}, "windows hold two round trips");
  check(sizes({1000, 0, 0}, 0.1, 7).windows, Numbers(3, kSmallest), "windows are not too small");
  check(sizes({125e6}, 0.05, 2).windows, {kNoLimit}, "large windows are not limited");
  check(sizes({1000}, 0.1, 1).windows, {kNoLimit}, "a single connection is not limited");
}

/// The rate is the largest over 50 ms, and declines.
void check_rates() {
  // The agent receives nothing for four intervals of 10 ms, then all bytes that have waited in its sockets.
  Numbers expected(10, 25e6 * kSpanS / 5);
  std::fill(expected.begin(), expected.begin() + 4, kSmallest);
  check(sizes({0, 0, 0, 0, 1.25e6, 0, 0, 0, 0, 1.25e6}, 0.01, 5).windows, expected, "a burst");
  Numbers received(101, 0);
  received[0] = 1.25e6;
  expected.clear();
  for (int i = 0; i < 101; ++i) expected.push_back(12.5e6 * std::pow(0.99, i) * kSpanS / 2);
  check(sizes(received, 0.1, 2).windows, expected, "a rate declines");
}

void check_thresholds() {
  for (size_t connections : {1, 7}) {
    check(sizes({12.5e5, 12.5e5}, 0.1, connections).thresholds,
          Numbers(2, 12.5e6 * kThresholdSpanS / static_cast<double>(connections)), "thresholds are 10 ms of the rate");
  }
  check(sizes({125e6}, 0.1, 1).thresholds, {kLargestThreshold}, "thresholds are limited");
  check(sizes({0}, 0.1, 7).thresholds, {0}, "without a rate there is no threshold");
  for (int exponent = 0; exponent <= 40; ++exponent) {
    for (size_t connections : {2, 7, 100}) {
      const Sizes limits = sizes({std::pow(10, exponent / 4.0)}, 0.1, connections);
      check(limits.windows[0] == kNoLimit || limits.thresholds[0] <= limits.windows[0] / 4 + 1,
            "a threshold is more than a quarter of a window");
    }
  }
}

}  // namespace

int main() {
  for (int i = 0; i < 300; ++i) {
    check_sending();
    check_receiving();
  }
  check_windows();
  check_rates();
  check_thresholds();
}
