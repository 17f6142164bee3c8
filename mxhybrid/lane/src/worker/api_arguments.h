// Arguments of the C interface as objects, for the files that implement it.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "dense/worker_transfers.h"
#include "memory/membership.h"
#include "memory/shared.h"
#include "operators/mxnet_api.h"
#include "store/row_store.h"

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

inline TableShape dynamic_shape_of(uint32_t width, uint32_t dtype, uint32_t format, uint32_t batch_rows,
                                   uint32_t parts, const uint32_t* owners, uint32_t staleness) {
  TableShape shape = shape_of(0, width, dtype, format, parts, owners, staleness);
  shape.dynamic = true;
  shape.batch_rows = batch_rows;
  return shape;
}

inline FirstValues first_values_of(uint32_t kind, double value, uint64_t seed) {
  return {static_cast<FirstValueKind>(kind), value, seed};
}

inline RowStoreOptions row_store_options_of(uint32_t dtype, uint32_t width, const FirstValues& first_values,
                                            uint32_t admit, uint64_t capacity, uint64_t expire_after, int evict_rarest,
                                            const char* directory, uint64_t resident_bytes) {
  RowStoreOptions options;
  options.dtype = static_cast<Dtype>(dtype);
  options.width = width;
  options.first_values = first_values;
  options.admit = admit;
  options.capacity = capacity;
  options.expire_after = expire_after;
  options.evict_rarest = evict_rarest != 0;
  options.directory = directory;
  options.resident_bytes = resident_bytes;
  return options;
}

inline ArrayFunctions functions_of(void* get_data, void* free) {
  return {reinterpret_cast<int (*)(void*, void**)>(get_data), reinterpret_cast<int (*)(void*)>(free)};
}

inline PersistentTransfer& transfer_of(void* share) {
  return **static_cast<std::shared_ptr<PersistentTransfer>*>(share);
}

}  // namespace lane
