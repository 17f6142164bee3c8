#include "store/row_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "files/scratch_file.h"

namespace lane {
namespace {

/// The most cache lines of a row and its state that are fetched ahead; the processor fetches the lines after them.
constexpr size_t kLines = 6;
constexpr size_t kLine = 64;
constexpr uint64_t kMaxSlots = uint64_t{1} << 31;
/// The most removed keys that are remembered for the next save, if they are more than a quarter of the slots.
constexpr size_t kMaxRemoved = 1 << 20;

uint32_t num_ages_for(const RowStoreOptions& options) {
  if (options.capacity != 0 && options.evict_rarest) return 2;
  return options.capacity != 0 || options.expire_after != 0;
}

}  // namespace

RowStore::RowStore(const RowStoreOptions& options)
    : options_(options),
      num_ages_(num_ages_for(options)),
      row_bytes_(options.width * size_of(options.dtype)),
      kept_bytes_(options.row_type == RowType::kSame ? row_bytes_ : options.width * sizeof(uint16_t)),
      state_offset_(rounded_up(kept_bytes_, sizeof(float))),
      record_bytes_(state_offset_),
      row_(options.row_type == RowType::kSame ? 0 : options.width) {
  if (options.row_type != RowType::kSame && options.dtype != Dtype::kFloat32) {
    throw std::runtime_error("row_dtype: the rows of a table of float32 alone have another type in memory");
  }
  if (options.admit > 1) waiting_ = std::make_unique<WaitingKeys>();
  keys_ = new_area("keys");
  make_records(record_bytes_, &records_, &cache_);
}

GrowingMemory RowStore::new_area(const char* name) const {
  if (options_.directory.empty()) return GrowingMemory();
  return GrowingMemory(new_scratch_file(options_.directory, name), name_of_file(name));
}

std::string RowStore::name_of_file(const char* name) const {
  return "the file '" + std::string(name) + "' in " + options_.directory;
}

void RowStore::make_records(size_t record_bytes, GrowingMemory* records, std::unique_ptr<RecordCache>* cache) const {
  if (!options_.directory.empty() && options_.resident_bytes) {
    *cache = std::make_unique<RecordCache>(new_scratch_file(options_.directory, "rows"), name_of_file("rows"),
                                           record_bytes, options_.resident_bytes);
  } else {
    *records = new_area("rows");
  }
}

void RowStore::set_state_bytes(const size_t bytes[2]) {
  if (bytes[0] == state_bytes_[0] && bytes[1] == state_bytes_[1]) return;
  for (int i = 0; i < 2; ++i) {
    if (bytes[i] % size_of(options_.dtype)) throw std::runtime_error("optimizer state has the type of the rows");
  }
  const size_t record_bytes = state_offset_ + bytes[0] + bytes[1];
  GrowingMemory records;
  std::unique_ptr<RecordCache> cache;
  make_records(record_bytes, &records, &cache);
  if (cache) {
    cache->grow(slots_);
  } else {
    records.grow(slots_ * record_bytes);
  }
  const auto copy = [&](uint32_t slot, const char* record) {
    char* copied = cache ? cache->create(slot) : records.data() + slot * record_bytes;
    std::memcpy(copied, record, state_offset_);
    std::memset(copied + state_offset_, 0, record_bytes - state_offset_);
  };
  if (cache_) {
    cache_->each(copy);
  } else {
    records_.expect_order();
    for (uint32_t slot = 0; slot < slots_; ++slot) {
      if (is_live(slot)) copy(slot, mapped_record(slot));
    }
  }
  records_ = std::move(records);
  cache_ = std::move(cache);
  std::copy(bytes, bytes + 2, state_bytes_);
  record_bytes_ = record_bytes;
  forget_changes();
}

template <RowStore::Fetched kFetched>
void RowStore::prefetch(uint32_t slot) const {
  constexpr bool kWrites = kFetched == Fetched::kAll;
  if constexpr (kWrites) {
    __builtin_prefetch(versions() + slot, 1);
    if (num_ages_ > 0) __builtin_prefetch(ages(0) + slot, 1);
  }
  const size_t bytes = std::min(kWrites ? record_bytes_ : kept_bytes_, kLines * kLine);
  if (cache_) return cache_->prefetch(slot, bytes);
  const char* record = mapped_record(slot);
  for (size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(record + offset, kWrites);
  __builtin_prefetch(record + bytes - 1, kWrites);
}

void RowStore::load(const int64_t* keys, size_t count, uint32_t clock) const {
  uint64_t hashes[kBlock];
  uint32_t slots[kBlock];
  std::vector<uint32_t> loaded;
  loaded.reserve(count);
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t block = std::min(kBlock, count - first);
    find_block<Fetched::kNothing>(keys + first, block, hashes, slots);
    std::copy_if(slots, slots + block, std::back_inserter(loaded), [](uint32_t slot) { return slot != SlotIndex::kNone; });
  }
  cache_->load(loaded.data(), loaded.size(), clock);
}

template <RowStore::Fetched kFetched>
void RowStore::find_block(const int64_t* keys, size_t count, uint64_t* hashes, uint32_t* slots) const {
  for (size_t i = 0; i < count; ++i) index_.prefetch(hashes[i] = hash_of(keys[i]));
  for (size_t i = 0; i < count; ++i) {
    slots[i] = index_.guess(hashes[i]);
    if (slots[i] == SlotIndex::kNone) continue;
    __builtin_prefetch(this->keys() + slots[i]);
    if constexpr (kFetched != Fetched::kNothing) prefetch<kFetched>(slots[i]);
  }
  for (size_t i = 0; i < count; ++i) {
    if (slots[i] != SlotIndex::kNone && key_of(slots[i]) == keys[i]) continue;
    slots[i] = find(keys[i], hashes[i]);
  }
}

// row_store_updates.cc calls it, too.
template void RowStore::find_block<RowStore::Fetched::kAll>(const int64_t* keys, size_t count, uint64_t* hashes,
                                                            uint32_t* slots) const;

void RowStore::read_row(const char* record, char* row) const {
  if (options_.row_type == RowType::kSame) {
    std::memcpy(row, record, row_bytes_);
  } else {
    widen_row(options_.row_type, record, reinterpret_cast<float*>(row), options_.width);
  }
}

void RowStore::write_row(const char* row, char* record) const {
  if (options_.row_type == RowType::kSame) {
    std::memcpy(record, row, row_bytes_);
  } else {
    narrow_row(options_.row_type, reinterpret_cast<const float*>(row), record, options_.width);
  }
}

void RowStore::begin_row(int64_t key, char* record) const {
  char* row = options_.row_type == RowType::kSame ? record : reinterpret_cast<char*>(row_.data());
  options_.first_values.fill(options_.dtype, key, options_.width, row);
  if (row != record) write_row(row, record);
}

void RowStore::write_missing(int64_t key, char* row) const {
  options_.first_values.fill(options_.dtype, waiting_ ? kDefaultKey : key, options_.width, row);
  if (options_.row_type == RowType::kSame) return;
  write_row(row, reinterpret_cast<char*>(row_.data()));
  read_row(reinterpret_cast<char*>(row_.data()), row);
}

void RowStore::read(const int64_t* keys, size_t count, char* rows) const {
  uint64_t hashes[kBlock];
  uint32_t slots[kBlock];
  in_batches(keys, count, clock_ + 1, [&](size_t first, size_t end) {
    for (; first < end; first += kBlock) {
      const size_t block = std::min(kBlock, end - first);
      find_block<Fetched::kRow>(keys + first, block, hashes, slots);
      for (size_t i = 0; i < block; ++i) {
        char* row = rows + (first + i) * row_bytes_;
        if (slots[i] == SlotIndex::kNone) {
          write_missing(keys[first + i], row);
        } else {
          read_row(record_of(slots[i]), row);
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
    versions_.grow((slots_ + 1) * sizeof(uint32_t));
    for (uint32_t number = 0; number < num_ages_; ++number) ages_[number].grow((slots_ + 1) * sizeof(uint32_t));
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
  if (num_ages_ > 0) ages(0)[slot] = clock_;
  if (num_ages_ > 1) ages(1)[slot] = 0;
  begin_row(key, record);
  std::memset(record + state_offset_, 0, record_bytes_ - state_offset_);
  live_[slot >> 6] |= uint64_t{1} << (slot & 63);
  index_.insert(hash, slot);
  if (waiting_) waiting_->remove(key, hash);
  return slot;
}

void RowStore::remove(uint32_t slot) {
  if (marked_) removed_.emplace_back(key_of(slot), version_);
  if (removed_.size() > std::max<uint64_t>(kMaxRemoved, slots_ / 4)) forget_changes();
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
    remove(slot);
    ++erased;
  }
  return erased;
}

void RowStore::clear() {
  GrowingMemory keys = new_area("keys"), records;  // first: they may be refused, and then all rows stay
  std::unique_ptr<RecordCache> cache;
  make_records(record_bytes_, &records, &cache);
  keys_ = std::move(keys);
  records_ = std::move(records);
  cache_ = std::move(cache);
  index_.clear();
  versions_ = GrowingMemory();
  for (GrowingMemory& age : ages_) age = GrowingMemory();
  live_.clear();
  forget_changes();
  slots_ = 0;
  free_ = SlotIndex::kNone;
  clock_ = 0;
  if (waiting_) waiting_->clear();
}

void RowStore::check_state(uint32_t slot) const {
  if (state_bytes(slot) == 0) {
    throw std::runtime_error("a dynamic table has no optimizer state number " + std::to_string(slot));
  }
}

RowStoreStatistics RowStore::statistics() const {
  RowStoreStatistics statistics = {};
  statistics.rows = size();
  statistics.slots = slots_;
  const uint64_t area_bytes = slots_ * (sizeof(int64_t) + (cache_ ? 0 : record_bytes_));
  statistics.memory_bytes = slots_ * (1 + num_ages_) * sizeof(uint32_t) + live_.size() * sizeof(uint64_t) +
                            index_.bytes() + (waiting_ ? waiting_->bytes() : 0);
  (options_.directory.empty() ? statistics.memory_bytes : statistics.file_bytes) += area_bytes;
  if (cache_) {
    statistics.memory_bytes += cache_->memory_bytes();
    statistics.file_bytes += cache_->file_bytes();
    statistics.resident_bytes = cache_->resident_bytes();
  }
  statistics.admitted = admitted_;
  if (waiting_) statistics.waiting = waiting_->size();
  statistics.expired = expired_;
  statistics.updates = updates_;
  return statistics;
}

}  // namespace lane
