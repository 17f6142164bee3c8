// Receive windows of the connections of an agent, and the numbers of bytes from which they wake it.
//
// TCP shares a link in proportion to the senders' windows, and these are as uneven as the losses of the connections were.
// The rows or sums of one host then arrive long after those of all others, which wait for them.  Equal windows that
// together hold a few milliseconds of the link share it evenly, and the queues of switches lose hardly any packet.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lane {

/// The rate at which an agent can receive: the largest of recent measurements.
class ReceiveRate {
 public:
  /// Note the number of bytes that were received so far, at a time of the monotonic clock; return whether the rate was
  /// measured.
  bool note(uint64_t received, int64_t now_ns);
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  double bytes_per_s_ = 0;
  uint64_t received_ = 0;
  int64_t since_ns_ = 0;
};

/// Return the receive window in bytes of each of several connections that share a link; 0 for no limit.
uint32_t receive_window(double bytes_per_s, double min_rtt_s, size_t connections);

/// Return the number of bytes that each of several connections that share a link gathers before it wakes the agent.
size_t wake_threshold(double bytes_per_s, size_t connections);

/// Return the smallest round trip of a socket of TCP in seconds that the kernel has seen of late; 0 if unknown.
double min_rtt_s(int socket);

/// Limit the receive window of a socket of TCP.  Bytes that the other end may send already are not affected.
void limit_receive_window(int socket, uint32_t bytes);

}  // namespace lane
