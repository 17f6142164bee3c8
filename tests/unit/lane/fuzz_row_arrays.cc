// A fuzzer of arrays of MXNet: ids and rows of all types are read as they are.  Truncated or changed bytes are refused,
// or read as the values that they encode, without an access after their end.
//
// A few functions stand in for MXNet, since sanitizers do not check a library that was compiled without them.  The
// tests with MXNet itself are in test_row_arrays.py.
#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "check.h"
#include "worker/row_arrays.h"

using namespace lane;

namespace {

constexpr int kFloat32 = 0, kFloat64 = 1, kInt32 = 4, kInt64 = 6;
constexpr int kArrays = 20000, kChanges = 20;
constexpr int64_t kRowWidth = 3;

/// An array of MXNet: a dense one, or the raw bytes of a row_sparse one.
struct Array {
  int dtype = 0;
  std::vector<int64_t> shape;
  std::vector<char> data;
  size_t values_at = 0;
};

int storage_type(void*, int* type) {
  *type = 0;
  return 0;
}
int dtype_of(void* array, int* dtype) {
  *dtype = static_cast<Array*>(array)->dtype;
  return 0;
}
int context(void*, int* device, int* number) {
  *device = 1;
  *number = 0;
  return 0;
}
int shape_of(void* array, int* dimensions, const int64_t** shape) {
  *dimensions = static_cast<int>(static_cast<Array*>(array)->shape.size());
  *shape = static_cast<Array*>(array)->shape.data();
  return 0;
}
int save(void* array, size_t* size, const char** bytes) {
  *size = static_cast<Array*>(array)->data.size();
  *bytes = static_cast<Array*>(array)->data.data();
  return 0;
}
int data_of(void* array, void** data) {
  *data = static_cast<Array*>(array)->data.data() + static_cast<Array*>(array)->values_at;
  return 0;
}
int load(const void* bytes, size_t size, void** array) {
  Array* loaded = new Array;
  loaded->data.assign(static_cast<const char*>(bytes), static_cast<const char*>(bytes) + size);
  int64_t count;
  std::memcpy(&count, loaded->data.data() + 12, sizeof(count));  // magic, storage type, dimensions
  loaded->shape = {count, kRowWidth};
  loaded->values_at = size - count * (kRowWidth * sizeof(float) + sizeof(int64_t));  // rows, then their ids, at the end
  *array = loaded;
  return 0;
}
int release(void* array) {
  delete static_cast<Array*>(array);
  return 0;
}

constexpr MxnetFunctions kMxnet{storage_type, dtype_of, context, shape_of, data_of, save, load, release, nullptr,
                                nullptr,      nullptr};

int64_t below(int64_t bound) { return static_cast<int64_t>(random_below(bound)); }

template <typename T>
void put(Array& array, int dtype, const std::vector<int64_t>& values) {
  std::vector<T> typed(values.begin(), values.end());
  array.dtype = dtype;
  array.data.assign(reinterpret_cast<char*>(typed.data()), reinterpret_cast<char*>(typed.data() + typed.size()));
}

void look_for_ids() {
  const int64_t rows = 1 + below(below(2) ? 100 : 1000000), count = 1 + below(40);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = below(rows);
  const bool wrong = below(4) == 0;
  if (wrong) ids[below(count)] = below(2) ? rows + below(5) : -1 - below(5);
  Array array;
  array.shape = {count, 1};
  switch (below(4)) {
    case 0: put<int64_t>(array, kInt64, ids); break;
    case 1: put<int32_t>(array, kInt32, ids); break;
    case 2: put<float>(array, kFloat32, ids); break;
    default: put<double>(array, kFloat64, ids);
  }
  std::vector<int64_t> ids_read(count);  // no room for another id
  const int64_t number = read_row_ids(kMxnet, &array, rows, count, ids_read.data());
  check((number < 0) == wrong, "exactly the ids outside of the table must be refused");
  if (wrong) return;
  ids_read.resize(number);
  const std::set<int64_t> expected(ids.begin(), ids.end());
  check(std::equal(ids_read.begin(), ids_read.end(), expected.begin(), expected.end()),
        "ids must be sorted and unique");
  check(read_row_ids(kMxnet, &array, rows, count - 1, ids_read.data()) == -1,
        "more ids than there is room for must be refused");
}

void look_for_rows() {
  const int64_t rows = 1 + below(1000);
  std::set<int64_t> drawn;
  for (int64_t left = below(20); left >= 0; --left) drawn.insert(below(rows));
  const std::vector<int64_t> ids(drawn.begin(), drawn.end());
  const int64_t count = static_cast<int64_t>(ids.size());
  Array like;
  like.shape = {rows, kRowWidth};
  RowArray row_array(kMxnet, &like, kFloat32, sizeof(float), ids.data(), static_cast<uint32_t>(count));
  check(row_array.handle() != nullptr, "an array of rows must be created");
  std::vector<float> written(count * kRowWidth);
  for (float& value : written) value = static_cast<float>(below(100));
  std::memcpy(row_array.values(), written.data(), written.size() * sizeof(float));
  std::vector<int64_t> ids_read(count);
  std::vector<float> values_read(count * kRowWidth);
  const auto read = [&](void* array) {
    return read_rows(kMxnet, array, rows, kRowWidth, kFloat32, count, ids_read.data(),
                     reinterpret_cast<char*>(values_read.data()));
  };
  check(read(row_array.handle()) == count && ids_read == ids && values_read == written,
        "written rows must be read back");

  const std::vector<char>& whole = static_cast<Array*>(row_array.handle())->data;
  for (int change = 0; change < kChanges; ++change) {
    // On the heap and exactly as large, so that an access after it is detected.
    Array other;
    const bool cut = below(2) == 0;
    other.data.assign(whole.begin(), whole.begin() + (cut ? below(whole.size()) : whole.size()));
    other.data.shrink_to_fit();
    if (!cut) other.data[below(other.data.size())] ^= static_cast<char>(1 + below(255));
    const int64_t number = read(&other);
    check(number <= (cut ? -1 : count), "truncated bytes must be refused");
  }
}

}  // namespace

int main() {
  for (int round = 0; round < kArrays; ++round) {
    look_for_ids();
    look_for_rows();
  }
}
