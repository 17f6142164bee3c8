#include "row_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>

namespace lane {
namespace {

/// The most cache lines of a row and its state that are fetched ahead; the processor fetches the lines after them.
constexpr size_t kLines = 6;
constexpr size_t kLine = 64;
constexpr uint64_t kMaxSlots = uint64_t{1} << 31;
/// The share of the capacity that is removed at once, and of the age at which rows are looked for.
constexpr uint64_t kShare = 16;
/// The most removed keys that are remembered for the next save, if they are more than a quarter of the slots.
constexpr size_t kMaxRemoved = 1 << 20;

}  // namespace

RowStore::RowStore(const RowStoreOptions& options)
    : options_(options), row_bytes_(options.width * size_of(options.dtype)), record_bytes_(row_bytes_) {
  if (options.dtype != Dtype::kFloat32 && options.dtype != Dtype::kFloat64) {
    throw std::runtime_error("a dynamic table has the type float32 or float64");
  }
  if (options.width == 0) throw std::runtime_error("a dynamic table has at least one column");
  if (options.admit == 0 || options.admit > CountMinSketch::kMaxCount) {
    throw std::runtime_error("admit: " + std::to_string(options.admit) + " sightings: give an integer from 1 to " +
                             std::to_string(CountMinSketch::kMaxCount));
  }
  if (options.admit > 1) sightings_ = std::make_unique<CountMinSketch>();
  if (!options.directory.empty()) {
    directory_ = std::make_unique<StorageDirectory>(options.directory);
  }
  keys_ = new_area("keys");
  make_records(record_bytes_, &records_, &cache_);
}

GrowingMemory RowStore::new_area(const char* name) const {
  if (!directory_) return GrowingMemory();
  return GrowingMemory(directory_->new_file(name), name_of_file(name));
}

std::string RowStore::name_of_file(const char* name) const {
  return "the file '" + std::string(name) + "' in " + directory_->path();
}

void RowStore::make_records(size_t record_bytes, GrowingMemory* records, std::unique_ptr<RecordCache>* cache) const {
  if (directory_ && options_.resident_bytes) {
    *cache = std::make_unique<RecordCache>(directory_->new_file("rows"), name_of_file("rows"), record_bytes,
                                           options_.resident_bytes);
  } else {
    *records = new_area("rows");
  }
}

RowStore::~RowStore() = default;

void RowStore::set_state_bytes(const size_t bytes[2]) {
  if (bytes[0] == state_bytes_[0] && bytes[1] == state_bytes_[1]) return;
  for (int i = 0; i < 2; ++i) {
    if (bytes[i] % size_of(options_.dtype)) throw std::runtime_error("optimizer state has the type of the rows");
  }
  const size_t record_bytes = row_bytes_ + bytes[0] + bytes[1];
  GrowingMemory records;
  std::unique_ptr<RecordCache> cache;
  make_records(record_bytes, &records, &cache);
  if (cache) {
    cache->grow(slots_);
  } else {
    records.grow(slots_ * record_bytes);
  }
  for (uint64_t slot = 0; slot < slots_; ++slot) {
    if (!is_live(slot)) continue;
    char* record = cache ? cache->create(slot) : records.data() + slot * record_bytes;
    std::memcpy(record, record_of(slot), row_bytes_);
    std::memset(record + row_bytes_, 0, record_bytes - row_bytes_);
  }
  records_ = std::move(records);
  cache_ = std::move(cache);
  std::copy(bytes, bytes + 2, state_bytes_);
  record_bytes_ = record_bytes;
}

void RowStore::prefetch_row(uint32_t slot) const {
  const size_t bytes = std::min(row_bytes_, kLines * kLine);
  if (cache_) return cache_->prefetch(slot, bytes);
  const char* row = mapped_record(slot);
  for (size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(row + offset);
  __builtin_prefetch(row + bytes - 1);
}

void RowStore::prefetch_record(uint32_t slot) const {
  __builtin_prefetch(steps() + slot, 1);
  const size_t bytes = std::min(record_bytes_, kLines * kLine);
  if (cache_) return cache_->prefetch(slot, bytes);
  const char* record = mapped_record(slot);
  for (size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(record + offset, 1);
  __builtin_prefetch(record + bytes - 1, 1);
}

void RowStore::load(const int64_t* keys, size_t count, uint32_t step) const {
  uint64_t hashes[kBlock];
  uint32_t slots[kBlock];
  std::vector<uint32_t> loaded;
  loaded.reserve(count);
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t block = std::min(kBlock, count - first);
    find_block<Fetched::kNothing>(keys + first, block, hashes, slots);
    std::copy_if(slots, slots + block, std::back_inserter(loaded), [](uint32_t slot) { return slot != SlotIndex::kNone; });
  }
  cache_->load(loaded.data(), loaded.size(), step);
}

template <RowStore::Fetched kFetched>
void RowStore::find_block(const int64_t* keys, size_t count, uint64_t* hashes, uint32_t* slots) const {
  for (size_t i = 0; i < count; ++i) index_.prefetch(hashes[i] = hash_of(keys[i]));
  for (size_t i = 0; i < count; ++i) {
    slots[i] = index_.guess(hashes[i]);
    if (slots[i] == SlotIndex::kNone) continue;
    __builtin_prefetch(this->keys() + slots[i]);
    if constexpr (kFetched == Fetched::kRow) prefetch_row(slots[i]);
    if constexpr (kFetched == Fetched::kAll) prefetch_record(slots[i]);
  }
  for (size_t i = 0; i < count; ++i) {
    if (slots[i] != SlotIndex::kNone && key_of(slots[i]) == keys[i]) continue;
    slots[i] = find(keys[i], hashes[i]);
  }
}

void RowStore::write_missing(int64_t key, char* row) const {
  options_.first_values.fill(options_.dtype, sightings_ ? kDefaultKey : key, options_.width, row);
}

void RowStore::read(const int64_t* keys, size_t count, char* rows) const {
  uint64_t hashes[kBlock];
  uint32_t slots[kBlock];
  in_batches(keys, count, step_ + 1, [&](size_t first, size_t end) {
    for (; first < end; first += kBlock) {
      const size_t block = std::min(kBlock, end - first);
      find_block<Fetched::kRow>(keys + first, block, hashes, slots);
      for (size_t i = 0; i < block; ++i) {
        char* row = rows + (first + i) * row_bytes_;
        if (slots[i] == SlotIndex::kNone) {
          write_missing(keys[first + i], row);
        } else {
          std::memcpy(row, record_of(slots[i]), row_bytes_);
        }
      }
    }
  });
}

uint32_t RowStore::place(int64_t key, uint64_t hash) {
  uint32_t slot = find(key, hash);
  if (slot != SlotIndex::kNone) return slot;
  if (!index_.has_room()) index_.grow(keys(), slots_, [this](uint64_t slot) { return is_live(slot); });
  if (free_ != SlotIndex::kNone) {
    slot = free_;
    free_ = static_cast<uint32_t>(keys()[slot]);
  } else {
    if (slots_ == kMaxSlots) {
      throw std::runtime_error("a partition of a dynamic table has " + std::to_string(kMaxSlots) +
                               " rows, the most that it can have: use more partitions");
    }
    keys_.grow((slots_ + 1) * sizeof(int64_t));
    steps_.grow((slots_ + 1) * sizeof(uint32_t));
    if (counts_updates()) counts_.grow((slots_ + 1) * sizeof(uint32_t));
    if (cache_) {
      cache_->grow(slots_ + 1);
    } else {
      records_.grow((slots_ + 1) * record_bytes_);
    }
    if (slots_ / 64 == live_.size()) live_.push_back(0);
    slot = static_cast<uint32_t>(slots_++);
  }
  char* record = cache_ ? cache_->create(slot) : mapped_record(slot);
  keys()[slot] = key;
  steps()[slot] = step_;
  if (counts_updates()) counts()[slot] = 0;
  options_.first_values.fill(options_.dtype, key, options_.width, record);
  std::memset(record + row_bytes_, 0, record_bytes_ - row_bytes_);
  live_[slot >> 6] |= uint64_t{1} << (slot & 63);
  index_.insert(hash, slot);
  return slot;
}

void RowStore::remove(uint32_t slot, uint32_t step) {
  if (marked_) {
    if (removed_.size() >= std::max<uint64_t>(kMaxRemoved, slots_ / 4)) {  // the next save has to be a whole one
      removed_.clear();
      marked_ = false;
    } else {
      removed_.emplace_back(key_of(slot), step);
    }
  }
  index_.erase(hash_of(key_of(slot)), slot);
  if (cache_) cache_->remove(slot);
  live_[slot >> 6] &= ~(uint64_t{1} << (slot & 63));
  keys()[slot] = free_;
  free_ = slot;
}

uint64_t RowStore::erase(const int64_t* keys, size_t count) {
  uint64_t erased = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t slot = find(keys[i], hash_of(keys[i]));
    if (slot == SlotIndex::kNone) continue;
    remove(slot, step_ + 1);
    ++erased;
  }
  return erased;
}

void RowStore::clear() {
  index_.clear();
  keys_ = new_area("keys");
  make_records(record_bytes_, &records_, &cache_);
  steps_ = GrowingMemory();
  counts_ = GrowingMemory();
  live_.clear();
  removed_.clear();
  marked_ = false;
  slots_ = 0;
  free_ = SlotIndex::kNone;
  if (sightings_) sightings_->clear();
  admitted_by_sightings_ = 0;
}

void RowStore::save_sightings(uint64_t* words) const {
  words[0] = admitted_by_sightings_;
  sightings_->save(words + 1);
}

void RowStore::load_sightings(const uint64_t* words, uint32_t share) {
  if (share == 0) {
    admitted_by_sightings_ = words[0];
    sightings_->load(words + 1);
  } else {
    admitted_by_sightings_ += words[0] / share;
    sightings_->merge(words + 1, share);
  }
}

void RowStore::check_state(uint32_t slot) const {
  if (state_bytes(slot) == 0) {
    throw std::runtime_error("a dynamic table has no optimizer state number " + std::to_string(slot));
  }
}

void RowStore::begin_update(const Rule& rule) {
  kernel_ = nullptr;
  switch (rule.kind) {
    case RuleKind::kAssignState:
      check_state(rule.slot);
      break;
    case RuleKind::kReplace:
      clear();
      break;
    case RuleKind::kIgnore:
    case RuleKind::kAssign:
      break;
    default:
      kernel_ = kernel(rule.kind, options_.dtype);
      if (kernel_ == nullptr) {
        throw std::runtime_error(std::string("rule '") + rule_name(static_cast<uint32_t>(rule.kind)) +
                                 "' cannot update a dynamic table of type " +
                                 kDtypeNames[static_cast<uint32_t>(options_.dtype)]);
      }
      for (uint32_t slot = 0; slot < 2; ++slot) {
        const size_t needed = state_width(rule.kind, slot, options_.width) * size_of(options_.dtype);
        if (needed > state_bytes_[slot]) {
          throw std::runtime_error(std::string("rule '") + rule_name(static_cast<uint32_t>(rule.kind)) +
                                   "' needs optimizer state of " + std::to_string(needed) + " bytes a row, number " +
                                   std::to_string(slot) + ", but the dynamic table has " +
                                   std::to_string(state_bytes_[slot]));
        }
      }
      settings_ = UpdateSettings(rule, ++updates_);
  }
  rule_ = rule;
  touched_ = 0;
  ++step_;
}

void RowStore::update_slot(uint32_t slot, int64_t key, uint64_t hash, const char* gradient) {
  if (rule_.kind == RuleKind::kIgnore) return;
  if (slot == SlotIndex::kNone) {
    if (kernel_ != nullptr && sightings_ && !is_admitted(hash)) return;
    slot = place(key, hash);
    ++admitted_;
  }
  steps()[slot] = step_;
  if (counts_updates()) ++counts()[slot];
  ++touched_;
  if (options_.capacity != 0 && touched_ > options_.capacity) {
    throw std::runtime_error("capacity: " + std::to_string(options_.capacity) +
                             " rows of a partition are fewer than the distinct keys of one step: give a capacity "
                             "of several times the keys of a step");
  }
  char* record = changed_record(slot);
  if (kernel_ != nullptr) {
    kernel_(settings_, {record, {record + state_offset(0), record + state_offset(1)}, gradient, options_.width});
  } else if (rule_.kind == RuleKind::kAssignState) {
    std::memcpy(record + state_offset(rule_.slot), gradient, std::min(state_bytes_[rule_.slot], row_bytes_));
  } else {
    std::memcpy(record, gradient, row_bytes_);
  }
}

bool RowStore::is_admitted(uint64_t hash) {
  if (sightings_->add(hash) < options_.admit) return false;
  ++admitted_by_sightings_;
  return true;
}

uint32_t RowStore::end_update() {
  if (options_.expire_after != 0 && step_ % std::max<uint64_t>(1, options_.expire_after / kShare) == 0) {
    remove_expired();
  }
  if (options_.capacity != 0 && size() > options_.capacity) remove_over_capacity();
  return touched_;
}

void RowStore::remove_expired() {
  for (uint64_t slot = 0; slot < slots_; ++slot) {
    if (!is_live(slot) || steps()[slot] + options_.expire_after > step_) continue;
    remove(static_cast<uint32_t>(slot), step_);
    ++expired_;
  }
}

/// Return a number that is lower for rows that are removed earlier.
uint64_t RowStore::rank_of(uint64_t slot) const {
  const uint32_t step = steps()[slot];
  if (step >= step_) return UINT64_MAX;
  return counts_updates() ? uint64_t{counts()[slot]} << 32 | step : step;
}

void RowStore::remove_over_capacity() {
  const uint64_t kept = std::max<uint64_t>(options_.capacity - options_.capacity / kShare, touched_);
  uint64_t excess = size() - std::min(size(), kept);
  // Find the rank up to which rows are removed, 16 bits at a time.
  constexpr int kDigit = 16;
  std::vector<uint64_t> numbers(1 << kDigit);
  uint64_t rank = 0, lower = 0;  // the rank's upper digits so far, and the rows with lower ones
  for (int shift = 64 - kDigit; shift >= 0; shift -= kDigit) {
    const auto upper = [shift](uint64_t value) { return shift + kDigit == 64 ? 0 : value >> (shift + kDigit); };
    std::fill(numbers.begin(), numbers.end(), 0);
    for (uint64_t slot = 0; slot < slots_; ++slot) {
      if (!is_live(slot)) continue;
      const uint64_t own_rank = rank_of(slot);
      if (upper(own_rank) == upper(rank)) ++numbers[own_rank >> shift & ((1 << kDigit) - 1)];
    }
    uint64_t digit = 0;
    while (lower + numbers[digit] < excess) lower += numbers[digit++];
    rank |= digit << shift;
  }
  // Among the rows with this rank, the ones with the lowest keys are removed.
  std::vector<std::pair<int64_t, uint32_t>> ties;
  for (uint64_t slot = 0; slot < slots_; ++slot) {
    if (!is_live(slot)) continue;
    const uint64_t own_rank = rank_of(slot);
    if (own_rank == rank) ties.emplace_back(key_of(slot), static_cast<uint32_t>(slot));
    if (own_rank >= rank) continue;
    remove(static_cast<uint32_t>(slot), step_);
    ++expired_;
    --excess;
  }
  std::sort(ties.begin(), ties.end());
  for (uint64_t i = 0; i < excess; ++i) {
    remove(ties[i].second, step_);
    ++expired_;
  }
}

uint32_t RowStore::update(const Rule& rule, const int64_t* keys, const char* gradients, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    if (keys[i] <= keys[i - 1]) throw std::runtime_error("keys of an update are not sorted or not unique");
  }
  if (options_.capacity != 0 && count > options_.capacity) {
    throw std::runtime_error("capacity: " + std::to_string(options_.capacity) + " rows, but a step has " +
                             std::to_string(count) + " distinct keys: give a capacity of several times as many");
  }
  begin_update(rule);
  std::vector<const char*> rows(std::min(block(), count));
  for (size_t first = 0; first < count; first += rows.size()) {
    const size_t number = std::min(rows.size(), count - first);
    for (size_t i = 0; i < number; ++i) rows[i] = gradients + (first + i) * row_bytes_;
    update_block(keys + first, rows.data(), number);
  }
  return end_update();
}

void RowStore::update_block(const int64_t* keys, const char* const* gradients, size_t count) {
  uint64_t hashes[kBlock];
  uint32_t slots[kBlock];
  in_batches(keys, count, step_, [&](size_t first, size_t end) {
    for (; first < end; first += kBlock) {
      const size_t number = std::min(kBlock, end - first);
      find_block<Fetched::kAll>(keys + first, number, hashes, slots);
      for (size_t i = 0; i < number; ++i) update_slot(slots[i], keys[first + i], hashes[i], gradients[first + i]);
    }
  });
}

void RowStore::assign(const int64_t* keys, const char* rows, size_t count) {
  in_batches(keys, count, step_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      const uint32_t slot = place(keys[i], hash_of(keys[i]));
      std::memcpy(changed_record(slot), rows + i * row_bytes_, row_bytes_);
      steps()[slot] = step_ + 1;
    }
  });
}

void RowStore::assign_state(uint32_t number, const int64_t* keys, const char* states, size_t count) {
  check_state(number);
  const size_t size = state_bytes_[number];
  in_batches(keys, count, step_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      const uint32_t slot = place(keys[i], hash_of(keys[i]));
      std::memcpy(changed_record(slot) + state_offset(number), states + i * size, size);
      steps()[slot] = step_ + 1;
    }
  });
}

void RowStore::read_state(uint32_t number, const int64_t* keys, size_t count, char* states) const {
  check_state(number);
  const size_t size = state_bytes_[number];
  in_batches(keys, count, step_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      const uint32_t slot = find(keys[i], hash_of(keys[i]));
      if (slot == SlotIndex::kNone) {
        std::memset(states + i * size, 0, size);
      } else {
        std::memcpy(states + i * size, record_of(slot) + state_offset(number), size);
      }
    }
  });
}

void RowStore::copy_records(const uint32_t* slots, size_t count, char* to) const {
  cache_->copy(slots, count, to);
}

void RowStore::restore(const int64_t* keys, const SavedRows& saved, size_t count) {
  in_batches(keys, count, step_ + 1, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      if (i + kBlock / 4 < end) index_.prefetch(hash_of(keys[i + kBlock / 4]));
      const uint32_t slot = place(keys[i], hash_of(keys[i]));
      char* record = changed_record(slot);
      std::memcpy(record, saved.rows + i * row_bytes_, row_bytes_);
      for (uint32_t number = 0; number < 2; ++number) {
        const size_t size = state_bytes_[number];
        if (size == 0) continue;
        if (saved.states[number] == nullptr) {
          std::memset(record + state_offset(number), 0, size);
        } else {
          std::memcpy(record + state_offset(number), saved.states[number] + i * size, size);
        }
      }
      if (saved.steps != nullptr) step_ = std::max(step_, saved.steps[i]);
      steps()[slot] = saved.steps != nullptr ? saved.steps[i] : step_;
      if (counts_updates()) counts()[slot] = saved.counts != nullptr ? saved.counts[i] : 1;
    }
  });
}

uint32_t RowStore::mark() {
  known_since_ = marked_ ? last_mark_ : step_;
  const auto is_known = [this](const std::pair<int64_t, uint32_t>& removed) { return removed.second <= known_since_; };
  removed_.erase(std::remove_if(removed_.begin(), removed_.end(), is_known), removed_.end());
  marked_ = true;
  last_mark_ = step_;
  return step_;
}

std::vector<int64_t> RowStore::removed_since(uint32_t step) const {
  std::vector<int64_t> keys;
  for (const auto& [key, removal] : removed_) {
    if (removal > step && find(key, hash_of(key)) == SlotIndex::kNone) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

RowStoreStatistics RowStore::statistics() const {
  RowStoreStatistics statistics = {};
  statistics.rows = size();
  statistics.slots = slots_;
  const uint64_t area_bytes = slots_ * (sizeof(int64_t) + (cache_ ? 0 : record_bytes_));
  statistics.memory_bytes = slots_ * (counts_updates() ? 2 : 1) * sizeof(uint32_t) + live_.size() * sizeof(uint64_t) +
                            index_.bytes() + (sightings_ ? sightings_->bytes() : 0);
  (directory_ ? statistics.file_bytes : statistics.memory_bytes) += area_bytes;
  if (cache_) {
    statistics.memory_bytes += cache_->memory_bytes();
    statistics.file_bytes += cache_->file_bytes();
    statistics.resident_bytes = cache_->resident_bytes();
  }
  statistics.admitted = admitted_;
  if (sightings_) {
    statistics.waiting = sightings_->distinct() - std::min(sightings_->distinct(), admitted_by_sightings_);
  }
  statistics.expired = expired_;
  statistics.updates = updates_;
  statistics.steps = step_;
  return statistics;
}

}  // namespace lane
