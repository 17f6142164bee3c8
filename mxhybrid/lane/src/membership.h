// Who is on the lane.
#pragma once

#include <cstdint>
#include <vector>

namespace lane {

/// All agents and workers of a job, equal in all processes.
struct Membership {
  /// By agent: the number of its host.
  std::vector<uint32_t> agent_hosts;
  /// By host: how many workers it has.
  std::vector<uint32_t> worker_counts;

  /// Agents of a host, in order.
  std::vector<uint32_t> agents_of(uint32_t host) const;
  /// The agent that handles, on `host`, partitions that agent `owner` owns; see TableShape.
  uint32_t handler(uint32_t host, uint32_t owner) const;
  /// The agent that adds up, on `host`, what workers give of a dense sum.
  uint32_t allreduce_agent(uint32_t host, uint64_t number) const;
  /// The agent on `host` that takes care of channels between two workers, one of which is there.
  uint32_t channel_agent(uint32_t host, uint32_t from, uint32_t to) const;
};

}  // namespace lane
