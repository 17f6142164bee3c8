// A directory for the files of one row store.
#pragma once

#include <string>

namespace lane {

/// Files are temporary: they lose their names as soon as they are created, so that they disappear with the process,
/// however it ends.  A file `lock` is locked as long as the object exists; one that a killed process left is taken
/// over.
class StorageDirectory {
 public:
  /// Make the directory, whose parent exists, and lock it; throws std::runtime_error, also if another store has it.
  explicit StorageDirectory(const std::string& path);
  ~StorageDirectory();
  StorageDirectory(const StorageDirectory&) = delete;
  StorageDirectory& operator=(const StorageDirectory&) = delete;

  /// Return the descriptor of a new, empty file, which the caller closes.
  int new_file(const char* name) const;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  bool is_made_ = false;
  int lock_ = -1;
};

}  // namespace lane
