// The event loop of the simulation: dispatches one task after the other. tests/oracles/event_loop.py does the same in
// Python, to the last bit.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "ready_tasks.h"
#include "resources.h"
#include "simulation_structs.h"

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A simulation of the tasks of a table: from its beginning, or from the last snapshot before the changed tasks.
class Simulation {
 public:
  Simulation(const PlannerTaskTable& table, const PlannerRates& rates, const PlannerTimeline& timeline)
      : table_(table), rates_(rates), timeline_(timeline), events_(timeline.events),
        ready_(table.tasks, rates.resources) {}

  int64_t run(const PlannerTimeline* before, const int64_t* changed, int64_t count, double first_removed,
              double limit) {
    const int64_t kept_count = before ? kept_snapshots(*before, changed, count, first_removed) : 0;
    begin(before, kept_count);
    Resources resources(rates_, kept_count ? before->states + (kept_count - 1) * rates_.resources : nullptr);
    return dispatch_all(resources, kept_count ? before->dispatched[kept_count - 1] : 0, limit);
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
  void begin(const PlannerTimeline* before, int64_t kept_count) {
    *timeline_.snapshots = kept_count;
    *timeline_.finish = 0.0;
    int64_t dispatched = 0;
    if (kept_count) {
      dispatched = before->dispatched[kept_count - 1];
      std::copy_n(before->dispatched, kept_count, timeline_.dispatched);
      std::copy_n(before->last_ready, kept_count, timeline_.last_ready);
      std::copy_n(before->states, kept_count * rates_.resources, timeline_.states);
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

int planner_version() { return 11; }

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
