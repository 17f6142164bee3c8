// Explores how threads may interleave, and which of the stores that C++ allows each load may see.
//
// Explored is the compiled part itself, as g++ compiles it for ThreadSanitizer: explorer_memory.cc takes the place of
// that library and learns of each access to memory.  Threads are coroutines of one thread.  At each atomic operation on
// shared memory the explorer chooses the thread that goes on, and the store that a load sees.  It runs a scenario again
// and again, with all choices of which at most a given number are unusual.  The usual choices are to go on with the
// same thread, and to see the newest store.  Of C++'s memory model, only load buffering is left out.
//
// Found are data races on shared memory, threads that sleep for ever, and what a scenario checks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace explorer {

/// A mutant: how orders of memory are changed.
enum class Orders { kAsTheyAre, kNoneSequential, kAllRelaxed };

struct Result {
  uint64_t runs;
  std::string failure;  // empty if there is none
};

/// Run `scenario`, which sets up, adds threads and calls `run`, with all choices of which at most `unusual` are
/// unusual.  Stops at the first failure.
Result explore(const std::function<void()>& scenario, uint32_t unusual, Orders orders);

/// For scenarios: a thread that has to end, or, of a `service`, one that may be left waiting.
void add_thread(std::function<void()> body, bool service = false);
/// Run the threads until none can go on.
void run();
/// In a thread: wait until other threads have met a condition, which they `announce`.
void wait_until(std::function<bool()> condition);
void announce();
/// End this run, which has failed.
[[noreturn]] void fail(const char* what);

}  // namespace explorer
