#include "dense/gradient_bucket.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/end_process.h"
#include "kernels/attribute.h"
#include "kernels/half.h"

namespace lane {
namespace {

/// The number of elements that are widened, or updated and copied, at a time: they stay in the first-level cache.
constexpr size_t kBlock = 4096;

/// Return the memory of an array in the default layout.
char* memory_of(const ArrayFunctions& functions, void* array) {
  void* data = nullptr;
  if (functions.get_data(array, &data) != 0) end_process("MXNDArrayGetData", "gradients or weights cannot be read");
  return static_cast<char*>(data);
}

/// A weight, its optimizer state, and arrays to which an update copies the weight and the sum; null for none.
struct WeightMemory {
  char* weight;
  char* state[2];
  char* copy;
  char* gradient;
};

WeightMemory memory_of(const WrittenArrays& arrays, size_t index) {
  const size_t first = 5 * index;
  return {arrays.memory(first), {arrays.memory(first + 2), arrays.memory(first + 3)}, arrays.memory(first + 4),
          arrays.memory(first + 1)};
}

/// Update a weight of `dtype` with the sum of its gradients, which has float16 values if `halves` is true.
void update_weight(RuleKind kind, const UpdateSettings& settings, Dtype dtype, bool halves, const char* sum,
                   size_t count, const WeightMemory& memory) {
  const UpdateKernel kernel = lane::kernel(kind, dtype);
  const size_t size = size_of(dtype);
  float wide[kBlock];
  const size_t step = halves || memory.copy != nullptr || memory.gradient != nullptr ? kBlock : count;
  for (size_t start = 0; start < count; start += step) {
    const size_t length = std::min(step, count - start);
    const char* gradient = sum + start * size;
    if (halves) {
      widen(reinterpret_cast<const uint16_t*>(sum) + start, wide, length);
      gradient = reinterpret_cast<const char*>(wide);
    }
    char* const states[2] = {memory.state[0] ? memory.state[0] + start * size : nullptr,
                             memory.state[1] ? memory.state[1] + start * size : nullptr};
    char* const weight = memory.weight + start * size;
    kernel(settings, {weight, {states[0], states[1]}, gradient, length});
    if (memory.gradient != nullptr) std::memcpy(memory.gradient + start * size, gradient, length * size);
    if (memory.copy != nullptr) std::memcpy(memory.copy + start * size, weight, length * size);
  }
}

}  // namespace

WrittenArrays::~WrittenArrays() {
  for (void* array : arrays_) {
    if (array != nullptr) functions_.free(array);
  }
}

char* WrittenArrays::memory(size_t index) const {
  void* array = arrays_[index];
  if (array == nullptr) return nullptr;
  if (reorder_ != nullptr) reorder_(*static_cast<void**>(array));  // the first member of NDArray points to the storage
  return memory_of(functions_, array);
}

GradientBucket::~GradientBucket() {
  for (const Item& item : items_) functions_.free(item.gradient);
}

void GradientBucket::add(void* gradient, size_t count) {
  if (gradient != nullptr) items_.push_back({gradient, count_, count});
  count_ += count;
}

void GradientBucket::start(const OnComplete& complete, AllreduceKind kind) {
  std::vector<InputPiece> pieces;
  for (const Item& item : items_) {
    const char* data = memory_of(functions_, item.gradient);
    if (halves_) {
      narrow(reinterpret_cast<const float*>(data), reinterpret_cast<uint16_t*>(buffer_.input()) + item.first,
             item.count);
    } else {
      pieces.push_back({item.first, item.count, data});
    }
  }
  buffer_.start(complete, kind, pieces);
}

void DenseUpdate::run() const {
  UpdateSettings settings(rule, 1);
  const auto parsed = in_lists ? list_attribute : attribute;
  for (size_t i = 0; i < sizes.size(); ++i) {
    settings.lr = parsed(rates[i].lr);
    settings.wd = parsed(rates[i].wd);
    WeightMemory memory = memory_of(*arrays, i);
    const char* const gradient = bucket ? bucket->sums(i) : std::exchange(memory.gradient, nullptr);
    update_weight(rule.kind, settings, dtype, bucket && bucket->halves(), gradient, sizes[i], memory);
  }
}

}  // namespace lane
