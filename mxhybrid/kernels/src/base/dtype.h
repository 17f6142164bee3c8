// Types of the elements of arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lane {

/// Types of elements.  Integers are added modulo their size, so unsigned integers and booleans use the signed type of
/// the same size.
enum class Dtype : uint32_t { kFloat16, kFloat32, kFloat64, kInt8, kInt16, kInt32, kInt64 };

/// NumPy's names, by number.
constexpr const char* kDtypeNames[] = {"float16", "float32", "float64", "int8", "int16", "int32", "int64"};
constexpr uint32_t kDtypes = sizeof kDtypeNames / sizeof *kDtypeNames;
static_assert(static_cast<uint32_t>(Dtype::kInt64) + 1 == kDtypes, "each type has a name");

/// Bytes of an element.
inline size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt8:
      return 1;
    case Dtype::kFloat16:
    case Dtype::kInt16:
      return 2;
    case Dtype::kFloat32:
    case Dtype::kInt32:
      return 4;
    default:
      return 8;
  }
}

}  // namespace lane
