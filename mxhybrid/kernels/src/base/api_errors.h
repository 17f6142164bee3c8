// Errors of the C interface: functions return a value that says that they failed, and keep the message for lane_error.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "base/buffer.h"

namespace lane {

/// The message of the last function that failed in this thread.
inline thread_local std::string api_error;

/// Return the result of a function, or 0 if it has none; if it throws, keep the message and return null or -1.
template <typename Function>
auto guarded(Function function) {
  using Result = decltype(function());
  try {
    if constexpr (std::is_void_v<Result>) {
      function();
      return 0;
    } else {
      return function();
    }
  } catch (const std::bad_alloc&) {
    api_error = refusal_text("cannot get memory", 0, ENOMEM);
  } catch (const std::exception& problem) {
    api_error = problem.what();
  }
  if constexpr (std::is_pointer_v<Result>) {
    return Result(nullptr);
  } else if constexpr (std::is_void_v<Result>) {
    return -1;
  } else {
    return Result(-1);
  }
}

}  // namespace lane
