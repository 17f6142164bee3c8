// The states of the resources while tasks are dispatched: token buckets, and groups that share a rate.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulation_structs.h"

// Unnamed, since one source file includes this header: the compiler then inlines functions that are called once.
namespace {

// Sums of many numbers are rounded: a lower bound from such a sum is made smaller by this factor.
constexpr double kRounding = 1 - 1e-9;

// The states of all resources while tasks are dispatched.
class Resources {
 public:
  Resources(const PlannerRates& rates, const State* states) {
    for (int64_t resource = 0; resource < rates.resources; ++resource) {
      const double burst = rates.burst[resource];
      const State state = states ? states[resource] : State{0.0, 0.0, burst, 0.0};
      buckets_.push_back({rates.rate[resource], rates.peak[resource], burst, state, 0.0});
      const int32_t group = rates.group[resource];
      groups_.push_back(group);
      if (group < 0) continue;
      if (static_cast<size_t>(group) >= members_.size()) members_.resize(group + 1);
      members_[group].push_back(static_cast<int32_t>(resource));
    }
    slowdowns_ = rates.slowdowns;
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
      seconds = shared_seconds(task.resource, start, seconds, task.arithmetic);
      first.state.arithmetic = task.arithmetic;
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

  // The time when a resource is free, or its remaining seconds, and the number of the resource.
  using TimeOfResource = std::pair<double, int32_t>;

  // The seconds that a task still takes at the full rate of its resource.
  struct Remaining {
    double work, arithmetic;
    int32_t resource;
  };

  // Returns the duration of a task that starts on a resource of a group, and would take `seconds` alone.
  // Each busy resource of a group is slowed down by the number of busy ones, as its task is bound by arithmetic or by
  // memory. The new task delays the tasks that are under way: the next tasks on their resources begin later, but their
  // own ends stay, because successors know them already.
  double shared_seconds(int32_t resource, double start, double seconds, double arithmetic) {
    const double* const slowdowns = slowdowns_ + 2 * groups_[resource] * width_;
    const auto slowdown = [&](const Remaining& task, size_t count) {
      return task.arithmetic * slowdowns[count] + (1 - task.arithmetic) * slowdowns[width_ + count];
    };
    busy_.clear();
    for (const int32_t other : members_[groups_[resource]]) {
      if (other != resource && buckets_[other].state.free > start) {
        busy_.emplace_back(buckets_[other].state.free, other);
      }
    }
    std::sort(busy_.begin(), busy_.end());
    // Convert the time until each other resource is free to seconds of work at its full rate.
    remaining_.assign(1, {seconds, arithmetic, resource});
    for (size_t number = 0; number < busy_.size(); ++number) {
      Remaining task = {0.0, buckets_[busy_[number].second].state.arithmetic, busy_[number].second};
      double now = start;
      for (size_t earlier = 0; earlier <= number; ++earlier) {
        task.work += (busy_[earlier].first - now) / slowdown(task, busy_.size() - earlier);
        now = busy_[earlier].first;
      }
      remaining_.push_back(task);
    }
    double now = start, duration = 0.0;
    while (!remaining_.empty()) {
      const size_t count = remaining_.size();
      size_t next = 0;
      double passed = remaining_[0].work * slowdown(remaining_[0], count);
      for (size_t number = 1; number < count; ++number) {
        const double until = remaining_[number].work * slowdown(remaining_[number], count);
        if (until < passed) {
          next = number;
          passed = until;
        }
      }
      now += passed;
      if (remaining_[next].resource == resource) {
        duration = now - start;
      } else {
        buckets_[remaining_[next].resource].state.free = now;
      }
      for (Remaining& task : remaining_) task.work = std::max(0.0, task.work - passed / slowdown(task, count));
      remaining_.erase(remaining_.begin() + static_cast<std::ptrdiff_t>(next));
    }
    return duration;
  }

  std::vector<TokenBucket> buckets_;
  // The group of each resource, and the resources of each group; slowdowns as PlannerRates has them.
  std::vector<int32_t> groups_;
  std::vector<std::vector<int32_t>> members_;
  const double* slowdowns_ = nullptr;
  int64_t width_ = 0;
  // Buffers of shared_seconds().
  std::vector<TimeOfResource> busy_;
  std::vector<Remaining> remaining_;
};

}  // namespace
