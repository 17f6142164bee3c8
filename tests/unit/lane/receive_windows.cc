// Receive windows of connections that share a link, and the thresholds of their wake-ups, at given rates.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "network/receive_windows.h"

using namespace lane;

namespace {

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

void fail(const std::string& what) {
  std::printf("%s\n", what.c_str());
  std::exit(1);
}

/// Check that the numbers are the expected ones, of which fractions are cut off.
void check(const Numbers& found, const Numbers& expected, const char* what) {
  if (found.size() != expected.size()) fail(what);
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::fabs(found[i] - expected[i]) <= 1) continue;
    fail(std::string(what) + ": " + std::to_string(found[i]) + " instead of " + std::to_string(expected[i]));
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
      if (limits.windows[0] != kNoLimit && limits.thresholds[0] > limits.windows[0] / 4 + 1) {
        fail("a threshold is more than a quarter of a window");
      }
    }
  }
}

}  // namespace

int main() {
  check_windows();
  check_rates();
  check_thresholds();
  std::printf("all sizes are right\n");
}
