#include "network/receive_windows.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace lane {
namespace {

/// The time over which a rate is measured.  It is longer than kSpanS: bytes of all windows that wait while the agent does
/// other work are received at once, and must not let the rate, and therefore the windows, grow without end.
constexpr int64_t kIntervalNs = 50000000;
/// The factor by which a rate declines from measurement to measurement, so that an exceptional one is forgotten.
constexpr double kDecline = 0.99;
/// All windows together hold the bytes that the link carries in this time, in which the agent may do other work, and at
/// least in this number of round trips, so that the rate can grow until the link limits it.  With 8 hosts of 2 workers
/// at 100 Mbit/s, an exchange took 1.70 s without limits and 1.34 s with 40 ms; 20 ms and 80 ms were slower.
constexpr double kSpanS = 0.04, kRoundTrips = 2;
/// The smallest window: 22 packets of Ethernet.
constexpr double kMinWindow = 1 << 15;
/// Larger windows are not limited.
constexpr double kMaxWindow = 1 << 24;
/// All thresholds together are the bytes that the link carries in this time, a quarter of kSpanS: if it were
/// half, senders would wait for room in the windows, and the link would be idle at times.
constexpr double kThresholdSpanS = 0.01;
/// The largest threshold.
constexpr double kMaxThreshold = 1 << 18;
/// The position of tcpi_min_rtt, in microseconds, in the kernel's struct tcp_info; the C library's lacks it.
constexpr size_t kMinRttOffset = 148;

}  // namespace

bool ReceiveRate::note(uint64_t received, int64_t now_ns) {
  const int64_t elapsed_ns = now_ns - since_ns_;
  if (elapsed_ns < kIntervalNs) return false;
  const bool is_first = since_ns_ == 0;
  const double rate = 1e9 * static_cast<double>(received - received_) / static_cast<double>(elapsed_ns);
  received_ = received;
  since_ns_ = now_ns;
  if (is_first) return false;
  bytes_per_s_ = std::max(rate, kDecline * bytes_per_s_);
  return true;
}

uint32_t receive_window(double bytes_per_s, double min_rtt_s, size_t connections) {
  if (connections < 2) return 0;  // nothing to share
  const double window = bytes_per_s * std::max(kSpanS, kRoundTrips * min_rtt_s) / static_cast<double>(connections);
  return window > kMaxWindow ? 0 : static_cast<uint32_t>(std::max(window, kMinWindow));
}

size_t wake_threshold(double bytes_per_s, size_t connections) {
  if (connections == 0) return 0;
  return static_cast<size_t>(std::min(bytes_per_s * kThresholdSpanS / static_cast<double>(connections), kMaxThreshold));
}

double min_rtt_s(int socket) {
  char info[256] = {};
  socklen_t size = sizeof info;
  uint32_t microseconds = 0;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, info, &size) != 0 || size < kMinRttOffset + sizeof microseconds) return 0;
  std::memcpy(&microseconds, info + kMinRttOffset, sizeof microseconds);
  return microseconds == UINT32_MAX ? 0 : microseconds * 1e-6;  // nothing was measured
}

void limit_receive_window(int socket, uint32_t bytes) {
  constexpr int kUnlimited = 1 << 30;
  const int clamp = bytes == 0 ? kUnlimited : static_cast<int>(bytes);
  setsockopt(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp, sizeof clamp);  // fails for the sockets of tests
}

}  // namespace lane
