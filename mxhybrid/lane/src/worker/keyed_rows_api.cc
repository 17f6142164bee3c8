// The C interface for rows of several tables at a time; see api.cc for its conventions.
#include <memory>
#include <vector>

#include "base/api_errors.h"
#include "worker/keyed_rows.h"
#include "worker/worker.h"

using lane::guarded;
using lane::TableRows;
using lane::Worker;

extern "C" {

/// Call KeySorter::distinct_keys for several lists of ids; their keys and positions follow each other.  `counts` has
/// the number of ids of each list, and gets that of its keys.
int lane_distinct_keys(uint32_t lists, const int64_t* const* ids, uint64_t* counts, int64_t* keys, int32_t* positions) {
  return guarded([&] {
    lane::KeySorter sorter;
    for (uint32_t i = 0; i < lists; ++i) {
      const uint64_t num_ids = counts[i];
      counts[i] = sorter.distinct_keys(ids[i], num_ids, keys, positions);
      keys += counts[i];
      positions += num_ids;
    }
    return 0;
  }, -1);
}

/// See lane::sum_rows.
int lane_sum_rows(uint32_t dtype, uint64_t width, const TableRows* rows, void* sums) {
  return guarded([&] {
    rows->check_positions();
    lane::sum_rows(static_cast<lane::Dtype>(dtype), width, *rows, nullptr, static_cast<char*>(sums));
    return 0;
  }, -1);
}

/// Write rows by those of the ids, of shape (ids, width); see lane::write_rows.
int lane_write_rows(uint32_t dtype, uint64_t width, const void* id_rows, const TableRows* rows) {
  return guarded([&] {
    rows->check_positions();
    const auto type = static_cast<lane::Dtype>(dtype);
    std::vector<const char*> row_of(rows->count);
    for (uint64_t id = 0; id < rows->count; ++id) {
      row_of[id] = static_cast<const char*>(id_rows) + id * width * lane::size_of(type);
    }
    lane::write_rows(type, width, row_of.data(), *rows);
    return 0;
  }, -1);
}

/// Return the number of tables that were pushed to; it is less than `tables` if the time is over.
int lane_worker_push_tables(void* worker, const TableRows* pushes, uint32_t tables, int milliseconds) {
  return guarded([&] { return static_cast<int>(static_cast<Worker*>(worker)->push(pushes, tables, milliseconds)); }, -1);
}

/// Return 0 when all requests are posted, 1 while all requests of a table are in use.
int lane_worker_post_tables(void* worker, const TableRows* requests, const uint32_t* stalenesses, uint32_t tables,
                            int* handles) {
  return guarded(
      [&] { return static_cast<Worker*>(worker)->post(requests, stalenesses, tables, handles) ? 0 : 1; }, -1);
}

/// Return deliveries for lane_worker_deliver_tables.
void* lane_deliveries_new(void* worker, const TableRows* requests, uint32_t tables, const int* handles) {
  void* const deliveries = guarded([&]() -> void* {
    return new Worker::Deliveries(*static_cast<Worker*>(worker), requests, tables, handles);
  }, nullptr);
  if (deliveries == nullptr) static_cast<Worker*>(worker)->abandon(requests, tables, handles);
  return deliveries;
}

/// EngineAsyncFunc; deletes the deliveries.
void lane_worker_deliver_tables(void*, void* on_complete, void* deliveries) {
  std::unique_ptr<Worker::Deliveries> rows(static_cast<Worker::Deliveries*>(deliveries));
  Worker& worker = rows->worker;
  worker.deliver(std::move(rows), *static_cast<lane::OnComplete*>(on_complete));
}

}  // extern "C"
