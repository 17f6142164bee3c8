#include "sigterm_delay.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace lane {
namespace {

// For the handler, which may only call functions that are safe in it; timer_settime is.
timer_t timer;
itimerspec delay;
pid_t owner;

void end_later(int) {
  const int error = errno;
  // A forked child has this handler, but no timer.  The next SIGTERM meets no handler any more (SA_RESETHAND).
  if (getpid() != owner || timer_settime(timer, 0, &delay, nullptr) != 0) raise(SIGTERM);
  errno = error;
}

void check(int result, const char* call) {
  if (result != 0) throw std::runtime_error(std::string(call) + ": " + std::strerror(errno));
}

}  // namespace

bool delay_sigterm(double seconds) {
  struct sigaction action = {};
  check(sigaction(SIGTERM, nullptr, &action), "sigaction");
  if ((action.sa_flags & SA_SIGINFO) || action.sa_handler != SIG_DFL) return false;
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  check(timer_create(CLOCK_MONOTONIC, &event, &timer), "timer_create");
  delay.it_value.tv_sec = static_cast<time_t>(seconds);
  delay.it_value.tv_nsec = static_cast<long>(std::fmod(seconds, 1.0) * 1e9);
  owner = getpid();
  action.sa_handler = end_later;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  check(sigaction(SIGTERM, &action, nullptr), "sigaction");
  return true;
}

}  // namespace lane
