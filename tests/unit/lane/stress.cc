// Jobs of several hosts in one process: workers push and pull at random and compare with what they know must come out.
// For sanitizers, see test_sanitizers.py.  Ends with 1 where something else comes out.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "worker.h"

using namespace lane;

namespace {

constexpr int kLimitMs = 60000;
constexpr uint32_t kWidth = 3;

void check(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

/// Whether a worker pushes a row in a step, which all can tell.
bool pushes(uint32_t worker, uint32_t step, uint64_t row) {
  return (worker * 2654435761U + step * 40503U + static_cast<uint32_t>(row) * 2246822519U) >> 30 == 0;
}

struct Job {
  Job(const std::vector<uint32_t>& workers_on, const std::vector<uint32_t>& nodes_on) {
    for (uint32_t host = 0; host < nodes_on.size(); ++host) roster.hosts.insert(roster.hosts.end(), nodes_on[host], host);
    roster.workers = workers_on;
    for (uint32_t number = 0; number < roster.hosts.size(); ++number) {
      nodes.push_back(std::make_unique<Node>(number, roster, [](uint32_t, uint32_t, const List&) {},
                                             [](const std::string& why) { check(false, why.c_str()); }));
      for (uint32_t other = 0; other < number; ++other) {
        if (roster.hosts[other] == roster.hosts[number]) continue;
        int pair[2];
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
        // What is sent stays with its sender for a while, as on a slow link.
        const int little = 4096;
        for (int end : pair) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
        nodes[number]->connect(other, pair[0]);
        nodes[other]->connect(number, pair[1]);
      }
    }
    for (uint32_t host = 0; host < workers_on.size(); ++host) {
      for (uint32_t local = 0; local < workers_on[host]; ++local) {
        workers.push_back(std::make_unique<Worker>(roster, host));
        hosts.push_back(host);
        locals.push_back(local);
        for (uint32_t node : roster.nodes_of(host)) {
          nodes[node]->add_worker(local, workers.back()->block().descriptor());
          workers.back()->add_node(node, dup(nodes[node]->bell()), nodes[node]->block().descriptor());
        }
      }
    }
    for (auto& node : nodes) node->start();
  }

  void add_sum(uint32_t number, uint32_t size) {
    for (size_t i = 0; i < workers.size(); ++i) {
      const uint32_t node = workers[i]->sums_node(number);
      const int mine = workers[i]->sums().open(number, workers[i]->position(node), Dtype::kFloat32, size);
      const int theirs = nodes[node]->open_sum(number, locals[i], Dtype::kFloat32, size, mine);
      workers[i]->sums().attach(number, theirs);
      close(theirs);
    }
  }

  /// Ways between all workers.
  void link() {
    constexpr size_t kRoomOfTests = 1 << 25;
    std::vector<std::vector<int>> inboxes(workers.size(), std::vector<int>(workers.size(), -1));
    for (uint32_t me = 0; me < workers.size(); ++me) {
      for (uint32_t other = 0; other < workers.size(); ++other) {
        if (other == me) continue;
        const int inbox = workers[me]->moves()->open_inbox(other, kRoomOfTests);
        if (hosts[other] == hosts[me]) {
          inboxes[me][other] = dup(inbox);
          continue;
        }
        Node& node = *nodes[workers[me]->ways_node(me, other)];
        node.open_way(locals[me], false, other, me, hosts[other], inbox);
        node.open_way(locals[me], true, me, other, hosts[other], workers[me]->moves()->open_outbox(other, kRoomOfTests));
      }
    }
    for (uint32_t me = 0; me < workers.size(); ++me) {
      for (uint32_t other = 0; other < workers.size(); ++other) {
        if (other == me) continue;
        if (hosts[other] != hosts[me]) {
          workers[me]->moves()->link_by_node(other, workers[me]->position(workers[me]->ways_node(me, other)));
          continue;
        }
        workers[me]->moves()->link(other, inboxes[other][me], workers[other]->block().descriptor());
        close(inboxes[other][me]);
      }
    }
  }

  void add_table(uint32_t number, const TableShape& shape) {
    for (auto& node : nodes) node->add_table(number, shape);
    for (size_t i = 0; i < workers.size(); ++i) {
      const int mine = workers[i]->add_table(number, shape);
      for (uint32_t node : roster.nodes_of(hosts[i])) {
        nodes[node]->attach(number, locals[i], mine);
        workers[i]->attach(number, node, nodes[node]->table_descriptor(number));
      }
    }
    Rule rule;
    rule.kind = Kind::kSgd;
    rule.lr = 1;
    rule.rescale = -1;
    for (uint32_t part = 0; part < shape.partitions(); ++part) {
      nodes[shape.owners[part]]->set_rule(number, part, rule);
    }
  }

  Roster roster;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<uint32_t> hosts, locals;
};

/// What MXNet's engine would do once a sum is there.
void set(void*, void* there, const void*) { static_cast<std::atomic<bool>*>(there)->store(true); }

/// What one worker does with dense sums: several are under way at the same time.
void add_up(Job& job, uint32_t me, const std::vector<uint32_t>& sizes, uint32_t steps) {
  Worker& worker = *job.workers[me];
  std::vector<std::atomic<bool>> there(sizes.size());
  for (uint32_t step = 0; step < steps; ++step) {
    for (uint32_t i = 0; i < sizes.size(); ++i) {
      const uint32_t which = me % 2 ? i : static_cast<uint32_t>(sizes.size()) - 1 - i;
      WorkerSums::Sum& sum = worker.sums().sum(which);
      float* values = reinterpret_cast<float*>(sum.given());
      for (uint32_t k = 0; k < sizes[which]; ++k) values[k] = static_cast<float>((me + k + step) % 7);
      there[which].store(false);
      sum.begin({set, nullptr, &there[which]});
    }
    for (uint32_t which = 0; which < sizes.size(); ++which) {
      for (int waited = 0; !there[which].load(); ++waited) {
        check(waited < 10 * kLimitMs, "a sum that does not end");
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      const float* found = reinterpret_cast<const float*>(worker.sums().sum(which).total());
      for (uint32_t k = 0; k < sizes[which]; k += 1 + sizes[which] / 100) {
        float expected = 0;
        for (uint32_t other = 0; other < job.workers.size(); ++other) {
          expected += static_cast<float>((other + k + step) % 7);
        }
        check(found[k] == expected, "a wrong sum");
      }
    }
  }
}

/// What one worker does with moves: each gives all others all it has, of which every second row goes first, and adds up.
void move_about(Job& job, uint32_t me, const std::vector<uint32_t>& sizes, uint32_t steps) {
  const uint32_t count = static_cast<uint32_t>(job.workers.size());
  std::mt19937 random(me);
  std::vector<std::shared_ptr<Move>> moves;
  for (uint32_t which = 0; which < sizes.size(); ++which) {
    const uint64_t half = sizes[which] / 2;
    const Box first(sizeof(float), {half}, {0, {2 * sizeof(float)}}), all(sizeof(float), {2 * half},
                                                                          {0, {sizeof(float)}});
    moves.push_back(std::make_shared<Move>(job.workers[me]->moves(), me, which, Element::kFloat32, which % 2 == 0,
                                           2 * half * sizeof(float)));
    Move& move = *moves.back();
    for (uint32_t other = 0; other < count; ++other) {
      if (other == me) {
        move.keep(Box(sizeof(float), {2 * half}, {0, {sizeof(float)}}, {0, {sizeof(float)}}));
      } else {
        move.send(other, first);
        move.send(other, all);
        move.receive(other, first);
        move.receive(other, all);
      }
    }
    move.open();
  }
  struct Use {
    uint32_t which, step;
    std::vector<float> source, target;
    std::atomic<bool> there{false};
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
      moves[which]->begin(reinterpret_cast<const char*>(use.source.data()), reinterpret_cast<char*>(use.target.data()),
                          {set, nullptr, &use.there});
    }
    const size_t most = step + 1 < steps ? random() % 2 * 2 * sizes.size() : 0;
    while (uses.size() > most) {  // up to three steps are under way
      Use& use = *uses.front();
      for (int waited = 0; !use.there.load(); ++waited) {
        check(waited < 10 * kLimitMs, "a move that does not end");
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      for (uint32_t k = 0; k < use.target.size(); ++k) {
        float expected = static_cast<float>(use.step);
        for (uint32_t other = 0; use.which % 2 == 0 && other < count; ++other) {
          const float value = static_cast<float>(other + use.step);
          expected = (other == 0 ? 0 : expected) + (other == me ? value : k % 2 ? value : 2 * value);
        }
        check(use.target[k] == expected, "a wrong move");
      }
      uses.erase(uses.begin());
    }
  }
}

/// What one worker does with rows: every step it pushes, and reads random rows.
void train(Job& job, uint32_t me, uint32_t table, uint64_t rows, uint32_t steps) {
  Worker& worker = *job.workers[me];
  std::mt19937 random(me);
  std::vector<float> expected(rows, 0);
  for (uint32_t step = 0; step < steps; ++step) {
    std::vector<int64_t> ids;
    for (uint64_t row = 0; row < rows; ++row) {
      if (pushes(me, step, row)) ids.push_back(static_cast<int64_t>(row));
      for (uint32_t other = 0; other < job.workers.size(); ++other) expected[row] += pushes(other, step, row);
    }
    const std::vector<float> ones(ids.size() * kWidth, 1);
    check(worker.push(table, ids.data(), static_cast<uint32_t>(ids.size()), reinterpret_cast<const char*>(ones.data()),
                      kLimitMs), "a push that does not end");
    const uint32_t kinds[] = {0, 0, kExact, kFence};
    for (uint32_t i = 0; i < 3; ++i) {
      const uint32_t flags = kinds[random() % 4];
      ids.clear();
      for (uint64_t row = 0; row < rows && flags != kFence; ++row) {
        if (random() % 3 == 0) ids.push_back(static_cast<int64_t>(row));
      }
      std::vector<float> found(ids.size() * kWidth, -1);
      const int ticket = worker.ask(table, ids.data(), static_cast<uint32_t>(ids.size()), flags);
      check(ticket >= 0, "no ticket");
      check(worker.take(table, ticket, reinterpret_cast<char*>(found.data()), kLimitMs), "a pull that does not end");
      for (size_t k = 0; k < found.size(); ++k) check(found[k] == expected[ids[k / kWidth]], "a wrong row");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t steps = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 20;
  const std::vector<std::pair<std::vector<uint32_t>, std::vector<uint32_t>>> shapes = {
      {{1}, {1}}, {{3}, {2}}, {{1, 1}, {1, 1}}, {{2, 3}, {1, 2}}, {{2, 1, 2}, {1, 1, 1}}, {{2, 0}, {1, 1}}};
  for (const auto& [workers, nodes] : shapes) {
    for (const bool halves : {false, true}) {
      Job job(workers, nodes);
      for (uint32_t table = 0; table < 2; ++table) {
        TableShape shape;
        shape.rows = 61 + 40 * table;
        shape.width = kWidth;
        shape.halves = halves;  // small whole numbers come through unchanged
        for (uint32_t part = 0; part < 1 + 3 * table; ++part) {
          shape.owners.push_back(part % static_cast<uint32_t>(job.nodes.size()));
        }
        job.add_table(table, shape);
      }
      const std::vector<uint32_t> sizes = {1, 40000, 100, 150000};
      for (uint32_t which = 0; which < sizes.size(); ++which) job.add_sum(which, sizes[which]);
      const std::vector<uint32_t> moved = {2, 3, 1000, 5000, 100000, 300000};
      job.link();
      std::vector<std::thread> threads;
      for (uint32_t me = 0; me < job.workers.size(); ++me) {
        threads.emplace_back([&job, me, steps] {
          for (uint32_t table = 0; table < 2; ++table) train(job, me, table, 61 + 40 * table, steps);
        });
        threads.emplace_back([&job, &sizes, me, steps] { add_up(job, me, sizes, steps / 4); });
        threads.emplace_back([&job, &moved, me, steps] { move_about(job, me, moved, steps / 2); });
      }
      for (auto& thread : threads) thread.join();
      for (auto& worker : job.workers) worker->drop_table(0);
      for (auto& node : job.nodes) node->drop_table(0);
      for (auto& node : job.nodes) check(node->close(kLimitMs), "a node that does not end");
    }
  }
  std::puts("all rows are right");
  return 0;
}
