// Updates of a row store: admission, kernels, expiry and eviction.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "store/row_store.h"

namespace lane {
namespace {

/// The share of the capacity that is removed at once, and of the age at which rows are looked for.
constexpr uint64_t kShare = 16;

}  // namespace

void RowStore::begin_update(const Rule& rule) {
  kernel_ = nullptr;
  switch (rule.kind) {
    case RuleKind::kAssignState:
      if (rule.slot < kFirstAge) check_state(rule.slot);
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
  if (kernel_ != nullptr) ++clock_;
}

void RowStore::update_slot(uint32_t slot, int64_t key, uint64_t hash, const char* gradient) {
  if (rule_.kind == RuleKind::kIgnore) return;
  if (rule_.kind == RuleKind::kAssignState && rule_.slot == kWaiting) {
    uint16_t number;
    std::memcpy(&number, gradient, sizeof number);
    if (waiting_) waiting_->restore(&key, &number, 1);
    return;
  }
  if (slot == SlotIndex::kNone) {
    if (kernel_ != nullptr && waiting_ && waiting_->add(key, hash) < options_.admit) return;
    slot = place(key, hash);
    ++admitted_;
  }
  rule_.kind == RuleKind::kAssignState ? note_change(slot) : note_new_elements(slot);
  ++touched_;
  char* record = changed_record(slot);
  if (kernel_ != nullptr) {
    if (options_.capacity != 0 && touched_ > options_.capacity) {
      throw std::runtime_error("capacity: " + std::to_string(options_.capacity) +
                               " rows of a partition are fewer than the distinct keys of one step: give a capacity "
                               "of several times the keys of a step");
    }
    if (num_ages_ > 1) ++ages(1)[slot];
    char* row = options_.row_type == RowType::kSame ? record : reinterpret_cast<char*>(row_.data());
    if (row != record) read_row(record, row);
    kernel_(settings_, {row, {record + state_offset(0), record + state_offset(1)}, gradient, options_.width});
    if (row != record) write_row(row, record);
  } else if (rule_.kind == RuleKind::kAssignState && rule_.slot >= kFirstAge) {
    uint32_t age;
    std::memcpy(&age, gradient, sizeof age);
    set_age(slot, rule_.slot - kFirstAge, age);
  } else if (rule_.kind == RuleKind::kAssignState) {
    std::memcpy(record + state_offset(rule_.slot), gradient, std::min(state_bytes_[rule_.slot], row_bytes_));
  } else {
    write_row(gradient, record);
  }
}

uint32_t RowStore::end_update() {
  if (kernel_ == nullptr) return touched_;
  if (options_.expire_after != 0 && clock_ % std::max<uint64_t>(1, options_.expire_after / kShare) == 0) {
    remove_expired();
  }
  if (options_.capacity != 0 && size() > options_.capacity) remove_over_capacity();
  return touched_;
}

void RowStore::remove_expired() {
  for (uint64_t slot = 0; slot < slots_; ++slot) {
    if (!is_live(slot) || ages(0)[slot] + options_.expire_after > clock_) continue;
    remove(static_cast<uint32_t>(slot));
    ++expired_;
  }
}

/// Return a number that is lower for rows that are removed earlier.
uint64_t RowStore::rank_of(uint64_t slot) const {
  const uint32_t last_update = ages(0)[slot];
  if (last_update >= clock_) return UINT64_MAX;
  return num_ages_ > 1 ? uint64_t{ages(1)[slot]} << 32 | last_update : last_update;
}

void RowStore::remove_over_capacity() {
  const uint64_t kept_rows = std::max<uint64_t>(options_.capacity - options_.capacity / kShare, touched_);
  uint64_t excess = size() - std::min(size(), kept_rows);
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
    remove(static_cast<uint32_t>(slot));
    ++expired_;
    --excess;
  }
  std::sort(ties.begin(), ties.end());
  for (uint64_t i = 0; i < excess; ++i) {
    remove(ties[i].second);
    ++expired_;
  }
}

uint32_t RowStore::update(const Rule& rule, const int64_t* keys, const char* gradients, size_t count) {
  for (size_t i = 1; i < count; ++i) {
    if (keys[i] <= keys[i - 1]) throw std::runtime_error("keys of an update are not sorted or not unique");
  }
  if (options_.capacity != 0 && count > options_.capacity && kernel(rule.kind, options_.dtype) != nullptr) {
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
  in_batches(keys, count, clock_ + (kernel_ == nullptr), [&](size_t first, size_t end) {
    for (; first < end; first += kBlock) {
      const size_t number = std::min(kBlock, end - first);
      find_block<Fetched::kAll>(keys + first, number, hashes, slots);
      for (size_t i = 0; i < number; ++i) update_slot(slots[i], keys[first + i], hashes[i], gradients[first + i]);
    }
  });
}

}  // namespace lane
