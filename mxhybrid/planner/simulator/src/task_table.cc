// Blocks put in the place of others: what task_table.py's PythonTaskTable does, to the last bit, and faster.

#include "task_table.h"

#include <algorithm>
#include <new>
#include <unordered_map>
#include <vector>

// As native_task_table.py's structure of the same name: arrays that have room, and how much is in them.
extern "C" {

struct PlannerReplaced {
  int64_t* changed;
  int64_t* gone;
  int64_t changes, goes, first;
};
}

namespace {

// As task_block.py has it.
constexpr int kIndexBits = 23;

// Tasks of a block that wait for ports of another one.
struct BlockInput {
  int64_t key;
  const int32_t* tasks;
  const int32_t* ports;
  int64_t count, shift;
};

// As native_task_table.py gives it, in numbers: what a key stands for from now on; a size below zero for nothing.
struct TaskBlock {
  int64_t key;
  const Task* tasks = nullptr;
  const int32_t* targets = nullptr;
  const int32_t* table = nullptr;
  int64_t size = -1, target_count = 0, table_count = 0;
  std::vector<BlockInput> reads;

  // A block, and where the numbers of the next one are.
  static TaskBlock parse(const int64_t*& at) {
    TaskBlock made;
    made.key = *at++;
    made.tasks = array_at<Task>(*at++);
    made.targets = array_at<int32_t>(*at++);
    made.table = array_at<int32_t>(*at++);
    made.size = *at++;
    made.target_count = *at++;
    made.table_count = *at++;
    made.reads.resize(*at++);
    for (BlockInput& read : made.reads) {
      read.key = *at++;
      read.shift = *at++;
      read.tasks = array_at<int32_t>(*at++);
      read.ports = array_at<int32_t>(*at++);
      read.count = *at++;
    }
    return made;
  }
};

struct Place {
  TaskBlock block;
  int64_t slot, base;
};

class TaskTable {
 public:
  explicit TaskTable(const PlannerTaskTable& arrays) : arrays_(arrays) {}

  // Whether there was room.
  bool replace(const int64_t* given, int64_t count, PlannerReplaced& found) {
    std::vector<TaskBlock> blocks;
    for (int64_t at = 0; at < count; ++at) blocks.push_back(TaskBlock::parse(given));
    find_touched(blocks);
    if (!has_room(blocks)) return false;
    undo_ = Undo();
    std::copy_n(arrays_.counts, kCounts, undo_.counts);
    found.changes = found.goes = 0;
    for (const TaskBlock& block : blocks) undo_.keys.push_back(block.key);
    for (size_t at = changing_; at < touched_.size(); ++at) mark(touched_[at]);
    for (const TaskBlock& block : blocks) {
      if (const Place* place = find(block.key)) add_outer(*place, found);
    }
    for (const TaskBlock& block : blocks) take_out(block.key, found);
    found.first = arrays_.used();
    std::vector<int64_t> keys;
    for (TaskBlock& block : blocks) {
      if (block.size < 0) continue;
      keys.push_back(block.key);
      put(std::move(block));
    }
    for (int64_t key : touched_) connect(key);
    for (int64_t key : keys) add_outer(places_.at(key), found);
    keep_living(found);
    return true;
  }

  void undo() {
    for (int64_t key : undo_.keys) remove(key);
    for (Place& place : undo_.places) bring_in(std::move(place));
    for (const Outers& one : undo_.outers) {
      const Place& place = places_.at(one.key);
      for (int64_t at = 0; at < place.block.size; ++at) {
        Task& task = arrays_.tasks[place.base + at];
        task.outer = one.bounds[at];
        task.outer_end = one.bounds[at + 1];
      }
    }
    std::copy_n(undo_.counts, kCounts, arrays_.counts);
  }

 private:
  static constexpr int kCounts = 5;

  // Where successors of a block's tasks in others were: from one number to the next.
  struct Outers {
    int64_t key;
    std::vector<int32_t> bounds;
  };

  struct Undo {
    int64_t counts[kCounts];
    std::vector<int64_t> keys;
    std::vector<Place> places;
    std::vector<Outers> outers;
  };

  const Place* find(int64_t key) const {
    const auto found = places_.find(key);
    return found == places_.end() ? nullptr : &found->second;
  }

  // The keys of blocks whose successors in others are written anew: first those that change.
  void find_touched(const std::vector<TaskBlock>& blocks) {
    ++round_;
    touched_.clear();
    const auto touch = [this](int64_t key) {
      int64_t& last = touched_in_[key];
      if (last != round_) touched_.push_back(key);
      last = round_;
    };
    for (const TaskBlock& block : blocks) touch(block.key);
    changing_ = touched_.size();
    for (const TaskBlock& block : blocks) {
      const Place* place = find(block.key);
      if (!place) continue;
      for (const BlockInput& read : place->block.reads) touch(read.key);
    }
    for (const TaskBlock& block : blocks) {
      for (const BlockInput& read : block.reads) touch(read.key);
    }
  }

  bool has_room(const std::vector<TaskBlock>& blocks) const {
    int64_t tasks = 0, inner = 0, outer = 0, slots = 0;
    for (const TaskBlock& block : blocks) {
      if (block.size < 0) continue;
      tasks += block.size;
      inner += block.target_count;
      ++slots;
      for (const BlockInput& read : block.reads) outer += read.count;
    }
    for (int64_t key : touched_) {
      each_read_of(key, [&](const Place&, const BlockInput& read) { outer += read.count; });
    }
    const int64_t* counts = arrays_.counts;
    return counts[0] + tasks <= arrays_.most_tasks && counts[1] + inner <= arrays_.most_targets &&
           counts[2] + outer <= arrays_.most_outer_targets && counts[3] + slots <= arrays_.most_slots;
  }

  // All that waits for the block of a key, if it is there.
  template <typename Function>
  void each_read_of(int64_t key, Function function) const {
    const auto readers = readers_.find(key);
    if (readers == readers_.end()) return;
    for (int64_t reader : readers->second) {
      const Place& place = places_.at(reader);
      for (const BlockInput& read : place.block.reads) {
        if (read.key == key) function(place, read);
      }
    }
  }

  // Remembers where successors of a block that stays are.
  void mark(int64_t key) {
    const Place* place = find(key);
    if (!place) return;
    Outers made{key, {}};
    made.bounds.reserve(place->block.size + 1);
    const Task* tasks = arrays_.tasks + place->base;
    for (int64_t at = 0; at < place->block.size; ++at) made.bounds.push_back(tasks[at].outer);
    if (place->block.size) made.bounds.push_back(tasks[place->block.size - 1].outer_end);
    undo_.outers.push_back(std::move(made));
  }

  void take_out(int64_t key, PlannerReplaced& found) {
    const Place* place = find(key);
    if (!place) return;
    for (int64_t at = 0; at < place->block.size; ++at) found.gone[found.goes++] = place->base + at;
    undo_.places.push_back(std::move(places_.at(key)));
    forget(undo_.places.back());
  }

  void remove(int64_t key) {
    const Place* place = find(key);
    if (place) forget(*place);
  }

  // A place, which may be that of the table or have been moved from it.
  void forget(const Place& place) {
    const int64_t key = place.block.key;
    arrays_.alive[place.slot] = 0;
    arrays_.counts[4] -= place.block.size;
    for (const BlockInput& read : place.block.reads) {
      std::vector<int64_t>& readers = readers_[read.key];
      // It may wait for several tasks there.
      readers.erase(std::remove(readers.begin(), readers.end(), key), readers.end());
    }
    places_.erase(key);
  }

  void bring_in(Place&& place) {
    const int64_t key = place.block.key;
    arrays_.alive[place.slot] = 1;
    arrays_.counts[4] += place.block.size;
    for (const BlockInput& read : place.block.reads) {
      std::vector<int64_t>& readers = readers_[read.key];
      if (std::find(readers.begin(), readers.end(), key) == readers.end()) readers.push_back(key);
    }
    places_.insert_or_assign(key, std::move(place));
  }

  void put(TaskBlock&& block) {
    int64_t* counts = arrays_.counts;
    const int64_t base = counts[0], inner = counts[1], slot = counts[3];
    for (int64_t at = 0; at < block.size; ++at) {
      Task& task = arrays_.tasks[base + at] = block.tasks[at];
      task.inner += static_cast<int32_t>(inner);
      task.inner_end += static_cast<int32_t>(inner);
      task.order += block.key << kIndexBits;
    }
    for (int64_t at = 0; at < block.target_count; ++at) {
      arrays_.targets[inner + at] = block.targets[at] + static_cast<int32_t>(base);
    }
    arrays_.bases[slot] = static_cast<int32_t>(base);
    arrays_.sizes[slot] = static_cast<int32_t>(block.size);
    arrays_.keys[slot] = block.key;
    counts[0] += block.size;
    counts[1] += block.target_count;
    counts[3] += 1;
    bring_in(Place{std::move(block), slot, base});
  }

  // Writes anew which tasks of other blocks come after those of a block.
  void connect(int64_t key) {
    const Place* place = find(key);
    if (!place) return;
    const TaskBlock& block = place->block;
    edges_.clear();
    ends_.assign(block.size + 1, 0);
    each_read_of(key, [&](const Place& reader, const BlockInput& read) {
      for (int64_t at = 0; at < read.count; ++at) {
        const int32_t before = block.table[std::min(read.ports[at] + read.shift, block.table_count - 1)];
        if (before < 0) continue;
        edges_.push_back({before, static_cast<int32_t>(reader.base) + read.tasks[at]});
        ++ends_[before + 1];
      }
    });
    ends_[0] = static_cast<int32_t>(arrays_.counts[2]);
    for (int64_t at = 0; at < block.size; ++at) {
      ends_[at + 1] += ends_[at];
      Task& task = arrays_.tasks[place->base + at];
      task.outer = ends_[at];
      task.outer_end = ends_[at + 1];
    }
    for (const Edge& one : edges_) arrays_.outer_targets[ends_[one.before]++] = one.after;
    arrays_.counts[2] += static_cast<int64_t>(edges_.size());
  }

  // Tasks in other blocks that wait for any of a block.
  void add_outer(const Place& place, PlannerReplaced& found) const {
    if (!place.block.size) return;
    const Task* first = arrays_.tasks + place.base;
    for (int32_t at = first->outer; at < first[place.block.size - 1].outer_end; ++at) {
      found.changed[found.changes++] = arrays_.outer_targets[at];
    }
  }

  // Of what has changed, new tasks come first, and then those whose blocks are there.
  void keep_living(PlannerReplaced& found) const {
    const auto is_gone = [this](int64_t task) {
      const int32_t* const bases = arrays_.bases;
      const auto after = std::upper_bound(bases, bases + arrays_.slots(), task);
      return !arrays_.alive[after - bases - 1];
    };
    int64_t* const end = std::remove_if(found.changed, found.changed + found.changes, is_gone);
    const int64_t fresh = arrays_.used() - found.first;
    std::copy_backward(found.changed, end, end + fresh);
    for (int64_t at = 0; at < fresh; ++at) found.changed[at] = found.first + at;
    found.changes = end - found.changed + fresh;
  }

  struct Edge {
    int32_t before, after;
  };

  const PlannerTaskTable arrays_;
  std::unordered_map<int64_t, Place> places_;
  // Who waits for the block of a key, if it is there.
  std::unordered_map<int64_t, std::vector<int64_t>> readers_;
  Undo undo_;
  std::vector<int64_t> touched_;
  size_t changing_ = 0;
  std::unordered_map<int64_t, int64_t> touched_in_;
  int64_t round_ = 0;
  std::vector<Edge> edges_;
  std::vector<int32_t> ends_;
};

}  // namespace

extern "C" {

// A table of no blocks, or none where there is no memory.
void* planner_table_new(const PlannerTaskTable* arrays) { return new (std::nothrow) TaskTable(*arrays); }

void planner_table_delete(void* table) { delete static_cast<TaskTable*>(table); }

// 1 for done, 0 where there is no room in the arrays, and -1 where there is no memory: the table is lost then.
int64_t planner_table_replace(void* table, const int64_t* given, int64_t count, PlannerReplaced* found) {
  try {
    return static_cast<TaskTable*>(table)->replace(given, count, *found);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

int64_t planner_table_undo(void* table) {
  try {
    static_cast<TaskTable*>(table)->undo();
    return 1;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}
