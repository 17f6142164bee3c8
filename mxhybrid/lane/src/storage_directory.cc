#include "storage_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace lane {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error("storage: " + path + " cannot hold the rows of a dynamic table: " + why);
}

}  // namespace

StorageDirectory::StorageDirectory(const std::string& path) : path_(path) {
  const std::string advice = ": give a directory that exists, and can be written, on every host with servers";
  is_made_ = mkdir(path.c_str(), 0700) == 0;
  if (!is_made_ && errno != EEXIST) refuse(path, std::strerror(errno) + advice);
  const std::string lock = path + "/lock";
  for (;;) {
    lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_ < 0) refuse(path, std::strerror(errno) + advice);
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      close(lock_);
      refuse(path, reason == EWOULDBLOCK ? "another job, or another table, uses it: give each of them its own directory"
                                         : std::strerror(reason) + advice);
    }
    struct stat status = {};
    if (fstat(lock_, &status) == 0 && status.st_nlink > 0) return;
    close(lock_);  // its owner removed it in the meantime
  }
}

StorageDirectory::~StorageDirectory() {
  unlink((path_ + "/lock").c_str());
  close(lock_);
  if (is_made_) rmdir(path_.c_str());
}

int StorageDirectory::new_file(const char* name) const {
  const std::string file = path_ + "/" + name;
  unlink(file.c_str());
  const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) refuse(path_, std::strerror(errno));
  unlink(file.c_str());
  return descriptor;
}

}  // namespace lane
