// Replaces blocks of tasks in the arrays of a TaskTable.

#include <algorithm>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "simulation_structs.h"

namespace {

// As INDEX_BITS of task_block.py.
constexpr int kIndexBits = 23;

// Arrays of Python are passed by their addresses, as numbers.
template <typename Type>
Type* array_at(int64_t address) {
  return reinterpret_cast<Type*>(static_cast<intptr_t>(address));
}

// The dependencies of a block on the outputs of another block.
struct BlockInput {
  int64_t key;
  const int32_t* tasks;
  const int32_t* outputs;
  int64_t count, offset;
};

// The block of a key from now on; a size below zero for no block.
struct TaskBlock {
  int64_t key;
  const Task* tasks = nullptr;
  const int32_t* successors = nullptr;
  const int32_t* output_tasks = nullptr;
  int64_t size = -1, successor_count = 0, output_count = 0;
  std::vector<BlockInput> inputs;

  // Reads a block from the numbers that NativeTaskTable packs, and moves on to the next block.
  static TaskBlock parse(const int64_t*& numbers) {
    TaskBlock block;
    block.key = *numbers++;
    block.tasks = array_at<Task>(*numbers++);
    block.successors = array_at<int32_t>(*numbers++);
    block.output_tasks = array_at<int32_t>(*numbers++);
    block.size = *numbers++;
    block.successor_count = *numbers++;
    block.output_count = *numbers++;
    block.inputs.resize(*numbers++);
    for (BlockInput& input : block.inputs) {
      input.key = *numbers++;
      input.offset = *numbers++;
      input.tasks = array_at<int32_t>(*numbers++);
      input.outputs = array_at<int32_t>(*numbers++);
      input.count = *numbers++;
    }
    return block;
  }
};

// A live block, its slot, and the number of its first task.
struct LiveBlock {
  TaskBlock block;
  int64_t slot, base;
};

class TaskTable {
 public:
  explicit TaskTable(const PlannerTaskTable& arrays) : arrays_(arrays) {}

  // Returns false, and changes nothing, where the arrays are full.
  bool replace(const int64_t* numbers, int64_t count, PlannerReplacement& replacement) {
    std::vector<TaskBlock> blocks;
    for (int64_t index = 0; index < count; ++index) blocks.push_back(TaskBlock::parse(numbers));
    find_affected(blocks);
    if (!has_capacity(blocks)) return false;
    undo_ = Undo();
    std::copy_n(arrays_.counts, kCounts, undo_.counts);
    replacement.changed_count = replacement.removed_count = 0;
    for (const TaskBlock& block : blocks) undo_.keys.push_back(block.key);
    for (size_t index = replaced_count_; index < affected_.size(); ++index) save_outer_ranges(affected_[index]);
    for (const TaskBlock& block : blocks) {
      if (const LiveBlock* live = find(block.key)) add_outer_successors(*live, replacement);
    }
    for (const TaskBlock& block : blocks) take_out(block.key, replacement);
    replacement.first_new = arrays_.used();
    std::vector<int64_t> new_keys;
    for (TaskBlock& block : blocks) {
      if (block.size < 0) continue;
      new_keys.push_back(block.key);
      append(std::move(block));
    }
    for (int64_t key : affected_) connect(key);
    for (int64_t key : new_keys) add_outer_successors(live_.at(key), replacement);
    order_changed(replacement);
    return true;
  }

  void rollback() {
    for (int64_t key : undo_.keys) {
      if (const LiveBlock* live = find(key)) forget(*live);
    }
    for (LiveBlock& live : undo_.replaced) bring_in(std::move(live));
    for (const OuterRanges& ranges : undo_.outer_ranges) {
      const LiveBlock& live = live_.at(ranges.key);
      for (int64_t index = 0; index < live.block.size; ++index) {
        Task& task = arrays_.tasks[live.base + index];
        task.outer = ranges.bounds[index];
        task.outer_end = ranges.bounds[index + 1];
      }
    }
    std::copy_n(undo_.counts, kCounts, arrays_.counts);
  }

 private:
  static constexpr int kCounts = 5;

  // The former ranges of a block's outer successors: task by task, from one bound to the next.
  struct OuterRanges {
    int64_t key;
    std::vector<int32_t> bounds;
  };

  struct Undo {
    int64_t counts[kCounts];
    std::vector<int64_t> keys;
    std::vector<LiveBlock> replaced;
    std::vector<OuterRanges> outer_ranges;
  };

  struct Edge {
    int32_t before, after;
  };

  const LiveBlock* find(int64_t key) const {
    const auto position = live_.find(key);
    return position == live_.end() ? nullptr : &position->second;
  }

  // Finds the keys of blocks whose outer successors change: first the replaced blocks, then those that old or new
  // blocks depend on.
  void find_affected(const std::vector<TaskBlock>& blocks) {
    affected_.clear();
    std::unordered_set<int64_t> known;
    const auto add = [&](int64_t key) {
      if (known.insert(key).second) affected_.push_back(key);
    };
    for (const TaskBlock& block : blocks) add(block.key);
    replaced_count_ = affected_.size();
    for (const TaskBlock& block : blocks) {
      const LiveBlock* live = find(block.key);
      if (!live) continue;
      for (const BlockInput& input : live->block.inputs) add(input.key);
    }
    for (const TaskBlock& block : blocks) {
      for (const BlockInput& input : block.inputs) add(input.key);
    }
  }

  bool has_capacity(const std::vector<TaskBlock>& blocks) const {
    int64_t tasks = 0, inner = 0, outer = 0, slots = 0;
    for (const TaskBlock& block : blocks) {
      if (block.size < 0) continue;
      tasks += block.size;
      inner += block.successor_count;
      ++slots;
      for (const BlockInput& input : block.inputs) outer += input.count;
    }
    for (int64_t key : affected_) {
      each_dependent_input(key, [&](const LiveBlock&, const BlockInput& input) { outer += input.count; });
    }
    const int64_t* counts = arrays_.counts;
    return counts[0] + tasks <= arrays_.max_tasks && counts[1] + inner <= arrays_.max_successors &&
           counts[2] + outer <= arrays_.max_outer_successors && counts[3] + slots <= arrays_.max_slots;
  }

  // Calls a function with all live inputs that depend on the block of a key.
  template <typename Function>
  void each_dependent_input(int64_t key, Function function) const {
    const auto dependents = dependents_.find(key);
    if (dependents == dependents_.end()) return;
    for (int64_t dependent : dependents->second) {
      const LiveBlock& live = live_.at(dependent);
      for (const BlockInput& input : live.block.inputs) {
        if (input.key == key) function(live, input);
      }
    }
  }

  // Saves the ranges of the outer successors of a block that stays.
  void save_outer_ranges(int64_t key) {
    const LiveBlock* live = find(key);
    if (!live) return;
    OuterRanges ranges{key, {}};
    ranges.bounds.reserve(live->block.size + 1);
    const Task* tasks = arrays_.tasks + live->base;
    for (int64_t index = 0; index < live->block.size; ++index) ranges.bounds.push_back(tasks[index].outer);
    if (live->block.size) ranges.bounds.push_back(tasks[live->block.size - 1].outer_end);
    undo_.outer_ranges.push_back(std::move(ranges));
  }

  void take_out(int64_t key, PlannerReplacement& replacement) {
    const LiveBlock* live = find(key);
    if (!live) return;
    for (int64_t index = 0; index < live->block.size; ++index) {
      replacement.removed[replacement.removed_count++] = live->base + index;
    }
    undo_.replaced.push_back(std::move(live_.at(key)));
    forget(undo_.replaced.back());
  }

  // The block may be an element of live_, or have been moved from there.
  void forget(const LiveBlock& live) {
    const int64_t key = live.block.key;
    arrays_.alive[live.slot] = 0;
    arrays_.counts[4] -= live.block.size;
    for (const BlockInput& input : live.block.inputs) {
      std::vector<int64_t>& dependents = dependents_[input.key];
      // A block may have several inputs of one key.
      dependents.erase(std::remove(dependents.begin(), dependents.end(), key), dependents.end());
    }
    live_.erase(key);
  }

  void bring_in(LiveBlock&& live) {
    const int64_t key = live.block.key;
    arrays_.alive[live.slot] = 1;
    arrays_.counts[4] += live.block.size;
    for (const BlockInput& input : live.block.inputs) {
      std::vector<int64_t>& dependents = dependents_[input.key];
      if (std::find(dependents.begin(), dependents.end(), key) == dependents.end()) dependents.push_back(key);
    }
    live_.insert_or_assign(key, std::move(live));
  }

  void append(TaskBlock&& block) {
    int64_t* counts = arrays_.counts;
    const int64_t base = counts[0], inner = counts[1], slot = counts[3];
    for (int64_t index = 0; index < block.size; ++index) {
      Task& task = arrays_.tasks[base + index] = block.tasks[index];
      task.inner += static_cast<int32_t>(inner);
      task.inner_end += static_cast<int32_t>(inner);
      task.order += block.key << kIndexBits;
    }
    for (int64_t index = 0; index < block.successor_count; ++index) {
      arrays_.successors[inner + index] = block.successors[index] + static_cast<int32_t>(base);
    }
    arrays_.bases[slot] = static_cast<int32_t>(base);
    arrays_.sizes[slot] = static_cast<int32_t>(block.size);
    arrays_.keys[slot] = block.key;
    counts[0] += block.size;
    counts[1] += block.successor_count;
    counts[3] += 1;
    bring_in(LiveBlock{std::move(block), slot, base});
  }

  // Writes the outer successors of a block.
  void connect(int64_t key) {
    const LiveBlock* live = find(key);
    if (!live) return;
    const TaskBlock& block = live->block;
    edges_.clear();
    ends_.assign(block.size + 1, 0);
    each_dependent_input(key, [&](const LiveBlock& dependent, const BlockInput& input) {
      for (int64_t index = 0; index < input.count; ++index) {
        const int64_t output = std::min(input.outputs[index] + input.offset, block.output_count - 1);
        const int32_t before = block.output_tasks[output];
        if (before < 0) continue;
        edges_.push_back({before, static_cast<int32_t>(dependent.base) + input.tasks[index]});
        ++ends_[before + 1];
      }
    });
    ends_[0] = static_cast<int32_t>(arrays_.counts[2]);
    for (int64_t index = 0; index < block.size; ++index) {
      ends_[index + 1] += ends_[index];
      Task& task = arrays_.tasks[live->base + index];
      task.outer = ends_[index];
      task.outer_end = ends_[index + 1];
    }
    for (const Edge& edge : edges_) arrays_.outer_successors[ends_[edge.before]++] = edge.after;
    arrays_.counts[2] += static_cast<int64_t>(edges_.size());
  }

  // Adds the outer successors of a block to the changed tasks.
  void add_outer_successors(const LiveBlock& live, PlannerReplacement& replacement) const {
    if (!live.block.size) return;
    const Task* first = arrays_.tasks + live.base;
    for (int32_t index = first->outer; index < first[live.block.size - 1].outer_end; ++index) {
      replacement.changed[replacement.changed_count++] = arrays_.outer_successors[index];
    }
  }

  // Puts new tasks in front of the other changed tasks, and drops those of removed blocks.
  void order_changed(PlannerReplacement& replacement) const {
    const auto is_removed = [this](int64_t task) {
      const int32_t* const bases = arrays_.bases;
      const auto next_slot = std::upper_bound(bases, bases + arrays_.slots(), task);
      return !arrays_.alive[next_slot - bases - 1];
    };
    int64_t* const changed = replacement.changed;
    int64_t* const end = std::remove_if(changed, changed + replacement.changed_count, is_removed);
    const int64_t new_tasks = arrays_.used() - replacement.first_new;
    std::copy_backward(changed, end, end + new_tasks);
    for (int64_t index = 0; index < new_tasks; ++index) changed[index] = replacement.first_new + index;
    replacement.changed_count = end - changed + new_tasks;
  }

  const PlannerTaskTable arrays_;
  std::unordered_map<int64_t, LiveBlock> live_;
  // By key: the keys of live blocks that depend on the block of that key, which may not exist.
  std::unordered_map<int64_t, std::vector<int64_t>> dependents_;
  Undo undo_;
  // The keys of the blocks that the last replacement affected, those that it replaced first, and the number of those.
  std::vector<int64_t> affected_;
  size_t replaced_count_ = 0;
  // Buffers of connect().
  std::vector<Edge> edges_;
  std::vector<int32_t> ends_;
};

}  // namespace

extern "C" {

// Returns an empty table, or a null pointer if there is no memory.
void* planner_table_new(const PlannerTaskTable* arrays) { return new (std::nothrow) TaskTable(*arrays); }

void planner_table_delete(void* table) { delete static_cast<TaskTable*>(table); }

// Returns 1 for success, 0 if the arrays are full, and -1 if there is no memory; then the table is unusable.
int64_t planner_table_replace(void* table, const int64_t* numbers, int64_t count, PlannerReplacement* replacement) {
  try {
    return static_cast<TaskTable*>(table)->replace(numbers, count, *replacement);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

int64_t planner_table_rollback(void* table) {
  try {
    static_cast<TaskTable*>(table)->rollback();
    return 1;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}
