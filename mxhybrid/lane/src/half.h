// float16 (IEEE 754 binary16) from float32 and back, rounded to nearest, ties to even, as NumPy and MXNet do; arrays by
// the processor's instructions where it has them (F16C), with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lane {

float widen(uint16_t half);
uint16_t narrow(float value);

void widen(const uint16_t* from, float* to, size_t count);
void narrow(const float* from, uint16_t* to, size_t count);
/// As narrow and widen.
void round_to_half(const float* from, float* to, size_t count);
/// Whether all are finite.
bool finite(const float* values, size_t count);
bool finite(const uint16_t* values, size_t count);
/// Whether none that is finite becomes infinite when it is rounded.
bool fits(const float* values, size_t count);
/// Add values to others, each sum rounded.
void add_halves(uint16_t* to, const uint16_t* from, size_t count);

}  // namespace lane
