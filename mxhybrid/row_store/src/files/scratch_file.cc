#include "files/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "base/buffer.h"
#include "base/system_calls.h"

namespace lane {

int new_scratch_file(const std::string& directory, const std::string& role) {
  std::string name;
  const int descriptor = uninterrupted([&] {
    name = directory + "/mxhybrid-" + role + "-XXXXXX";
    return mkostemp(name.data(), O_CLOEXEC);
  });
  if (descriptor < 0) {
    const std::string reason = std::strerror(errno);
    throw std::runtime_error("storage: " + directory + " cannot hold the rows of a dynamic table: " + reason +
                             ": give a directory that exists, and can be written, on every host with servers");
  }
  uninterrupted([&] { return unlink(name.c_str()); });
  return descriptor;
}

void grow_file(int descriptor, const std::string& name, uint64_t size, uint64_t grown) {
  const int result = uninterrupted([&] {
    errno = posix_fallocate(descriptor, static_cast<off_t>(size), static_cast<off_t>(grown - size));
    return errno ? -1 : 0;
  });
  if (result == 0) return;
  const std::string reason = std::strerror(errno);
  throw MemoryRefused("storage: " + name + " cannot grow from " + std::to_string(size) + " to " +
                      std::to_string(grown) + " bytes: " + reason +
                      "; free space on its disk, or give a directory on a larger one");
}

}  // namespace lane
