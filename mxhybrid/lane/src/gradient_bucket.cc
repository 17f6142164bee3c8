#include "gradient_bucket.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "attribute.h"
#include "half.h"

namespace lane {
namespace {

/// The number of elements that are widened, or updated and copied, at a time: they stay in the first-level cache.
constexpr size_t kBlock = 4096;

/// Return the memory of an array in the default layout.
char* memory_of(const ArrayFunctions& functions, void* array) {
  void* data = nullptr;
  if (functions.get_data(array, &data) != 0) {
    // The error cannot be reported: the engine takes no exceptions here, and all workers wait for the sum.
    std::fputs("mxhybrid: an array of gradients or weights cannot be read\n", stderr);
    std::abort();
  }
  return static_cast<char*>(data);
}

}  // namespace

WeightCopies::~WeightCopies() {
  for (void* array : arrays_) {
    if (array != nullptr) functions_.free(array);
  }
}

char* WeightCopies::memory(size_t index) const {
  void* array = arrays_[index];
  if (array == nullptr) return nullptr;
  reorder_(*static_cast<void**>(array));  // the first member of NDArray points to the storage
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

void GradientBucket::update(const Rule& rule, const std::vector<Target>& targets, const WeightCopies* copies) {
  const UpdateKernel kernel = lane::kernel(rule.kind, dtype_);
  UpdateSettings settings(rule, 1);
  const size_t size = size_of(dtype_);
  float wide[kBlock];
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    const Target& target = targets[i];
    // MXNet passes the settings of adam singly, and those of the other optimizers as lists for several weights.
    const bool alone = rule.kind == RuleKind::kDenseAdam;
    settings.lr = alone ? attribute(target.lr) : list_attribute(target.lr);
    settings.wd = alone ? attribute(target.wd) : list_attribute(target.wd);
    char* const copy = copies == nullptr ? nullptr : copies->memory(i);
    const size_t step = halves_ || copy != nullptr ? kBlock : item.count;
    for (size_t start = 0; start < item.count; start += step) {
      const size_t count = std::min(step, item.count - start);
      const char* gradient = buffer_.output() + (item.first + start) * size;
      if (halves_) {
        widen(reinterpret_cast<const uint16_t*>(buffer_.output()) + item.first + start, wide, count);
        gradient = reinterpret_cast<const char*>(wide);
      }
      char* const states[2] = {target.state[0] ? target.state[0] + start * size : nullptr,
                               target.state[1] ? target.state[1] + start * size : nullptr};
      char* const weight = target.weight + start * size;
      kernel(settings, {weight, {states[0], states[1]}, gradient, count});
      if (copy != nullptr) std::memcpy(copy + start * size, weight, count * size);
    }
  }
}

}  // namespace lane
