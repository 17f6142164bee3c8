// A model checker: explores the interleavings of threads, and the stores that each load may see by C++'s memory model.
//
// It checks the library itself, as g++ compiles it for ThreadSanitizer: explorer_memory.cc replaces that sanitizer's
// runtime and is called at each access to memory.  Threads are coroutines of one thread.  At each atomic operation on
// shared memory the explorer chooses the thread that continues, and the store that a load sees.  It runs a scenario
// repeatedly, with all sequences of choices that contain at most a given number of unusual ones.  The usual choices are
// to continue the same thread, and to see the newest store.  Only load buffering of C++'s memory model is not covered.
//
// It finds data races on shared memory, threads that sleep for ever, and failed checks of a scenario.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace explorer {

/// A mutant: a change of the memory orders.
enum class Orders { kAsTheyAre, kNoneSequential, kAllRelaxed };

struct Result {
  uint64_t runs;
  std::string failure;  // empty if there is none
};

/// Run `scenario`, which sets up, adds threads and calls `run`, with all sequences of choices that contain at most
/// `unusual` unusual ones.  Stops at the first failure.
Result explore(const std::function<void()>& scenario, uint32_t unusual, Orders orders);

/// Add a thread to a scenario.  The thread must end, unless it is a `service`, which may still wait at the end.
void add_thread(std::function<void()> body, bool service = false);
/// Run the threads until none can continue.
void run();
/// Wait, in a thread, for a condition; the threads that change it call `announce`.
void wait_until(std::function<bool()> condition);
void announce();
/// End this run with a failure.
[[noreturn]] void fail(const char* what);

}  // namespace explorer
