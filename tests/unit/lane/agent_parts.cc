// Parts of an agent alone: views of row requests, in memory that this program writes as workers do, and rounds of
// allreduces.
#include <algorithm>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "agent/allreduce_round.h"
#include "agent/request_view.h"
#include "check.h"
#include "store/keys.h"

using namespace lane;

namespace {

template <typename Id>
bool is_refused(const RequestView<Id>& view, uint32_t number) {
  try {
    view.check(number);
    return false;
  } catch (const std::runtime_error&) {
    return true;
  }
}

/// Return the ids of some rows of a partition, sorted: local ids, or keys.
template <typename Id>
std::vector<Id> some_ids(const TableShape& shape, uint32_t part) {
  std::vector<Id> ids;
  for (int64_t row = 0; row < 60; ++row) {
    if (random_below(3)) continue;
    if (std::is_same<Id, int64_t>::value ? partition_of(row, shape.partitions()) == part
                                         : row < static_cast<int64_t>(shape.rows_of(part))) {
      ids.push_back(static_cast<Id>(row));
    }
  }
  return ids;
}

template <typename Id>
void check_request() {
  TableShape shape;
  shape.width = 3;
  shape.owners.assign(1 + random_below(4), 0);
  shape.staleness = random_below(2) * random_below(4);
  shape.dynamic = std::is_same<Id, int64_t>::value;
  const uint32_t parts = shape.partitions(), most = 60 * parts * shape.groups();
  shape.rows = shape.dynamic ? 0 : most;
  shape.max_batch_rows = most;
  const uint32_t pieces = shape.groups() * parts, number = random_below(kMaxRowRequests);
  const WorkerTableLayout layout(shape);
  const Memory memory(layout.size);
  RowRequest& request = memory.at<WorkerTable>(0)->requests[number];
  request.version = 100 + random_below(10);
  request.flags = random_below(2) * kUncached;
  request.used_at = 200;
  uint32_t* bounds = memory.at<uint32_t>(layout.request_bounds[number]);
  Id* ids = memory.at<Id>(layout.request_ids[number]);
  std::vector<std::vector<Id>> written;  // by piece
  for (uint32_t piece = 0; piece < pieces; ++piece) {
    written.push_back(some_ids<Id>(shape, piece % parts));
    std::copy(written.back().begin(), written.back().end(), ids + bounds[piece]);
    bounds[piece + 1] = bounds[piece] + static_cast<uint32_t>(written.back().size());
  }
  const RequestView<Id> view(shape, layout, memory, number);
  check(view.pieces() == pieces && view.is_uncached() == (request.flags == kUncached) && !view.is_fence() &&
            view.version() == request.version && view.used_at() == 200,
        "a view has other flags or versions");
  for (uint32_t i = 0; i < pieces; ++i) {
    check(!is_refused(view, i), "a piece is refused");
    const auto piece = view.piece(i);
    // The last group must include all pushes, the group before it all but the last one, and so on.
    check(piece.part == i % parts && piece.version == request.version - (shape.groups() - 1 - i / parts),
          "a piece has another partition or version");
    check(std::vector<Id>(piece.ids, piece.ids + piece.count) == written[i], "a piece has other ids");
    check(piece.slots == memory.at<uint32_t>(layout.request_slots[number]) + bounds[i], "a piece has other slots");
  }
  // Malformed bounds and ids are refused.
  const uint32_t chosen = random_below(pieces);
  if (written[chosen].size() > 1) {
    std::swap(ids[bounds[chosen]], ids[bounds[chosen] + 1]);
    check(is_refused(view, chosen), "unsorted ids are not refused");
    std::swap(ids[bounds[chosen]], ids[bounds[chosen] + 1]);
  }
  const uint32_t end = bounds[chosen + 1];
  bounds[chosen + 1] = static_cast<uint32_t>(shape.max_rows()) + 1;
  check(is_refused(view, chosen), "bounds beyond the memory are not refused");
  if (bounds[chosen] > 0) {
    bounds[chosen + 1] = bounds[chosen] - 1;
    check(is_refused(view, chosen), "bounds that decrease are not refused");
  }
  bounds[chosen + 1] = end;
}

using Event = void (AllreduceRound::*)();

/// A round is complete after its last event, and not before, whatever the order of events is.
void check_round(AllreduceKind kind, uint32_t own_chunks, uint32_t other_chunks) {
  AllreduceRound round(kind, own_chunks, other_chunks);
  std::vector<Event> events;
  const auto add = [&](uint32_t count, Event event) { events.insert(events.end(), count, event); };
  if (kind != AllreduceKind::kGather) add(own_chunks, &AllreduceRound::chunk_added);
  add(other_chunks, kind == AllreduceKind::kScatter ? &AllreduceRound::contribution_sent
                                                    : &AllreduceRound::result_arrived);
  std::shuffle(events.begin(), events.end(), random_bits);
  for (const Event event : events) {
    check(!round.is_complete(), "a round is complete too early");
    (round.*event)();
  }
  check(round.is_complete(), "a round is not complete");
  check(round.has_results() == (kind != AllreduceKind::kScatter), "a round has other results");
}

}  // namespace

int main() {
  for (int i = 0; i < 500; ++i) {
    check_request<int32_t>();
    check_request<int64_t>();
  }
  for (const AllreduceKind kind : {AllreduceKind::kSum, AllreduceKind::kScatter, AllreduceKind::kGather}) {
    for (uint32_t own_chunks = 0; own_chunks < 6; ++own_chunks) {
      for (uint32_t other_chunks = 0; other_chunks < 6; ++other_chunks) check_round(kind, own_chunks, other_chunks);
    }
  }
}
