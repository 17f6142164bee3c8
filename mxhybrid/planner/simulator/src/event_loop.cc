// The event loop of the simulation: dispatches one task after the other. tests/oracles/event_loop.py does the same in
// Python, to the last bit.

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
// Sums of many numbers are rounded: a lower bound from such a sum is made smaller by this factor.
constexpr double kRounding = 1 - 1e-9;

// Laid out as EVENT of timeline.py.
struct Event {
  double ready, start, end;
  int32_t position, pending;
};

// A resource: when it is free, when it is free for high-priority tasks, and the level of its token bucket.
struct State {
  double free, high_priority_free, level;
};

}  // namespace

// Laid out as the structures of the same names of native_backend.py.
extern "C" {

struct PlannerRates {
  const double* rate;
  const double* peak;
  const double* burst;
  // By resource: the number of its group; -1 for none.
  const int32_t* group;
  // By group, then by the number of its busy resources, from 0 on and less than `width`: the share of its rate that
  // each of them keeps.
  const double* shares;
  int64_t resources, width;
};

struct PlannerTimeline {
  Event* events;
  int64_t* dispatched;
  double* last_ready;
  State* states;
  int64_t* snapshots;
  double* finish;
  int64_t stride, max_snapshots;
};
}

namespace {

// The states of all resources while tasks are dispatched.
class Resources {
 public:
  Resources(const PlannerRates& rates, const State* states) {
    for (int64_t resource = 0; resource < rates.resources; ++resource) {
      const double burst = rates.burst[resource];
      const State state = states ? states[resource] : State{0.0, 0.0, burst};
      buckets_.push_back({rates.rate[resource], rates.peak[resource], burst, state, 0.0});
      const int32_t group = rates.group[resource];
      groups_.push_back(group);
      if (group < 0) continue;
      if (static_cast<size_t>(group) >= members_.size()) members_.resize(group + 1);
      members_[group].push_back(static_cast<int32_t>(resource));
    }
    shares_ = rates.shares;
    width_ = rates.width;
  }

  void save(State* states) const {
    for (const TokenBucket& bucket : buckets_) *states++ = bucket.state;
  }

  // Adds a task that is not dispatched yet to the remaining work.
  void expect(const Task& task) {
    if (task.resource < 0 || task.high_priority) return;
    buckets_[task.resource].remaining += task.work;
    if (task.second >= 0) buckets_[task.second].remaining += task.work;
  }

  // Returns a lower bound of the last end, given the remaining work of all resources.
  double least_end() const {
    double end = 0.0;
    for (const TokenBucket& bucket : buckets_) end = std::max(end, bucket.least_end());
    return end;
  }

  // Subtracts a dispatched task from the remaining work; returns a lower bound of the last end on its resources.
  double least_end_after(const Task& task) {
    if (task.resource < 0 || task.high_priority) return 0.0;
    buckets_[task.resource].remaining -= task.work;
    const double end = buckets_[task.resource].least_end();
    if (task.second < 0) return end;
    buckets_[task.second].remaining -= task.work;
    return std::max(end, buckets_[task.second].least_end());
  }

  // Returns when the resource of a queue is free for the tasks of the queue; see ReadyTasks.
  double free(int64_t queue) const { return buckets_[queue / 2].free(queue % 2); }

  // Returns the queue of a task with two resources: that of the resource that is free later.
  int64_t later_queue(const Task& task) const {
    const int64_t first = 2 * task.resource + task.high_priority, second = 2 * task.second + task.high_priority;
    return free(second) > free(first) ? second : first;
  }

  // Sets the start and the end of a ready task, and occupies its resources.
  void dispatch(const Task& task, Event& event) {
    if (task.resource < 0) {
      event.start = event.end = event.ready;
      return;
    }
    TokenBucket& first = buckets_[task.resource];
    TokenBucket* second = task.second < 0 ? nullptr : &buckets_[task.second];
    double start = std::max(event.ready, first.free(task.high_priority));
    if (second) start = std::max(start, second->free(task.high_priority));
    const double level = first.level_at(start), second_level = second ? second->level_at(start) : 0.0;
    double seconds = first.seconds(level, task.work);
    if (second) seconds = std::max(seconds, second->seconds(second_level, task.work));
    if (groups_[task.resource] >= 0 && !second && !task.high_priority) {
      seconds = shared_seconds(task.resource, start, seconds);
    }
    event.start = start;
    event.end = start + seconds;
    first.occupy(level, start, seconds, task);
    if (second) second->occupy(second_level, start, seconds, task);
  }

 private:
  struct TokenBucket {
    double rate, peak, burst;
    State state;
    // Work of tasks that are not dispatched yet, except high-priority tasks, which delay no others.
    double remaining;

    // The level is spent at once, and the rest as the bucket fills up.
    double least_end() const {
      return remaining > state.level ? (state.free + (remaining - state.level) / rate) * kRounding : 0.0;
    }

    double free(bool high_priority) const { return high_priority ? state.high_priority_free : state.free; }

    // Returns the level after the idle time until `start`.
    double level_at(double start) const {
      if (!(start > state.free)) return state.level;
      return std::min(burst, state.level + (start - state.free) * rate);
    }

    double seconds(double level, double work) const {
      if (level <= 0) return work / rate;
      const double burst_seconds = level / (peak - rate), seconds = work / peak;
      return seconds <= burst_seconds ? seconds : burst_seconds + (work - burst_seconds * peak) / rate;
    }

    void occupy(double level, double start, double seconds, const Task& task) {
      // The bucket gains the rate and loses the work.
      if (burst > 0) state.level = std::min(burst, std::max(0.0, level + rate * seconds - task.work));
      if (task.high_priority) {
        state.high_priority_free = start + seconds;
        state.free = std::max(state.free, start) + seconds;
      } else {
        state.free = start + seconds;
      }
    }
  };

  // When a resource is free, or its remaining seconds, and the number of the resource.
  using TimeOfResource = std::pair<double, int32_t>;

  // Returns the duration of a task that starts on a resource of a group, and would take `seconds` alone.
  //
  // All busy resources of a group have the same share of their rates at any moment. The new task delays the tasks that
  // are under way: the next tasks on their resources begin later, but their own ends stay, because successors know them
  // already.
  double shared_seconds(int32_t resource, double start, double seconds) {
    const double* const shares = shares_ + groups_[resource] * width_;
    busy_.clear();
    for (const int32_t other : members_[groups_[resource]]) {
      if (other != resource && buckets_[other].state.free > start) {
        busy_.emplace_back(buckets_[other].state.free, other);
      }
    }
    std::sort(busy_.begin(), busy_.end());
    // Convert the time until each other resource is free to seconds of work at its full rate.
    remaining_.clear();
    remaining_.emplace_back(seconds, resource);
    double now = start, work = 0.0;
    for (size_t number = 0; number < busy_.size(); ++number) {
      work += (busy_[number].first - now) * shares[busy_.size() - number];
      now = busy_[number].first;
      remaining_.emplace_back(work, busy_[number].second);
    }
    std::sort(remaining_.begin(), remaining_.end());
    now = start;
    work = 0.0;
    double duration = 0.0;
    for (size_t number = 0; number < remaining_.size(); ++number) {
      now += (remaining_[number].first - work) / shares[remaining_.size() - number];
      work = remaining_[number].first;
      if (remaining_[number].second == resource) {
        duration = now - start;
      } else {
        buckets_[remaining_[number].second].state.free = now;
      }
    }
    return duration;
  }

  std::vector<TokenBucket> buckets_;
  // The group of each resource, and the resources of each group; shares as PlannerRates has them.
  std::vector<int32_t> groups_;
  std::vector<std::vector<int32_t>> members_;
  const double* shares_ = nullptr;
  int64_t width_ = 0;
  // Buffers of shared_seconds().
  std::vector<TimeOfResource> busy_, remaining_;
};

// When an entry is ready, then its order, as one number: the bits of doubles of at least 0 are ordered as the doubles.
using Rank = unsigned __int128;

// An entry of a queue: the number of a task, or ~number of a resource queue.
struct Entry {
  Rank rank;
  int64_t number;

  static Entry make(double ready, int64_t order, int64_t number) {
    uint64_t bits;
    std::memcpy(&bits, &ready, sizeof(bits));
    return {static_cast<Rank>(bits) << 64 | static_cast<uint64_t>(order), number};
  }

  double ready() const {
    const uint64_t bits = static_cast<uint64_t>(rank >> 64);
    double ready;
    std::memcpy(&ready, &bits, sizeof(ready));
    return ready;
  }
};

// A heap of entries, the one of least rank on top. The choice between two children compiles to no branch, which a
// processor could not predict: std::push_heap and std::pop_heap lose a third of the time with that.
class Heap {
 public:
  bool empty() const { return entries_.empty(); }
  const Entry& front() const { return entries_.front(); }

  // Replaces the front by another entry, or gives it a later rank.
  void replace_front(const Entry& front) {
    size_t hole = 0, child = 1;
    while (child < entries_.size()) {
      if (child + 1 < entries_.size()) child += entries_[child + 1].rank < entries_[child].rank;
      if (front.rank <= entries_[child].rank) break;
      entries_[hole] = entries_[child];
      hole = child;
      child = 2 * hole + 1;
    }
    entries_[hole] = front;
  }

  void push(const Entry& entry) {
    entries_.push_back(entry);
    rise(entries_.size() - 1, entry);
  }

  Entry pop() {
    const Entry first = entries_.front();
    const Entry last = entries_.back();
    entries_.pop_back();
    const size_t size = entries_.size();
    if (size == 0) return first;
    // The hole sinks to a leaf; the last entry goes there and, rarely, rises.
    size_t hole = 0, child = 1;
    while (child + 1 < size) {
      child += entries_[child + 1].rank < entries_[child].rank;
      entries_[hole] = entries_[child];
      hole = child;
      child = 2 * hole + 1;
    }
    if (child < size) {
      entries_[hole] = entries_[child];
      hole = child;
    }
    rise(hole, last);
    return first;
  }

 private:
  void rise(size_t hole, const Entry& entry) {
    while (hole > 0) {
      const size_t parent = (hole - 1) / 2;
      if (entries_[parent].rank <= entry.rank) break;
      entries_[hole] = entries_[parent];
      hole = parent;
    }
    entries_[hole] = entry;
  }

  std::vector<Entry> entries_;
};

// The ready tasks, in one event queue.
//
// A task with two resources that waits for one of them does not hold the other one meanwhile, but waits in a resource
// queue. Each resource has two: the odd one is for high-priority tasks, the even one for other tasks. The event queue
// has an entry for the first task of a resource queue only, under a number below zero, at the time when the resource is
// free.
class ReadyTasks {
 public:
  ReadyTasks(const Task* tasks, int64_t resources) : tasks_(tasks), queues_(2 * resources) {}

  void push(int64_t number, double ready) { events_.push(Entry::make(ready, tasks_[number].order, number)); }

  // Returns the task to dispatch now: in the front of the event queue, or of the resource queue there; -1 for none.
  int64_t find_next(const Resources& resources) {
    while (!events_.empty()) {
      const Entry front = events_.front();
      const double now = front.ready();
      if (front.number >= 0) {
        if (tasks_[front.number].second < 0) return front.number;
        const int64_t queue = resources.later_queue(tasks_[front.number]);
        if (resources.free(queue) <= now) return front.number;
        events_.pop();
        enqueue(front.number, queue, resources.free(queue));
        continue;
      }
      const ResourceQueue& queue = queues_[~front.number];
      if (queue.rank != front.rank) {  // an outdated entry: the queue has another one
        events_.pop();
        continue;
      }
      const double free = resources.free(~front.number);
      if (free > now) {
        delay_front(free);
        continue;
      }
      const int64_t first = queue.tasks.front().number, later = resources.later_queue(tasks_[first]);
      if (resources.free(later) <= now) return first;
      remove_front(resources);
      enqueue(first, later, resources.free(later));
    }
    return -1;
  }

  // Returns the time of the task that find_next() has returned.
  double now() const { return events_.front().ready(); }

  // Removes the task that find_next() has returned.
  void remove_front(const Resources& resources) {
    const int64_t number = events_.front().number;
    if (number >= 0) {
      events_.pop();
      return;
    }
    queues_[~number].tasks.pop();
    delay_front(resources.free(~number));
  }

 private:
  static constexpr Rank kNowhere = ~Rank{0};

  struct ResourceQueue {
    Heap tasks;
    // The rank of its entry in the event queue.
    Rank rank = kNowhere;
  };

  void enqueue(int64_t number, int64_t queue_number, double free) {
    ResourceQueue& queue = queues_[queue_number];
    queue.tasks.push(Entry::make(0.0, tasks_[number].order, number));
    const Entry entry = entry_of(queue_number, free);
    if (entry.rank >= queue.rank) return;  // its entry comes earlier
    queue.rank = entry.rank;
    events_.push(entry);
  }

  // Moves the entry of the resource queue in front to the time when the resource is free.
  void delay_front(double free) {
    const int64_t queue_number = ~events_.front().number;
    ResourceQueue& queue = queues_[queue_number];
    if (queue.tasks.empty()) {
      queue.rank = kNowhere;
      events_.pop();
      return;
    }
    const Entry entry = entry_of(queue_number, free);
    queue.rank = entry.rank;
    events_.replace_front(entry);
  }

  Entry entry_of(int64_t queue_number, double free) const {
    return Entry::make(free, tasks_[queues_[queue_number].tasks.front().number].order, ~queue_number);
  }

  const Task* const tasks_;
  Heap events_;
  std::vector<ResourceQueue> queues_;
};

class Simulation {
 public:
  Simulation(const PlannerTaskTable& table, const PlannerRates& rates, const PlannerTimeline& timeline)
      : table_(table), rates_(rates), timeline_(timeline), events_(timeline.events),
        ready_(table.tasks, rates.resources) {}

  int64_t run(const PlannerTimeline* before, const int64_t* changed, int64_t count, double first_removed,
              double limit) {
    const int64_t kept = before ? kept_snapshots(*before, changed, count, first_removed) : 0;
    begin(before, kept);
    Resources resources(rates_, kept ? before->states + (kept - 1) * rates_.resources : nullptr);
    return dispatch_all(resources, kept ? before->dispatched[kept - 1] : 0, limit);
  }

 private:
  template <typename Function>
  void each_task(Function function) const {
    for (int64_t slot = 0; slot < table_.slots(); ++slot) {
      if (!table_.alive[slot]) continue;
      const int64_t base = table_.bases[slot], end = base + table_.sizes[slot];
      for (int64_t task = base; task < end; ++task) function(task);
    }
  }

  template <typename Function>
  void each_successor(const Task& task, Function function) const {
    for (int32_t index = task.inner; index < task.inner_end; ++index) function(table_.successors[index]);
    for (int32_t index = task.outer; index < task.outer_end; ++index) function(table_.outer_successors[index]);
  }

  // Returns the number of snapshots that are still valid: those before any task that the change affects can be ready.
  int64_t kept_snapshots(const PlannerTimeline& before, const int64_t* changed, int64_t count, double bound) const {
    const Event* old_events = before.events;
    // A changed task without predecessors is ready at once; one with new predecessors only cannot be ready before them.
    // Marks of changed tasks: 1 no predecessor, 2 new predecessors only, 3 some old predecessor.
    std::vector<uint8_t> marks(table_.used(), 0);
    for (int64_t index = 0; index < count; ++index) {
      const int64_t task = changed[index];
      marks[task] = 1;
      if (old_events[task].position >= 0) bound = std::min(bound, old_events[task].ready);
      events_[task].ready = 0.0;
    }
    each_task([&](int64_t number) {
      const Task& task = table_.tasks[number];
      const bool is_old = old_events[number].position >= 0;
      const double after = is_old ? old_events[number].end + task.latency : 0.0;
      each_successor(task, [&](int32_t successor) {
        if (!marks[successor]) return;
        double& earliest = events_[successor].ready;
        if (marks[successor] == 1) earliest = kNever;
        if (is_old) earliest = marks[successor] == 3 ? std::max(earliest, after) : after;
        marks[successor] = is_old || marks[successor] == 3 ? 3 : 2;
      });
    });
    for (int64_t index = 0; index < count; ++index) bound = std::min(bound, events_[changed[index]].ready);
    return std::lower_bound(before.last_ready, before.last_ready + *before.snapshots, bound) - before.last_ready;
  }

  // Copies the events before the last valid snapshot, and counts the predecessors that each other task waits for.
  void begin(const PlannerTimeline* before, int64_t kept) {
    *timeline_.snapshots = kept;
    *timeline_.finish = 0.0;
    int64_t dispatched = 0;
    if (kept) {
      dispatched = before->dispatched[kept - 1];
      std::copy_n(before->dispatched, kept, timeline_.dispatched);
      std::copy_n(before->last_ready, kept, timeline_.last_ready);
      std::copy_n(before->states, kept * rates_.resources, timeline_.states);
    }
    each_task([&](int64_t number) { events_[number] = Event{0.0, 0.0, 0.0, -1, 0}; });
    each_task([&](int64_t number) {
      const Task& task = table_.tasks[number];
      const bool is_done = dispatched && before->events[number].position >= 0 &&
                           before->events[number].position < dispatched;
      if (!is_done) {
        each_successor(task, [&](int32_t successor) { ++events_[successor].pending; });
        return;
      }
      const Event& event = events_[number] = before->events[number];
      *timeline_.finish = std::max(*timeline_.finish, event.end);
      const double after = event.end + task.latency;
      each_successor(task, [&](int32_t successor) {
        events_[successor].ready = std::max(events_[successor].ready, after);
      });
    });
    each_task([&](int64_t number) {
      if (events_[number].position < 0 && events_[number].pending == 0) ready_.push(number, events_[number].ready);
    });
  }

  int64_t dispatch_all(Resources& resources, int64_t first, double limit) {
    int64_t dispatched = first;
    double now = 0.0, finish = *timeline_.finish, least_end = 0.0;
    const bool is_limited = limit < kNever;
    if (is_limited) {
      each_task([&](int64_t number) {
        if (events_[number].position < 0) resources.expect(table_.tasks[number]);
      });
      least_end = resources.least_end();
    }
    for (int64_t number; (number = ready_.find_next(resources)) >= 0;) {
      if (finish > limit || least_end > limit) {
        finish = std::max(finish, least_end);
        break;
      }
      if (dispatched > first && dispatched % timeline_.stride == 0) save(resources, dispatched, now);
      const Task& task = table_.tasks[number];
      Event& event = events_[number];
      now = ready_.now();
      event.position = static_cast<int32_t>(dispatched++);
      resources.dispatch(task, event);
      ready_.remove_front(resources);
      finish = std::max(finish, event.end);
      if (is_limited) least_end = std::max(least_end, resources.least_end_after(task));
      const double after = event.end + task.latency;
      each_successor(task, [&](int32_t successor) {
        Event& next = events_[successor];
        next.ready = std::max(next.ready, after);
        if (--next.pending == 0) ready_.push(successor, next.ready);
      });
    }
    *timeline_.finish = finish;
    return dispatched;
  }

  void save(const Resources& resources, int64_t dispatched, double now) {
    const int64_t number = *timeline_.snapshots;
    if (number == timeline_.max_snapshots) return;
    timeline_.dispatched[number] = dispatched;
    timeline_.last_ready[number] = now;
    resources.save(timeline_.states + number * rates_.resources);
    ++*timeline_.snapshots;
  }

  const PlannerTaskTable& table_;
  const PlannerRates& rates_;
  const PlannerTimeline& timeline_;
  Event* const events_;
  ReadyTasks ready_;
};

}  // namespace

extern "C" {

int planner_version() { return 8; }

// Returns the number of dispatched tasks, or -1 if there is no memory; see SimulatorBackend of native_backend.py.
int64_t planner_simulate(const PlannerTaskTable* table, const PlannerRates* rates, const PlannerTimeline* before,
                         const PlannerTimeline* timeline, const int64_t* changed, int64_t count, double first_removed,
                         double limit) {
  try {
    return Simulation(*table, *rates, *timeline).run(before, changed, count, first_removed, limit);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}
