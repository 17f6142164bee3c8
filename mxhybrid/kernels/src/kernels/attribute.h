// Settings as MXNet's operators get them.  Python writes each number as text, by `str`, and MXNet parses the text.  The
// result is not the nearest float: ParseFloat of dmlc-core's include/dmlc/strtonum.h rounds at each of its steps.
#pragma once

#include <string>

namespace lane {

/// Return the shortest text that reads as a finite double, as Python's `repr` and `str` do.
std::string text_of(double value);

/// Return the float that MXNet 1.9.1 parses from this text for a parameter of type float.
float attribute(double value);

/// Return the float that MXNet parses from this text in a list, such as `lrs` and `wds` of multi_sgd_update: the
/// nearest.
float list_attribute(double value);

}  // namespace lane
