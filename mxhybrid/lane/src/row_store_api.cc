// The C interface of row stores; see api.cc for its conventions.
#include "api_errors.h"
#include "row_store.h"

using lane::guarded;
using lane::RowStore;

namespace {

RowStore& store_of(void* store) { return *static_cast<RowStore*>(store); }

lane::FirstValues first_values_of(uint32_t kind, double value, uint64_t seed) {
  return {static_cast<lane::FirstValueKind>(kind), value, seed};
}

}  // namespace

extern "C" {

const char* lane_first_value_name(uint32_t number) { return lane::first_value_name(number); }

/// Write the first values of rows.
void lane_first_values(uint32_t kind, double value, uint64_t seed, uint32_t dtype, const int64_t* keys, uint64_t count,
                       uint32_t width, void* rows) {
  const auto first_values = first_values_of(kind, value, seed);
  const auto type = static_cast<lane::Dtype>(dtype);
  char* row = static_cast<char*>(rows);
  for (uint64_t i = 0; i < count; ++i, row += width * lane::size_of(type)) first_values.fill(type, keys[i], width, row);
}

/// Return the elements of optimizer state number `slot` of a row that a rule uses.
uint64_t lane_rule_state_width(uint32_t kind, uint32_t slot, uint32_t width) {
  return lane::state_width(static_cast<lane::RuleKind>(kind), slot, width);
}

/// Write the partition of each key.
void lane_partitions_of(const int64_t* keys, uint64_t count, uint32_t partitions, uint32_t* numbers) {
  for (uint64_t i = 0; i < count; ++i) numbers[i] = lane::partition_of(keys[i], partitions);
}

void* lane_row_store_new(uint32_t dtype, uint32_t width, uint32_t kind, double value, uint64_t seed, uint32_t admit,
                         uint64_t capacity, uint64_t expire_after, int evict_rarest, const char* directory,
                         uint64_t resident_bytes) {
  return guarded([&]() -> void* {
    lane::RowStoreOptions options;
    options.dtype = static_cast<lane::Dtype>(dtype);
    options.width = width;
    options.first_values = first_values_of(kind, value, seed);
    options.admit = admit;
    options.capacity = capacity;
    options.expire_after = expire_after;
    options.evict_rarest = evict_rarest != 0;
    options.directory = directory;
    options.resident_bytes = resident_bytes;
    return new RowStore(options);
  }, nullptr);
}
void lane_row_store_close(void* store) { delete &store_of(store); }

int lane_row_store_set_state_bytes(void* store, uint64_t first, uint64_t second) {
  return guarded([&] {
    const size_t bytes[2] = {first, second};
    store_of(store).set_state_bytes(bytes);
    return 0;
  }, -1);
}
void lane_row_store_set_updates(void* store, uint64_t count) { store_of(store).set_updates(count); }

int lane_row_store_read(void* store, const int64_t* keys, uint64_t count, void* rows) {
  return guarded([&] { store_of(store).read(keys, count, static_cast<char*>(rows)); return 0; }, -1);
}
int lane_row_store_read_state(void* store, uint32_t slot, const int64_t* keys, uint64_t count, void* states) {
  return guarded([&] {
    store_of(store).read_state(slot, keys, count, static_cast<char*>(states));
    return 0;
  }, -1);
}
/// Return the number of rows that were updated.
int64_t lane_row_store_update(void* store, uint32_t kind, uint32_t slot, const double* settings, const int64_t* keys,
                              const void* gradients, uint64_t count) {
  return guarded([&]() -> int64_t {
    lane::Rule rule = lane::make_rule(kind, settings);
    rule.slot = slot;
    return store_of(store).update(rule, keys, static_cast<const char*>(gradients), count);
  }, -1);
}
int lane_row_store_assign(void* store, const int64_t* keys, const void* rows, uint64_t count) {
  return guarded([&] { store_of(store).assign(keys, static_cast<const char*>(rows), count); return 0; }, -1);
}
int lane_row_store_assign_state(void* store, uint32_t slot, const int64_t* keys, const void* states, uint64_t count) {
  return guarded([&] {
    store_of(store).assign_state(slot, keys, static_cast<const char*>(states), count);
    return 0;
  }, -1);
}
/// Return the number of rows that were removed.
int64_t lane_row_store_erase(void* store, const int64_t* keys, uint64_t count) {
  return guarded([&]() -> int64_t { return static_cast<int64_t>(store_of(store).erase(keys, count)); }, -1);
}
int lane_row_store_clear(void* store) {
  return guarded([&] { store_of(store).clear(); return 0; }, -1);
}
uint64_t lane_row_store_size(void* store) { return store_of(store).size(); }
/// Write the fields of RowStoreStatistics.
void lane_row_store_statistics(void* store, uint64_t* numbers) {
  const lane::RowStoreStatistics statistics = store_of(store).statistics();
  const uint64_t fields[] = {statistics.rows,     statistics.slots,   statistics.memory_bytes,
                             statistics.file_bytes, statistics.admitted, statistics.waiting,
                             statistics.expired,  statistics.updates, statistics.steps};
  for (uint64_t field : fields) *numbers++ = field;
}

}  // extern "C"
