#include "explorer.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "mapping.h"

namespace explorer {
namespace {

constexpr size_t kStack = 256 << 10;
/// Where shared memory is mapped.
constexpr uintptr_t kArena = uintptr_t(1) << 44, kArenaSize = uintptr_t(1) << 40;

/// What a thread knows: how far others were, and which stores it has seen, or must not miss.
struct View {
  std::vector<uint32_t> clock;  // by thread
  std::vector<uint32_t> seen;   // by location: number of a store

  void join(const View& other) {
    join(clock, other.clock);
    join(seen, other.seen);
  }
  static void join(std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
  }
  static uint32_t& at(std::vector<uint32_t>& values, size_t i) {
    if (i >= values.size()) values.resize(i + 1);
    return values[i];
  }
};

struct Store {
  uint64_t value;
  View released;  // what a load that acquires learns
};

/// An atomic object: its stores in their order.
struct Location {
  uint32_t number;
  std::vector<Store> stores;
};

/// Of a word of memory that is not atomic: its last write, and its reads since, by thread.
struct Word {
  uint32_t writer = 0, written = 0;
  std::map<uint32_t, uint32_t> reads;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  std::function<void()> body;
  bool service = false, done = false;
  std::function<bool()> can_go_on;  // null if it is not blocked
  View view;
};

struct Choice {
  uint32_t taken, options;
};

// Of all runs.
Orders orders;
std::vector<Choice> choices;
ucontext_t driver, escape;  // the latter leads out of a run that has failed
std::string failure;

// Of the run at hand.
struct Run {
  std::vector<std::unique_ptr<Thread>> threads;
  Thread* current = nullptr;  // null in the driver
  bool exploring = false;
  size_t position = 0;
  uint32_t left = 0;  // unusual choices that may yet be made
  std::unordered_map<uintptr_t, Location> locations;
  uint32_t numbered = 0;
  std::vector<uint32_t> sequential;  // by location: the number of the store that sequential loads must not miss
  std::unordered_map<uintptr_t, Word> words;
  std::map<int, std::shared_ptr<View>> bells;       // by descriptor of an eventfd: what those that rang have known
  struct Mutex {
    bool is_held = false;
    View released;
  };
  std::unordered_map<pthread_mutex_t*, Mutex> mutexes;
  View announced;
  std::unordered_map<uintptr_t, uint64_t> wakes;  // by futex
};
std::unique_ptr<Run> at_hand;

uint32_t id_of(const Thread* thread) {
  for (uint32_t i = 0; i < at_hand->threads.size(); ++i) {
    if (at_hand->threads[i].get() == thread) return i;
  }
  return 0;
}

/// Let others know, by way of `to`, what this thread knows.
void release(View& to) {
  View& view = at_hand->current->view;
  to.join(view);
  ++view.clock[id_of(at_hand->current)];
}

/// One of so many options, of which the first is the usual one.
uint32_t choose(size_t options) {
  Run& run = *at_hand;
  if (options < 2 || !run.exploring || run.left == 0) return 0;
  if (run.position == choices.size()) choices.push_back({0, static_cast<uint32_t>(options)});
  const uint32_t taken = choices[run.position++].taken;
  if (taken > 0) --run.left;
  return taken;
}

bool is_ready(Thread& thread) { return !thread.done && (!thread.can_go_on || thread.can_go_on()); }

void go_on_with(Thread* next) {
  Run& run = *at_hand;
  Thread* const before = run.current;
  if (before == next) return;
  run.current = next;
  swapcontext(before ? &before->context : &driver, next ? &next->context : &driver);
}

/// Have one of the threads go on, the current one if it can; the driver if none can.
void schedule() {
  Run& run = *at_hand;
  std::vector<Thread*> ready;
  const size_t count = run.threads.size(), first = run.current ? id_of(run.current) : 0;
  for (size_t i = 0; i < count; ++i) {
    Thread* const thread = run.threads[(first + i) % count].get();
    if (is_ready(*thread)) ready.push_back(thread);
  }
  go_on_with(ready.empty() ? nullptr : ready[choose(ready.size())]);
}

void block(std::function<bool()> can_go_on) {
  Run& run = *at_hand;
  if (run.current == nullptr) {  // the driver, after the run
    schedule();
    if (!can_go_on()) fail("a thread sleeps for ever");
    return;
  }
  Thread& self = *run.current;
  self.can_go_on = std::move(can_go_on);
  schedule();
  self.can_go_on = nullptr;
}

void start() {
  Thread& self = *at_hand->current;
  try {
    self.body();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  self.done = true;
  schedule();
}

// ------------------------------------------------------------------------------------------------------ memory

bool is_shared(const volatile void* address) { return reinterpret_cast<uintptr_t>(address) - kArena < kArenaSize; }

bool is_explored(const volatile void* address) {
  return at_hand && at_hand->current && is_shared(address);
}

void touch(const volatile void* address, size_t size, bool writes) {
  if (size == 0 || !is_explored(address)) return;
  Run& run = *at_hand;
  const uint32_t me = id_of(run.current);
  auto& clock = run.current->view.clock;
  const uintptr_t first = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t word = first / 4; word <= (first + size - 1) / 4; ++word) {
    Word& found = run.words[word];
    bool fine = found.writer == me || found.written <= View::at(clock, found.writer);
    for (auto& [reader, time] : found.reads) fine = fine && (!writes || reader == me || time <= View::at(clock, reader));
    if (!fine) fail(writes ? "a data race: a write" : "a data race: a read");
    if (writes) {
      found.reads.clear();
      found.writer = me;
      found.written = clock[me];
    } else {
      found.reads[me] = clock[me];
    }
  }
}

template <typename T>
Location& location(volatile T* address) {
  auto [found, is_new] = at_hand->locations.try_emplace(reinterpret_cast<uintptr_t>(address));
  if (is_new) {
    found->second.number = at_hand->numbered++;
    found->second.stores.push_back({static_cast<uint64_t>(*address), {}});
  }
  return found->second;
}

/// What the driver stores, all threads know.
void forget(const volatile void* address) {
  if (at_hand && is_shared(address)) at_hand->locations.erase(reinterpret_cast<uintptr_t>(address));
}

struct Order {
  explicit Order(int order) {
    constexpr int kConsume = 1, kAcquire = 2, kRelease = 3, kBoth = 4, kSequential = 5;
    if (orders == Orders::kAllRelaxed) return;
    acquires = order == kConsume || order == kAcquire || order >= kBoth;
    releases = order == kRelease || order >= kBoth;
    sequential = order == kSequential && orders == Orders::kAsTheyAre;
  }
  bool acquires = false, releases = false, sequential = false;
};

template <typename T>
T load(const volatile T* address, int how) {
  auto* const place = const_cast<volatile T*>(address);
  if (!is_explored(address)) return *place;
  schedule();
  const Order order(how);
  Location& found = location(place);
  View& view = at_hand->current->view;
  uint32_t& seen = View::at(view.seen, found.number);
  uint32_t& floor = View::at(at_hand->sequential, found.number);
  const uint32_t newest = static_cast<uint32_t>(found.stores.size()) - 1;
  const uint32_t oldest = order.sequential ? std::max(seen, floor) : seen;
  const uint32_t taken = newest - choose(newest - oldest + 1);
  seen = taken;
  if (order.sequential) floor = std::max(floor, taken);
  if (order.acquires) view.join(found.stores[taken].released);
  return static_cast<T>(found.stores[taken].value);
}

template <typename T>
void add_store(Location& found, volatile T* address, T value, const Order& order, const View* before) {
  View& view = at_hand->current->view;
  const uint32_t number = static_cast<uint32_t>(found.stores.size()), me = id_of(at_hand->current);
  View::at(view.seen, found.number) = number;
  if (order.sequential) View::at(at_hand->sequential, found.number) = number;
  View released = before ? *before : View();  // of operations that read and write: what the one before has released
  if (order.releases) {
    released.join(view);
    ++view.clock[me];
  }
  found.stores.push_back({static_cast<uint64_t>(value), std::move(released)});
  *address = value;
}

template <typename T>
void store(volatile T* address, T value, int how) {
  if (!is_explored(address)) {
    *address = value;
    forget(address);
    return;
  }
  schedule();
  add_store(location(address), address, value, Order(how), nullptr);
}

/// Read the newest store and write `change` of it.
template <typename T, typename Change>
T read_and_write(volatile T* address, int how, Change change) {
  if (!is_explored(address)) {
    const T old = *address;
    *address = static_cast<T>(change(old));
    forget(address);
    return old;
  }
  schedule();
  const Order order(how);
  Location& found = location(address);
  const View before = found.stores.back().released;
  if (order.acquires) at_hand->current->view.join(before);
  const T old = *address;
  add_store(found, address, static_cast<T>(change(old)), order, &before);
  return old;
}

// ------------------------------------------------------------------------------------------------------- system

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

void fail(const char* what) {
  failure = what;
  at_hand->current = nullptr;
  setcontext(&escape);
  std::abort();
}

void add_thread(std::function<void()> body, bool service) {
  Run& run = *at_hand;
  run.threads.push_back(std::make_unique<Thread>());
  Thread& made = *run.threads.back();
  made.body = std::move(body);
  made.service = service;
  if (run.current) {
    made.view = run.current->view;
    ++run.current->view.clock[id_of(run.current)];
  }
  View::at(made.view.clock, run.threads.size() - 1) = 1;
  getcontext(&made.context);
  made.context.uc_stack.ss_sp = made.stack.get();
  made.context.uc_stack.ss_size = kStack;
  makecontext(&made.context, start, 0);
}

void wait_until(std::function<bool()> condition) {
  block(std::move(condition));
  at_hand->current->view.join(at_hand->announced);
}

void announce() { release(at_hand->announced); }

void run() {
  Run& run = *at_hand;
  run.exploring = true;
  schedule();
  run.exploring = false;
  for (auto& thread : run.threads) {
    if (!thread->done && !thread->service) fail("a thread sleeps for ever");
  }
}

Result explore(const std::function<void()>& scenario, uint32_t unusual, Orders how) {
  orders = how;
  choices.clear();
  failure.clear();
  Result result{0, ""};
  do {
    ++result.runs;
    at_hand = std::make_unique<Run>();
    at_hand->left = unusual;
    volatile bool failed = true;
    std::function<void()> body = scenario;
    // A failure comes back to here, and leaves what the run has made as it is.
    volatile bool begun = false;
    getcontext(&escape);
    if (!begun) {
      begun = true;
      body();
      failed = false;
    }
    if (failed) {
      new std::unique_ptr<Run>(std::move(at_hand));  // its threads are not at their ends
      result.failure = failure;
      return result;
    }
    at_hand.reset();
    while (!choices.empty() && choices.back().taken + 1 == choices.back().options) choices.pop_back();
    if (!choices.empty()) ++choices.back().taken;
  } while (!choices.empty());
  return result;
}

}  // namespace explorer

// ----------------------------------------------------------------------------- in place of src/mapping.cc

namespace lane {
namespace {

struct Mapping {
  void* base;
  size_t size;
  int users;
};

std::map<ino_t, Mapping> mappings;
uintptr_t free_from = explorer::kArena;
constexpr size_t kPage = 4096;

}  // namespace

void* map_memory(int descriptor, size_t size) {
  struct stat file;
  if (fstat(descriptor, &file) != 0) return MAP_FAILED;
  Mapping& mapping = mappings[file.st_ino];
  if (mapping.users++ > 0) return mapping.base;
  mapping.size = size;
  do {  // runs that failed have left memory there
    if (free_from + size > explorer::kArena + explorer::kArenaSize) free_from = explorer::kArena;
    mapping.base = mmap(reinterpret_cast<void*>(free_from), size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, descriptor, 0);
    free_from += (size + kPage - 1) / kPage * kPage;
  } while (mapping.base == MAP_FAILED && errno == EEXIST);
  return mapping.base;
}

void unmap_memory(void* base, size_t) {
  for (auto& [number, mapping] : mappings) {
    if (mapping.base != base) continue;
    if (--mapping.users > 0) return;
    munmap(base, mapping.size);
    mappings.erase(number);
    return;
  }
}

}  // namespace lane

// ----------------------------------------------------------------------------- in place of the system's functions

using explorer::at_hand;
using explorer::call_system;
using explorer::View;

namespace {

bool in_thread() { return at_hand && at_hand->current; }

View& view() { return at_hand->current->view; }

std::shared_ptr<View> bell(int descriptor) {
  if (!in_thread()) return nullptr;
  const auto found = at_hand->bells.find(descriptor);
  return found == at_hand->bells.end() ? nullptr : found->second;
}

}  // namespace

extern "C" {

int eventfd(unsigned value, int flags) noexcept {
  const int made = static_cast<int>(call_system(SYS_eventfd2, value, flags));
  if (at_hand) at_hand->bells[made] = std::make_shared<View>();
  return made;
}

int dup(int descriptor) noexcept {
  const int made = static_cast<int>(call_system(SYS_dup, descriptor));
  if (at_hand && at_hand->bells.count(descriptor)) at_hand->bells[made] = at_hand->bells[descriptor];
  return made;
}

ssize_t write(int descriptor, const void* data, size_t size) {
  if (const auto known = bell(descriptor)) explorer::release(*known);
  return call_system(SYS_write, descriptor, data, size);
}

ssize_t read(int descriptor, void* data, size_t size) {
  if (const auto known = bell(descriptor)) view().join(*known);
  return call_system(SYS_read, descriptor, data, size);
}

int epoll_wait(int descriptor, struct epoll_event* events, int most, int milliseconds) {
  int found = 0;
  const auto any = [&] {
    found = static_cast<int>(call_system(SYS_epoll_pwait, descriptor, events, most, 0, nullptr, size_t{8}));
    return found != 0;
  };
  if (in_thread() && milliseconds > 0) {
    if (!any()) explorer::block(any);
  } else {
    any();
  }
  return found;
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

int pthread_create(pthread_t* made, const pthread_attr_t*, void* (*start)(void*), void* parameter) noexcept {
  explorer::add_thread([start, parameter] { start(parameter); }, true);
  *made = at_hand->threads.size();
  return 0;
}

int pthread_join(pthread_t thread, void**) {
  explorer::Thread& joined = *at_hand->threads[thread - 1];
  if (!joined.done) explorer::block([&joined] { return joined.done; });
  return 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!in_thread()) return 0;
  auto& found = at_hand->mutexes[mutex];
  if (found.is_held) explorer::block([&found] { return !found.is_held; });
  found.is_held = true;
  view().join(found.released);
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

// ----------------------------------------------------------------------------- in place of ThreadSanitizer

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* address, size_t size) { explorer::touch(address, size, false); }
void __tsan_write_range(void* address, size_t size) { explorer::touch(address, size, true); }

#define ACCESSES(size)                                                              \
  void __tsan_read##size(void* address) { explorer::touch(address, size, false); } \
  void __tsan_write##size(void* address) { explorer::touch(address, size, true); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

#define ATOMICS(bits, T)                                                                                            \
  T __tsan_atomic##bits##_load(const volatile T* address, int order) { return explorer::load(address, order); }    \
  void __tsan_atomic##bits##_store(volatile T* address, T value, int order) {                                      \
    explorer::store(address, value, order);                                                                        \
  }                                                                                                                \
  T __tsan_atomic##bits##_exchange(volatile T* address, T value, int order) {                                      \
    return explorer::read_and_write(address, order, [value](T) { return value; });                                 \
  }                                                                                                                \
  T __tsan_atomic##bits##_fetch_add(volatile T* address, T value, int order) {                                     \
    return explorer::read_and_write(address, order, [value](T old) { return old + value; });                       \
  }                                                                                                                \
  T __tsan_atomic##bits##_fetch_sub(volatile T* address, T value, int order) {                                     \
    return explorer::read_and_write(address, order, [value](T old) { return old - value; });                       \
  }                                                                                                                \
  T __tsan_atomic##bits##_fetch_or(volatile T* address, T value, int order) {                                      \
    return explorer::read_and_write(address, order, [value](T old) { return old | value; });                       \
  }                                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* address, T* expected, T value, int order, int) {   \
    bool equal = false;                                                                                            \
    const T found = explorer::read_and_write(address, order, [&](T old) {                                          \
      equal = old == *expected;                                                                                    \
      return equal ? value : old;                                                                                  \
    });                                                                                                            \
    *expected = found;                                                                                             \
    return equal;                                                                                                  \
  }                                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* address, T* expected, T value, int order, int) {     \
    return __tsan_atomic##bits##_compare_exchange_strong(address, expected, value, order, order);                  \
  }
ATOMICS(8, uint8_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

}  // extern "C"
