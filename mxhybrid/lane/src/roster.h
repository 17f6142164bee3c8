// Who is on the lane.
#pragma once

#include <cstdint>
#include <vector>

namespace lane {

/// All nodes and workers of a job, equal in all processes.
struct Roster {
  /// By node: the number of its host.
  std::vector<uint32_t> hosts;
  /// By host: how many workers it has.
  std::vector<uint32_t> workers;

  /// Nodes of a host, in order.
  std::vector<uint32_t> nodes_of(uint32_t host) const;
  /// The node that handles, on `host`, partitions that node `owner` owns; see TableShape.
  uint32_t handler(uint32_t host, uint32_t owner) const;
  /// The node that adds up, on `host`, what workers give of a dense sum.
  uint32_t sums_node(uint32_t host, uint64_t number) const;
};

}  // namespace lane
