// A fuzzer of messages from other hosts.  No message, even of an agent that knows the job's secret, may do more harm
// than to end an agent, which reports why.
//
// An input is a program for two other hosts, and for the honest worker of the agent's own host: see `Step` in
// fuzz_program.h.  This file is a test that makes inputs by a seeded generator, see test_sanitizers.py, or a target of
// libFuzzer, see docs/testing.md.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz_hosts.h"

using namespace fuzz;

namespace {

/// Parts of which programs are composed.
Input joined(const std::vector<Input>& parts) {
  Input all;
  for (const Input& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
Input step(Step what, uint8_t host, const Input& more = {}) {
  return joined({{static_cast<uint8_t>(what << 1 | (host - 1))}, more});
}
struct How {
  uint8_t which = 0, part = 0, count = 0, want = 0, stream = 0, place = 0, change = 0, back = kNothingBack;
};
Input repeated(const Input& part, size_t times) { return joined(std::vector<Input>(times, part)); }
Input say(Message kind, uint8_t host, const How& how = {}) {
  return step(kSay, host, {static_cast<uint8_t>(kind), how.which, how.part, how.count, how.want, how.stream, how.place,
                           how.change, how.back});
}

Input bytes_of(const Header& header) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&header);
  return {bytes, bytes + sizeof header};
}

struct Case {
  const char* name;
  /// Part of the reason with which the agent ends; empty if it does not end.
  const char* why;
  /// The number of results of its worker.
  uint32_t results;
  Input program;
};

/// Programs of honest hosts, and programs that once did harm.
std::vector<Case> cases() {
  /// Both other hosts push to the partitions of table 0 on this host.
  const Input pushes = joined({say(kAPush, 1, {0, 0, 5}), say(kAPush, 1, {0, 3, 2}), say(kAPush, 2, {0, 0, 1}),
                               say(kAPush, 2, {0, 3, 0})});
  const Input halves = joined({say(kAPush, 1, {1, 1, 4}), say(kAPush, 2, {1, 1, 2})});
  const Input wide = joined({say(kAPush, 1, {2, 0, 10}), say(kAPush, 2, {2, 0, 10})});
  const Input keyed = joined({say(kAPush, 1, {3, 0, 5}), say(kAPush, 1, {3, 2, 2}), say(kAPush, 2, {3, 0, 1}),
                              say(kAPush, 2, {3, 2, 0})});
  const Input answers = joined({say(kAnAnswer, 1), say(kAnAnswer, 2)});
  /// Both other hosts answer this host's contributions.
  const Input parts = joined({say(kAContribution, 1, {0, 0}), say(kAContribution, 2, {0, 0})});
  const Input totals = joined({say(kAContribution, 1, {1, 2}), say(kAContribution, 2, {1, 2}), say(kAResult, 1, {1, 0}),
                               say(kAResult, 2, {1, 1})});
  const Input answer = bytes_of({Message::kRows, 0, 0, 1, 0, 5, 0, 0, 1});
  // Messages in the wrong stream.
  const uint8_t urgent = kAnotherStream + kAllreduce, pulls = kAnotherStream + kPullRequests;
  return {
      {"rows", "", 1,
       joined({step(kPushRows, 1, {0, 0}), pushes, step(kPostRequest, 1, {0, 0, 0}), answers,
               step(kWaitForRows, 1, {0})})},
      {"rows as float16", "", 2,
       joined({step(kPushRows, 1, {1, 0}), halves, step(kPostRequest, 1, {1, 0, 0}), step(kPostRequest, 1, {1, 2, 1}),
               answers, answers, step(kWaitForRows, 1, {1})})},
      {"wide rows", "", 1,
       joined(
           {step(kPushRows, 1, {2, 0}), wide, step(kPostRequest, 1, {2, 2, 0}), answers, step(kWaitForRows, 1, {2})})},
      {"a fence, and another table", "", 2,
       joined({step(kPushRows, 1, {0, 0}), pushes, step(kPostRequest, 1, {0, 1}), answers, step(kWaitForRows, 1, {0}),
               step(kReopenTable, 1, {0}), step(kPushRows, 1, {0, 2}), pushes, step(kPostRequest, 1, {0, 0, 2}),
               answers, step(kWaitForRows, 1, {0})})},
      {"rows by key", "", 3,
       joined({step(kPushRows, 1, {3, 0}), keyed, step(kPostRequest, 1, {3, 0, 0}), step(kPostRequest, 1, {3, 2, 1}),
               step(kPostRequest, 1, {3, 1}), answers, answers, answers, step(kWaitForRows, 1, {3})})},
      {"pulls of other hosts by key", "", 0,
       joined({say(kAPull, 1, {3, 0, 16, 1}), say(kAPull, 2, {3, 2, 0, 1}), step(kPushRows, 1, {3, 1}), keyed})},
      {"a pushed key of another partition", "a push with malformed", 0, say(kAPush, 1, {3, 0, 1, 0, 0, 39, 2})},
      {"a pulled key of another partition", "a pull with malformed", 0, say(kAPull, 1, {3, 2, 3, 0, 0, 39, 1})},
      {"a push of too many keys", "a push of too many rows", 0, say(kAPush, 1, {3, 0, 17})},
      {"pulls of other hosts", "", 0,
       joined({say(kAPull, 1, {0, 0, 3, 1}), say(kAPull, 2, {0, 3, 0, 1}), step(kDeaf, 2), say(kAPull, 2, {1, 1, 4, 0}),
               say(kAPull, 2, {2, 0, 10, 0}), step(kPushRows, 1, {0, 1}), pushes, step(kDeaf, 2), say(kABye, 2),
               step(kGone, 2)})},
      {"allreduces", "", 2,
       joined({step(kStartAllreduce, 1, {0}), step(kStartAllreduce, 1, {1}), parts, totals,
               step(kStartAllreduce, 1, {0}), step(kStartAllreduce, 1, {1})})},
      {"allreduces as int8", "", 2,
       joined({step(kStartAllreduce, 1, {3}), step(kStartAllreduce, 1, {4}), say(kAContribution, 1, {3, 0}),
               say(kAContribution, 2, {3, 0}), say(kAResult, 1, {4, 0}), step(kStartAllreduce, 1, {3}),
               step(kStartAllreduce, 1, {4})})},
      {"a sum of another form", "of an allreduce that has another size or type", 0,
       joined({step(kStartAllreduce, 1, {3}), say(kAContribution, 1, {3, 0, 0, 0, 0, 1, 0x80})})},
      {"early contributions", "", 1,
       joined({step(kReopenAllreduce, 1, {0}), parts, step(kStartAllreduce, 1, {0}), step(kStartAllreduce, 1, {0}),
               step(kStartAllreduce, 1, {0})})},
      {"messages in two parts", "", 2,
       joined({step(kPushRows, 1, {0, 0}), step(kStartAllreduce, 1, {0}),
               say(kAPush, 1, {0, 0, 5, 0, 0, 0, 0, kHalfBack}), say(kAPull, 1, {0, 0, 3, 1, 0, 0, 0, kHalfBack}),
               say(kAContribution, 1, {0, 0, 0, 0, 0, 0, 0, kHalfBack}), step(kGoOn, 1, {kPullRequests, 128}),
               step(kGoOn, 1, {kAllreduce, 255}), step(kGoOn, 1, {kPullRequests, 255}),
               step(kGoOn, 1, {kRowsInOrder, 255}), say(kAPush, 1, {0, 3, 2}), say(kAPush, 2, {0, 0, 1}),
               say(kAPush, 2, {0, 3, 0}), say(kAContribution, 2, {0, 0}), step(kPostRequest, 1, {0, 0, 0}), answers,
               step(kWaitForRows, 1, {0}), step(kStartAllreduce, 1, {0})})},
      {"as many pulls as requests need", "", 1,
       joined({repeated(say(kAPull, 1, {1, 1, 3, 1}), kMaxRowRequests * 2), step(kPushRows, 1, {1, 0}), halves,
               repeated(say(kAPull, 1, {1, 1, 3, 1}), kMaxRowRequests * 2), step(kPostRequest, 1, {1, 0, 0}), answers,
               step(kWaitForRows, 1, {1})})},
      {"more pulls than requests need", "too many pulls", 0,
       repeated(say(kAPull, 1, {1, 1, 3, 1}), kMaxRowRequests * 2 + 2)},
      {"transfers", "", 3,
       joined({say(kARingData, 1, {3, 0, 200, 0}), say(kARingData, 1, {5, 1, 9, 1}), step(kReadBytes, 1),
               say(kARingData, 1, {3, 0, 200, 0, 0, 0, 0, kHalfBack}), step(kReadBytes, 1),
               step(kGoOn, 1, {kTransfers, 255}), step(kReadBytes, 1)})},
      {"transfers of this host", "", 2,
       joined({step(kWriteBytes, 1, {2, 200}), step(kWriteBytes, 2, {3, 100}), say(kARingCredit, 1, {0, 0, 200, 0}),
               step(kWriteBytes, 1, {2, 250}), say(kARingCredit, 1, {0, 0, 250, 0}), step(kWriteBytes, 1, {2, 0})})},
      {"a ring that gets another tag", "", 2,
       joined({say(kARingData, 1, {3, 0, 200, 0}), step(kReadBytes, 1), say(kARingData, 1, {4, 0, 250, 0}),
               step(kReadBytes, 1)})},
      {"a ring that is not empty gets another tag", "in use", 0,
       joined({say(kARingData, 1, {3, 0, 200, 0}), say(kARingData, 1, {4, 0, 1, 0})})},
      {"another size of a ring", "does not fit its ring", 1,
       joined({say(kARingData, 1, {3, 0, 200, 0}), step(kReadBytes, 1), say(kARingData, 1, {3, 1, 200, 0})})},
      {"too large a transfer", "does not fit its ring", 0,
       joined({say(kARingData, 1, {3, 0, 200, 0}), say(kARingData, 1, {3, 0, 57, 0})})},
      {"too large rings", "no room for another ring", 0,
       joined({say(kARingData, 1, {1, 5, 1, 0}), say(kARingData, 1, {2, 5, 1, 1}), say(kARingData, 1, {3, 5, 1, 2})})},
      {"a ring without a size", "malformed ring", 0, say(kARingData, 1, {1, 13, 1, 0})},
      {"more consumed than sent", "a credit for more bytes", 0,
       joined(
           {step(kWriteBytes, 1, {2, 200}), say(kARingCredit, 1, {0, 0, 200, 0}), say(kARingCredit, 1, {0, 0, 1, 0})})},
      {"a credit of an unknown ring", "a credit for more bytes", 0, say(kARingCredit, 1, {0, 0, 0, 7})},
      {"noise", "malformed fragment", 0, step(kNoise, 1, {4, 1, 2, 3, 255})},
      {"a host that is gone", "is lost", 0, joined({say(kAPush, 1, {0, 0, 5, 0, 0, 0, 0, kHalfBack}), step(kGone, 1)})},
      // Programs that once accessed memory out of bounds.
      {"two pushes at a time", "stream", 0,
       joined({say(kAPush, 1, {0, 0, 5, 0, 0, 0, 0, kHalfBack}), say(kAPush, 1, {0, 0, 1, 0, pulls}),
               step(kGoOn, 1, {kRowsInOrder, 255})})},
      {"two pulls at a time", "stream", 0,
       joined({say(kAPull, 1, {0, 0, 5, 0, 0, 0, 0, 8}), say(kAPull, 1, {0, 0, 1, 0, urgent}),
               step(kGoOn, 1, {kPullRequests, 255})})},
      {"two answers at a time to one pull", "stream", 0,
       joined({step(kPushRows, 1, {1, 0}), halves, step(kPostRequest, 1, {1, 0, 0}),
               // The second answer is composed here, since the template answers a pull once.
               say(kAnAnswer, 1, {0, 0, 0, 0, 0, 0, 0, 64}), step(kBytes, 1, {kPullRequests, sizeof(Header)}), answer,
               step(kGoOn, 1, {kRowsInOrder, 255})})},
      {"a result of an allreduce with a contribution only", "an unknown allreduce", 0,
       joined({say(kAContribution, 1, {2, 0}), say(kAResult, 1, {2, 0})})},
      {"a contribution that continues after its allreduce is dropped", "", 1,
       joined({step(kStartAllreduce, 1, {0}), parts, say(kAContribution, 1, {0, 0, 0, 0, 0, 0, 0, 8}),
               step(kReopenAllreduce, 1, {0}), step(kGoOn, 1, {kAllreduce, 255})})},
      {"a result that continues after its allreduce is dropped", "stream", 0,
       joined({step(kStartAllreduce, 1, {1}), say(kAContribution, 1, {1, 2}), say(kAContribution, 2, {1, 2}),
               say(kAResult, 2, {1, 1}), say(kAResult, 1, {1, 0, 0, 0, 0, 0, 0, kHalfBack}),
               say(kAResult, 1, {1, 0, 0, 0, pulls}), step(kReopenAllreduce, 1, {1}),
               step(kGoOn, 1, {kAllreduce, 255})})},
  };
}

}  // namespace

#ifdef WITH_LIBFUZZER

namespace {

void write_seeds(const std::string& folder) {
  for (const Case& each : cases()) {
    std::ofstream file(folder + "/" + each.name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(each.program.data()), static_cast<std::streamsize>(each.program.size()));
    check(file.good(), "a seed cannot be written");
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

/// The first argument is a folder for seeds and findings, or an input to run again.
int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc > 1 && std::filesystem::is_directory((*argv)[1])) write_seeds((*argv)[1]);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Hosts().run(Input(data, data + size));
  return 0;
}

#else

namespace {

using Random = std::mt19937;

/// Return a mutation of one program or two: bytes are changed, removed, inserted or repeated.
Input mutated(const std::vector<Case>& from, Random& random) {
  const auto below = [&random](size_t limit) { return random() % std::max<size_t>(1, limit); };
  const Case* base = &from[below(from.size())];
  while (*base->why && below(4) > 0) base = &from[below(from.size())];  // one of the honest ones, mostly
  Input program = base->program;
  if (below(3) == 0) {
    const Input& other = from[below(from.size())].program;
    program.resize(below(program.size() + 1));
    program.insert(program.end(), other.begin() + static_cast<ptrdiff_t>(below(other.size())), other.end());
  }
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const auto position = program.begin() + static_cast<ptrdiff_t>(below(program.size()));
    const auto length = static_cast<ptrdiff_t>(std::min<size_t>(1 + below(12), program.end() - position));
    switch (below(5)) {
      case 0: program.insert(position, static_cast<uint8_t>(random())); break;
      case 1: program.erase(position, position + length); break;
      case 2: {
        const Input again(position, position + length);
        program.insert(program.begin() + static_cast<ptrdiff_t>(below(program.size())), again.begin(), again.end());
        break;
      }
      default:
        if (position != program.end()) *position = static_cast<uint8_t>(below(2) ? random() % 8 : random());
    }
  }
  return program;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Case> all = cases();
  const int programs = argc > 1 ? std::atoi(argv[1]) : 10000;
  for (const Case& each : all) {
    Hosts hosts;
    const std::string why = hosts.run(each.program);
    if ((*each.why ? why.find(each.why) == std::string::npos : !why.empty()) || hosts.results != each.results) {
      std::fprintf(stderr, "%s: the agent reports '%s', %u results\n", each.name, why.c_str(), hosts.results);
      return 1;
    }
  }
  Random random(1);
  int ended = 0;
  for (int i = 0; i < programs; ++i) ended += !Hosts().run(mutated(all, random)).empty();
  std::printf("%d programs did no harm, %d were refused\n", programs, ended);
  return 0;
}

#endif
