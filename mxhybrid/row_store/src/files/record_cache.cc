#include "files/record_cache.h"

#include <algorithm>
#include <cstring>

namespace lane {
namespace {

/// The least budget in bytes, and in records.
constexpr size_t kLeastBytes = 1 << 20, kLeastRecords = 4;
/// The most records that are loaded at once: more do not make a disk faster.
constexpr size_t kBatch = 4096;
/// The share of the cache that new records have.
constexpr uint32_t kNewShare = 10;
/// The uses of a record that count.
constexpr uint32_t kMostUses = 7;

}  // namespace

RecordCache::RecordCache(int descriptor, const std::string& name, size_t record_bytes, size_t budget)
    : record_bytes_(record_bytes),
      most_(static_cast<uint32_t>(std::min<size_t>(
          std::max(std::max(budget, kLeastBytes) / record_bytes, kLeastRecords), kInFrame - 1))),
      most_new_(std::max<uint32_t>(most_ / kNewShare, 1)),
      batch_(std::min<size_t>(kBatch, most_new_)),  // so that each queue has a record that no load keeps in memory
      log_(descriptor, name, record_bytes) {}

void RecordCache::grow(uint64_t slots) {
  log_.reserve(slots);
  locations_.grow(slots * sizeof(uint32_t));
}

uint32_t RecordCache::take_frame() {
  if (entries_.size() < most_) {
    frames_.grow((entries_.size() + 1) * record_bytes_);
    entries_.emplace_back();
    return static_cast<uint32_t>(entries_.size() - 1);
  }
  for (;;) {
    std::deque<uint32_t>& queue = new_.size() > most_new_ || reused_.empty() ? new_ : reused_;
    const uint32_t frame = queue.front();
    queue.pop_front();
    Entry& entry = entries_[frame];
    if (entry.slot == kNone) return frame;
    if (entry.load == load_) {
      queue.push_back(frame);
    } else if (entry.uses) {
      entry.uses = &queue == &new_ ? 0 : entry.uses - 1;
      reused_.push_back(frame);
    } else {
      uint32_t position = entry.position;
      if (position == kNone) {
        queue.push_front(frame);  // where it stays if writing fails
        position = write(frame);
        queue.pop_front();
      }
      location_of(entry.slot) = position + 1;
      entry = Entry();
      return frame;
    }
  }
}

uint32_t RecordCache::write(uint32_t frame) {
  const auto follow_moves = [this] {
    for (const RecordLog::Move& move : moves_) {
      uint32_t& location = location_of(move.slot);
      if (location & kInFrame) {
        entries_[location & ~kInFrame].position = move.position;
      } else {
        location = move.position + 1;
      }
    }
  };
  moves_.clear();
  try {
    const uint32_t position = log_.append(entries_[frame].slot, bytes_of(frame), &moves_);
    follow_moves();
    return position;
  } catch (...) {
    follow_moves();
    throw;
  }
}

uint32_t RecordCache::frame_of(uint32_t slot) {
  if (!(location_of(slot) & kInFrame)) load(&slot, 1, 0);
  return location_of(slot) & ~kInFrame;
}

char* RecordCache::change(uint32_t slot) {
  const uint32_t frame = frame_of(slot);
  uint32_t& position = entries_[frame].position;
  if (position != kNone) {
    log_.drop(position);
    position = kNone;
  }
  return bytes_of(frame);
}

char* RecordCache::create(uint32_t slot) {
  const uint32_t frame = take_frame();
  entries_[frame].slot = slot;
  new_.push_back(frame);
  location_of(slot) = frame | kInFrame;
  return bytes_of(frame);
}

void RecordCache::remove(uint32_t slot) {
  const uint32_t location = location_of(slot);
  uint32_t position = location - 1;
  if (location & kInFrame) {
    const uint32_t frame = location & ~kInFrame;
    position = entries_[frame].position;
    entries_[frame] = Entry();
  }
  if (position != kNone) log_.drop(position);
  location_of(slot) = kNowhere;
}

void RecordCache::prefetch(uint32_t slot, size_t bytes) const {
  constexpr size_t kLine = 64;
  const uint32_t location = location_of(slot);
  if (!(location & kInFrame)) return;
  const char* record = bytes_of(location & ~kInFrame);
  for (size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(record + offset, 1);
  __builtin_prefetch(record + bytes - 1, 1);
}

void RecordCache::load(const uint32_t* slots, size_t count, uint32_t step) {
  if (++load_ == 0) load_ = 1;
  note_uses(slots, count, step);
  if (missing_.empty()) return;
  taken_.clear();
  try {
    // Frames first: the records that leave them may move others in the log.
    while (taken_.size() < missing_.size()) taken_.push_back(take_frame());
    read_missing();
  } catch (...) {
    new_.insert(new_.begin(), taken_.begin(), taken_.end());
    throw;
  }
  for (size_t i = 0; i < missing_.size(); ++i) {
    uint32_t& location = location_of(missing_[i]);
    if (location & kInFrame) {  // the slot is in the list twice
      new_.push_front(taken_[i]);
      continue;
    }
    location = taken_[i] | kInFrame;
    entries_[taken_[i]] = {missing_[i], positions_[i], load_, step, 0};
    new_.push_back(taken_[i]);
  }
}

void RecordCache::note_uses(const uint32_t* slots, size_t count, uint32_t step) {
  missing_.clear();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t location = location_of(slots[i]);
    if (!(location & kInFrame)) {
      missing_.push_back(slots[i]);
      continue;
    }
    Entry& entry = entries_[location & ~kInFrame];
    entry.load = load_;
    if (entry.step != step) entry.uses = std::min(entry.uses + 1, kMostUses);
    entry.step = step;
  }
}

void RecordCache::read_missing() {
  positions_.clear();
  for (uint32_t slot : missing_) positions_.push_back(location_of(slot) - 1);
  log_.read(positions_, [this](size_t index, const char* record) {
    std::memcpy(bytes_of(taken_[index]), record, record_bytes_);
  });
}

void RecordCache::copy(const uint32_t* slots, size_t count, char* to) {
  std::vector<uint32_t> positions;
  std::vector<size_t> indices;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t location = location_of(slots[i]);
    if (location & kInFrame) {
      std::memcpy(to + i * record_bytes_, bytes_of(location & ~kInFrame), record_bytes_);
    } else {
      positions.push_back(location - 1);
      indices.push_back(i);
    }
  }
  log_.read(positions, [&](size_t index, const char* record) {
    std::memcpy(to + indices[index] * record_bytes_, record, record_bytes_);
  });
}

void RecordCache::each(const RecordLog::TakeRecord& take) {
  log_.each(take);
  for (uint32_t frame = 0; frame < entries_.size(); ++frame) {
    if (entries_[frame].slot != kNone && entries_[frame].position == kNone) take(entries_[frame].slot, bytes_of(frame));
  }
}

size_t RecordCache::memory_bytes() const {
  return locations_.size() + entries_.size() * sizeof(Entry) + log_.memory_bytes();
}

}  // namespace lane
