// The end of a process whose error cannot be reported.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace lane {

/// End the process with a message.  It is for functions that MXNet's engine calls, which takes no exceptions, or shows
/// them late, while other workers wait for this one.
[[noreturn]] inline void end_process(const char* what, const char* problem) {
  std::fprintf(stderr, "mxhybrid: %s: %s\n", what, problem);
  std::abort();
}

}  // namespace lane
