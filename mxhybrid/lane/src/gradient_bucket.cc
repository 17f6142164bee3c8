#include "gradient_bucket.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "attribute.h"
#include "half.h"

namespace lane {
namespace {

/// The number of elements that are widened at a time.
constexpr size_t kBlock = 4096;

}  // namespace

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
    void* data = nullptr;
    if (functions_.get_data(item.gradient, &data) != 0) {
      // The error cannot be reported: the engine takes no exceptions here, and all workers wait for the sum.
      std::fputs("mxhybrid: an array of gradients cannot be read\n", stderr);
      std::abort();
    }
    if (halves_) {
      narrow(static_cast<const float*>(data), reinterpret_cast<uint16_t*>(buffer_.input()) + item.first, item.count);
    } else {
      pieces.push_back({item.first, item.count, static_cast<const char*>(data)});
    }
  }
  buffer_.start(complete, kind, pieces);
}

void GradientBucket::update(const Rule& rule, const std::vector<Target>& targets) {
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
    const size_t step = halves_ ? kBlock : item.count;
    for (size_t start = 0; start < item.count; start += step) {
      const size_t count = std::min(step, item.count - start);
      const char* gradient = buffer_.output() + (item.first + start) * size;
      if (halves_) {
        widen(reinterpret_cast<const uint16_t*>(buffer_.output()) + item.first + start, wide, count);
        gradient = reinterpret_cast<const char*>(wide);
      }
      char* const states[2] = {target.state[0] ? target.state[0] + start * size : nullptr,
                               target.state[1] ? target.state[1] + start * size : nullptr};
      kernel(settings, {target.weight + start * size, {states[0], states[1]}, gradient, count});
    }
  }
}

}  // namespace lane
