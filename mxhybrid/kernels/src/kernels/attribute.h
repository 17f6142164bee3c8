// Settings as MXNet's operators get them.  Python writes each number as text, by `str`, and MXNet parses the text.  The
// result is not the nearest float: ParseFloat of dmlc-core's include/dmlc/strtonum.h rounds at each of its steps.
#pragma once

namespace lane {

/// Return the float that MXNet 1.9.1 parses from this text for a parameter of type float.
float attribute(double value);

/// Return the float that MXNet parses from this text in a list, such as `lrs` and `wds` of multi_sgd_update: the
/// nearest.
float list_attribute(double value);

}  // namespace lane
