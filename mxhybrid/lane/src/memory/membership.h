// The members of the lane: agents and workers, and the host of each.
#pragma once

#include <cstdint>
#include <vector>

namespace lane {

/// All agents and workers of a job; equal in all processes.
struct Membership {
  /// The number of each agent's host.
  std::vector<uint32_t> agent_hosts;
  /// The number of workers of each host.
  std::vector<uint32_t> worker_counts;

  /// Return the agents of a host, in order.
  std::vector<uint32_t> agents_of(uint32_t host) const;
  /// Return the agent that handles, on `host`, the partitions that agent `owner` owns; see TableShape.
  uint32_t handler(uint32_t host, uint32_t owner) const;
  /// Return whether all workers are on one host.
  bool has_one_host() const;
  /// Return the agent that serves, on `host`, an allreduce.
  uint32_t allreduce_agent(uint32_t host, uint64_t number) const;
  /// Return the agent that relays, on `host`, the channel between two workers, one of which is on this host.
  uint32_t channel_agent(uint32_t host, uint32_t from, uint32_t to) const;
};

}  // namespace lane
