#include "scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace lane {

int new_scratch_file(const std::string& directory, const std::string& role) {
  std::string name = directory + "/mxhybrid-" + role + "-XXXXXX";
  const int descriptor = mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) {
    const std::string reason = std::strerror(errno);
    throw std::runtime_error("storage: " + directory + " cannot hold the rows of a dynamic table: " + reason +
                             ": give a directory that exists, and can be written, on every host with servers");
  }
  unlink(name.c_str());
  return descriptor;
}

}  // namespace lane
