#include "kernels/attribute.h"

#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <locale>
#include <sstream>
#include <string>

namespace lane {
namespace {

/// The most digits after the point that dmlc-core's parser reads.
constexpr int kMostDigits = 19;
/// Python writes a number without an exponent if its exponent, as in `Decimal`, is above the first and at most the
/// second.
constexpr int kLeastPlain = -4, kMostPlain = 16;

/// A decimal number: 0.d1d2d3... times 10 to the power of `exponent`.
struct Decimal {
  std::string digits;
  int exponent;
};

/// Return the number that printf wrote, in any locale: digits, then 'e' and an exponent.
Decimal decimal_of(const char* printed) {
  Decimal decimal;
  const char* next = printed;
  for (; *next != 'e'; ++next) {
    if (std::isdigit(static_cast<unsigned char>(*next))) decimal.digits += *next;
  }
  while (decimal.digits.size() > 1 && decimal.digits.back() == '0') decimal.digits.pop_back();
  decimal.exponent = std::atoi(next + 1) + 1;
  return decimal;
}

/// Return the number with the fewest digits that reads as a positive `value`; if there are several, the nearest.
Decimal shortest(double value) {
  char printed[40];
  int fraction = 0;
  // Doubles just below a power of two are closer together than those above it.  So the nearest decimal of 16 digits may
  // read as another double, while the next larger decimal reads as `value`.
  const bool power = std::frexp(value, &fraction) == 0.5;
  for (int precision = 14; precision < 17; ++precision) {  // every decimal of 15 digits survives as a double
    std::snprintf(printed, sizeof printed, "%.*e", precision, value);
    if (std::strtod(printed, nullptr) == value) break;
    if (!power) continue;
    char* last = std::strchr(printed, 'e') - 1;
    if (*last == '9') continue;
    ++*last;
    if (std::strtod(printed, nullptr) == value) break;
  }
  return decimal_of(printed);
}

/// Return the shortest text that reads as a finite double, as Python's `repr` and `str` do.
std::string text_of(double value) {
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  const Decimal number = shortest(std::fabs(value));
  const int count = static_cast<int>(number.digits.size());
  std::string text = value < 0 ? "-" : "";
  if (number.exponent > kLeastPlain && number.exponent <= kMostPlain) {
    if (number.exponent <= 0) {
      text += "0." + std::string(-number.exponent, '0') + number.digits;
    } else if (number.exponent >= count) {
      text += number.digits + std::string(number.exponent - count, '0') + ".0";
    } else {
      text += number.digits.substr(0, number.exponent) + "." + number.digits.substr(number.exponent);
    }
    return text;
  }
  text += number.digits.substr(0, 1);
  if (count > 1) text += "." + number.digits.substr(1);
  const int exponent = number.exponent - 1;
  char printed[16];
  std::snprintf(printed, sizeof printed, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
  return text + printed;
}

/// Parse a positive number without sign and suffix as ParseFloat<float> of dmlc-core does.
float parse(const char* text) {
  uint64_t before = 0;
  for (; std::isdigit(static_cast<unsigned char>(*text)); ++text) {
    before = before * 10 + static_cast<uint64_t>(*text - '0');
  }
  float value = static_cast<float>(before);
  if (*text == '.') {
    uint64_t power = 1, after = 0;
    int digits = 0;
    for (++text; std::isdigit(static_cast<unsigned char>(*text)); ++text, ++digits) {
      if (digits >= kMostDigits) continue;
      after = after * 10 + static_cast<uint64_t>(*text - '0');
      power *= 10;
    }
    value += static_cast<float>(static_cast<double>(after) / static_cast<double>(power));
  }
  if (*text != 'e') return value;
  ++text;
  const bool divides = *text == '-';
  float scale = 1;
  int exponent = std::abs(std::atoi(text));
  for (; exponent >= 8; exponent -= 8) scale *= 1e8f;
  for (; exponent > 0; --exponent) scale *= 10.f;
  return divides ? value / scale : value * scale;
}

float parse_in_list(const char* text) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  float value = 0;
  stream >> value;
  return value;
}

/// Parse the text of a double, unless the result is cached: few settings are in use at a time, again and again.
template <float (*Parse)(const char*)>
float remembered(double value) {
  struct Known {
    uint64_t bits;
    float result;
  };
  constexpr int kKnownBits = 6;
  thread_local Known known[1 << kKnownBits] = {};  // all zeros are right for 0.0
  if (!std::isfinite(value)) return static_cast<float>(value);
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  Known& entry = known[(bits * 0x9E3779B97F4A7C15u) >> (64 - kKnownBits)];
  if (entry.bits != bits) {
    const float parsed = Parse(text_of(std::fabs(value)).c_str());
    entry = {bits, std::signbit(value) ? -parsed : parsed};
  }
  return entry.result;
}

}  // namespace

float attribute(double value) { return remembered<parse>(value); }

float list_attribute(double value) { return remembered<parse_in_list>(value); }

}  // namespace lane
