#include "files/available_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace lane {
namespace {

/// Limits from here on are none: version 1 has almost 2^63 where there is no limit.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

/// Read the number in a file; return whether there is one.
bool read_number(const std::string& path, uint64_t* number) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *number);
}

/// Return the sum of the numbers that follow two names in a file with lines of a name and a number.
uint64_t sum_of(const std::string& path, const std::string& first, const std::string& second) {
  std::ifstream file(path);
  uint64_t total = 0;
  std::string line, name;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    uint64_t number = 0;
    if (words >> name >> number && (name == first || name == second)) total += number;
  }
  return total;
}

/// The files of a version of cgroups, and the pages of files in its statistics, with those of cgroups below.
struct Version {
  const char *limit, *used, *inactive, *active;
};
constexpr Version kFirst = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                            "total_active_file"};
constexpr Version kSecond = {"memory.max", "memory.current", "inactive_file", "active_file"};
/// Beyond this limit the system lets processes wait so long that they hardly go on.
constexpr Version kSlow = {"memory.high", "memory.current", "inactive_file", "active_file"};

void apply_cgroup(const std::string& directory, const Version& version, AvailableMemory* available) {
  uint64_t limit = 0, used = 0;
  if (!read_number(directory + "/" + version.limit, &limit) || limit >= kNoLimit ||
      !read_number(directory + "/" + version.used, &used)) {
    return;
  }
  used -= std::min(used, sum_of(directory + "/memory.stat", version.inactive, version.active));
  const uint64_t left = limit - std::min(limit, used);
  if (left < available->bytes) *available = {left, limit, directory + "/" + version.limit};
}

/// Apply the limits of a cgroup and of those above it.  A container sees its own cgroup as the topmost one.
void apply_cgroups(const std::string& top, std::string path, const Version& version, AvailableMemory* available) {
  for (;;) {
    apply_cgroup(path == "/" ? top : top + path, version, available);
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory available;
  const std::string meminfo = root + "/proc/meminfo";
  const uint64_t left = sum_of(meminfo, "MemAvailable:", "SwapFree:") * 1024;
  if (left) available = {left, sum_of(meminfo, "MemTotal:", "SwapTotal:") * 1024, ""};
  std::ifstream cgroups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(cgroups, line)) {  // number:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      for (const char* top : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        for (const Version& version : {kSecond, kSlow}) apply_cgroups(root + top, path, version, &available);
      }
    } else if (controllers.find(",memory,") != std::string::npos) {
      apply_cgroups(root + "/sys/fs/cgroup/memory", path, kFirst, &available);
    }
  }
  return available;
}

}  // namespace lane
