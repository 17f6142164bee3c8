#include "worker/row_arrays.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/sorted_unique.h"

namespace lane {
namespace {

/// MXNet's numbers of dtypes (mshadow/base.h), of storage types (ndarray.h) and of the CPU (base.h).
constexpr int kFloat32 = 0, kFloat64 = 1, kInt32 = 4, kInt64 = 6;
constexpr int kDense = 0, kRowSparse = 1;
constexpr int kCpu = 1;
/// The first bytes of raw bytes, NDARRAY_V2_MAGIC of src/ndarray/ndarray.cc.
constexpr uint32_t kMagic = 0xF993fac9;
constexpr int kMaxDimensions = 32;
/// With fewer rows of the table than this for each id, a bitmap of the table costs less than sorting the ids.
constexpr int64_t kRowsPerId = 4096;

/// Reads raw bytes, but none after their end.
class Reader {
 public:
  Reader(const char* begin, size_t size) : next_(begin), end_(begin + size) {}

  template <typename T>
  T number() {
    T value{};
    if (const char* from = bytes(sizeof(T))) std::memcpy(&value, from, sizeof(T));
    return value;
  }
  /// Read a shape: its first dimension, and the product of the others.  Both are -1 if there is no shape, or if no
  /// array can have it.
  void shape(int64_t* first, int64_t* width) {
    *first = *width = -1;
    const int dimensions = number<int32_t>();
    if (dimensions < 1 || dimensions > kMaxDimensions) return;
    const int64_t rows = number<int64_t>();
    int64_t elements = 1;
    for (int i = 1; i < dimensions; ++i) {
      if (__builtin_mul_overflow(elements, number<int64_t>(), &elements)) return;
    }
    *first = rows;
    *width = elements;
  }
  /// Return the next `count` bytes, null if there are fewer.
  const char* bytes(size_t count) {
    if (count > static_cast<size_t>(end_ - next_)) {
      next_ = end_;
      return nullptr;
    }
    next_ += count;
    return next_ - count;
  }
  bool at_end() const { return next_ == end_; }

 private:
  const char* next_;
  const char* const end_;
};

template <typename T>
bool to_ids(const void* from, int64_t count, int64_t rows, int64_t* ids) {
  const T* values = static_cast<const T*>(from);
  for (int64_t i = 0; i < count; ++i) {
    if (!(values[i] >= 0 && values[i] <= static_cast<T>(rows))) return false;
    ids[i] = static_cast<int64_t>(values[i]);
    if (static_cast<T>(ids[i]) != values[i] || ids[i] >= rows) return false;  // a float may be the rounded bound
  }
  return true;
}

template <typename T>
void append(std::vector<char>& bytes, T value) {
  const char* from = reinterpret_cast<const char*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(T));
}

}  // namespace

int64_t read_row_ids(const MxnetFunctions& mxnet, void* array, int64_t rows, int64_t capacity, int64_t* result) {
  int type = -1, dtype = -1, device = 0, number = 0, dimensions = -1;
  const int64_t* shape = nullptr;
  if (mxnet.get_storage_type(array, &type) || type != kDense || mxnet.get_context(array, &device, &number) ||
      device != kCpu || mxnet.get_dtype(array, &dtype) || mxnet.get_shape(array, &dimensions, &shape) ||
      dimensions < 1) {
    return -1;
  }
  int64_t count = 1;
  for (int i = 0; i < dimensions; ++i) {
    if (shape[i] < 1 || shape[i] > capacity) return -1;
    count *= shape[i];
    if (count > capacity) return -1;
  }
  void* data = nullptr;
  if (mxnet.get_data(array, &data) || data == nullptr) return -1;
  thread_local std::vector<int64_t> ids;
  ids.resize(count);
  const bool is_valid = dtype == kInt64     ? to_ids<int64_t>(data, count, rows, ids.data())
                    : dtype == kInt32   ? rows <= INT32_MAX && to_ids<int32_t>(data, count, rows, ids.data())
                    : dtype == kFloat32 ? to_ids<float>(data, count, rows, ids.data())
                    : dtype == kFloat64 ? to_ids<double>(data, count, rows, ids.data())
                                        : false;
  if (!is_valid) return -1;
  if (count * kRowsPerId > rows) {
    thread_local std::vector<uint64_t> marks;  // all zero between calls
    marks.resize(std::max<size_t>(marks.size(), rows / 64 + 1));
    return sorted_unique(ids.data(), count, rows, marks.data(), result);
  }
  std::sort(ids.begin(), ids.end());
  return std::unique_copy(ids.begin(), ids.end(), result) - result;
}

int64_t read_rows(const MxnetFunctions& mxnet, void* array, int64_t rows, int64_t width, int dtype, int64_t capacity,
                  int64_t* ids, char* values) {
  int device = 0, which = 0;
  if (mxnet.get_context(array, &device, &which) || device != kCpu) return -1;  // MXNet would copy it to the CPU first
  const char* bytes = nullptr;
  size_t size = 0;
  if (mxnet.save(array, &size, &bytes)) return -1;
  Reader reader(bytes, size);
  if (reader.number<uint32_t>() != kMagic || reader.number<int32_t>() != kRowSparse) return -1;
  int64_t count, count_wide, array_rows, array_width, num_ids, ids_width;
  reader.shape(&count, &count_wide);
  reader.shape(&array_rows, &array_width);
  if (count < 0 || count > capacity || array_rows != rows || array_width != width || count_wide != width) return -1;
  if (reader.number<int32_t>() != kCpu) return -1;
  reader.number<int32_t>();  // the number of the CPU
  if (reader.number<int32_t>() != dtype || reader.number<int32_t>() != kInt64) return -1;
  reader.shape(&num_ids, &ids_width);
  if (num_ids != count || ids_width != 1) return -1;
  const size_t element = dtype == kFloat32 ? 4 : dtype == kFloat64 ? 8 : 2;
  const char* from = reader.bytes(count * width * element);
  const char* from_ids = reader.bytes(count * sizeof(int64_t));
  if (from == nullptr || from_ids == nullptr || !reader.at_end()) return -1;
  std::memcpy(ids, from_ids, count * sizeof(int64_t));
  for (int64_t i = 0, before = -1; i < count; before = ids[i++]) {
    if (ids[i] <= before || ids[i] >= rows) return -1;
  }
  std::memcpy(values, from, count * width * element);
  return count;
}

RowArray::RowArray(const MxnetFunctions& mxnet, void* like, int dtype, size_t element, const int64_t* ids,
                   uint32_t count)
    : mxnet_(mxnet) {
  int dimensions = -1;
  const int64_t* shape = nullptr;
  if (mxnet.get_shape(like, &dimensions, &shape) || dimensions < 1) return;
  thread_local std::vector<char> bytes;
  bytes.clear();
  append(bytes, kMagic);
  append<int32_t>(bytes, kRowSparse);
  size_t values = element;
  append<int32_t>(bytes, dimensions);
  append<int64_t>(bytes, count);
  for (int i = 1; i < dimensions; ++i) {
    append(bytes, shape[i]);
    values *= shape[i];
  }
  append<int32_t>(bytes, dimensions);
  for (int i = 0; i < dimensions; ++i) append(bytes, shape[i]);
  append<int32_t>(bytes, kCpu);
  append<int32_t>(bytes, 0);
  append<int32_t>(bytes, dtype);
  append<int32_t>(bytes, kInt64);
  append<int32_t>(bytes, 1);
  append<int64_t>(bytes, count);
  bytes.resize(bytes.size() + count * values);
  const char* from = reinterpret_cast<const char*>(ids);
  bytes.insert(bytes.end(), from, from + count * sizeof(int64_t));
  if (mxnet.load(bytes.data(), bytes.size(), &handle_)) {
    handle_ = nullptr;
    return;
  }
  void* data = nullptr;
  mxnet.get_data(handle_, &data);
  values_ = static_cast<char*>(data);
}

RowArray::~RowArray() {
  if (handle_ != nullptr) mxnet_.free(handle_);
}

}  // namespace lane
