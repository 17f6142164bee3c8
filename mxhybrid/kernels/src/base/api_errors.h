// Errors of the C interface: functions return a value that says that they failed, and keep the message for lane_error.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <string>

#include "base/buffer.h"

namespace lane {

/// The message of the last function that failed in this thread.
inline thread_local std::string api_error;

/// Return the result of a function; if it throws, keep the message and return `failed`.
template <typename Function>
auto guarded(Function function, decltype(function()) failed) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    api_error = refusal_text("cannot get memory", 0, ENOMEM);
    return failed;
  } catch (const std::exception& problem) {
    api_error = problem.what();
    return failed;
  }
}

}  // namespace lane
