// Rounds of allreduces: each is complete after its last event, and not before, whatever the order of events is.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "agent/allreduce_round.h"

using namespace lane;

namespace {

std::mt19937 engine(11);

using Event = void (AllreduceRound::*)();

void check_round(AllreduceKind kind, uint32_t own_chunks, uint32_t other_chunks) {
  AllreduceRound round(kind, own_chunks, other_chunks);
  std::vector<Event> events;
  const auto add = [&](uint32_t count, Event event) { events.insert(events.end(), count, event); };
  if (kind != AllreduceKind::kGather) add(own_chunks, &AllreduceRound::chunk_added);
  add(other_chunks, kind == AllreduceKind::kScatter ? &AllreduceRound::contribution_sent
                                                    : &AllreduceRound::result_arrived);
  std::shuffle(events.begin(), events.end(), engine);
  for (const Event event : events) {
    if (round.is_complete()) {
      std::printf("a round is complete too early\n");
      std::exit(1);
    }
    (round.*event)();
  }
  if (!round.is_complete() || round.has_results() == (kind == AllreduceKind::kScatter)) {
    std::printf("a round is not complete, or has other results\n");
    std::exit(1);
  }
}

}  // namespace

int main() {
  for (const AllreduceKind kind : {AllreduceKind::kSum, AllreduceKind::kScatter, AllreduceKind::kGather}) {
    for (uint32_t own_chunks = 0; own_chunks < 6; ++own_chunks) {
      for (uint32_t other_chunks = 0; other_chunks < 6; ++other_chunks) check_round(kind, own_chunks, other_chunks);
    }
  }
  std::printf("all rounds are right\n");
}
