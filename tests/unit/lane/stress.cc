// A stress test with jobs of several hosts: workers push, pull, sum and transfer at random, and compare with the
// results that they compute.  Agents and workers are threads of one process, in which sanitizers see all of them, or
// processes, as in a real job.  Exits with 1 after a wrong result; see test_sanitizers.py.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "job.h"

using namespace lane;

namespace {

/// The numbers of tables: three tables, two dynamic tables, and a table and a dynamic table with staleness.
constexpr uint32_t kTables = 3, kStaleTables = 5, kAllTables = 7, kStaleness = 2;
constexpr uint32_t kSmallAllreduces = 2;

/// Return whether a worker pushes a row in a step; all workers can compute that.
bool pushes(uint32_t worker, uint32_t step, uint64_t row) {
  return (worker * 2654435761U + step * 40503U + static_cast<uint32_t>(row) * 2246822519U) >> 30 == 0;
}

/// The most by which pulled rows may differ from sums: rows that travel as int8 are not exact.
float rounding_error = 0;

/// Stands in for the engine's callback: set the flag of a complete operation.
void set(void*, void* flag, const void*) { static_cast<std::atomic<bool>*>(flag)->store(true); }

void wait_for(const std::atomic<bool>& done, const char* failure) {
  for (int waited = 0; !done.load(); ++waited) {
    check(waited < 10 * kLimitMs, failure);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// Run the allreduces of one worker: several are under way at the same time, the first ones more often.  In every third
/// step they are reduce-scatters, and each worker doubles its range and gathers the ranges of all.
void run_allreduces(Job& job, uint32_t me, const std::vector<uint32_t>& sizes, uint32_t steps) {
  Worker& worker = *job.workers[me];
  std::vector<std::atomic<bool>> done(sizes.size());
  for (uint32_t step = 0; step < steps; ++step) {
    const bool gathers = step % 3 == 2;
    const uint32_t count = step < steps / 4 ? static_cast<uint32_t>(sizes.size()) : kSmallAllreduces;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t which = me % 2 ? i : count - 1 - i;
      WorkerAllreduce::Buffer& buffer = worker.allreduce().buffer(which);
      float* values = reinterpret_cast<float*>(buffer.input());
      for (uint32_t k = 0; k < sizes[which]; ++k) values[k] = static_cast<float>((me + k + step) % 7);
      done[which].store(false);
      buffer.start({set, nullptr, &done[which]}, gathers ? AllreduceKind::kScatter : AllreduceKind::kSum);
    }
    for (uint32_t which = 0; which < count && gathers; ++which) {
      wait_for(done[which], "a sum that does not end");
      WorkerAllreduce::Buffer& buffer = worker.allreduce().buffer(which);
      const float* sums = reinterpret_cast<const float*>(buffer.output());
      float* values = reinterpret_cast<float*>(buffer.input());
      const std::vector<uint64_t> ends = job.ends(sizes[which]);
      for (uint64_t k = me == 0 ? 0 : ends[me - 1]; k < ends[me]; ++k) values[k] = 2 * sums[k];
      done[which].store(false);
      buffer.start({set, nullptr, &done[which]}, AllreduceKind::kGather);
    }
    for (uint32_t which = 0; which < count; ++which) {
      wait_for(done[which], "a sum that does not end");
      const float* sums = reinterpret_cast<const float*>(worker.allreduce().buffer(which).output());
      for (uint32_t k = 0; k < sizes[which]; k += 1 + sizes[which] / 100) {
        float expected = 0;
        for (uint32_t other = 0; other < job.workers.size(); ++other) {
          expected += static_cast<float>((other + k + step) % 7);
        }
        if (gathers) expected *= 2;
        check(sums[k] == expected, "a wrong sum");
      }
    }
  }
}

/// Run the transfers of one worker: each worker sends its array to all others, every second row first, and adds up the
/// arrays that it receives.
void transfer_arrays(Job& job, uint32_t me, const std::vector<uint32_t>& sizes, uint32_t steps) {
  const uint32_t count = static_cast<uint32_t>(job.workers.size());
  std::mt19937 random(me);
  std::vector<std::shared_ptr<PersistentTransfer>> transfers;
  for (uint32_t which = 0; which < sizes.size(); ++which) {
    const uint64_t half = sizes[which] / 2;
    const Box first(sizeof(float), {half}, {0, {2 * sizeof(float)}}), all(sizeof(float), {2 * half},
                                                                          {0, {sizeof(float)}});
    transfers.push_back(std::make_shared<PersistentTransfer>(job.workers[me]->channels(), me, which, Dtype::kFloat32,
                                                             which % 2 == 0, 2 * half * sizeof(float)));
    PersistentTransfer& transfer = *transfers.back();
    for (uint32_t other = 0; other < count; ++other) {
      if (other == me) {
        const Box::Position start{0, {sizeof(float)}};
        transfer.copy_local(Box(sizeof(float), {2 * half}, start, start), all);
      } else {
        transfer.send(other, first);
        transfer.send(other, all);
        transfer.receive(other, first);
        transfer.receive(other, all);
      }
    }
    transfer.open();
  }
  struct Use {
    uint32_t which, step;
    std::vector<float> source, target;
    std::atomic<bool> done{false};
  };
  std::vector<std::unique_ptr<Use>> uses;
  for (uint32_t step = 0; step < steps; ++step) {
    std::vector<uint32_t> order(sizes.size());
    for (uint32_t which = 0; which < order.size(); ++which) order[which] = which;
    std::shuffle(order.begin(), order.end(), random);
    for (uint32_t which : order) {
      uses.push_back(std::make_unique<Use>());
      Use& use = *uses.back();
      use.which = which;
      use.step = step;
      use.source.assign(sizes[which] / 2 * 2, static_cast<float>(which % 2 ? step : me + step));
      use.target.assign(sizes[which] / 2 * 2, -1);
      transfers[which]->start(reinterpret_cast<const char*>(use.source.data()),
                              reinterpret_cast<char*>(use.target.data()), {set, nullptr, &use.done});
    }
    const size_t max_uses = step + 1 < steps ? random() % 2 * 2 * sizes.size() : 0;
    while (uses.size() > max_uses) {  // up to three steps are under way
      Use& use = *uses.front();
      wait_for(use.done, "a transfer that does not end");
      // The sums of the elements that are sent once and twice, which are the even ones.
      float once = static_cast<float>(use.step), twice = once;
      for (uint32_t other = 0; use.which % 2 == 0 && other < count; ++other) {
        const float value = static_cast<float>(other + use.step);
        once = (other == 0 ? 0 : once) + value;
        twice = (other == 0 ? 0 : twice) + (other == me ? value : 2 * value);
      }
      for (uint32_t k = 0; k < use.target.size(); ++k) {
        check(use.target[k] == (k % 2 ? once : twice), "a wrong transfer");
      }
      uses.erase(uses.begin());
    }
  }
}

bool is_stale(uint32_t table) { return table >= kStaleTables; }
bool is_dynamic(uint32_t table) { return is_stale(table) ? table > kStaleTables : table >= kTables; }
uint64_t rows_of(uint32_t table) { return 61 + 20 * table; }

/// The work of one worker with the rows of a table: in every step it pushes, and reads random rows.  In a dynamic table
/// the rows have keys in their order, from far below 0 to far above.
class TableWork {
 public:
  TableWork(Job& job, uint32_t me, uint32_t table)
      : job_(job),
        me_(me),
        table_(table),
        staleness_(is_stale(table) ? kStaleness : 0),
        random_(me),
        expected_(staleness_ + 1, std::vector<float>(rows_of(table), 0)),
        last_own_(rows_of(table), 0) {}

  void run_step(uint32_t step) {
    std::vector<uint64_t> pushed, ahead;
    expected_.push_back(expected_.back());
    expected_.pop_front();
    for (uint64_t row = 0; row < rows_of(table_); ++row) {
      if (pushes(me_, step, row)) {
        pushed.push_back(row);
        last_own_[row] = step + 1;
      } else if (random_() % 2) {
        ahead.push_back(row);
      }
      for (uint32_t other = 0; other < job_.workers.size(); ++other) expected_.back()[row] += pushes(other, step, row);
    }
    // A request for rows that the worker uses after the next push, and does not push.
    const int early = is_stale(table_) ? post(worker(), table_, ids_of(ahead), 0, staleness_ - 1, 1) : -1;
    push(worker(), table_, ids_of(pushed));
    if (!is_stale(table_) && step % 3 == 1) return;  // pushes without pulls
    const uint32_t kinds[] = {0, 0, kUncached, kFence};
    for (uint32_t i = 0; i <= kStaleness; ++i) {
      const uint32_t flags = is_stale(table_) ? 0 : kinds[random_() % 4], staleness = std::min(i, staleness_);
      const std::vector<uint64_t> rows = random_rows(flags);
      finish(rows, post(worker(), table_, ids_of(rows), flags, staleness), staleness, step);
    }
    if (is_stale(table_)) finish(ahead, early, staleness_, step);
  }

 private:
  Worker& worker() { return *job_.workers[me_]; }

  std::vector<int64_t> ids_of(const std::vector<uint64_t>& rows) const {
    std::vector<int64_t> ids(rows.begin(), rows.end());
    const int64_t middle = static_cast<int64_t>(rows_of(table_) / 2);
    for (int64_t& id : ids) id = is_dynamic(table_) ? (id - middle) * (int64_t{1} << 56) : id;
    return ids;
  }

  std::vector<uint64_t> random_rows(uint32_t flags) {
    std::vector<uint64_t> rows;
    for (uint64_t row = 0; row < rows_of(table_) && flags != kFence; ++row) {
      // Uncached pulls are large: those of several workers of a host wait for room.
      if (flags == kUncached ? random_() % 4 : random_() % 3 == 0) rows.push_back(row);
    }
    return rows;
  }

  void finish(const std::vector<uint64_t>& rows, int request, uint32_t staleness, uint32_t step) {
    const std::vector<float> pulled = wait(worker(), table_, request, rows.size());
    for (size_t k = 0; k < pulled.size(); ++k) {
      const uint64_t row = rows[k / kWidth];
      bool is_right = false;
      for (uint32_t lag = 0; lag <= std::min(staleness, step + 1 - last_own_[row]); ++lag) {
        is_right = is_right || std::abs(pulled[k] - expected_[staleness_ - lag][row]) <= rounding_error;
      }
      check(is_right, "a wrong row, or one that lacks too much");
    }
  }

  Job& job_;
  const uint32_t me_, table_, staleness_;
  std::mt19937 random_;
  /// The rows after the last pushes, the oldest first.
  std::deque<std::vector<float>> expected_;
  /// The number of pushes at the last push of each row by this worker.
  std::vector<uint32_t> last_own_;
};

/// The largest arrays have several chunks of a sum for each of two hosts, and several messages of a transfer.
const std::vector<uint32_t> kAllreduceSizes = {1, 100, 40000, 135000},
                            kTransferSizes = {2, 3, 1000, 5000, 50000, 120000};

void set_up(Job& job, RowFormat format) {
  const uint32_t agents = static_cast<uint32_t>(job.agents.size());
  for (uint32_t table = 0; table < kAllTables; ++table) {
    std::vector<uint32_t> owners(is_stale(table) ? 3 : 1 + 3 * (table % kTables));
    for (uint32_t part = 0; part < owners.size(); ++part) {
      // One agent owns all of table 2: the other agents of its host handle none of it.
      owners[part] = table == kTables - 1 ? agents - 1 : (part + is_dynamic(table)) % agents;
    }
    TableShape shape = shape_of(rows_of(table), owners, is_dynamic(table));
    // Small integers are exact as float16, and nearly as int8.
    shape.format = is_stale(table) && format == RowFormat::kInt8 ? RowFormat::kExact : format;
    shape.staleness = is_stale(table) ? kStaleness : 0;
    job.add_table(table, shape);
  }
  for (uint32_t which = 0; which < kAllreduceSizes.size(); ++which) job.add_allreduce(which, kAllreduceSizes[which]);
  job.link();
}

/// Do all work of one worker.
void work(Job& job, uint32_t me, uint32_t steps) {
  std::thread table_thread([&job, me, steps] {
    // Table 2 follows table 0, which wakes agents that handle none of table 2.
    std::vector<TableWork> tables;
    for (uint32_t table : {1, 3, 0, 2, 4, 5, 6}) tables.emplace_back(job, me, table);
    for (uint32_t step = 0; step < steps; ++step) {
      for (TableWork& table : tables) table.run_step(step);
    }
  });
  std::thread allreduce_thread([&job, me, steps] { run_allreduces(job, me, kAllreduceSizes, steps); });
  transfer_arrays(job, me, kTransferSizes, steps / 2);
  allreduce_thread.join();
  table_thread.join();
}

void run_in_threads(Job& job, uint32_t steps) {
  for (auto& agent : job.agents) agent->start();
  std::vector<std::thread> threads;
  for (uint32_t me = 0; me < job.workers.size(); ++me) threads.emplace_back(work, std::ref(job), me, steps);
  for (auto& thread : threads) thread.join();
  for (uint32_t table : {0, 3}) {
    for (auto& worker : job.workers) worker->drop_table(table);
    for (auto& agent : job.agents) agent->drop_table(table);
  }
  for (auto& agent : job.agents) check(agent->close(kLimitMs), "an agent that does not end");
}

/// Fork a process that calls a function and then exits with 0.
template <typename Function>
pid_t fork_process(Function function) {
  const pid_t process = fork();
  check(process >= 0, "fork");
  if (process > 0) return process;
  function();
  std::_Exit(0);
}

void run_in_processes(Job& job, uint32_t steps) {
  int end[2];
  check(pipe(end) == 0, "pipe");
  std::vector<pid_t> agents, workers;
  for (auto& agent : job.agents) {
    agents.push_back(fork_process([&] {
      close(end[1]);
      agent->start();
      char byte;
      check(read(end[0], &byte, 1) == 0, "read");  // until workers have ended
      check(agent->close(kLimitMs), "an agent that does not end");
    }));
  }
  for (uint32_t me = 0; me < job.workers.size(); ++me) {
    workers.push_back(fork_process([&] {
      close(end[1]);
      work(job, me, steps);
    }));
  }
  close(end[0]);
  const auto succeeds = [](pid_t process) {
    int status = 1;
    return waitpid(process, &status, 0) == process && status == 0;
  };
  bool all_succeeded = true;
  for (pid_t worker : workers) all_succeeded = succeeds(worker) && all_succeeded;
  for (pid_t agent : agents) {
    if (!all_succeeded) kill(agent, SIGKILL);
  }
  close(end[1]);
  for (pid_t agent : agents) all_succeeded = succeeds(agent) && all_succeeded;
  check(all_succeeded, "a process failed");
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t steps = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 20;
  const bool in_processes = argc > 2 && std::string(argv[2]) == "processes";
  const std::vector<std::pair<std::vector<uint32_t>, std::vector<uint32_t>>> shapes = {
      {{1}, {1}}, {{3}, {2}}, {{1, 1}, {1, 1}}, {{2, 3}, {1, 2}}, {{2, 1, 2}, {1, 1, 1}}, {{2, 0}, {1, 1}}};
  for (const auto& [workers, agents] : shapes) {
    for (const RowFormat format : {RowFormat::kExact, workers.size() == 2 ? RowFormat::kInt8 : RowFormat::kFloat16}) {
      rounding_error = format == RowFormat::kInt8 ? 0.01f : 0.0f;
      Job job(workers, agents);
      set_up(job, format);
      in_processes ? run_in_processes(job, steps) : run_in_threads(job, steps);
    }
  }
}
