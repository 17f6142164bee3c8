// To be preloaded: calls of the system that a signal interrupts every other time, before they have done anything.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/types.h>

static __thread unsigned calls;
static unsigned interrupted;

static int interrupts(void) {
  if (calls++ % 2) return 0;
  ++interrupted;
  errno = EINTR;
  return 1;
}

int number_of_interrupted_calls(void) { return interrupted; }

#define INTERRUPTED(result, name, parameters, arguments)                 \
  result name parameters {                                               \
    if (interrupts()) return -1;                                         \
    return ((result(*) parameters)dlsym(RTLD_NEXT, #name)) arguments;    \
  }

INTERRUPTED(ssize_t, pread, (int file, void* to, size_t size, off_t offset), (file, to, size, offset))
INTERRUPTED(ssize_t, pwrite, (int file, const void* from, size_t size, off_t offset), (file, from, size, offset))
INTERRUPTED(int, ftruncate, (int file, off_t size), (file, size))
INTERRUPTED(int, mkostemp, (char* name, int flags), (name, flags))
INTERRUPTED(int, unlink, (const char* name), (name))

int posix_fallocate(int file, off_t offset, off_t size) {
  if (interrupts()) return EINTR;
  return ((int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate"))(file, offset, size);
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (int i = 0; i < 6; ++i) arguments[i] = va_arg(list, long);
  va_end(list);
  if ((number == SYS_io_submit || number == SYS_io_getevents) && interrupts()) return -1;
  return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, arguments[0], arguments[1], arguments[2],
                                                             arguments[3], arguments[4], arguments[5]);
}
