// Settings as MXNet's operators get them.  Python writes each number as text, by `str`, and MXNet parses the text: not
// to the nearest float, but by ParseFloat of dmlc-core's include/dmlc/strtonum.h, which rounds at each of its steps.
#pragma once

#include <string>

namespace lane {

/// The shortest text that reads as a finite double, as Python's `repr` and `str` write it.
std::string text_of(double value);

/// The float that MXNet 1.9.1 makes of such a text for a parameter of type float.
float attribute(double value);

/// The float that it makes of such a text in a list, as `lrs` and `wds` of multi_sgd_update: the nearest one.
float list_attribute(double value);

}  // namespace lane
