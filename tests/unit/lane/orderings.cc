// Scenarios of the lane for the model checker of explorer.h: the counters of shared.h and the rings of channel.h.  Each
// one is checked as it is, and with mutants of the memory orders, which must fail.  Exits with 1 if a scenario fails,
// or a mutant does not.  Argument: the number of additional unusual choices.
#include <cstring>

#include "explorer.h"
#include "job.h"

using namespace lane;
using explorer::add_thread;
using explorer::Orders;

namespace {

std::vector<float> pull(Worker& worker, const std::vector<int64_t>& ids, uint32_t flags) {
  return wait(worker, 0, post(worker, 0, ids, flags), ids.size());
}

/// Two workers push rows of a table; one agent of their host owns all of its partitions, the other agent none.
void rounds(Job& job) {
  job.add_table(0, shape_of(4, {1, 1}));
  for (auto& worker : job.workers) {
    add_thread([&worker = *worker] {
      for (uint32_t step = 1; step <= 2; ++step) {
        push(worker, 0, {0, step});
        check(pull(worker, {0}, 0)[0] == static_cast<float>(2 * step), "a wrong row");
      }
    });
  }
}

/// Uncached pulls, one of which waits for the room of another one.
void pulls(Job& job) {
  job.add_table(0, shape_of(4, {1, 0}));
  for (uint32_t me = 0; me < 3; ++me) {
    add_thread([&worker = *job.workers[me], me] {
      const std::vector<int64_t> remote = {0, 2}, local = {1};
      for (float value : pull(worker, me < 2 ? remote : local, kUncached)) check(value == 0, "a wrong row");
    });
  }
}

/// Uncached pulls of two workers; the second worker starts once the first one has released its rows.
void pulls_in_turn(Job& job) {
  job.add_table(0, shape_of(4, {1, 0}));
  const auto is_released = std::make_shared<bool>(false);
  for (uint32_t me = 0; me < 2; ++me) {
    add_thread([&worker = *job.workers[me], is_released, me] {
      if (me == 1) explorer::wait_until([&] { return *is_released; });
      for (float value : pull(worker, {0, 2}, kUncached)) check(value == 0, "a wrong row");
      *is_released = true;
    });
  }
}

/// Pulls from a dynamic table whose cache has regions of one row: a region is used again when its row was read.
void keyed_pulls(Job& job) {
  job.add_table(0, shape_of(1, {0}, true));
  for (uint32_t me = 0; me < 2; ++me) {
    add_thread([&worker = *job.workers[me], me] {
      check(pull(worker, {me}, 0)[0] == 0, "a wrong row");
      push(worker, 0, std::vector<int64_t>(me == 0, -5));
      for (uint32_t flags : {0U, uint32_t{kUncached}}) check(pull(worker, {-5}, flags)[0] == 1, "a wrong row");
      check(pull(worker, {me + 7}, 0)[0] == 0, "a wrong row");
    });
  }
}

/// Stands in for the engine's callback: count a complete operation.
void count(void*, void* number, const void*) {
  ++*static_cast<uint32_t*>(number);
  explorer::announce();
}

/// Two allreduces of one value of all workers.  On one host the last worker adds up the inputs; between hosts agents do.
void allreduces(Job& job) {
  job.add_allreduce(0, 1);
  for (auto& worker : job.workers) {
    add_thread([&worker = *worker, workers = static_cast<float>(job.workers.size())] {
      WorkerAllreduce::Buffer& buffer = worker.allreduce().buffer(0);
      uint32_t completed = 0;
      for (uint32_t step = 1; step <= 2; ++step) {
        const float value = static_cast<float>(step);
        std::memcpy(buffer.input(), &value, sizeof value);
        buffer.start({count, nullptr, &completed});
        explorer::wait_until([&] { return completed == step; });
        float total;
        std::memcpy(&total, buffer.output(), sizeof total);
        check(total == workers * value, "a wrong sum");
      }
    });
  }
}

/// One worker sends another one arrays through a ring with room for two, then more arrays through the ring with a new
/// tag.
void transfer_arrays(Job& job) {
  constexpr uint32_t kUses = 3;
  constexpr uint64_t kElements = 32;
  job.link();
  for (uint32_t me = 0; me < 2; ++me) {
    add_thread([&worker = *job.workers[me], me] {
      const Box all(sizeof(float), {kElements}, {0, {sizeof(float)}});
      std::vector<float> arrays[kUses];
      for (uint64_t tag = 0; tag < 2; ++tag) {
        const auto transfer = std::make_shared<PersistentTransfer>(worker.channels(), me, tag, Dtype::kFloat32, false,
                                                                   me * kElements * sizeof(float));
        me == 0 ? transfer->send(1, all) : transfer->receive(0, all);
        transfer->open();
        uint32_t completed = 0;
        for (uint32_t use = 0; use < kUses - tag; ++use) {
          arrays[use].assign(kElements, me == 0 ? static_cast<float>(10 * tag + use) : -1.0F);
          char* const data = reinterpret_cast<char*>(arrays[use].data());
          transfer->start(data, data, {count, nullptr, &completed});
        }
        explorer::wait_until([&] { return completed == kUses - tag; });
        for (uint32_t use = 0; use < kUses - tag; ++use) {
          check(arrays[use].back() == static_cast<float>(10 * tag + use), "a wrong transfer");
        }
      }
    });
  }
}

struct Scenario {
  const char* name;
  std::vector<uint32_t> workers, agents;  // of each host
  void (*add_threads)(Job&);
  uint32_t unusual;  // the most unusual choices, see explorer.h
};

void run(const Scenario& scenario) {
  Job job(scenario.workers, scenario.agents);
  for (auto& agent : job.agents) {
    add_thread([&agent = *agent] {
      while (agent.run_once(kFallbackMs)) {
      }
    }, true);
  }
  scenario.add_threads(job);
  explorer::run();
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t more = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 0;
  lane::fail = [](const char* what) { explorer::fail(what); };
  const Scenario scenarios[] = {{"rounds", {2}, {2}, rounds, 2},
                                {"pulls", {3, 1}, {1, 1}, pulls, 1},
                                {"pulls in turn", {2, 1}, {1, 1}, pulls_in_turn, 1},
                                {"keyed pulls", {2}, {1}, keyed_pulls, 1},
                                {"allreduces on a host", {2}, {1}, allreduces, 2},
                                {"allreduces between hosts", {2, 1}, {1, 1}, allreduces, 1},
                                {"rings", {2}, {1}, transfer_arrays, 2},
                                {"rings between hosts", {1, 1}, {1, 1}, transfer_arrays, 1}};
  bool succeeded = true;
  for (const Scenario& scenario : scenarios) {
    for (const Orders orders : {Orders::kAsTheyAre, Orders::kNoneSequential, Orders::kAllRelaxed}) {
      const explorer::Result result =
          explorer::explore([&scenario] { run(scenario); }, scenario.unusual + more, orders);
      const bool is_mutant = orders != Orders::kAsTheyAre;
      std::printf("%s, %s: %s after %llu runs\n", scenario.name,
                  orders == Orders::kAsTheyAre        ? "as it is"
                  : orders == Orders::kNoneSequential ? "nothing sequential"
                                                      : "all relaxed",
                  result.failure.empty() ? "fine" : result.failure.c_str(),
                  static_cast<unsigned long long>(result.runs));
      std::fflush(stdout);
      succeeded = succeeded && result.failure.empty() != is_mutant;
    }
  }
  return succeeded ? 0 : 1;
}
