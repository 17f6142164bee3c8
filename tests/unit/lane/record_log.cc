// A log of records alone: records are found at the positions that it returns, also after an error of the disk.
#include <signal.h>
#include <sys/resource.h>

#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "files/record_log.h"
#include "files/scratch_file.h"

using namespace lane;

namespace {

constexpr size_t kRecordBytes = 4096;
constexpr uint32_t kRecords = 400;

/// A log, and what it must contain.
struct Model {
  struct Record {
    uint32_t position;
    char value;
  };

  explicit Model(const std::string& directory) : log(new_scratch_file(directory, "test"), "the log", kRecordBytes) {
    log.reserve(kRecords);
  }

  void follow(const std::vector<RecordLog::Move>& moves) {
    for (const RecordLog::Move& move : moves) {
      check(records.count(move.slot) == 1, "a record without a slot was moved");
      records[move.slot].position = move.position;
    }
    moved += moves.size();
  }

  void append(uint32_t slot, char value) {
    if (records.count(slot)) {
      log.drop(records[slot].position);
      records.erase(slot);
    }
    std::vector<char> bytes(kRecordBytes, value);
    std::vector<RecordLog::Move> moves;
    try {
      const uint32_t position = log.append(slot, bytes.data(), &moves);
      follow(moves);
      records[slot] = {position, value};
    } catch (const std::exception&) {
      follow(moves);
      throw;
    }
  }

  void append_random() { append(random_below(kRecords), static_cast<char>(random_bits())); }

  void check_records() {
    std::vector<uint32_t> positions;
    std::vector<char> values;
    for (const auto& [slot, record] : records) {
      positions.push_back(record.position);
      values.push_back(record.value);
    }
    size_t taken = 0;
    log.read(positions, [&](size_t index, const char* bytes) {
      check(bytes[0] == values[index] && bytes[kRecordBytes - 1] == values[index], "a record has other bytes");
      ++taken;
    });
    check(taken == positions.size(), "records were not read");
    std::map<uint32_t, char> found;
    log.each([&](uint32_t slot, const char* bytes) { found[slot] = bytes[0]; });
    check(found.size() == records.size(), "the log has other records");
    for (const auto& [slot, value] : found) check(records.at(slot).value == value, "a slot has another record");
  }

  RecordLog log;
  std::map<uint32_t, Record> records;
  size_t moved = 0;
};

}  // namespace

int main(int, char** arguments) {
  Model model(arguments[1]);
  // Slots are written again at random, so that segments must be cleaned.
  for (uint32_t i = 0; i < 20 * kRecords; ++i) {
    model.append_random();
    if (i % kRecords == 0) model.check_records();
  }
  check(model.moved > 0, "no record was moved");
  // Writes fail from here on.  The file is of no use then, but records in memory are still found.
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {4096, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &limit);
  try {
    while (true) model.append_random();
  } catch (const std::exception&) {
  }
  size_t readable = 0;
  for (const auto& [slot, record] : model.records) {
    try {
      model.log.read({record.position}, [&, value = record.value](size_t, const char* bytes) {
        check(bytes[0] == value, "a record has other bytes after an error");
        ++readable;
      });
    } catch (const std::exception&) {
    }
  }
  check(readable > 0, "no record was found after an error");
}
