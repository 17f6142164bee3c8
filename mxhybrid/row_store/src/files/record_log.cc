#include "files/record_log.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace lane {
namespace {

/// The bytes of a segment, unless that is less than a record.
constexpr size_t kSegmentBytes = 256 << 10;
/// Records of a power of two of bytes are within as few sectors as possible.
constexpr size_t kSector = 512;
/// A file has room for this share more records than are live, and for kSpareSegments more.  The fewer there are, the
/// more live records a segment has that is cleaned.
constexpr double kSpare = 0.25;
constexpr uint64_t kSpareSegments = 6;
/// A file grows by this share, but at most by kMostGrowth bytes, if that is more than it needs.
constexpr double kGrowth = 0.125;
constexpr uint64_t kMostGrowth = 64 << 20;
/// The number of free segments below which a segment is cleaned.  Cleaning itself needs a free segment.
constexpr size_t kLeastFree = 2;

}  // namespace

RecordLog::RecordLog(int descriptor, const std::string& name, size_t record_bytes)
    : record_bytes_(record_bytes),
      per_segment_(static_cast<uint32_t>(std::max<size_t>(1, kSegmentBytes / (record_bytes + sizeof(uint32_t))))),
      header_bytes_(rounded_up(per_segment_ * sizeof(uint32_t), kSector)),
      segment_bytes_(rounded_up(header_bytes_ + per_segment_ * record_bytes, DirectFile::kAlignment)),
      file_(descriptor, name) {
  for (Buffer* buffer : {&filling_.bytes, &writing_.bytes, &cleaned_}) {
    *buffer = Buffer(segment_bytes_, DirectFile::kAlignment);
  }
}

void RecordLog::reserve(uint64_t records) {
  const uint64_t with_spare = records + static_cast<uint64_t>(static_cast<double>(records) * kSpare);
  const uint64_t needed = with_spare / per_segment_ + 1 + kSpareSegments, segments = live_counts_.size();
  if (needed <= segments) return;
  const uint64_t growth = std::min(static_cast<uint64_t>(static_cast<double>(segments) * kGrowth),
                                   kMostGrowth / segment_bytes_);
  const uint64_t grown = std::max(needed, segments + growth);
  if (grown * per_segment_ > kMaxPositions) {
    throw std::runtime_error("storage: a file has room for " + std::to_string(kMaxPositions) +
                             " rows, a quarter of it for rows that are written again: use more partitions");
  }
  file_.grow(grown * segment_bytes_);
  live_counts_.resize(grown, 0);
  live_.resize((grown * per_segment_ + 63) / 64, 0);
  for (uint64_t segment = grown; segment-- > segments;) free_.push_back(static_cast<uint32_t>(segment));
}

uint32_t RecordLog::append(uint32_t slot, const char* record, std::vector<Move>* moves) {
  while (free_.size() < kLeastFree) clean(moves);
  return put(slot, record);
}

uint32_t RecordLog::put(uint32_t slot, const char* record) {
  if (filled_ == per_segment_ || filling_.segment == kNone) {
    if (filling_.segment != kNone) {
      file_.finish_write();
      if (writing_.segment != kNone && live_counts_[writing_.segment] == 0) free_.push_back(writing_.segment);
      std::swap(filling_, writing_);
      file_.start_write(writing_.bytes.data(), segment_bytes_, uint64_t{writing_.segment} * segment_bytes_);
    }
    filling_.segment = free_.back();
    free_.pop_back();
    filled_ = 0;
  }
  const uint32_t number = filled_++, position = filling_.segment * per_segment_ + number;
  slots_of(filling_.bytes)[number] = slot;
  std::memcpy(record_of(filling_.bytes, number), record, record_bytes_);
  live_[position >> 6] |= uint64_t{1} << (position & 63);
  ++live_counts_[filling_.segment];
  return position;
}

void RecordLog::drop(uint32_t position) {
  const uint32_t segment = position / per_segment_;
  live_[position >> 6] &= ~(uint64_t{1} << (position & 63));
  if (--live_counts_[segment] == 0 && segment != filling_.segment && segment != writing_.segment) {
    free_.push_back(segment);
  }
}

void RecordLog::clean(std::vector<Move>* moves) {
  uint32_t victim = kNone, least = UINT32_MAX;
  for (uint32_t segment = 0; segment < live_counts_.size(); ++segment) {
    const uint32_t count = live_counts_[segment];
    if (count == 0 || count >= least || segment == filling_.segment || segment == writing_.segment) continue;
    victim = segment;
    least = count;
  }
  file_.read(cleaned_.data(), segment_bytes_, uint64_t{victim} * segment_bytes_);
  for (uint32_t number = 0; number < per_segment_; ++number) {
    const uint32_t position = victim * per_segment_ + number;
    if (!is_live(position)) continue;
    const uint32_t slot = slots_of(cleaned_)[number];
    moves->push_back({slot, put(slot, record_of(cleaned_, number))});
    drop(position);
  }
}

void RecordLog::read(const std::vector<uint32_t>& positions, const DirectFile::Take& take) {
  std::vector<uint64_t> offsets;
  std::vector<size_t> indices;
  for (size_t index = 0; index < positions.size(); ++index) {
    const uint32_t segment = positions[index] / per_segment_, number = positions[index] % per_segment_;
    const Open* open = segment == filling_.segment ? &filling_ : segment == writing_.segment ? &writing_ : nullptr;
    if (open) {
      take(index, record_of(open->bytes, number));
    } else {
      offsets.push_back(uint64_t{segment} * segment_bytes_ + header_bytes_ + number * record_bytes_);
      indices.push_back(index);
    }
  }
  file_.read_all(offsets, record_bytes_, [&](size_t index, const char* bytes) { take(indices[index], bytes); });
}

void RecordLog::each(const TakeRecord& take) {
  std::vector<uint32_t> segments;
  std::vector<uint64_t> offsets;
  const auto take_segment = [&](uint32_t segment, const char* bytes) {
    for (uint32_t number = 0; number < per_segment_; ++number) {
      if (!is_live(segment * per_segment_ + number)) continue;
      take(reinterpret_cast<const uint32_t*>(bytes)[number], bytes + header_bytes_ + number * record_bytes_);
    }
  };
  for (uint32_t segment = 0; segment < live_counts_.size(); ++segment) {
    if (segment == filling_.segment || segment == writing_.segment) {
      take_segment(segment, (segment == filling_.segment ? filling_ : writing_).bytes.data());
    } else if (live_counts_[segment]) {
      segments.push_back(segment);
      offsets.push_back(uint64_t{segment} * segment_bytes_);
    }
  }
  file_.read_all(offsets, segment_bytes_,
                 [&](size_t index, const char* bytes) { take_segment(segments[index], bytes); });
}

size_t RecordLog::memory_bytes() const {
  return 3 * segment_bytes_ + live_.size() * sizeof(uint64_t) + live_counts_.size() * sizeof(uint32_t);
}

}  // namespace lane
