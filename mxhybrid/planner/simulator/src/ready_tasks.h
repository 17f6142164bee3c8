// The queues of ready tasks: heaps, ordered by the time when a task is ready.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "resources.h"
#include "simulation_structs.h"

// Unnamed, since one source file includes this header: the compiler then inlines functions that are called once.
namespace {

// The time when an entry is ready, then its order, as one number: the bits of doubles of at least 0 have the order of
// the doubles.
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
// A task with two resources that waits for one of them does not hold the other one, but waits in a resource queue. Each
// resource has two: the odd one is for high-priority tasks, the even one for other tasks. The event queue has an entry
// for the first task of a resource queue only, under a number below zero, at the time when the resource is free.
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

}  // namespace
