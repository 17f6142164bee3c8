// A moment between SIGTERM and the end of a process.
#pragma once

namespace lane {

/// Let the first SIGTERM end this process, but not its forked children, only after some seconds, in which another thread
/// may write why the job ends.  A second SIGTERM ends it at once.  Return false, and do nothing, if SIGTERM is ignored
/// or already has a handler; a later handler takes the place of this one.  Throws std::runtime_error.
bool delay_sigterm(double seconds);

}  // namespace lane
