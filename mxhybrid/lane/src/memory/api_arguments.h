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

inline TableShape shape_of(uint64_t rows, uint32_t width, uint32_t dtype, uint32_t format, uint32_t parts,
                           const uint32_t* owners, uint32_t staleness) {
  if (staleness > kMaxStaleness) throw std::runtime_error("a staleness of " + std::to_string(staleness));
  TableShape shape;
  shape.rows = rows;
  shape.width = width;
  shape.dtype = static_cast<Dtype>(dtype);
  shape.format = static_cast<RowFormat>(format);
  shape.owners.assign(owners, owners + parts);
  shape.staleness = staleness;
  return shape;
}

inline TableShape dynamic_shape_of(uint32_t width, uint32_t dtype, uint32_t format, uint32_t max_batch_rows,
                                   uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  TableShape shape = shape_of(0, width, dtype, format, parts, owners, staleness);
  shape.dynamic = true;
  shape.max_batch_rows = max_batch_rows;
  return shape;
}

}  // namespace lane
