#include "transfers.h"

#include <new>

int64_t overlap(const int64_t* box, const int64_t* other, int64_t dimensions) {
  int64_t elements = 1;
  for (int64_t end = 0; end < 2 * dimensions; end += 2) {
    elements *= std::max<int64_t>(0, std::min(box[end + 1], other[end + 1]) - std::max(box[end], other[end]));
  }
  return elements;
}

std::vector<std::vector<int64_t>> group_by_box(const PlannerRankBoxes& held) {
  const int64_t width = 2 * held.dimensions;
  std::vector<std::vector<int64_t>> groups;
  for (int64_t index = 0; index < held.count; ++index) {
    const int64_t* box = held.boxes + index * width;
    auto same = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int64_t>& group) {
      return std::equal(box, box + width, held.boxes + group.front() * width);
    });
    if (same == groups.end()) same = groups.insert(groups.end(), std::vector<int64_t>{});
    same->push_back(index);
  }
  return groups;
}

void find_own(const PlannerRankBoxes& held, const PlannerRankBoxes& needed, std::vector<int64_t>& own_elements) {
  std::fill(own_elements.begin(), own_elements.end(), 0);
  const int64_t width = 2 * held.dimensions;
  int64_t source = 0;
  for (int64_t target = 0; target < needed.count; ++target) {
    const int32_t rank = needed.ranks[target];
    while (source < held.count && held.ranks[source] < rank) ++source;
    if (source < held.count && held.ranks[source] == rank) {
      own_elements[rank] = overlap(held.boxes + source * width, needed.boxes + target * width, held.dimensions);
    }
  }
}

void keep_only(const int32_t* ranks, int64_t count, std::vector<int64_t>& own_elements) {
  const int32_t* end = ranks + count;
  for (size_t rank = 0; rank < own_elements.size(); ++rank) {
    if (!std::binary_search(ranks, end, static_cast<int32_t>(rank))) own_elements[rank] = 0;
  }
}

namespace {

// Adds the transfer of what a held and a needed box have in common, unless the target rank sends it itself.
void add_transfer(const PlannerRankBoxes& held, int64_t source, const PlannerRankBoxes& needed, int64_t target,
                  PlannerTransfers& transfers) {
  const int64_t width = 2 * held.dimensions;
  const int64_t elements = overlap(held.boxes + source * width, needed.boxes + target * width, held.dimensions);
  if (elements == 0 || held.ranks[source] == needed.ranks[target]) return;
  transfers.sources[transfers.count] = held.ranks[source];
  transfers.targets[transfers.count] = needed.ranks[target];
  transfers.elements[transfers.count++] = elements;
}

void fill_transfers(const PlannerRankBoxes& held, bool partial, const PlannerRankBoxes& needed,
                    PlannerTransfers& transfers) {
  if (partial) {
    for (int64_t source = 0; source < held.count; ++source) {
      for (int64_t target = 0; target < needed.count; ++target) {
        add_transfer(held, source, needed, target, transfers);
      }
    }
    return;
  }
  const auto groups = group_by_box(held);
  std::vector<int64_t> requests(held.count, 0);
  const int64_t width = 2 * held.dimensions;
  // Each target in turn asks the holder that has the fewest requests.
  for (int64_t target = 0; target < needed.count; ++target) {
    for (const auto& group : groups) {
      const bool is_local = std::any_of(group.begin(), group.end(), [&](int64_t holder) {
        return held.ranks[holder] == needed.ranks[target];
      });
      if (is_local || !overlap(held.boxes + group.front() * width, needed.boxes + target * width, held.dimensions)) {
        continue;
      }
      const int64_t source = *std::min_element(group.begin(), group.end(), [&](int64_t holder, int64_t other) {
        return requests[holder] < requests[other];
      });
      ++requests[source];
      add_transfer(held, source, needed, target, transfers);
    }
  }
}

}  // namespace

extern "C" {

// Returns 2 if each rank holds exactly the box that it needs, 1 if each holds it or a larger one, and 0 otherwise.
int64_t planner_coverage(const PlannerRankBoxes* held, const PlannerRankBoxes* needed) {
  const int64_t width = 2 * held->dimensions;
  int64_t source = 0;
  bool is_exact = true;
  for (int64_t target = 0; target < needed->count; ++target) {
    while (source < held->count && held->ranks[source] < needed->ranks[target]) ++source;
    if (source == held->count || held->ranks[source] != needed->ranks[target]) return 0;
    const int64_t *needed_box = needed->boxes + target * width, *held_box = held->boxes + source * width;
    if (std::equal(needed_box, needed_box + width, held_box)) continue;
    is_exact = false;
    for (int64_t end = 0; end < width; end += 2) {
      if (needed_box[end] < held_box[end] || needed_box[end + 1] > held_box[end + 1]) return 0;
    }
  }
  return is_exact ? 2 : 1;
}

// Fills in the transfers that give each rank the box that it needs; returns their number, or -1 if there is no memory.
// Partial sums come from all ranks that hold one. Each target asks one of the ranks that hold the same box.
int64_t planner_transfers(const PlannerRankBoxes* held, int64_t partial, const PlannerRankBoxes* needed,
                          PlannerTransfers* transfers) {
  try {
    fill_transfers(*held, partial, *needed, *transfers);
    return transfers->count;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
}
