// A row request in the memory of a worker, as an agent reads it.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "memory/rows.h"
#include "memory/shared.h"

namespace lane {

/// The rows that a worker requests, in pieces: the rows of one partition that must include one number of pushes.  A table
/// without staleness has a piece for each partition.  `Id` is int32 for local ids, int64 for keys.
template <typename Id>
class RequestView {
 public:
  struct Piece {
    uint32_t part, version, count;
    const Id* ids;
    /// Where the agent writes the slots of the rows.
    uint32_t* slots;
  };

  /// Read the request with a number from the memory of a worker, see WorkerTableLayout.  The arguments must stay.
  RequestView(const TableShape& shape, const WorkerTableLayout& layout, const Memory& memory, uint32_t number)
      : shape_(shape),
        version_(memory.at<WorkerTable>(0)->requests[number].version),
        flags_(memory.at<WorkerTable>(0)->requests[number].flags),
        used_at_(memory.at<WorkerTable>(0)->requests[number].used_at),
        bounds_(memory.at<uint32_t>(layout.request_bounds[number])),
        ids_(memory.at<Id>(layout.request_ids[number])),
        slots_(memory.at<uint32_t>(layout.request_slots[number])) {}

  bool is_fence() const { return flags_ & kFence; }
  bool is_uncached() const { return flags_ & kUncached; }
  /// The flags of pulls for the rows.
  uint8_t pull_flags() const { return static_cast<uint8_t>(flags_ & kUncached); }
  /// The number of pushes that the last rows must include, and RowRequest::used_at.
  uint32_t version() const { return version_; }
  uint32_t used_at() const { return used_at_; }

  uint32_t pieces() const { return shape_.groups() * shape_.partitions(); }
  uint32_t part_of(uint32_t number) const { return number % shape_.partitions(); }
  /// Return the number of rows of a piece, which may be malformed.
  uint32_t count(uint32_t number) const { return bounds_[number + 1] - bounds_[number]; }
  /// Throw std::runtime_error unless the ids of a piece are well formed.
  void check(uint32_t number) const {
    if (bounds_[number] > bounds_[number + 1] || bounds_[number + 1] > shape_.max_rows() ||
        !well_formed(shape_, part_of(number), ids_ + bounds_[number], count(number))) {
      throw std::runtime_error(shape_.requested() ? "a worker of this host requested rows with malformed keys"
                                                  : "a worker of this host requested rows with malformed local ids");
    }
  }
  Piece piece(uint32_t number) const {
    const uint32_t first = bounds_[number], lag = shape_.staleness - number / shape_.partitions();
    return {part_of(number), version_ - lag, count(number), ids_ + first, slots_ + first};
  }

 private:
  const TableShape& shape_;
  const uint32_t version_, flags_, used_at_;
  const uint32_t* const bounds_;
  const Id* const ids_;
  uint32_t* const slots_;
};

}  // namespace lane
