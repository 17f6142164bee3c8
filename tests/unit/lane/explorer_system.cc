// Threads, locks, futexes and doorbells: replace the functions of the system.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "explorer_run.h"

namespace explorer {
namespace {

template <typename Function>
Function of_system(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

template <typename... Arguments>
long call_system(long number, Arguments... arguments) {
  static const auto call = of_system<long (*)(long, ...)>("syscall");
  return call(number, arguments...);
}

/// A futex: sleep while its newest value is `seen`.
long sleep(volatile uint32_t* address, uint32_t seen) {
  schedule();
  if (*address != seen) {
    errno = EAGAIN;
    return -1;
  }
  const uint64_t& wakes = at_hand->wakes[reinterpret_cast<uintptr_t>(address)];
  const uint64_t before = wakes;
  block([&wakes, before] { return wakes != before; });
  return 0;
}

}  // namespace
}  // namespace explorer

using explorer::at_hand;
using explorer::call_system;
using explorer::in_thread;
using explorer::View;

namespace {

View& view() { return at_hand->current->view; }

std::shared_ptr<View> doorbell(int descriptor) {
  if (!in_thread()) return nullptr;
  const auto found = at_hand->doorbells.find(descriptor);
  return found == at_hand->doorbells.end() ? nullptr : found->second;
}

}  // namespace

extern "C" {

int eventfd(unsigned value, int flags) noexcept {
  const int made = static_cast<int>(call_system(SYS_eventfd2, value, flags));
  if (at_hand) at_hand->doorbells[made] = std::make_shared<View>();
  return made;
}

int dup(int descriptor) noexcept {
  const int made = static_cast<int>(call_system(SYS_dup, descriptor));
  if (at_hand && at_hand->doorbells.count(descriptor)) at_hand->doorbells[made] = at_hand->doorbells[descriptor];
  return made;
}

ssize_t write(int descriptor, const void* data, size_t size) {
  if (const auto known = doorbell(descriptor)) explorer::release(*known);
  return call_system(SYS_write, descriptor, data, size);
}

ssize_t read(int descriptor, void* data, size_t size) {
  if (const auto known = doorbell(descriptor)) view().join(*known);
  return call_system(SYS_read, descriptor, data, size);
}

int epoll_wait(int descriptor, struct epoll_event* events, int most, int milliseconds) {
  int event_count = 0;
  const auto any = [&] {
    event_count = static_cast<int>(call_system(SYS_epoll_pwait, descriptor, events, most, 0, nullptr, size_t{8}));
    return event_count != 0;
  };
  if (in_thread() && milliseconds > 0) {
    if (!any()) explorer::block(any);
  } else {
    any();
  }
  return event_count;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long values[6];
  for (long& value : values) value = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && at_hand) {
    auto* const address = reinterpret_cast<volatile uint32_t*>(values[0]);
    if (values[1] == FUTEX_WAKE) ++at_hand->wakes[values[0]];
    if (values[1] == FUTEX_WAIT && in_thread()) return explorer::sleep(address, static_cast<uint32_t>(values[2]));
    return 0;
  }
  return call_system(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*start)(void*), void* parameter) noexcept {
  explorer::add_thread([start, parameter] { start(parameter); }, true);
  *thread = at_hand->threads.size();
  return 0;
}

int pthread_join(pthread_t thread, void**) {
  explorer::Thread& joined = *at_hand->threads[thread - 1];
  if (!joined.done) explorer::block([&joined] { return joined.done; });
  return 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!in_thread()) return 0;
  auto& state = at_hand->mutexes[mutex];
  if (state.is_held) explorer::block([&state] { return !state.is_held; });
  state.is_held = true;
  view().join(state.released);
  return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (!in_thread()) return 0;
  at_hand->mutexes[mutex].is_held = false;
  explorer::release(at_hand->mutexes[mutex].released);
  return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (in_thread() && at_hand->mutexes[mutex].is_held) return EBUSY;
  return pthread_mutex_lock(mutex);
}

void* memmove(void* to, const void* from, size_t size) noexcept {
  explorer::touch(from, size, false);
  explorer::touch(to, size, true);
  char* const target = static_cast<char*>(to);
  const char* const source = static_cast<const char*>(from);
  if (target <= source) {
    for (size_t i = 0; i < size; ++i) target[i] = source[i];
  } else {
    for (size_t i = size; i-- > 0;) target[i] = source[i];
  }
  return to;
}

void* memcpy(void* __restrict to, const void* __restrict from, size_t size) noexcept { return memmove(to, from, size); }

void* memset(void* to, int value, size_t size) noexcept {
  explorer::touch(to, size, true);
  for (size_t i = 0; i < size; ++i) static_cast<volatile char*>(to)[i] = static_cast<char>(value);
  return to;
}

}  // extern "C"
