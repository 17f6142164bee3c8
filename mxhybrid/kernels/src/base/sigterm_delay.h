// A moment between SIGTERM and the end of a process.
#pragma once

namespace lane {

/// Let the first SIGTERM end this process, but not its forked children, only after some seconds, in which another thread
/// may write why the job ends.  A second SIGTERM ends it at once.  Return false, and do nothing, if SIGTERM is ignored,
/// if it already has a handler, or if the system has no timer left; a later handler takes the place of this one.
bool delay_sigterm(double seconds);

}  // namespace lane
