// The C interface of row stores; see api.cc for its conventions.
#include <fcntl.h>

#include <algorithm>

#include "base/api_errors.h"
#include "files/available_memory.h"
#include "store/row_scan.h"
#include "store/row_store_arguments.h"

using lane::guarded;
using lane::RowScan;
using lane::RowStore;

namespace {

RowStore& store_of(void* store) { return *static_cast<RowStore*>(store); }

}  // namespace

extern "C" {

const char* lane_first_value_name(uint32_t number) { return lane::first_value_name(number); }

/// Write the first values of rows.
void lane_first_values(uint32_t kind, double value, uint64_t seed, uint32_t dtype, const int64_t* keys, uint64_t count,
                       uint32_t width, void* rows) {
  const auto first_values = lane::first_values_of(kind, value, seed);
  const auto type = static_cast<lane::Dtype>(dtype);
  char* row = static_cast<char*>(rows);
  for (uint64_t i = 0; i < count; ++i, row += width * lane::size_of(type)) first_values.fill(type, keys[i], width, row);
}

/// Write the partition of each key.
void lane_partitions_of(const int64_t* keys, uint64_t count, uint32_t partitions, uint32_t* numbers) {
  for (uint64_t i = 0; i < count; ++i) numbers[i] = lane::partition_of(keys[i], partitions);
}

void* lane_row_store_new(uint32_t dtype, uint32_t width, uint32_t kind, double value, uint64_t seed, uint32_t admit,
                         uint64_t capacity, uint64_t expire_after, int evict_rarest, const char* directory,
                         uint64_t resident_bytes, uint32_t row_type) {
  return guarded([&]() -> void* {
    return new RowStore(lane::row_store_options_of(dtype, width, lane::first_values_of(kind, value, seed), admit,
                                                   capacity, expire_after, evict_rarest, directory, resident_bytes,
                                                   row_type));
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
/// Return the number of the type of kept rows, see RowType.
uint32_t lane_row_store_row_type(void* store) { return static_cast<uint32_t>(store_of(store).options().row_type); }
uint64_t lane_row_store_size(void* store) { return store_of(store).size(); }
/// Write the fields of RowStoreStatistics.
void lane_row_store_statistics(void* store, uint64_t* numbers) {
  const lane::RowStoreStatistics statistics = store_of(store).statistics();
  const uint64_t fields[] = {statistics.rows,       statistics.slots,          statistics.memory_bytes,
                             statistics.file_bytes, statistics.resident_bytes, statistics.admitted,
                             statistics.waiting,    statistics.expired,        statistics.updates};
  for (uint64_t field : fields) *numbers++ = field;
}

// ---------------------------------------------------------------------------------------------------- save and load

/// Set saved rows; see RowStore::restore.
int lane_row_store_restore(void* store, const int64_t* keys, const void* rows, const void* first_states,
                           const void* second_states, const uint32_t* used, const uint32_t* counts, uint64_t count) {
  return guarded([&] {
    const RowStore::SavedRows saved = {static_cast<const char*>(rows),
                                       {static_cast<const char*>(first_states), static_cast<const char*>(second_states)},
                                       {used, counts}};
    store_of(store).restore(keys, saved, count);
    return 0;
  }, -1);
}
/// Return the number of ages of a row, see RowStore::num_ages.
uint32_t lane_row_store_ages(void* store) { return store_of(store).num_ages(); }
/// Return the number of keys that wait for admission, -1 if keys need not be admitted; write the addresses of the keys and
/// of their numbers, see WaitingKeys.
int64_t lane_row_store_waiting(void* store, const void** addresses) {
  const lane::WaitingKeys* waiting = store_of(store).waiting();
  if (waiting == nullptr) return -1;
  addresses[0] = waiting->keys();
  addresses[1] = waiting->numbers();
  return static_cast<int64_t>(waiting->size());
}
/// Add keys that wait for admission.
int lane_row_store_restore_waiting(void* store, const int64_t* keys, const uint16_t* numbers, uint64_t count) {
  return guarded([&] { store_of(store).waiting()->restore(keys, numbers, count); return 0; }, -1);
}
uint32_t lane_row_store_clock(void* store) { return store_of(store).clock(); }
void lane_row_store_set_clock(void* store, uint32_t clock) { store_of(store).set_clock(clock); }
uint32_t lane_row_store_mark(void* store) { return store_of(store).mark(); }
int lane_row_store_knows_changes(void* store, uint32_t since) { return store_of(store).knows_changes_since(since); }
/// Write the keys of rows that were removed after a version, if there is room for them; return their number.
int64_t lane_row_store_removed(void* store, uint32_t since, int64_t* keys, uint64_t room) {
  return guarded([&]() -> int64_t {
    const std::vector<int64_t> removed = store_of(store).removed_since(since);
    if (removed.size() <= room) std::copy(removed.begin(), removed.end(), keys);
    return static_cast<int64_t>(removed.size());
  }, -1);
}
/// Begin a scan; see RowScan.
void* lane_row_scan_new(void* store, int64_t since, uint64_t portion) {
  return guarded([&]() -> void* { return new RowScan(store_of(store), since, portion); }, nullptr);
}
void lane_row_scan_close(void* scan) { delete static_cast<RowScan*>(scan); }
uint64_t lane_row_scan_count(void* scan) { return static_cast<RowScan*>(scan)->count(); }
/// Return the number of rows of the next portion.
int64_t lane_row_scan_next(void* scan) {
  return guarded([&]() -> int64_t { return static_cast<int64_t>(static_cast<RowScan*>(scan)->next()); }, -1);
}
/// Write the columns of the portion: keys, rows, state 0 and 1, ages 0 and 1; null for those that are left out.
int lane_row_scan_read(void* scan, void* const* columns) {
  return guarded([&] {
    static_cast<RowScan*>(scan)->read({static_cast<int64_t*>(columns[0]), static_cast<char*>(columns[1]),
                                       {static_cast<char*>(columns[2]), static_cast<char*>(columns[3])},
                                       {static_cast<uint32_t*>(columns[4]), static_cast<uint32_t*>(columns[5])}});
    return 0;
  }, -1);
}

/// Write the memory that is left to this process, and the limit, in bytes; see available_memory().
void lane_available_memory(const char* root, uint64_t* numbers) {
  const lane::AvailableMemory available = lane::available_memory(root);
  numbers[0] = available.bytes;
  numbers[1] = available.limit_bytes;
}

/// Let the disk start to write bytes of a file, and do not wait.  A failure costs time, nothing else.
void lane_start_write_back(int descriptor, uint64_t offset, uint64_t length) {
  sync_file_range(descriptor, static_cast<off_t>(offset), static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE);
}

}  // extern "C"
