#include "files/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "base/system_calls.h"
#include "files/scratch_file.h"

namespace lane {
namespace {

/// The most reads that are under way at once, and the most bytes of them, unless that is less than one read.
constexpr size_t kDepth = 128, kDepthBytes = 4 << 20;

const char* const kRead = "read";
const char* const kWritten = "written";

long io_setup(unsigned count, aio_context_t* context) { return syscall(SYS_io_setup, count, context); }
long io_destroy(aio_context_t context) { return syscall(SYS_io_destroy, context); }
long io_submit(aio_context_t context, long count, iocb** blocks) {
  return syscall(SYS_io_submit, context, count, blocks);
}
long io_getevents(aio_context_t context, long least, long most, io_event* events) {
  return syscall(SYS_io_getevents, context, least, most, events, nullptr);
}

/// Return the alignment that direct reads of a file need.
size_t unit_of(int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx status = {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && status.stx_mask & STATX_DIOALIGN) {
    const size_t unit = std::max(status.stx_dio_offset_align, status.stx_dio_mem_align);
    if (unit > 0 && DirectFile::kAlignment % unit == 0) return unit;
  }
#endif
  (void)descriptor;
  return DirectFile::kAlignment;
}

}  // namespace

DirectFile::DirectFile(int descriptor, const std::string& name)
    : descriptor_(descriptor), name_(name), unit_(unit_of(descriptor)), events_(kDepth + 1) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) return;  // the page cache answers, without waiting for a disk
  is_asynchronous_ = io_setup(kDepth + 1, &context_) == 0;
}

DirectFile::~DirectFile() {
  if (is_asynchronous_) io_destroy(context_);  // waits for a write
  close(descriptor_);
}

void DirectFile::fail(const char* what, size_t length, uint64_t offset, int error) {
  const std::string text = "storage: " + name_ + " cannot be " + what + " (" + std::to_string(length) +
                           " bytes from byte " + std::to_string(offset) + "): " +
                           (error ? std::strerror(error) : "fewer bytes than expected") + "; check its disk";
  if (what == kWritten) failure_ = text;
  throw std::runtime_error(text);
}

void DirectFile::check_writes() const {
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void DirectFile::grow(uint64_t size) {
  grow_file(descriptor_, name_, size_, size);
  size_ = size;
}

void DirectFile::read(char* bytes, size_t length, uint64_t offset) {
  check_writes();
  for (size_t done = 0; done < length;) {
    const ssize_t count = uninterrupted(
        [&] { return pread(descriptor_, bytes + done, length - done, static_cast<off_t>(offset + done)); });
    if (count <= 0) fail(kRead, length, offset, count < 0 ? errno : 0);
    done += static_cast<size_t>(count);
  }
}

void DirectFile::write(const char* bytes, size_t length, uint64_t offset) {
  for (size_t done = 0; done < length;) {
    const ssize_t count = uninterrupted(
        [&] { return pwrite(descriptor_, bytes + done, length - done, static_cast<off_t>(offset + done)); });
    if (count <= 0) fail(kWritten, length, offset, count < 0 ? errno : 0);
    done += static_cast<size_t>(count);
  }
}

void DirectFile::submit(std::vector<iocb*>& blocks) {
  for (size_t first = 0; first < blocks.size();) {
    const long count = uninterrupted(
        [&] { return io_submit(context_, static_cast<long>(blocks.size() - first), blocks.data() + first); });
    const iocb& block = *blocks[first];
    if (count <= 0) {
      fail(block.aio_lio_opcode == IOCB_CMD_PREAD ? kRead : kWritten, block.aio_nbytes,
           static_cast<uint64_t>(block.aio_offset), count < 0 ? errno : EAGAIN);
    }
    first += static_cast<size_t>(count);
    (block.aio_lio_opcode == IOCB_CMD_PREAD ? reading_ : writing_) += static_cast<size_t>(count);
  }
  blocks.clear();
}

void DirectFile::wait(const std::function<void(Operation& read)>& done) {
  const long count = uninterrupted(
      [&] { return io_getevents(context_, 1, static_cast<long>(events_.size()), events_.data()); });
  if (count < 0) fail(kRead, 0, 0, errno);
  std::exception_ptr failure;
  for (long i = 0; i < count; ++i) {
    Operation& operation = *reinterpret_cast<Operation*>(events_[i].data);
    const bool is_write = &operation == &write_;
    --(is_write ? writing_ : reading_);
    try {
      const iocb& block = operation.block;
      if (events_[i].res != static_cast<int64_t>(block.aio_nbytes)) {
        // It failed, was interrupted, or has ended early: make it again, and keep the reason if it fails again.
        char* bytes = reinterpret_cast<char*>(block.aio_buf);
        const auto offset = static_cast<uint64_t>(block.aio_offset);
        is_write ? write(bytes, block.aio_nbytes, offset) : read(bytes, block.aio_nbytes, offset);
      }
      if (!is_write) done(operation);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void DirectFile::describe(Operation& operation, uint16_t code, const char* bytes, size_t length,
                          uint64_t offset) const {
  operation.block = {};
  operation.block.aio_data = reinterpret_cast<uint64_t>(&operation);
  operation.block.aio_lio_opcode = code;
  operation.block.aio_fildes = static_cast<uint32_t>(descriptor_);
  operation.block.aio_buf = reinterpret_cast<uint64_t>(bytes);
  operation.block.aio_nbytes = length;
  operation.block.aio_offset = static_cast<int64_t>(offset);
}

void DirectFile::start_write(const char* bytes, size_t length, uint64_t offset) {
  finish_write();
  check_writes();
  if (!is_asynchronous_) return write(bytes, length, offset);
  describe(write_, IOCB_CMD_PWRITE, bytes, length, offset);
  std::vector<iocb*> blocks = {&write_.block};
  submit(blocks);
}

void DirectFile::finish_write() {
  while (writing_) wait([](Operation&) {});
}

void DirectFile::read_all(const std::vector<uint64_t>& offsets, size_t length, const Take& take) {
  check_writes();
  const size_t window = rounded_up(length, unit_) + unit_;
  const size_t depth = std::min({offsets.size(), kDepth, std::max<size_t>(1, kDepthBytes / window)});
  if (depth == 0) return;
  const Buffer windows(depth * window, kAlignment);
  std::vector<Operation> reads(depth);
  std::vector<iocb*> blocks;
  size_t next = 0;
  const auto prepare = [&](Operation& read) {
    const uint64_t offset = offsets[next];
    read.position = next++;
    read.skipped = static_cast<size_t>(offset % unit_);
    describe(read, IOCB_CMD_PREAD, windows.data() + (&read - reads.data()) * window,
             rounded_up(read.skipped + length, unit_), offset - read.skipped);
  };
  const auto take_bytes = [&](const Operation& read) {
    take(read.position, reinterpret_cast<const char*>(read.block.aio_buf) + read.skipped);
  };
  if (!is_asynchronous_) {
    const iocb& block = reads[0].block;
    while (next < offsets.size()) {
      prepare(reads[0]);
      read(windows.data(), block.aio_nbytes, static_cast<uint64_t>(block.aio_offset));
      take_bytes(reads[0]);
    }
    return;
  }
  // Memory of reads under way must not be freed, also if one of them fails.
  struct Drain {
    DirectFile& file;
    ~Drain() {
      while (file.reading_) {
        try {
          file.wait([](Operation&) {});
        } catch (const std::runtime_error&) {
        }
      }
    }
  } drain{*this};
  for (Operation& read : reads) {
    prepare(read);
    blocks.push_back(&read.block);
  }
  while (reading_ || !blocks.empty()) {
    submit(blocks);
    wait([&](Operation& read) {
      take_bytes(read);
      if (next == offsets.size()) return;
      prepare(read);
      blocks.push_back(&read.block);
    });
  }
}

}  // namespace lane
