#include "memory/rows.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/half.h"
#include "store/keys.h"

namespace lane {
namespace {

/// The number of rows by which prefetching is ahead.
constexpr uint32_t kPrefetchedRows = 6;

}  // namespace

void split(const TableShape& shape, const int64_t* ids, uint32_t count, uint32_t* bounds, int32_t* local_ids,
           uint32_t* order) {
  const uint32_t parts = shape.partitions();
  if (parts == 1) {
    bounds[0] = 0;
    bounds[1] = count;
    for (uint32_t i = 0; i < count; ++i) local_ids[i] = static_cast<int32_t>(ids[i]);
    if (order != nullptr) {
      for (uint32_t i = 0; i < count; ++i) order[i] = i;
    }
    return;
  }
  // Division of 32-bit numbers is several times faster.
  const bool small = shape.rows <= UINT32_MAX;
  const auto part_of = [&](int64_t id) {
    return small ? static_cast<uint32_t>(id) % parts : static_cast<uint32_t>(id % parts);
  };
  std::vector<uint32_t> next(parts + 1, 0);
  for (uint32_t i = 0; i < count; ++i) ++next[part_of(ids[i]) + 1];
  for (uint32_t part = 0; part < parts; ++part) next[part + 1] += next[part];
  std::memcpy(bounds, next.data(), (parts + 1) * sizeof *bounds);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = next[part_of(ids[i])]++;
    local_ids[position] = static_cast<int32_t>(small ? static_cast<uint32_t>(ids[i]) / parts : ids[i] / parts);
    order[position] = i;
  }
}

void split(const TableShape& shape, const int64_t* keys, uint32_t count, uint32_t* bounds, int64_t* result,
           uint32_t* order) {
  const uint32_t parts = shape.partitions();
  std::vector<uint32_t> next(parts + 1, 0), part_of(count);
  for (uint32_t i = 0; i < count; ++i) ++next[(part_of[i] = partition_of(keys[i], parts)) + 1];
  for (uint32_t part = 0; part < parts; ++part) next[part + 1] += next[part];
  std::memcpy(bounds, next.data(), (parts + 1) * sizeof *bounds);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = next[part_of[i]]++;
    result[position] = keys[i];
    if (order != nullptr) order[position] = i;
  }
}

void check_ids(const TableShape& shape, const int64_t* ids, uint32_t count) {
  if (count == 0) return;
  bool sorted = shape.dynamic || (ids[0] >= 0 && static_cast<uint64_t>(ids[count - 1]) < shape.rows);
  for (uint32_t i = 1; i < count; ++i) sorted &= ids[i] > ids[i - 1];
  if (shape.dynamic) {
    if (!sorted) {
      throw std::runtime_error(std::to_string(count) +
                               " keys of a dynamic table are not sorted or not unique: sum repeated rows and sort them "
                               "first");
    }
    if (count > shape.max_batch_rows) {
      throw std::runtime_error(std::to_string(count) + " keys are too many for a dynamic table with max_batch_rows=" +
                               std::to_string(shape.max_batch_rows) + ": raise max_batch_rows, or use a smaller batch");
    }
    return;
  }
  if (sorted) return;
  throw std::runtime_error(std::to_string(count) + " row ids for a table of " + std::to_string(shape.rows) +
                           " rows are not sorted, not unique or out of range: sum repeated rows and sort them first");
}

bool well_formed(const TableShape& shape, uint32_t part, const int32_t* local_ids, uint32_t count) {
  int64_t last = -1;
  for (uint32_t i = 0; i < count; ++i) {
    if (local_ids[i] <= last) return false;
    last = local_ids[i];
  }
  return last < static_cast<int64_t>(shape.rows_of(part));
}

bool well_formed(const TableShape& shape, uint32_t part, const int64_t* keys, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if ((i > 0 && keys[i] <= keys[i - 1]) || partition_of(keys[i], shape.partitions()) != part) return false;
  }
  return true;
}

void encode_push(const TableShape& shape, const RoundingContext& context, uint64_t row, const char* from, char* to) {
  const float* values = reinterpret_cast<const float*>(from);
  if (shape.format == RowFormat::kFloat16) {
    narrow(values, reinterpret_cast<uint16_t*>(to), shape.width);
  } else {
    quantize_row(values, shape.width, {row, context.pushes, context.table, context.source}, to);
  }
}

void encode_answer(const TableShape& shape, const RoundingContext& context, uint64_t row, const char* from, char* to) {
  if (shape.format == RowFormat::kInt8) {
    quantize_row(reinterpret_cast<const float*>(from), shape.width, to);
  } else {
    encode_push(shape, context, row, from, to);
  }
}

void decode_rows(const TableShape& shape, const char* from, uint32_t count, char* to) {
  float* values = reinterpret_cast<float*>(to);
  if (shape.format == RowFormat::kFloat16) {
    widen(reinterpret_cast<const uint16_t*>(from), values, static_cast<size_t>(count) * shape.width);
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    dequantize_row(from + i * int8_row_bytes(shape.width), shape.width, values + static_cast<size_t>(i) * shape.width);
  }
}

void round_answer(const TableShape& shape, const RoundingContext& context, uint64_t row, const char* from, char* to) {
  if (shape.format == RowFormat::kFloat16) {
    round_to_half(reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to), shape.width);
    return;
  }
  constexpr size_t kNarrowRow = 1024;
  char narrow_row[kNarrowRow];
  std::vector<char> wide_row;
  char* encoded = narrow_row;
  if (int8_row_bytes(shape.width) > kNarrowRow) {
    wide_row.resize(int8_row_bytes(shape.width));
    encoded = wide_row.data();
  }
  encode_answer(shape, context, row, from, encoded);
  dequantize_row(encoded, shape.width, reinterpret_cast<float*>(to));
}

void gather(const char* from, const int32_t* local_ids, uint32_t count, size_t row_bytes, char* to) {
  for (uint32_t i = 0; i < count; ++i) {
    if (i + kPrefetchedRows < count) __builtin_prefetch(from + local_ids[i + kPrefetchedRows] * row_bytes);
    std::memcpy(to + i * row_bytes, from + local_ids[i] * row_bytes, row_bytes);
  }
}

}  // namespace lane
