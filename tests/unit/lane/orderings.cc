// Scenarios of the lane for the model checker of explorer.h: the counters of shared.h and the rings of channel.h.  Each
// one is checked as it is, and with mutants of the memory orders, which must fail.  Exits with 1 if a scenario fails,
// or a mutant does not.  Arguments: the number of additional unusual choices, and the name of a scenario, for it alone.
#include <cstdio>
#include <cstring>
#include <string>

#include "explorer.h"
#include "job.h"

using namespace lane;
using explorer::add_thread;
using explorer::Orders;

namespace {

void serve(Job& job) {
  for (auto& agent : job.agents) {
    add_thread([&agent = *agent] {
      while (agent.run_once(kFallbackMs)) {
      }
    }, true);
  }
}

void add_table(Job& job, uint64_t rows, const std::vector<uint32_t>& owners) {
  TableShape shape;
  shape.rows = rows;
  shape.width = kWidth;
  shape.owners = owners;
  job.add_table(0, shape);
}

std::vector<float> pull(Worker& worker, const std::vector<int64_t>& ids, uint32_t flags) {
  std::vector<float> rows(ids.size() * kWidth, -1);
  const int request = worker.post(0, ids.data(), static_cast<uint32_t>(ids.size()), flags);
  check(worker.wait(0, request, reinterpret_cast<char*>(rows.data()), kLimitMs), "a pull that does not end");
  return rows;
}

/// Two workers push rows of a table; one agent of their host owns all of its partitions, the other agent none.
void rounds() {
  Job job({2}, {2});
  add_table(job, 4, {1, 1});
  serve(job);
  for (auto& worker : job.workers) {
    add_thread([&worker = *worker] {
      const std::vector<float> ones(2 * kWidth, 1);
      for (uint32_t step = 1; step <= 2; ++step) {
        const std::vector<int64_t> ids = {0, step};
        check(worker.push(0, ids.data(), 2, reinterpret_cast<const char*>(ones.data()), kLimitMs), "no push");
        check(pull(worker, {0}, 0)[0] == static_cast<float>(2 * step), "a wrong row");
      }
    });
  }
  explorer::run();
}

/// Uncached pulls, one of which waits for the room of another one.
void pulls() {
  Job job({3, 1}, {1, 1});
  add_table(job, 4, {1, 0});
  serve(job);
  for (uint32_t me = 0; me < 3; ++me) {
    add_thread([&worker = *job.workers[me], me] {
      const std::vector<int64_t> remote = {0, 2}, local = {1};
      for (float value : pull(worker, me < 2 ? remote : local, kUncached)) check(value == 0, "a wrong row");
    });
  }
  explorer::run();
}

/// Uncached pulls of two workers; the second worker starts once the first one has released its rows.
void pulls_in_turn() {
  Job job({2, 1}, {1, 1});
  add_table(job, 4, {1, 0});
  serve(job);
  bool is_released = false;
  for (uint32_t me = 0; me < 2; ++me) {
    add_thread([&worker = *job.workers[me], &is_released, me] {
      if (me == 1) explorer::wait_until([&] { return is_released; });
      for (float value : pull(worker, {0, 2}, kUncached)) check(value == 0, "a wrong row");
      is_released = true;
    });
  }
  explorer::run();
}

/// Pulls from a dynamic table whose cache has regions of one row: a region is used again when its row was read.
void keyed_pulls() {
  Job job({2}, {1});
  TableShape shape;
  shape.width = kWidth;
  shape.dynamic = true;
  shape.max_batch_rows = 1;
  shape.owners = {0};
  job.add_table(0, shape);
  serve(job);
  for (uint32_t me = 0; me < 2; ++me) {
    add_thread([&worker = *job.workers[me], me] {
      const std::vector<float> ones(kWidth, 1);
      const int64_t key = -5;
      check(pull(worker, {me}, 0)[0] == 0, "a wrong row");
      check(worker.push(0, &key, me == 0, reinterpret_cast<const char*>(ones.data()), kLimitMs), "no push");
      for (uint32_t flags : {0U, uint32_t{kUncached}}) check(pull(worker, {key}, flags)[0] == 1, "a wrong row");
      check(pull(worker, {me + 7}, 0)[0] == 0, "a wrong row");
    });
  }
  explorer::run();
}

/// Stands in for the engine's callback: count a complete operation.
void count(void*, void* number, const void*) {
  ++*static_cast<uint32_t*>(number);
  explorer::announce();
}

/// Two allreduces of one value of all workers.
void allreduces(Job& job) {
  job.add_allreduce(0, 1);
  serve(job);
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
  explorer::run();
}

/// Two workers of one host, the last of which adds up their inputs.
void allreduces_on_a_host() {
  Job job({2}, {1});
  allreduces(job);
}

/// Workers of two hosts, whose agents add up their inputs.
void allreduces_between_hosts() {
  Job job({2, 1}, {1, 1});
  allreduces(job);
}

/// One worker sends another one arrays through a ring with room for two, then more arrays through the ring with a new
/// tag.
void transfer_arrays(Job& job) {
  constexpr uint32_t kUses = 3;
  constexpr uint64_t kElements = 32;
  job.link();
  serve(job);
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
  explorer::run();
}

void rings() {
  Job job({2}, {1});
  transfer_arrays(job);
}

void rings_between_hosts() {
  Job job({1, 1}, {1, 1});
  transfer_arrays(job);
}

struct Scenario {
  const char* name;
  void (*run)();
  uint32_t unusual;  // the most unusual choices, see explorer.h
};

}  // namespace

int main(int argc, char** argv) {
  const uint32_t more = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 0;
  const std::string only = argc > 2 ? argv[2] : "";
  lane::fail = [](const char* what) { explorer::fail(what); };
  const Scenario scenarios[] = {{"rounds", rounds, 2},
                                {"pulls", pulls, 1},
                                {"pulls in turn", pulls_in_turn, 1},
                                {"keyed pulls", keyed_pulls, 1},
                                {"allreduces on a host", allreduces_on_a_host, 2},
                                {"allreduces between hosts", allreduces_between_hosts, 1},
                                {"rings", rings, 2},
                                {"rings between hosts", rings_between_hosts, 1}};
  bool succeeded = true;
  for (const Scenario& scenario : scenarios) {
    if (!only.empty() && only != scenario.name) continue;
    for (const Orders orders : {Orders::kAsTheyAre, Orders::kNoneSequential, Orders::kAllRelaxed}) {
      const explorer::Result result = explorer::explore(scenario.run, scenario.unusual + more, orders);
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
