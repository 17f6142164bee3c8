// The rows of one partition of a dynamic table: a table of which only the rows that were touched exist.
//
// A row has a key, its elements, its optimizer state, and the version that changed it last.  They stand in areas, by
// slot; areas grow without being copied.  A hash index finds the slot of a key.  So the memory is that of the rows and
// their state, plus 8 bytes of the key, 6 to 8 of the index and 4 of the version.
//
// Two counters are kept apart.  The clock counts updates by an optimizer, and the age of rows is measured by it alone:
// rows that are set, imported or loaded make no other row older.  All partitions of a table have the same clock, which
// checkpoints store.  The version counts saves, and shows the rows that changed since one of them, in any way.
//
// A store is not synchronized: one thread uses it at a time, also to read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "files/growing_memory.h"
#include "files/record_cache.h"
#include "kernels/update.h"
#include "store/first_values.h"
#include "store/row_type.h"
#include "store/slot_index.h"
#include "store/waiting_keys.h"

namespace lane {

struct RowStoreOptions {
  Dtype dtype = Dtype::kFloat32;  // float32 or float64
  /// The type of rows in memory and files, for float32; they are read and updated as `dtype`, which state has.
  RowType row_type = RowType::kSame;
  uint32_t width = 1;
  FirstValues first_values;
  /// An update makes the row of a key at this sighting; a sighting is an update that has the key.  Before that the key
  /// reads as the default row, the first values of kDefaultKey, and its gradients are dropped.  The same holds for a key
  /// whose row was removed.
  uint32_t admit = 1;
  /// The most rows after an update; 0: no limit.
  uint64_t capacity = 0;
  /// Rows that were not updated for this number of updates of the table are removed; 0: never.  They are looked for 16
  /// times in this number of updates.
  uint64_t expire_after = 0;
  /// Over capacity, remove the rows with the fewest updates first, instead of the least recently updated ones.  A 16th
  /// of the capacity is removed at once; rows of the current step stay.
  bool evict_rarest = false;
  /// The directory of the files with keys, rows and state, which stores may share; empty: they are in memory.  The index
  /// always is.
  std::string directory;
  /// The memory of a cache of rows and state in files, which has 1 MB at least; 0: files are mapped, and the system
  /// decides which of their pages are in memory.
  uint64_t resident_bytes = 0;
};

/// Python reads the numbers in this order.
struct RowStoreStatistics {
  uint64_t rows;
  uint64_t slots;         // ever taken: rows, and slots that later rows take
  uint64_t memory_bytes;  // of slots and index, without files
  uint64_t file_bytes;
  uint64_t resident_bytes;  // of the cache of rows and state in files
  uint64_t admitted;  // rows that were made by updates
  uint64_t waiting;   // keys that were sighted, but too few times
  uint64_t expired;   // rows that were removed by capacity or age
  uint64_t updates;   // updates by an optimizer, see RowStore::set_updates
};

class RowStore {
 public:
  /// The key whose first values are the default row.
  static constexpr int64_t kDefaultKey = INT64_MIN;

  /// Make an empty store; throws std::runtime_error.
  explicit RowStore(const RowStoreOptions& options);
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  const RowStoreOptions& options() const { return options_; }
  size_t row_bytes() const { return row_bytes_; }
  /// The bytes of the elements of a kept row.
  size_t kept_bytes() const { return kept_bytes_; }
  size_t state_bytes(uint32_t slot) const { return slot < 2 ? state_bytes_[slot] : 0; }
  /// Set the bytes of optimizer state of a row.  State begins with zeros, also after a change of its size; the next save
  /// is a whole one then.
  void set_state_bytes(const size_t bytes[2]);
  /// Set the number of updates by an optimizer so far, on which adam's learning rate depends.
  void set_updates(uint64_t count) { updates_ = count; }

  /// Write the rows of keys to `rows`.  A key without a row reads as its first values, or as the default row where keys
  /// have to be admitted, and gets no row.
  void read(const int64_t* keys, size_t count, char* rows) const;

  /// Update rows of sorted, unique keys; return how many.  A rule is that of an optimizer, which advances the clock and
  /// removes rows afterwards, or kIgnore, kAssign, kReplace or kAssignState.
  uint32_t update(const Rule& rule, const int64_t* keys, const char* gradients, size_t count);
  /// The same in blocks of keys: begin an update, update each key at most once, end the update.
  void begin_update(const Rule& rule);
  void update_block(const int64_t* keys, const char* const* gradients, size_t count);
  uint32_t end_update();
  /// The number of keys that are best updated at once.
  size_t block() const { return cache_ ? cache_->batch() : kBlock; }

  /// Set rows, or optimizer state, of keys, which get rows where they have none.  The rows are then as old as those of
  /// the last update, whose keys do not count against them.
  void assign(const int64_t* keys, const char* rows, size_t count);
  void assign_state(uint32_t slot, const int64_t* keys, const char* states, size_t count);
  /// Write the optimizer state of keys to `states`; zeros for keys without a row.
  void read_state(uint32_t slot, const int64_t* keys, size_t count, char* states) const;
  /// Set rows with all that belongs to them, as they were saved.  `states` and `ages` may be null: state then becomes
  /// zeros, and rows are as old as those of the last update.
  struct SavedRows {
    const char* rows;  // kept rows
    const char* states[2];
    const uint32_t* ages[2];
  };
  void restore(const int64_t* keys, const SavedRows& saved, size_t count);
  /// The number of updates by an optimizer since the store was empty.
  uint32_t clock() const { return clock_; }
  void set_clock(uint32_t clock) { clock_ = clock; }
  /// Remove the rows of keys; return how many had one.
  uint64_t erase(const int64_t* keys, size_t count);
  /// Remove all rows, forget the sightings of keys, and begin the clock again.
  void clear();

  /// Return the keys that wait for admission; null if keys need not be admitted.
  WaitingKeys* waiting() const { return waiting_.get(); }

  /// The number of rows.
  uint64_t size() const { return index_.size(); }
  /// Slots are numbered from 0; some have no row.
  uint64_t slots() const { return slots_; }
  bool is_live(uint64_t slot) const { return live_[slot >> 6] >> (slot & 63) & 1; }
  int64_t key_of(uint64_t slot) const { return keys()[slot]; }
  /// The bytes of a row and its state, which stand together.
  size_t record_bytes() const { return record_bytes_; }
  size_t state_offset(uint32_t number) const { return state_offset_ + (number ? state_bytes_[0] : 0); }
  /// Return whether records are read from a file by `copy_records`, or else are at addresses.
  bool is_cached() const { return cache_ != nullptr; }
  const char* record_at(uint64_t slot) const { return mapped_record(slot); }
  /// Copy the records of slots to consecutive memory.
  void copy_records(const uint32_t* slots, size_t count, char* to) const { cache_->copy(slots, count, to); }
  uint32_t version_of(uint64_t slot) const { return versions()[slot]; }
  /// kAssignState also sets ages, and the saved numbers of keys that wait for admission, in the first bytes of the pushed
  /// rows: their numbers follow those of optimizer state.
  static constexpr uint32_t kFirstAge = 2, kWaiting = 4;
  /// The number of ages of a row, by which rows are chosen for removal: the clock at its last update, and the number of
  /// its updates.
  uint32_t num_ages() const { return num_ages_; }
  uint32_t age_of(uint64_t slot, uint32_t number) const { return ages(number)[slot]; }
  RowStoreStatistics statistics() const;

  /// A save was completed: begin the next version, remember the keys of rows that are removed from now on, and return
  /// the version that was saved.
  uint32_t mark();
  /// Return whether the changes after a version are known: rows that changed, and keys of rows that were removed.
  bool knows_changes_since(uint32_t version) const {
    return marked_ && version >= known_since_ && version < version_;
  }
  /// Return the keys of rows that were removed after a version.
  std::vector<int64_t> removed_since(uint32_t version) const;

 private:
  int64_t* keys() const { return reinterpret_cast<int64_t*>(keys_.data()); }
  uint32_t* versions() const { return reinterpret_cast<uint32_t*>(versions_.data()); }
  uint32_t* ages(uint32_t number) const { return reinterpret_cast<uint32_t*>(ages_[number].data()); }
  uint32_t find(int64_t key, uint64_t hash) const { return index_.find(key, hash, keys()); }
  char* mapped_record(uint64_t slot) const { return records_.data() + slot * record_bytes_; }
  /// Return a row with its state, to be read or to be changed, until the next call.
  const char* record_of(uint32_t slot) const { return cache_ ? cache_->read(slot) : mapped_record(slot); }
  char* changed_record(uint32_t slot) { return cache_ ? cache_->change(slot) : mapped_record(slot); }
  /// Call `function` with the bounds of each batch of keys.  If there is a cache, the records of a batch are read into
  /// it at once, for the update at a time of the clock.
  template <typename Function>
  void in_batches(const int64_t* keys, size_t count, uint32_t clock, Function function) const {
    const size_t batch = cache_ ? cache_->batch() : std::max<size_t>(count, 1);
    for (size_t first = 0; first < count; first += batch) {
      const size_t end = std::min(first + batch, count);
      if (cache_) load(keys + first, end - first, clock);
      function(first, end);
    }
  }
  void load(const int64_t* keys, size_t count, uint32_t clock) const;
  /// Return the slot of a key, which gets a row if it has none.
  uint32_t place(int64_t key, uint64_t hash);
  /// Note that the row or state of a slot changes now.
  void note_change(uint32_t slot) { versions()[slot] = version_; }
  /// Note that the elements of a row change, which makes it young.
  void note_new_elements(uint32_t slot) {
    note_change(slot);
    if (num_ages_ > 0) ages(0)[slot] = clock_;
  }
  /// Set a saved age of a row, or its number of updates; the clock is at least that of each row.
  void set_age(uint32_t slot, uint32_t number, uint32_t age) {
    if (number >= num_ages_) return;
    ages(number)[slot] = age;
    if (number == 0) clock_ = std::max(clock_, age);
  }
  void remove(uint32_t slot);
  /// Make the next save a whole one.
  void forget_changes() {
    marked_ = false;
    removed_.clear();
  }
  /// Return an area that is in a file if the store has a directory.
  GrowingMemory new_area(const char* name) const;
  std::string name_of_file(const char* name) const;
  /// Make the memory of records, without any.
  void make_records(size_t record_bytes, GrowingMemory* records, std::unique_ptr<RecordCache>* cache) const;
  void remove_expired();
  void remove_over_capacity();
  uint64_t rank_of(uint64_t slot) const;
  void write_missing(int64_t key, char* row) const;
  /// Write the row of a record, or the row into a record.
  void read_row(const char* record, char* row) const;
  void write_row(const char* row, char* record) const;
  /// Write the first values of a key into a record.
  void begin_row(int64_t key, char* record) const;
  void update_slot(uint32_t slot, int64_t key, uint64_t hash, const char* gradient);
  /// Keys for which memory is fetched before it is used.
  static constexpr size_t kBlock = 64;
  /// The part of a record that is fetched after its slot is found: its row to be read, or all of it to be changed.
  enum class Fetched { kNothing, kRow, kAll };
  template <Fetched kFetched>
  void prefetch(uint32_t slot) const;
  /// Find the slots of at most kBlock keys; kNone where a key has none.
  template <Fetched kFetched>
  void find_block(const int64_t* keys, size_t count, uint64_t* hashes, uint32_t* slots) const;
  void check_state(uint32_t slot) const;

  RowStoreOptions options_;
  const uint32_t num_ages_;
  size_t row_bytes_, kept_bytes_, state_offset_;
  size_t state_bytes_[2] = {0, 0};
  size_t record_bytes_;  // of a row and its state, which stand together
  mutable std::vector<float> row_;  // if rows are kept in another type

  SlotIndex index_;
  GrowingMemory keys_, versions_, ages_[2];
  GrowingMemory records_;               // if there is no cache
  std::unique_ptr<RecordCache> cache_;  // of records in a file, if there is a budget
  std::vector<uint64_t> live_;  // a bit for each slot
  uint64_t slots_ = 0;
  uint32_t free_ = SlotIndex::kNone;  // the slot that was freed last; a free slot has the next one in place of its key

  // The update under way.
  Rule rule_;
  UpdateKernel kernel_ = nullptr;
  UpdateSettings settings_{Rule(), 1};
  uint32_t touched_ = 0;

  uint32_t clock_ = 0;
  uint64_t updates_ = 0, admitted_ = 0, expired_ = 0;
  std::unique_ptr<WaitingKeys> waiting_;  // if keys have to be admitted; none of them has a row

  // Changes since a save.
  bool marked_ = false;
  uint32_t version_ = 1, last_mark_ = 0, known_since_ = 0;
  std::vector<std::pair<int64_t, uint32_t>> removed_;  // keys, and the versions of their removal
};

}  // namespace lane
