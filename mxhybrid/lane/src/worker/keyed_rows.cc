#include "worker/keyed_rows.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/add.h"
#include "kernels/radix_sort.h"

namespace lane {
namespace {

/// Maps signed numbers to unsigned numbers of the same order.
constexpr uint64_t kSignBit = uint64_t{1} << 63;

/// Call `use(row, position, factor)` for each position of a row of segments.
template <typename T, typename Use>
void each_position(const TableRows& rows, Use use) {
  const T* const factors = reinterpret_cast<const T*>(rows.factors);
  for (uint64_t row = 0; row < rows.num_rows; ++row) {
    for (int64_t i = rows.bounds[row]; i < rows.bounds[row + 1]; ++i) {
      use(row, static_cast<size_t>(rows.positions[i]), factors == nullptr ? T(1) : factors[i]);
    }
  }
}

template <typename T>
void add_scaled(T* to, const T* from, T factor, size_t width) {
  for (size_t i = 0; i < width; ++i) to[i] += factor * from[i];
}

template <typename T>
void sum_segments(size_t width, const TableRows& from, const uint32_t* order, char* sums) {
  std::memset(sums, 0, from.count * width * sizeof(T));
  each_position<T>(from, [&](uint64_t row, size_t id, T factor) {
    add_scaled(reinterpret_cast<T*>(sums) + (order == nullptr ? id : order[id]) * width,
               reinterpret_cast<const T*>(from.rows) + row * width, factor, width);
  });
}

template <typename T>
void write_segments(size_t width, const char* const* row_of, const TableRows& to) {
  std::memset(to.rows, 0, to.num_rows * width * sizeof(T));
  each_position<T>(to, [&](uint64_t row, size_t id, T factor) {
    add_scaled(reinterpret_cast<T*>(to.rows) + row * width, reinterpret_cast<const T*>(row_of[id]), factor, width);
  });
}

/// Return whether elements are double; throw std::runtime_error unless rows of the type may have segments.
bool has_double_segments(Dtype dtype) {
  if (dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64) {
    throw std::runtime_error("rows with segments are float32 or float64");
  }
  return dtype == Dtype::kFloat64;
}

}  // namespace

uint64_t KeySorter::distinct_keys(const int64_t* ids, uint64_t count, int64_t* keys, int32_t* positions) {
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
  if (entries_.size() < count) {
    entries_.resize(count);
    sorted_.resize(count);
  }
  for (uint64_t i = 0; i < count; ++i) {
    entries_[i] = {static_cast<uint64_t>(ids[i]) ^ kSignBit, static_cast<int32_t>(i)};
  }
  radix_sort(entries_, sorted_, count, varying_bits);
  uint64_t distinct = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i == 0 || entries_[i].key != entries_[i - 1].key) {
      keys[distinct++] = static_cast<int64_t>(entries_[i].key ^ kSignBit);
    }
    positions[entries_[i].position] = static_cast<int32_t>(distinct - 1);
  }
  return distinct;
}

void TableRows::check_positions() const {
  const uint64_t expected_rows = positions == nullptr ? count : num_positions;
  if (bounds == nullptr && num_rows != expected_rows) {
    throw std::runtime_error(std::to_string(num_rows) + " rows for " + std::to_string(expected_rows) +
                             (positions == nullptr ? " ids" : " positions"));
  }
  if (bounds != nullptr) {
    bool are_segments = positions != nullptr && bounds[0] == 0 &&
                        bounds[num_rows] == static_cast<int64_t>(num_positions);
    for (uint64_t i = 0; are_segments && i < num_rows; ++i) are_segments = bounds[i] <= bounds[i + 1];
    if (!are_segments) {
      throw std::runtime_error("the segments of " + std::to_string(num_rows) + " rows do not divide " +
                               std::to_string(num_positions) + " positions");
    }
  }
  if (positions == nullptr) return;
  bool is_valid = true;
  for (uint64_t i = 0; i < num_positions; ++i) is_valid &= static_cast<uint32_t>(positions[i]) < count;
  if (!is_valid) throw std::runtime_error("a row belongs to none of " + std::to_string(count) + " ids");
}

void sum_rows(Dtype dtype, size_t width, const TableRows& from, const uint32_t* order, char* sums) {
  if (from.bounds != nullptr) {
    has_double_segments(dtype) ? sum_segments<double>(width, from, order, sums)
                               : sum_segments<float>(width, from, order, sums);
    return;
  }
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

void write_rows(Dtype dtype, size_t width, const char* const* row_of, const TableRows& to) {
  if (to.bounds != nullptr) {
    has_double_segments(dtype) ? write_segments<double>(width, row_of, to) : write_segments<float>(width, row_of, to);
    return;
  }
  const size_t row_bytes = width * size_of(dtype);
  for (uint64_t i = 0; i < to.num_rows; ++i) {
    std::memcpy(to.rows + i * row_bytes, row_of[to.positions[i]], row_bytes);
  }
}

}  // namespace lane
