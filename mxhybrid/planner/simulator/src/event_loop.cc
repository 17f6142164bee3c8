// Tasks taken one after the other: what event_loop.py does, to the last bit, and faster.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "task_table.h"

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// What sums of many numbers may be too large by, as event_loop.py has it.
constexpr double kRounded = 1 - 1e-9;

// As timeline.py's EVENT.
struct Event {
  double ready, start, end;
  int32_t place, needs;
};

struct State {
  double free, express_free, level;
};

}  // namespace

// As native_event_loop.py's structures of the same names.
extern "C" {

struct PlannerRates {
  const double* rate;
  const double* peak;
  const double* burst;
  // By resource, the number of its group; -1 for none.
  const int32_t* group;
  // By group, then by number of resources that are busy, from 0 on and less than `width`: the share of their rates.
  const double* slowed;
  int64_t resources, width;
};

struct PlannerTimeline {
  Event* events;
  int64_t* taken;
  double* last;
  State* states;
  int64_t* snapshots;
  double* finish;
  int64_t stride, most_snapshots;
};
}

namespace {

class Buckets {
 public:
  Buckets(const PlannerRates& rates, const State* state) {
    for (int64_t one = 0; one < rates.resources; ++one) {
      const double burst = rates.burst[one];
      const State found = state ? state[one] : State{0.0, 0.0, burst};
      all_.push_back({rates.rate[one], rates.peak[one], burst, found, 0.0});
      const int32_t group = rates.group[one];
      groups_.push_back(group);
      if (group < 0) continue;
      if (static_cast<size_t>(group) >= members_.size()) members_.resize(group + 1);
      members_[group].push_back(static_cast<int32_t>(one));
    }
    slowed_ = rates.slowed;
    width_ = rates.width;
  }

  void save(State* state) const {
    for (const TokenBucket& one : all_) *state++ = one.state;
  }

  // A task is to come.
  void expect(const Task& task) {
    if (task.resource < 0 || task.express) return;
    all_[task.resource].left += task.work;
    if (task.second >= 0) all_[task.second].left += task.work;
  }

  // Of all that is to come, when the last end is at least.
  double least_end() const {
    double found = 0.0;
    for (const TokenBucket& one : all_) found = std::max(found, one.least_end());
    return found;
  }

  // A task that was expected is taken; when the last end is at least, of its resources.
  double least_end_after(const Task& task) {
    if (task.resource < 0 || task.express) return 0.0;
    all_[task.resource].left -= task.work;
    const double found = all_[task.resource].least_end();
    if (task.second < 0) return found;
    all_[task.second].left -= task.work;
    return std::max(found, all_[task.second].least_end());
  }

  // When a resource is free for tasks at a gate of it; see ReadyTasks.
  double free(int64_t gate) const { return all_[gate / 2].free(gate % 2); }

  // Of the resources of a task with two, the gate of the one that is free later.
  int64_t later_gate(const Task& task) const {
    const int64_t one = 2 * task.resource + task.express, second = 2 * task.second + task.express;
    return free(second) > free(one) ? second : one;
  }

  // Fills in the start and the end of a task that is ready.
  void take(const Task& task, Event& event) {
    if (task.resource < 0) {
      event.start = event.end = event.ready;
      return;
    }
    TokenBucket& one = all_[task.resource];
    TokenBucket* second = task.second < 0 ? nullptr : &all_[task.second];
    double start = std::max(event.ready, one.free(task.express));
    if (second) start = std::max(start, second->free(task.express));
    const double level = one.level_at(start), second_level = second ? second->level_at(start) : 0.0;
    double seconds = one.seconds(level, task.work);
    if (second) seconds = std::max(seconds, second->seconds(second_level, task.work));
    if (groups_[task.resource] >= 0 && !second && !task.express) seconds = slowed_seconds(task.resource, start, seconds);
    event.start = start;
    event.end = start + seconds;
    one.give(level, start, seconds, task);
    if (second) second->give(second_level, start, seconds, task);
  }

 private:
  struct TokenBucket {
    double rate, peak, burst;
    State state;
    // Work of tasks to come, but for express ones, which are done beside others.
    double left;

    // What is in the bucket goes at once, and the rest as it fills up.
    double least_end() const {
      return left > state.level ? (state.free + (left - state.level) / rate) * kRounded : 0.0;
    }

    double free(bool express) const { return express ? state.express_free : state.free; }

    // Filled up since it was last used.
    double level_at(double start) const {
      if (!(start > state.free)) return state.level;
      return std::min(burst, state.level + (start - state.free) * rate);
    }

    double seconds(double level, double work) const {
      if (level <= 0) return work / rate;
      const double lasts = level / (peak - rate), seconds = work / peak;
      return seconds <= lasts ? seconds : lasts + (work - lasts * peak) / rate;
    }

    void give(double level, double start, double seconds, const Task& task) {
      // What came in, without what went out.
      if (burst > 0) state.level = std::min(burst, std::max(0.0, level + rate * seconds - task.work));
      if (task.express) {
        state.express_free = start + seconds;
        state.free = std::max(state.free, start) + seconds;
      } else {
        state.free = start + seconds;
      }
    }
  };

  // When a resource is free, or what it has left to do, and its number.
  using Part = std::pair<double, int32_t>;

  // What a task takes that begins now on a resource of a group; see event_loop.py, which has the same sums.
  double slowed_seconds(int32_t one, double start, double seconds) {
    const double* const shares = slowed_ + groups_[one] * width_;
    busy_.clear();
    for (const int32_t other : members_[groups_[one]]) {
      if (other != one && all_[other].state.free > start) busy_.emplace_back(all_[other].state.free, other);
    }
    std::sort(busy_.begin(), busy_.end());
    left_.clear();
    left_.emplace_back(seconds, one);
    double now = start, work = 0.0;
    for (size_t number = 0; number < busy_.size(); ++number) {
      work += (busy_[number].first - now) * shares[busy_.size() - number];
      now = busy_[number].first;
      left_.emplace_back(work, busy_[number].second);
    }
    std::sort(left_.begin(), left_.end());
    now = start;
    work = 0.0;
    double found = 0.0;
    for (size_t number = 0; number < left_.size(); ++number) {
      now += (left_[number].first - work) / shares[left_.size() - number];
      work = left_[number].first;
      if (left_[number].second == one) {
        found = now - start;
      } else {
        all_[left_[number].second].state.free = now;
      }
    }
    return found;
  }

  std::vector<TokenBucket> all_;
  // By resource, its group, and by group its resources; shares as PlannerRates has them.
  std::vector<int32_t> groups_;
  std::vector<std::vector<int32_t>> members_;
  const double* slowed_ = nullptr;
  int64_t width_ = 0;
  // Of the last call.
  std::vector<Part> busy_, left_;
};

// When something is ready, then its order, as one number: doubles of at least 0 are in the order of their bits.
using Rank = unsigned __int128;

struct Waiting {
  Rank rank;
  int64_t task;

  static Waiting make(double ready, int64_t order, int64_t number) {
    uint64_t bits;
    std::memcpy(&bits, &ready, sizeof(bits));
    return {static_cast<Rank>(bits) << 64 | static_cast<uint64_t>(order), number};
  }

  double ready() const {
    const uint64_t bits = static_cast<uint64_t>(rank >> 64);
    double found;
    std::memcpy(&found, &bits, sizeof(found));
    return found;
  }
};

// Tasks that are ready, the first one on top.  The compiler makes no branch of which of two comes first, which a
// processor could not guess: that is what std::push_heap and std::pop_heap lose a third of the time with.
class Queue {
 public:
  bool empty() const { return all_.empty(); }
  const Waiting& front() const { return all_.front(); }

  // Another one in the place of the first, or that one later.
  void replace_front(const Waiting& front) {
    size_t hole = 0, child = 1;
    while (child < all_.size()) {
      if (child + 1 < all_.size()) child += all_[child + 1].rank < all_[child].rank;
      if (front.rank <= all_[child].rank) break;
      all_[hole] = all_[child];
      hole = child;
      child = 2 * hole + 1;
    }
    all_[hole] = front;
  }

  void push(const Waiting& added) {
    all_.push_back(added);
    rise(all_.size() - 1, added);
  }

  Waiting pop() {
    const Waiting first = all_.front();
    const Waiting last = all_.back();
    all_.pop_back();
    const size_t size = all_.size();
    if (size == 0) return first;
    // The hole goes down to a leaf, the last one comes there and, rarely, goes up.
    size_t hole = 0, child = 1;
    while (child + 1 < size) {
      child += all_[child + 1].rank < all_[child].rank;
      all_[hole] = all_[child];
      hole = child;
      child = 2 * hole + 1;
    }
    if (child < size) {
      all_[hole] = all_[child];
      hole = child;
    }
    rise(hole, last);
    return first;
  }

 private:
  void rise(size_t hole, const Waiting& added) {
    while (hole > 0) {
      const size_t parent = (hole - 1) / 2;
      if (all_[parent].rank <= added.rank) break;
      all_[hole] = all_[parent];
      hole = parent;
    }
    all_[hole] = added;
  }

  std::vector<Waiting> all_;
};

// Tasks that are ready. Those with two resources that wait for one of them do not hold the other one meanwhile, but
// stand at a gate: each resource has one for express tasks, which is the odd one, and one for others. Of a gate only the
// first task stands in the queue, under a number below zero, until the resource is free.
class ReadyTasks {
 public:
  ReadyTasks(const Task* tasks, int64_t resources) : tasks_(tasks), gates_(2 * resources) {}

  void push(int64_t number, double ready) { queue_.push(Waiting::make(ready, tasks_[number].order, number)); }

  // The task to take now, in front or the first of the gate that is; -1 where there is none.
  int64_t find_next(const Buckets& buckets) {
    while (!queue_.empty()) {
      const Waiting front = queue_.front();
      const double now = front.ready();
      if (front.task >= 0) {
        if (tasks_[front.task].second < 0) return front.task;
        const int64_t gate = buckets.later_gate(tasks_[front.task]);
        if (buckets.free(gate) <= now) return front.task;
        queue_.pop();
        add(front.task, gate, buckets.free(gate));
        continue;
      }
      const Gate& own = gates_[~front.task];
      if (own.rank != front.rank) {  // it stands elsewhere by now
        queue_.pop();
        continue;
      }
      const double free = buckets.free(~front.task);
      if (free > now) {
        put_off_front(free);
        continue;
      }
      const int64_t first = own.tasks.front().task, gate = buckets.later_gate(tasks_[first]);
      if (buckets.free(gate) <= now) return first;
      remove_front(buckets);
      add(first, gate, buckets.free(gate));
    }
    return -1;
  }

  // When what find_next() has found is taken.
  double moment() const { return queue_.front().ready(); }

  // What find_next() has found goes.
  void remove_front(const Buckets& buckets) {
    const int64_t number = queue_.front().task;
    if (number >= 0) {
      queue_.pop();
      return;
    }
    gates_[~number].tasks.pop();
    put_off_front(buckets.free(~number));
  }

 private:
  static constexpr Rank kNowhere = ~Rank{0};

  struct Gate {
    Queue tasks;
    // As it stands in the queue.
    Rank rank = kNowhere;
  };

  // A task comes to a gate.
  void add(int64_t number, int64_t gate, double free) {
    Gate& one = gates_[gate];
    one.tasks.push(Waiting::make(0.0, tasks_[number].order, number));
    const Waiting placed = placed_gate(gate, free);
    if (placed.rank >= one.rank) return;  // it is looked at before that
    one.rank = placed.rank;
    queue_.push(placed);
  }

  // The gate in front comes to where its resource is free.
  void put_off_front(double free) {
    const int64_t gate = ~queue_.front().task;
    Gate& one = gates_[gate];
    if (one.tasks.empty()) {
      one.rank = kNowhere;
      queue_.pop();
      return;
    }
    const Waiting placed = placed_gate(gate, free);
    one.rank = placed.rank;
    queue_.replace_front(placed);
  }

  Waiting placed_gate(int64_t gate, double free) const {
    return Waiting::make(free, tasks_[gates_[gate].tasks.front().task].order, ~gate);
  }

  const Task* const tasks_;
  Queue queue_;
  std::vector<Gate> gates_;
};

class Simulation {
 public:
  Simulation(const PlannerTaskTable& slots, const PlannerRates& rates, const PlannerTimeline& made)
      : slots_(slots), rates_(rates), made_(made), events_(made.events), ready_(slots.tasks, rates.resources) {}

  int64_t run(const PlannerTimeline* before, const int64_t* changed, int64_t count, double bound, double limit) {
    const int64_t kept = before ? snapshots_kept(*before, changed, count, bound) : 0;
    begin(before, kept);
    Buckets buckets(rates_, kept ? before->states + (kept - 1) * rates_.resources : nullptr);
    return take_all(buckets, kept ? before->taken[kept - 1] : 0, limit);
  }

 private:
  template <typename Function>
  void each_task(Function function) const {
    for (int64_t slot = 0; slot < slots_.slots(); ++slot) {
      if (!slots_.alive[slot]) continue;
      const int64_t base = slots_.bases[slot], end = base + slots_.sizes[slot];
      for (int64_t task = base; task < end; ++task) function(task);
    }
  }

  template <typename Function>
  void each_successor(const Task& task, Function function) const {
    for (int32_t at = task.inner; at < task.inner_end; ++at) function(slots_.targets[at]);
    for (int32_t at = task.outer; at < task.outer_end; ++at) function(slots_.outer_targets[at]);
  }

  // How many snapshots still hold: those before anything that a change touches can be ready.
  int64_t snapshots_kept(const PlannerTimeline& before, const int64_t* changed, int64_t count, double bound) const {
    const Event* old = before.events;
    // Of a changed task: a task that waits for none is ready at once, and one that waits for new ones only cannot be
    // before those.
    std::vector<uint8_t> touched(slots_.used(), 0);
    for (int64_t at = 0; at < count; ++at) {
      const int64_t task = changed[at];
      touched[task] = 1;
      if (old[task].place >= 0) bound = std::min(bound, old[task].ready);
      events_[task].ready = 0.0;
    }
    each_task([&](int64_t number) {
      const Task& task = slots_.tasks[number];
      const bool known = old[number].place >= 0;
      const double after = known ? old[number].end + task.latency : 0.0;
      each_successor(task, [&](int32_t one) {
        if (!touched[one]) return;
        double& earliest = events_[one].ready;
        if (touched[one] == 1) earliest = kNever;
        if (known) earliest = touched[one] == 3 ? std::max(earliest, after) : after;
        touched[one] = known || touched[one] == 3 ? 3 : 2;
      });
    });
    for (int64_t at = 0; at < count; ++at) bound = std::min(bound, events_[changed[at]].ready);
    return std::lower_bound(before.last, before.last + *before.snapshots, bound) - before.last;
  }

  // Puts in what was before the last snapshot kept, and how much each other task still waits for.
  void begin(const PlannerTimeline* before, int64_t kept) {
    *made_.snapshots = kept;
    *made_.finish = 0.0;
    int64_t taken = 0;
    if (kept) {
      taken = before->taken[kept - 1];
      std::copy_n(before->taken, kept, made_.taken);
      std::copy_n(before->last, kept, made_.last);
      std::copy_n(before->states, kept * rates_.resources, made_.states);
    }
    each_task([&](int64_t number) { events_[number] = Event{0.0, 0.0, 0.0, -1, 0}; });
    each_task([&](int64_t number) {
      const Task& task = slots_.tasks[number];
      const bool done = taken && before->events[number].place >= 0 && before->events[number].place < taken;
      if (!done) {
        each_successor(task, [&](int32_t one) { ++events_[one].needs; });
        return;
      }
      const Event& event = events_[number] = before->events[number];
      *made_.finish = std::max(*made_.finish, event.end);
      const double after = event.end + task.latency;
      each_successor(task, [&](int32_t one) { events_[one].ready = std::max(events_[one].ready, after); });
    });
    each_task([&](int64_t number) {
      if (events_[number].place < 0 && events_[number].needs == 0) ready_.push(number, events_[number].ready);
    });
  }

  int64_t take_all(Buckets& buckets, int64_t first, double limit) {
    int64_t taken = first;
    double moment = 0.0, finish = *made_.finish, least = 0.0;
    const bool limited = limit < kNever;
    if (limited) {
      each_task([&](int64_t number) {
        if (events_[number].place < 0) buckets.expect(slots_.tasks[number]);
      });
      least = buckets.least_end();
    }
    for (int64_t number; (number = ready_.find_next(buckets)) >= 0;) {
      if (finish > limit || least > limit) {
        finish = std::max(finish, least);
        break;
      }
      if (taken > first && taken % made_.stride == 0) save(buckets, taken, moment);
      const Task& task = slots_.tasks[number];
      Event& event = events_[number];
      moment = ready_.moment();
      event.place = static_cast<int32_t>(taken++);
      buckets.take(task, event);
      ready_.remove_front(buckets);
      finish = std::max(finish, event.end);
      if (limited) least = std::max(least, buckets.least_end_after(task));
      const double after = event.end + task.latency;
      each_successor(task, [&](int32_t one) {
        Event& next = events_[one];
        next.ready = std::max(next.ready, after);
        if (--next.needs == 0) ready_.push(one, next.ready);
      });
    }
    *made_.finish = finish;
    return taken;
  }

  void save(const Buckets& buckets, int64_t taken, double moment) {
    const int64_t number = *made_.snapshots;
    if (number == made_.most_snapshots) return;
    made_.taken[number] = taken;
    made_.last[number] = moment;
    buckets.save(made_.states + number * rates_.resources);
    ++*made_.snapshots;
  }

  const PlannerTaskTable& slots_;
  const PlannerRates& rates_;
  const PlannerTimeline& made_;
  Event* const events_;
  ReadyTasks ready_;
};

}  // namespace

extern "C" {

int planner_version() { return 7; }

// How many tasks were taken, or -1 where there is no memory; see event_loop.simulate().
int64_t planner_simulate(const PlannerTaskTable* slots, const PlannerRates* rates, const PlannerTimeline* before,
                         const PlannerTimeline* made, const int64_t* changed, int64_t count, double bound,
                         double limit) {
  try {
    return Simulation(*slots, *rates, *made).run(before, changed, count, bound, limit);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}
