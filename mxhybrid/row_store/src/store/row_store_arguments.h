// Options of row stores from arguments of the C interface.
#pragma once

#include "store/row_store.h"

namespace lane {

inline FirstValues first_values_of(uint32_t kind, double value, uint64_t seed) {
  return {static_cast<FirstValueKind>(kind), value, seed};
}

inline RowStoreOptions row_store_options_of(Dtype dtype, uint32_t width, const FirstValues& first_values,
                                            uint32_t admit, uint64_t capacity, uint64_t expire_after, int evict_rarest,
                                            const char* directory, uint64_t resident_bytes, uint32_t row_type) {
  RowStoreOptions options;
  options.dtype = dtype;
  options.width = width;
  options.first_values = first_values;
  options.admit = admit;
  options.capacity = capacity;
  options.expire_after = expire_after;
  options.evict_rarest = evict_rarest != 0;
  options.directory = directory;
  options.resident_bytes = resident_bytes;
  options.row_type = static_cast<RowType>(row_type);
  return options;
}

}  // namespace lane
