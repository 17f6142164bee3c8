// The C interface of row stores; see api.cc for its conventions.
#include <fcntl.h>

#include <algorithm>

#include "base/api_errors.h"
#include "files/available_memory.h"
#include "store/row_scan.h"

using lane::Dtype;
using lane::guarded;
using lane::RowScan;
using lane::RowStore;

extern "C" {

/// Write the partition of each key.
void lane_partitions_of(const int64_t* keys, uint64_t count, uint32_t partitions, uint32_t* numbers) {
  for (uint64_t i = 0; i < count; ++i) numbers[i] = lane::partition_of(keys[i], partitions);
}

RowStore* lane_row_store_new(Dtype dtype, uint32_t width, lane::FirstValueKind kind, double value, uint64_t seed,
                             uint32_t admit, uint64_t capacity, uint64_t expire_after, int evict_rarest,
                             const char* directory, uint64_t resident_bytes, lane::RowType row_type) {
  return guarded([&] {
    return new RowStore({dtype, row_type, width, {kind, value, seed}, admit, capacity, expire_after, evict_rarest != 0,
                         directory, resident_bytes});
  });
}
void lane_row_store_close(RowStore* store) { delete store; }

int lane_row_store_set_state_bytes(RowStore* store, uint64_t first, uint64_t second) {
  const size_t bytes[2] = {first, second};
  return guarded([&] { store->set_state_bytes(bytes); });
}
void lane_row_store_set_updates(RowStore* store, uint64_t count) { store->set_updates(count); }

int lane_row_store_read(RowStore* store, const int64_t* keys, uint64_t count, char* rows) {
  return guarded([&] { store->read(keys, count, rows); });
}
int lane_row_store_read_state(RowStore* store, uint32_t slot, const int64_t* keys, uint64_t count, char* states) {
  return guarded([&] { store->read_state(slot, keys, count, states); });
}
/// Return the number of rows that were updated.
int64_t lane_row_store_update(RowStore* store, lane::RuleKind kind, uint32_t slot, const double* settings,
                              const int64_t* keys, const char* gradients, uint64_t count) {
  return guarded([&]() -> int64_t {
    return store->update(lane::make_rule(kind, settings, slot), keys, gradients, count);
  });
}
int lane_row_store_assign(RowStore* store, const int64_t* keys, const char* rows, uint64_t count) {
  return guarded([&] { store->assign(keys, rows, count); });
}
int lane_row_store_assign_state(RowStore* store, uint32_t slot, const int64_t* keys, const char* states,
                                uint64_t count) {
  return guarded([&] { store->assign_state(slot, keys, states, count); });
}
/// Return the number of rows that were removed.
int64_t lane_row_store_erase(RowStore* store, const int64_t* keys, uint64_t count) {
  return guarded([&] { return static_cast<int64_t>(store->erase(keys, count)); });
}
int lane_row_store_clear(RowStore* store) {
  return guarded([&] { store->clear(); });
}
/// Return the number of the type of kept rows, see RowType.
uint32_t lane_row_store_row_type(RowStore* store) { return static_cast<uint32_t>(store->options().row_type); }
uint64_t lane_row_store_size(RowStore* store) { return store->size(); }
/// Write the statistics of a store.
void lane_row_store_statistics(RowStore* store, lane::RowStoreStatistics* statistics) {
  *statistics = store->statistics();
}

// ---------------------------------------------------------------------------------------------------- save and load

/// Set saved rows; see RowStore::restore.
int lane_row_store_restore(RowStore* store, const int64_t* keys, const char* rows, const char* first_states,
                           const char* second_states, const uint32_t* used, const uint32_t* counts, uint64_t count) {
  return guarded([&] { store->restore(keys, {rows, {first_states, second_states}, {used, counts}}, count); });
}
/// Return the number of ages of a row, see RowStore::num_ages.
uint32_t lane_row_store_ages(RowStore* store) { return store->num_ages(); }
/// Return the number of keys that wait for admission, -1 if keys need not be admitted; write the addresses of the keys and
/// of their numbers, see WaitingKeys.
int64_t lane_row_store_waiting(RowStore* store, const void** addresses) {
  const lane::WaitingKeys* waiting = store->waiting();
  if (waiting == nullptr) return -1;
  addresses[0] = waiting->keys();
  addresses[1] = waiting->numbers();
  return static_cast<int64_t>(waiting->size());
}
/// Add keys that wait for admission.
int lane_row_store_restore_waiting(RowStore* store, const int64_t* keys, const uint16_t* numbers, uint64_t count) {
  return guarded([&] { store->waiting()->restore(keys, numbers, count); });
}
uint32_t lane_row_store_clock(RowStore* store) { return store->clock(); }
void lane_row_store_set_clock(RowStore* store, uint32_t clock) { store->set_clock(clock); }
uint32_t lane_row_store_mark(RowStore* store) { return store->mark(); }
int lane_row_store_knows_changes(RowStore* store, uint32_t since) { return store->knows_changes_since(since); }
/// Write the keys of rows that were removed after a version, if there is room for them; return their number.
int64_t lane_row_store_removed(RowStore* store, uint32_t since, int64_t* keys, uint64_t room) {
  return guarded([&] {
    const std::vector<int64_t> removed = store->removed_since(since);
    if (removed.size() <= room) std::copy(removed.begin(), removed.end(), keys);
    return static_cast<int64_t>(removed.size());
  });
}
/// Begin a scan; see RowScan.
RowScan* lane_row_scan_new(RowStore* store, int64_t since, uint64_t portion) {
  return guarded([&] { return new RowScan(*store, since, portion); });
}
void lane_row_scan_close(RowScan* scan) { delete scan; }
uint64_t lane_row_scan_count(RowScan* scan) { return scan->count(); }
/// Return the number of rows of the next portion.
int64_t lane_row_scan_next(RowScan* scan) {
  return guarded([&] { return static_cast<int64_t>(scan->next()); });
}
/// Write the columns of the portion, a RowScan::Columns.
int lane_row_scan_read(RowScan* scan, const RowScan::Columns* columns) {
  return guarded([&] { scan->read(*columns); });
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
