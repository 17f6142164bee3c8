// What the parts of explorer.cc share: the run at hand.
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
  uint32_t left = 0;  // unusual choices that may yet be made
  std::unordered_map<uintptr_t, Location> locations;
  uint32_t numbered = 0;
  std::vector<uint32_t> sequential;  // by location: the number of the store that sequential loads must not miss
  std::unordered_map<uintptr_t, Word> words;
  std::map<int, std::shared_ptr<View>> doorbells;  // by descriptor of an eventfd: what those that rang have known
  std::unordered_map<pthread_mutex_t*, Mutex> mutexes;
  View announced;
  std::unordered_map<uintptr_t, uint64_t> wakes;  // by futex
};

/// Null between runs.
extern std::unique_ptr<Run> at_hand;
/// The mutant.
extern Orders orders;

/// Whether a thread of the scenario is at work, and not the driver, which sets up and takes down.
inline bool in_thread() { return at_hand && at_hand->current; }
uint32_t id_of(const Thread* thread);
/// Let others know, by way of `to`, what the current thread knows.
void release(View& to);
/// One of so many options, of which the first is the usual one.
uint32_t choose(size_t options);
/// Have one of the threads go on, the current one if it can; the driver if none can.
void schedule();
/// Have others go on until the current thread can.
void block(std::function<bool()> can_go_on);
/// The current thread reads or writes memory that is not atomic.
void touch(const volatile void* address, size_t size, bool writes);

}  // namespace explorer
