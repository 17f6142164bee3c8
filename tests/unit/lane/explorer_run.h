// The current run, which the parts of the model checker share.
#pragma once

#include <pthread.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "explorer.h"

namespace explorer {

constexpr size_t kStack = 256 << 10;

/// The view of a thread: the progress of other threads that it knows of, and the oldest stores that it may still see.
struct View {
  std::vector<uint32_t> clock;  // by thread
  std::vector<uint32_t> seen;   // by location: the number of a store

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
  View released;  // the view that a load with acquire order gets
};

/// An atomic object: its stores, in their order.
struct Location {
  uint32_t number;
  std::vector<Store> stores;
};

/// A word of memory that is not atomic: its last write, and its later reads, by thread.
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

struct Mutex {
  bool is_held = false;
  View released;
};

/// A run of a scenario.
struct Run {
  std::vector<std::unique_ptr<Thread>> threads;
  Thread* current = nullptr;  // null in the driver
  bool exploring = false;
  size_t position = 0;
  uint32_t left = 0;  // the number of unusual choices that are still allowed
  std::unordered_map<uintptr_t, Location> locations;
  uint32_t numbered = 0;
  std::vector<uint32_t> sequential;  // by location: the number of the oldest store that sequential loads may see
  std::unordered_map<uintptr_t, Word> words;
  std::map<int, std::shared_ptr<View>> doorbells;  // by descriptor of an eventfd: the views of the threads that rang
  std::unordered_map<pthread_mutex_t*, Mutex> mutexes;
  View announced;
  std::unordered_map<uintptr_t, uint64_t> wakes;  // by futex
};

/// Null between runs.
extern std::unique_ptr<Run> at_hand;
/// The mutant.
extern Orders orders;

/// Return whether a thread of the scenario runs, and not the driver, which sets up and tears down.
inline bool in_thread() { return at_hand && at_hand->current; }
uint32_t id_of(const Thread* thread);
/// Publish the view of the current thread through `to`.
void release(View& to);
/// Choose one of a number of options; the first one is the usual one.
uint32_t choose(size_t options);
/// Switch to a thread that can continue, usually the current one; to the driver if none can.
void schedule();
/// Switch to other threads until the current one can continue.
void block(std::function<bool()> can_go_on);
/// Record that the current thread reads or writes memory that is not atomic.
void touch(const volatile void* address, size_t size, bool writes);

}  // namespace explorer
