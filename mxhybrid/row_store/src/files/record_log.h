// The records of a row store in a file that is a log: records are only ever appended, so that writes are long, and a
// record that is written again gets another position.
//
// The file consists of segments.  A segment begins with the slots of its records.  When few segments are free, the one
// with the fewest live records is cleaned: these are appended again, and the segment is free (Rosenblum and Ousterhout,
// "The design and implementation of a log-structured file system", 1992).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "files/direct_file.h"

namespace lane {

class RecordLog {
 public:
  /// Positions, which count records in the file, are below this number.
  static constexpr uint64_t kMaxPositions = uint64_t{1} << 31;
  /// The new position of a record whose segment was cleaned.
  struct Move {
    uint32_t slot, position;
  };

  /// Use an empty file, by its descriptor, which the object closes; `name` stands in messages.
  RecordLog(int descriptor, const std::string& name, size_t record_bytes);

  /// Reserve blocks of the disk for a number of live records; throws MemoryRefused.
  void reserve(uint64_t records);
  /// Write the record of a slot and return its position.  Fewer records are live than were reserved.  Cleaning may move
  /// other records: they are added to `moves`, also if this throws.
  uint32_t append(uint32_t slot, const char* record, std::vector<Move>* moves);
  /// Forget the record at a position.
  void drop(uint32_t position);
  /// Read the records at positions; call `take` with the index of each position in the list, and its record.  The order
  /// is any.
  void read(const std::vector<uint32_t>& positions, const DirectFile::Take& take);
  /// Call `take` with the slot and the record of each position that is in use; whole segments are read.
  using TakeRecord = std::function<void(uint32_t slot, const char* record)>;
  void each(const TakeRecord& take);

  uint64_t file_bytes() const { return file_.size(); }
  size_t memory_bytes() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// A segment in memory, whose bytes are written when it is full.
  struct Open {
    Buffer bytes;
    uint32_t segment = kNone;
  };

  bool is_live(uint32_t position) const { return live_[position >> 6] >> (position & 63) & 1; }
  uint32_t* slots_of(const Buffer& segment) const { return reinterpret_cast<uint32_t*>(segment.data()); }
  char* record_of(const Buffer& segment, uint32_t number) const {
    return segment.data() + header_bytes_ + number * record_bytes_;
  }
  uint32_t put(uint32_t slot, const char* record);
  void clean(std::vector<Move>* moves);

  const size_t record_bytes_;
  const uint32_t per_segment_;
  const size_t header_bytes_, segment_bytes_;
  DirectFile file_;

  std::vector<uint64_t> live_;         // a bit for each position
  std::vector<uint32_t> live_counts_;  // by segment
  std::vector<uint32_t> free_;         // segments without live records; none of them is open
  Open filling_, writing_;
  uint32_t filled_ = 0;      // records in `filling_`
  Buffer cleaned_;
};

}  // namespace lane
