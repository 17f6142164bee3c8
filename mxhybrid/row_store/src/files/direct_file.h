// A file that is read at many places at once, without the page cache of the system.
#pragma once

#include <linux/aio_abi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/buffer.h"

namespace lane {

/// Reads and writes go to the disk directly where the file system can do that, and through the page cache elsewhere.
/// Many reads are under way at once by the asynchronous I/O of Linux (io_submit); where the system refuses it, they
/// follow each other.  One thread uses an object at a time.  Reads and writes throw std::runtime_error; after a write
/// that failed, all of them do.
class DirectFile {
 public:
  /// Use an empty file, by its descriptor, which the object closes; `name` stands in messages.
  DirectFile(int descriptor, const std::string& name);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// The alignment of `read` and `start_write`.
  static constexpr size_t kAlignment = 4096;

  /// Make the file longer and reserve its blocks; throws MemoryRefused.
  void grow(uint64_t size);
  uint64_t size() const { return size_; }

  /// Read bytes; memory, offset and length are aligned.
  void read(char* bytes, size_t length, uint64_t offset);
  /// Start to write bytes, which must stay as they are until `finish_write`; memory, offset and length are aligned.  One
  /// write is under way at a time.
  void start_write(const char* bytes, size_t length, uint64_t offset);
  void finish_write();
  /// Read `length` bytes at each of the offsets, of any alignment; call `take` with the position of each offset in the
  /// list and its bytes, in any order.
  using Take = std::function<void(size_t position, const char* bytes)>;
  void read_all(const std::vector<uint64_t>& offsets, size_t length, const Take& take);

 private:
  /// An operation under way.
  struct Operation {
    iocb block;
    size_t position, skipped;  // of a read: its position in the list, and bytes before those that are needed
  };

  void write(const char* bytes, size_t length, uint64_t offset);
  void describe(Operation& operation, uint16_t code, const char* bytes, size_t length, uint64_t offset) const;
  /// Start the operations of blocks, which are all reads or one write, and clear the list.
  void submit(std::vector<iocb*>& blocks);
  /// Wait for an operation, or several; call `done` for each read.
  void wait(const std::function<void(Operation& read)>& done);
  [[noreturn]] void fail(const char* what, size_t length, uint64_t offset, int error);
  /// Throw the error of a write that failed.
  void check_writes() const;

  const int descriptor_;
  const std::string name_;
  uint64_t size_ = 0;
  size_t unit_ = kAlignment;  // the alignment that the disk needs
  aio_context_t context_ = 0;
  bool is_asynchronous_ = false;
  size_t reading_ = 0, writing_ = 0;  // operations under way
  Operation write_ = {};
  std::string failure_;  // of a write
  std::vector<io_event> events_;
};

}  // namespace lane
