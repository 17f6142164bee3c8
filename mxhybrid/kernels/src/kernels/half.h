// Conversion of float32 to float16 (IEEE 754 binary16) and back, rounded to nearest, ties to even, as NumPy and MXNet
// do.  Arrays are converted by the processor's instructions (F16C) if it has them, with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lane {

float widen(uint16_t half);
uint16_t narrow(float value);

void widen(const uint16_t* from, float* to, size_t count);
void narrow(const float* from, uint16_t* to, size_t count);
/// Narrow values and widen them again.
void round_to_half(const float* from, float* to, size_t count);
/// Return whether all values are finite.
bool finite(const float* values, size_t count);
bool finite(const uint16_t* values, size_t count);
/// Return whether every finite value stays finite when it is rounded.
bool fits(const float* values, size_t count);

}  // namespace lane
