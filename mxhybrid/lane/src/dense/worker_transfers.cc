#include "dense/worker_transfers.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/end_process.h"

namespace lane {
namespace {

/// The most bytes that are copied before the other side is notified, so that both sides copy at the same time.
constexpr size_t kMaxPortionBytes = 128 << 10;

[[noreturn]] void refuse_link(uint32_t rank) {
  throw std::runtime_error("worker " + std::to_string(rank) + " is linked twice, or before its channels are open");
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- channels

int WorkerChannels::open_incoming(uint32_t rank, size_t room) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& channel = links_[rank].in;
  if (channel) throw std::runtime_error("the channel from worker " + std::to_string(rank) + " is opened twice");
  channel = std::make_unique<Channel>(room ? room : kDefaultRingBytes);
  return channel->memory().descriptor();
}

int WorkerChannels::open_outgoing(uint32_t rank, size_t room) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& channel = links_[rank].out;
  if (channel) throw std::runtime_error("the channel to worker " + std::to_string(rank) + " is opened twice");
  channel = std::make_unique<Channel>(room ? room : kDefaultRingBytes);
  return channel->memory().descriptor();
}

void WorkerChannels::link(uint32_t rank, int channel, int block) {
  std::lock_guard<std::mutex> lock(mutex_);
  Link& link = links_[rank];
  if (link.linked || !link.in || link.out) refuse_link(rank);
  link.out = std::make_unique<Channel>(Channel::map(channel));
  link.block = Memory(block, sizeof(WorkerBlock));
  link.in->memory().close_descriptor();
  link.linked = true;
}

void WorkerChannels::link_by_agent(uint32_t rank, uint32_t agent) {
  std::lock_guard<std::mutex> lock(mutex_);
  Link& link = links_[rank];
  if (link.linked || !link.in || !link.out) refuse_link(rank);
  link.agent = agent;
  link.in->memory().close_descriptor();
  link.out->memory().close_descriptor();
  link.linked = true;
}

void WorkerChannels::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

WorkerChannels::Link& WorkerChannels::link(uint32_t rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = links_.find(rank);
  if (entry == links_.end() || !entry->second.linked) {
    throw std::runtime_error("no channel to worker " + std::to_string(rank));
  }
  return entry->second;
}

void WorkerChannels::notify_written(Link& link, uint32_t ring) {
  if (link.block.mapped()) {
    if (link.out->header().reader_waiting.load() && link.out->header().reader_waiting.exchange(0)) {
      notify(*link.block.at<WorkerBlock>(0));
    }
    return;
  }
  link.out->mark_changed(ring, block_.channel_changes.load());
  block_.channel_changes.add();
  notify_agent_(link.agent);
}

void WorkerChannels::notify_consumed(Link& link, uint32_t ring) {
  if (link.block.mapped()) {
    if (link.in->header().writer_waiting.load() && link.in->header().writer_waiting.exchange(0)) {
      notify(*link.block.at<WorkerBlock>(0));
    }
    return;
  }
  link.in->mark_changed(ring, block_.channel_changes.load());
  block_.channel_changes.add();
  notify_agent_(link.agent);
}

// ------------------------------------------------------------------------------------------------------ description

PersistentTransfer::~PersistentTransfer() {
  std::lock_guard<std::mutex> lock(channels_->mutex_);
  if (channels_->closed_) return;
  for (auto& [rank, from] : receives_) {  // all data is consumed, so the writer may reuse the ring
    if (from.data != nullptr && !from.link->block.mapped()) channels_->notify_consumed(*from.link, from.ring);
  }
  for (auto& [rank, to] : sends_) {
    if (to.data != nullptr) to.link->out->close_ring(to.ring);
  }
}

void PersistentTransfer::open() {
  bool adds_local = local_.bytes > 0;  // whether this worker's own partial sum has no position yet
  for (auto& [rank, from] : receives_) {
    from.link = &channels_->link(rank);
    if (adds_local && rank > rank_) partials_.push_back(&local_);
    adds_local = adds_local && rank < rank_;
    partials_.push_back(&from);
  }
  if (adds_local) partials_.push_back(&local_);
  if (!partials_.empty()) first_covers_ = partials_[0]->bytes == target_bytes_;
  const auto targets = [&](PeerStream* partial) -> const std::vector<Box>& {
    return partial == &local_ ? local_targets_ : partial->boxes;
  };
  for (size_t number = 0; number < partials_.size(); ++number) {
    follows_.push_back(number > 0 && targets(partials_[number]) == targets(partials_[number - 1]));
  }
  for (auto& [rank, to] : sends_) {
    to.link = &channels_->link(rank);
  }
  std::lock_guard<std::mutex> lock(channels_->mutex_);
  for (auto& [rank, to] : sends_) {
    to.ring = to.link->out->open_ring(tag_, to.padded);
    to.data = to.link->out->ring_data(to.ring);
  }
}

// ------------------------------------------------------------------------------------------------------------- runs

void PersistentTransfer::start(const char* source, char* target, const OnComplete& complete) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    runs_.push_back({source, target, complete});
    if (is_running_) return;
    is_running_ = true;
  }
  if (!advance()) {
    channels_->completions_.add_unready([self = shared_from_this()] { return self->advance(); }, [] {}, seen_);
  }
}

void PersistentTransfer::cancel() {
  cancelled_.store(true);
  std::lock_guard<std::mutex> lock(channels_->mutex_);
  if (channels_->closed_) return;
  notify(channels_->block_);  // the completion thread may sleep until another worker writes or consumes data
}

bool PersistentTransfer::is_under_way() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !runs_.empty();
}

bool PersistentTransfer::advance() {
  try {
    for (;;) {
      if (!progress()) return false;
      bool last;
      const OnComplete complete = run_.complete;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        runs_.pop_front();
        last = runs_.empty();
        is_running_ = !last;
      }
      complete();
      if (last) return true;
    }
  } catch (const std::exception& error) {
    end_process("a transfer between workers failed", error.what());
  }
}

/// Continue the current run; return whether it is complete.
bool PersistentTransfer::progress() {
  if (!started_) {
    std::lock_guard<std::mutex> lock(mutex_);
    run_ = runs_.front();
    reset();
  }
  if (cancelled_.load()) {
    if (run_.target != nullptr) std::memset(run_.target, 0xff, target_bytes_);
    started_ = false;
    return true;
  }
  for (;;) {
    bool progressed = transfer_some();
    if (!progressed && !ended()) {
      // From here on other workers wake this one; their earlier changes are looked for once more.
      seen_ = channels_->block_.doorbell.load();
      announce_waiting();
      progressed = transfer_some();
      if (!progressed) return false;
    }
    if (ended()) break;
  }
  started_ = false;
  return true;
}

void PersistentTransfer::reset() {
  started_ = true;
  prepared_ = false;
  partials_added_ = 0;
  for (auto* streams : {&sends_, &receives_}) {
    for (auto& [rank, stream] : *streams) stream.done = stream.box = stream.start = 0;
  }
  local_.done = local_.box = local_.start = 0;
}

bool PersistentTransfer::ended() const {
  const auto is_ended = [](const auto& entry) { return entry.second.ended(); };
  return prepared_ && (!adds_ || partials_added_ == partials_.size()) &&
         std::all_of(sends_.begin(), sends_.end(), is_ended) &&
         std::all_of(receives_.begin(), receives_.end(), is_ended);
}

void PersistentTransfer::announce_waiting() {
  for (auto& [rank, to] : sends_) {
    if (!to.ended()) to.link->out->header().writer_waiting.store(1);
  }
  if (adds_) {
    // Data of other partial sums waits in its ring until its turn.
    for (size_t number = partials_added_; number < partials_.size(); ++number) {
      PeerStream* partial = partials_[number];
      if (partial == &local_ || partial->done >= addable_bytes(number)) continue;
      partial->link->in->header().reader_waiting.store(1);
    }
    return;
  }
  // Data that fits into its ring arrives without this worker, so it is enough to be woken for one such stream: most of
  // the others are usually complete by then.
  bool any = false;
  for (auto& [rank, from] : receives_) {
    if (from.ended() || (any && from.padded <= kMaxPortionBytes)) continue;
    from.link->in->header().reader_waiting.store(1);
    any = any || from.padded <= kMaxPortionBytes;
  }
}

/// Write and read one portion of every stream; return whether any data was copied.
bool PersistentTransfer::transfer_some() {
  bool progressed = false;
  for (auto& [rank, to] : sends_) progressed = write_ring(to) || progressed;
  if (!prepared_) {
    prepare();
    prepared_ = progressed = true;
  }
  if (adds_) return add_some() || progressed;
  for (auto& [rank, from] : receives_) progressed = read_ring(from, copy_elements, from.padded) || progressed;
  return progressed;
}

/// Add one portion of every partial sum; return whether any data was added.
///
/// Each element adds up its partial sums in the order of ranks, but these advance side by side: a ring holds less than
/// a large partial sum, so its writer would wait until those of all earlier ranks have arrived completely, and the
/// links of the workers would be used one after the other.
bool PersistentTransfer::add_some() {
  bool progressed = false;
  for (size_t number = partials_added_; number < partials_.size(); ++number) {
    const Apply apply = number == 0 && first_covers_ ? zero_adder(dtype_) : adder(dtype_);
    PeerStream* partial = partials_[number];
    const size_t end = addable_bytes(number);
    progressed = (partial == &local_ ? copy_local_bytes(apply, end) : read_ring(*partial, apply, end)) || progressed;
  }
  while (partials_added_ < partials_.size() && partials_[partials_added_]->ended()) ++partials_added_;
  return progressed;
}

/// Return the end of the bytes of a partial sum to whose elements all earlier partial sums have been added.
size_t PersistentTransfer::addable_bytes(size_t number) const {
  const PeerStream& partial = *partials_[number];
  if (number == 0 || partials_[number - 1]->ended()) return partial.padded;
  return follows_[number] ? std::min(partials_[number - 1]->done, partial.bytes) : 0;
}

/// Do the part of a run that needs no other worker.
void PersistentTransfer::prepare() {
  if (adds_) {
    if (!first_covers_ && target_bytes_) std::memset(run_.target, 0, target_bytes_);
    return;
  }
  const size_t size = size_of(dtype_);
  for (const Fill& fill : fills_) {
    fill.box.each(0, fill.box.bytes(), [&](size_t to, size_t, size_t bytes) {
      for (size_t i = 0; i < bytes; i += size) std::memcpy(run_.target + to + i, &fill.value, size);
    });
  }
  copy_local_bytes(copy_elements, local_.padded);
}

/// Copy or add the data that stays on this worker, up to byte `end` of it; return whether there was any.
bool PersistentTransfer::copy_local_bytes(Apply apply, size_t end) {
  if (local_.done >= end) return false;
  while (local_.done < end) {
    const Box& box = local_.boxes[local_.box];
    const size_t first = local_.done - local_.start, size = std::min(end - local_.done, box.bytes() - first);
    box.each(first, size, [&](size_t from, size_t to, size_t bytes) {
      apply(run_.target + to, run_.source + from, bytes);
    });
    local_.done += size;
    if (local_.done - local_.start == box.bytes()) {
      ++local_.box;
      local_.start = local_.done;
    }
  }
  return true;
}

/// Call `apply(offset in the array, offset in the ring, bytes)` for the next `count` bytes of a stream.  The first of
/// them has number `position` in the ring.
template <typename Function>
void PersistentTransfer::each(PeerStream& stream, size_t count, size_t position, size_t capacity, Function apply) {
  while (count > 0 && stream.done < stream.bytes) {
    const Box& box = stream.boxes[stream.box];
    const size_t first = stream.done - stream.start, ring_position = position % capacity;
    const size_t size = std::min({count, box.bytes() - first, capacity - ring_position});
    box.each(first, size, [&](size_t offset, size_t packed, size_t bytes) {
      apply(offset, ring_position + packed - first, bytes);
    });
    stream.done += size;
    position += size;
    count -= size;
    if (stream.done - stream.start == box.bytes()) {
      ++stream.box;
      stream.start = stream.done;
    }
  }
  stream.done += count;  // padding
}

bool PersistentTransfer::write_ring(PeerStream& to) {
  if (to.ended()) return false;
  RingHeader& ring = to.link->out->ring(to.ring);
  const uint32_t capacity = ring.capacity, written = ring.written.load(std::memory_order_relaxed);
  const uint32_t used = written - ring.consumed.load();
  if (used > capacity) throw std::runtime_error("more bytes were consumed than were written");
  size_t size = std::min({to.padded - to.done, static_cast<size_t>(capacity - used), kMaxPortionBytes});
  size -= size % size_of(dtype_);
  if (size == 0) return false;
  each(to, size, written, capacity, [&](size_t offset, size_t ring_position, size_t bytes) {
    std::memcpy(to.data + ring_position, run_.source + offset, bytes);
  });
  ring.written.store(written + static_cast<uint32_t>(size));
  channels_->notify_written(*to.link, to.ring);
  return true;
}

/// Copy or add the bytes that have arrived from another worker, up to byte `end` of the run; return whether there were
/// any.
bool PersistentTransfer::read_ring(PeerStream& from, Apply apply, size_t end) {
  if (from.done >= end) return false;
  Channel& channel = *from.link->in;
  if (from.ring == kMaxRings) {
    from.ring = channel.find_ring(tag_);
    if (from.ring == kMaxRings) return false;
    from.data = channel.ring_data(from.ring);
    from.reported = channel.ring(from.ring).consumed.load();
  }
  RingHeader& ring = channel.ring(from.ring);
  const uint32_t capacity = ring.capacity, consumed = ring.consumed.load(std::memory_order_relaxed);
  const uint32_t available = ring.written.load() - consumed;
  if (available > capacity) throw std::runtime_error("more bytes were written than the ring holds");
  size_t size = std::min({end - from.done, static_cast<size_t>(available), kMaxPortionBytes});
  size -= size % size_of(dtype_);
  if (size == 0) return false;
  each(from, size, consumed, capacity, [&](size_t offset, size_t ring_position, size_t bytes) {
    apply(run_.target + offset, from.data + ring_position, bytes);
  });
  const uint32_t consumed_now = consumed + static_cast<uint32_t>(size);
  ring.consumed.store(consumed_now);
  // Between hosts it is enough to report half a ring at a time: the other half has room for a transfer, and a writer
  // that fills both halves with one transfer waits until all of it is reported.
  if (from.link->block.mapped() || consumed_now - from.reported >= capacity / 2) {
    from.reported = consumed_now;
    channels_->notify_consumed(*from.link, from.ring);
  }
  return true;
}

}  // namespace lane
