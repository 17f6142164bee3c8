// The records of a row store with a budget of memory: a cache in front of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "files/growing_memory.h"
#include "files/record_log.h"

namespace lane {

/// Records are cached one by one and not by pages, since most neighbours of a frequent record are rare.  Two queues
/// find the record that leaves the cache, as in S3-FIFO (Yang et al., "FIFO queues are all you need for cache
/// eviction", SOSP 2023): a record begins in the first one, a tenth of the cache, and leaves the cache at its end if no
/// other step used it.  Otherwise it goes to the second queue, where it goes around once for each use.
class RecordCache {
 public:
  /// Use an empty file, by its descriptor, which the object closes; `name` stands in messages.  `budget` is in bytes.
  RecordCache(int descriptor, const std::string& name, size_t record_bytes, size_t budget);
  RecordCache(const RecordCache&) = delete;
  RecordCache& operator=(const RecordCache&) = delete;

  /// Make room for the records of slots 0 to `slots` - 1; throws MemoryRefused, and all stays as it was.
  void grow(uint64_t slots);
  /// Read the records of slots that are not in memory, at most `batch()` slots; their records then stay in memory until
  /// the next load.  `step` is the step that uses the records.
  void load(const uint32_t* slots, size_t count, uint32_t step);
  size_t batch() const { return batch_; }
  /// Return the record of a slot, which is read if it is not in memory.  The address is valid until the next call.
  const char* read(uint32_t slot) { return bytes_of(frame_of(slot)); }
  /// Fetch the start of the record of a slot into the processor's cache, if it is in memory.
  void prefetch(uint32_t slot, size_t bytes) const;
  /// The same for a record that the caller changes.
  char* change(uint32_t slot);
  /// Return the memory, with any contents, for the record of a slot that has none.
  char* create(uint32_t slot);
  /// Forget the record of a slot.
  void remove(uint32_t slot);
  /// Copy records to consecutive memory.  The cache stays as it is.
  void copy(const uint32_t* slots, size_t count, char* to);
  /// Call `take` with each slot that has a record, in any order.  The cache stays as it is.
  void each(const RecordLog::TakeRecord& take);

  size_t resident_bytes() const { return entries_.size() * record_bytes_; }
  /// The memory of everything else.
  size_t memory_bytes() const;
  uint64_t file_bytes() const { return log_.file_bytes(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  /// A location is kNowhere if there is no record, the number of a frame with the bit kInFrame, or a position in the
  /// log plus 1.
  static constexpr uint32_t kNowhere = 0, kInFrame = uint32_t{1} << 31;

  /// The state of a frame, the memory of a record.
  struct Entry {
    uint32_t slot = kNone;   // kNone: no record
    uint32_t position = kNone;  // of the same bytes in the log
    uint32_t load = 0;       // the number of the load for which the record stays in memory
    uint32_t step = 0;       // the last step that used it
    uint32_t uses = 0;       // steps that used it again
  };

  uint32_t& location_of(uint32_t slot) const { return reinterpret_cast<uint32_t*>(locations_.data())[slot]; }
  char* bytes_of(uint32_t frame) const { return frames_.data() + size_t{frame} * record_bytes_; }
  /// Return the frame of a record, which is read if it is in the log.
  uint32_t frame_of(uint32_t slot);
  /// Return a frame without a record.  The record that it had goes to the log, which may move others there.
  uint32_t take_frame();
  /// Write the record of a frame to the log and return its position.
  uint32_t write(uint32_t frame);
  /// Note the use of the records that are in memory; the other slots are `missing_` then.
  void note_uses(const uint32_t* slots, size_t count, uint32_t step);
  /// Read the records of the slots `missing_` into the frames `taken_`.
  void read_missing();

  const size_t record_bytes_;
  const uint32_t most_, most_new_;  // frames
  const size_t batch_;
  GrowingMemory locations_, frames_;
  std::vector<Entry> entries_;  // by frame
  /// The frames of new records and of records that were used again; a frame may have no record.
  std::deque<uint32_t> new_, reused_;
  uint32_t load_ = 1;
  RecordLog log_;
  std::vector<uint32_t> missing_, taken_, positions_;  // of a load: slots, and their frames and positions
  std::vector<RecordLog::Move> moves_;                 // of a write
};

}  // namespace lane
