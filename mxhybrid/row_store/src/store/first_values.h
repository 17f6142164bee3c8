// The values that rows of dynamic tables begin with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace lane {

/// `_KINDS` of row_store.py has their names.
enum class FirstValueKind : uint32_t {
  kZero,
  /// All elements are `value`.
  kConstant,
  /// Elements are drawn from (-value, value), evenly.
  kUniform,
  /// Elements are drawn from the normal distribution with mean 0 and the standard deviation `value`.
  kNormal,
};

/// A row begins with values that depend on the seed, its key and the column, and on nothing else: not on partitions,
/// processes or the order in which rows are met.  They are computed in double and rounded.  Normal values use the
/// logarithm and the cosine of the C library, so their last bit may differ between machines with different ones.
///
/// Four columns take the four words of Philox for the counter (low half of the key, high half, number of the four
/// columns, 0) and the key (low half of the seed, high half).  Word w is the number u = (w + 1/2) / 2^32 in (0, 1).
/// Uniform values are (2u - 1) `value`; normal values come from pairs of numbers by Box and Muller (1958).
struct FirstValues {
  FirstValueKind kind = FirstValueKind::kZero;
  double value = 0;
  uint64_t seed = 0;

  /// Write the first values of the row with a key; `dtype` is float32 or float64.
  void fill(Dtype dtype, int64_t key, size_t width, char* row) const;
};

}  // namespace lane
