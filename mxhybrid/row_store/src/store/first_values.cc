#include "store/first_values.h"

#include <algorithm>
#include <cmath>

#include "kernels/philox.h"

namespace lane {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

template <typename T>
void fill_drawn(const FirstValues& first, int64_t key, size_t width, T* row) {
  const uint64_t bits = static_cast<uint64_t>(key);
  for (size_t column = 0; column < width; column += 4) {
    uint32_t words[4][1] = {{static_cast<uint32_t>(bits)}, {static_cast<uint32_t>(bits >> 32)},
                            {static_cast<uint32_t>(column / 4)}, {0}};
    philox(words, static_cast<uint32_t>(first.seed), static_cast<uint32_t>(first.seed >> 32));
    double drawn[4];
    for (int i = 0; i < 4; ++i) drawn[i] = (words[i][0] + 0.5) * 0x1p-32;
    if (first.kind == FirstValueKind::kUniform) {
      for (double& number : drawn) number = 2 * number - 1;
    } else {
      for (int i = 0; i < 4; i += 2) {
        const double radius = std::sqrt(-2 * std::log(drawn[i])), angle = kTwoPi * drawn[i + 1];
        drawn[i] = radius * std::cos(angle);
        drawn[i + 1] = radius * std::sin(angle);
      }
    }
    const size_t columns = std::min<size_t>(4, width - column);
    for (size_t i = 0; i < columns; ++i) row[column + i] = static_cast<T>(drawn[i] * first.value);
  }
}

template <typename T>
void fill_row(const FirstValues& first, int64_t key, size_t width, T* row) {
  switch (first.kind) {
    case FirstValueKind::kZero:
      std::fill(row, row + width, T(0));
      return;
    case FirstValueKind::kConstant:
      std::fill(row, row + width, static_cast<T>(first.value));
      return;
    default:
      fill_drawn(first, key, width, row);
  }
}

}  // namespace

void FirstValues::fill(Dtype dtype, int64_t key, size_t width, char* row) const {
  if (dtype == Dtype::kFloat32) {
    fill_row(*this, key, width, reinterpret_cast<float*>(row));
  } else {
    fill_row(*this, key, width, reinterpret_cast<double*>(row));
  }
}

}  // namespace lane
