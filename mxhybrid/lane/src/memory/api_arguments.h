// Members and tables from arguments of the C interface.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "memory/membership.h"
#include "memory/shared.h"

namespace lane {

inline Membership membership_of(uint32_t agents, const uint32_t* hosts, uint32_t count, const uint32_t* workers) {
  Membership membership;
  membership.agent_hosts.assign(hosts, hosts + agents);
  membership.worker_counts.assign(workers, workers + count);
  return membership;
}

/// A table with `max_batch_rows` is a dynamic one.
inline TableShape shape_of(uint64_t rows, uint32_t width, Dtype dtype, RowFormat format, uint32_t max_batch_rows,
                           uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  if (staleness > kMaxStaleness) throw std::runtime_error("a staleness of " + std::to_string(staleness));
  TableShape shape;
  shape.rows = rows;
  shape.width = width;
  shape.dtype = dtype;
  shape.format = format;
  shape.owners.assign(owners, owners + parts);
  shape.dynamic = max_batch_rows > 0;
  shape.max_batch_rows = max_batch_rows;
  shape.staleness = staleness;
  return shape;
}

}  // namespace lane
