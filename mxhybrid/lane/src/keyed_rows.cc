#include "keyed_rows.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "add.h"

namespace lane {
namespace {

/// The bits of a digit of the radix sort.
constexpr int kDigitBits = 8;
constexpr uint32_t kDigits = 1 << kDigitBits;
/// Makes the order of unsigned numbers that of signed ones.
constexpr uint64_t kSignBit = uint64_t{1} << 63;

struct Entry {
  uint64_t key;  // with the sign bit inverted
  int32_t position;
};

/// Sort entries by one digit, in a stable way.
void sort_by_digit(const std::vector<Entry>& from, int shift, std::vector<Entry>& to) {
  uint32_t next[kDigits] = {};
  for (const Entry& entry : from) ++next[entry.key >> shift & (kDigits - 1)];
  uint32_t total = 0;
  for (uint32_t& first : next) {
    const uint32_t size = first;
    first = total;
    total += size;
  }
  for (const Entry& entry : from) to[next[entry.key >> shift & (kDigits - 1)]++] = entry;
}

}  // namespace

uint64_t distinct_keys(const int64_t* ids, uint64_t count, int64_t* keys, int32_t* positions) {
  if (count > INT32_MAX) throw std::runtime_error(std::to_string(count) + " ids are too many for one call");
  bool is_ascending = true;
  uint64_t varying_bits = 0;
  for (uint64_t i = 1; i < count; ++i) {
    is_ascending &= ids[i] > ids[i - 1];
    varying_bits |= static_cast<uint64_t>(ids[i] ^ ids[0]);
  }
  if (is_ascending) {
    if (count) std::memcpy(keys, ids, count * sizeof *ids);
    for (uint64_t i = 0; i < count; ++i) positions[i] = static_cast<int32_t>(i);
    return count;
  }
  std::vector<Entry> entries(count), sorted(count);
  for (uint64_t i = 0; i < count; ++i) {
    entries[i] = {static_cast<uint64_t>(ids[i]) ^ kSignBit, static_cast<int32_t>(i)};
  }
  for (int shift = 0; shift < 64; shift += kDigitBits) {
    if ((varying_bits >> shift & (kDigits - 1)) == 0) continue;
    sort_by_digit(entries, shift, sorted);
    entries.swap(sorted);
  }
  uint64_t distinct = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i == 0 || entries[i].key != entries[i - 1].key) {
      keys[distinct++] = static_cast<int64_t>(entries[i].key ^ kSignBit);
    }
    positions[entries[i].position] = static_cast<int32_t>(distinct - 1);
  }
  return distinct;
}

void TableRows::check_positions() const {
  if (positions == nullptr) {
    if (num_rows != count) {
      throw std::runtime_error(std::to_string(num_rows) + " rows for " + std::to_string(count) + " ids");
    }
    return;
  }
  bool is_valid = true;
  for (uint64_t i = 0; i < num_rows; ++i) is_valid &= static_cast<uint32_t>(positions[i]) < count;
  if (!is_valid) throw std::runtime_error("a row belongs to none of " + std::to_string(count) + " ids");
}

void sum_rows(Dtype dtype, size_t width, const TableRows& from, const uint32_t* order, char* sums) {
  const size_t row_bytes = width * size_of(dtype);
  const Apply add = adder(dtype);
  std::vector<uint8_t> has_rows(from.count, 0);
  for (uint64_t i = 0; i < from.num_rows; ++i) {
    const uint64_t id = from.positions == nullptr ? i : from.positions[i];
    char* const sum = sums + (order == nullptr ? id : order[id]) * row_bytes;
    if (has_rows[id]) {
      add(sum, from.rows + i * row_bytes, row_bytes);
    } else {
      std::memcpy(sum, from.rows + i * row_bytes, row_bytes);
      has_rows[id] = 1;
    }
  }
  for (uint64_t id = 0; id < from.count; ++id) {
    if (!has_rows[id]) std::memset(sums + (order == nullptr ? id : order[id]) * row_bytes, 0, row_bytes);
  }
}

}  // namespace lane
