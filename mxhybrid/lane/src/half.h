// float16 (IEEE 754 binary16) from float32 and back, rounded to nearest, ties to even, as NumPy and MXNet do.
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

}  // namespace lane
