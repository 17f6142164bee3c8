// Threads and choices.
#include <cstdlib>
#include <exception>

#include "explorer_run.h"

namespace explorer {
namespace {

struct Choice {
  uint32_t taken, options;
};

std::vector<Choice> choices;
ucontext_t driver, escape;  // `escape` leaves a run that has failed
std::string failure;

bool is_ready(Thread& thread) { return !thread.done && (!thread.can_go_on || thread.can_go_on()); }

void go_on_with(Thread* next) {
  Run& run = *at_hand;
  Thread* const before = run.current;
  if (before == next) return;
  run.current = next;
  swapcontext(before ? &before->context : &driver, next ? &next->context : &driver);
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

}  // namespace

std::unique_ptr<Run> at_hand;
Orders orders;

uint32_t id_of(const Thread* thread) {
  for (uint32_t i = 0; i < at_hand->threads.size(); ++i) {
    if (at_hand->threads[i].get() == thread) return i;
  }
  return 0;
}

void release(View& to) {
  View& view = at_hand->current->view;
  to.join(view);
  ++view.clock[id_of(at_hand->current)];
}

uint32_t choose(size_t options) {
  Run& run = *at_hand;
  if (options < 2 || !run.exploring || run.left == 0) return 0;
  if (run.position == choices.size()) choices.push_back({0, static_cast<uint32_t>(options)});
  const uint32_t taken = choices[run.position++].taken;
  if (taken > 0) --run.left;
  return taken;
}

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

void fail(const char* what) {
  failure = what;
  at_hand->current = nullptr;
  setcontext(&escape);
  std::abort();
}

void add_thread(std::function<void()> body, bool service) {
  Run& run = *at_hand;
  run.threads.push_back(std::make_unique<Thread>());
  Thread& thread = *run.threads.back();
  thread.body = std::move(body);
  thread.service = service;
  if (run.current) {
    thread.view = run.current->view;
    ++run.current->view.clock[id_of(run.current)];
  }
  View::at(thread.view.clock, run.threads.size() - 1) = 1;
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStack;
  makecontext(&thread.context, start, 0);
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
    // A failure returns here, and leaves the objects of the run as they are.
    volatile bool begun = false;
    getcontext(&escape);
    if (!begun) {
      begun = true;
      body();
      failed = false;
    }
    if (failed) {
      new std::unique_ptr<Run>(std::move(at_hand));  // leaked: its threads have not ended
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
