// Calls of the system that a signal may interrupt.
#pragma once

#include <cerrno>

namespace lane {

/// Call a function until no signal has interrupted it; return its result.  The function returns a negative number, and
/// sets errno, if it fails.
template <typename Call>
auto uninterrupted(Call call) -> decltype(call()) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace lane
