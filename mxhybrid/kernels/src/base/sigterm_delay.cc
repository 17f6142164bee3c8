#include "base/sigterm_delay.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

namespace lane {
namespace {

// Read by the handler, which may call only functions that signal-safety(7) lists, such as timer_settime.
timer_t timer;
itimerspec delay;
pid_t owner;

void end_later(int) {
  const int error = errno;
  // A forked child has this handler, but no timer.  The next SIGTERM meets no handler any more (SA_RESETHAND).
  if (getpid() != owner || timer_settime(timer, 0, &delay, nullptr) != 0) raise(SIGTERM);
  errno = error;
}

}  // namespace

bool delay_sigterm(double seconds) {
  struct sigaction action = {};
  if (sigaction(SIGTERM, nullptr, &action) != 0) return false;
  if ((action.sa_flags & SA_SIGINFO) || action.sa_handler != SIG_DFL) return false;
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return false;
  delay.it_value.tv_sec = static_cast<time_t>(seconds);
  delay.it_value.tv_nsec = static_cast<long>(std::fmod(seconds, 1.0) * 1e9);
  owner = getpid();
  action.sa_handler = end_later;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGTERM, &action, nullptr) == 0;
}

}  // namespace lane
