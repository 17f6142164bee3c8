#include "dense/worker_transfers.h"

#include <algorithm>
#include <cstdint>
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

int WorkerChannels::open(uint32_t rank, bool outgoing, size_t room) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& channel = outgoing ? links_[rank].out : links_[rank].in;
  if (channel) {
    throw std::runtime_error(std::string("the channel ") + (outgoing ? "to" : "from") + " worker " +
                             std::to_string(rank) + " is opened twice");
  }
  channel = std::make_unique<Channel>(room);
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

void WorkerChannels::notify(Link& link, Channel& channel, uint32_t ring, Flag ChannelHeader::*waiting) {
  if (link.block.mapped()) {
    Flag& flag = channel.header().*waiting;
    if (flag.load() && flag.exchange(0)) lane::notify(*link.block.at<WorkerBlock>(0));
    return;
  }
  channel.mark_changed(ring, block_.channel_changes.load());
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
    if (adds_local && rank > rank_) partials_.add(&local_, local_targets_);
    adds_local = adds_local && rank < rank_;
    partials_.add(&from, from.boxes);
  }
  if (adds_local) partials_.add(&local_, local_targets_);
  if (partials_.size() > 0) first_covers_ = partials_[0].bytes == target_bytes_;
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
  if (!started_) begin_run();
  if (cancelled_.load()) {
    if (run_.target != nullptr) std::memset(run_.target, 0xff, target_bytes_);
    started_ = false;
    return true;
  }
  while (!ended()) {
    if (transfer_some()) continue;
    // From here on other workers wake this one; their earlier changes are read once more.
    seen_ = channels_->block_.doorbell.load();
    announce_waiting();
    if (!transfer_some()) return false;
  }
  started_ = false;
  return true;
}

void PersistentTransfer::begin_run() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    run_ = runs_.front();
  }
  started_ = true;
  prepared_ = false;
  for (auto* streams : {&sends_, &receives_}) {
    for (auto& [rank, stream] : *streams) stream.reset();
  }
  local_.reset();
  partials_.reset();
}

bool PersistentTransfer::ended() {
  const auto is_ended = [](const auto& entry) { return entry.second.ended(); };
  return prepared_ && (!adds_ || partials_.first_unended() == partials_.size()) &&
         std::all_of(sends_.begin(), sends_.end(), is_ended) &&
         std::all_of(receives_.begin(), receives_.end(), is_ended);
}

void PersistentTransfer::announce_waiting() {
  for (auto& [rank, to] : sends_) {
    if (!to.ended()) to.link->out->header().writer_waiting.store(1);
  }
  if (adds_) {
    // Data of other partial sums waits in its ring until its turn.
    for (size_t number = partials_.first_unended(); number < partials_.size(); ++number) {
      ArrayStream& partial = partials_[number];
      if (&partial == &local_ || partial.done >= partials_.addable_bytes(number)) continue;
      static_cast<PeerStream&>(partial).link->in->header().reader_waiting.store(1);
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
bool PersistentTransfer::add_some() {
  bool progressed = false;
  for (size_t number = partials_.first_unended(); number < partials_.size(); ++number) {
    const Apply apply = number == 0 && first_covers_ ? zero_adder(dtype_) : adder(dtype_);
    ArrayStream& partial = partials_[number];
    const size_t end = partials_.addable_bytes(number);
    const bool added = &partial == &local_ ? copy_local_bytes(apply, end)
                                           : read_ring(static_cast<PeerStream&>(partial), apply, end);
    progressed = added || progressed;
  }
  return progressed;
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
  const auto most = [] { return SIZE_MAX; };
  local_.advance(end - local_.done, most, [&](const Box& box, size_t first, size_t size) {
    box.each(first, size, [&](size_t from, size_t to, size_t bytes) {
      apply(run_.target + to, run_.source + from, bytes);
    });
  });
  return true;
}

/// Call `apply(offset in the array, offset in the ring, bytes)` for the next `count` bytes of a stream.  The first of
/// them has number `position` in the ring.
template <typename Function>
void PersistentTransfer::each(PeerStream& stream, size_t count, size_t position, size_t capacity, Function apply) {
  const auto until_end = [&] { return capacity - position % capacity; };
  stream.advance(count, until_end, [&](const Box& box, size_t first, size_t size) {
    const size_t ring_position = position % capacity;
    box.each(first, size, [&](size_t offset, size_t packed, size_t bytes) {
      apply(offset, ring_position + packed - first, bytes);
    });
    position += size;
  });
}

/// Return the bytes that are copied before the other worker is notified, whole elements: at most `left`, and `possible`.
size_t PersistentTransfer::portion(size_t left, size_t possible) const {
  const size_t size = std::min({left, possible, kMaxPortionBytes});
  return size - size % size_of(dtype_);
}

bool PersistentTransfer::write_ring(PeerStream& to) {
  if (to.ended()) return false;
  RingHeader& ring = to.link->out->ring(to.ring);
  const uint32_t capacity = ring.capacity, written = ring.written.load(std::memory_order_relaxed);
  const uint32_t used = written - ring.consumed.load();
  if (used > capacity) throw std::runtime_error("more bytes were consumed than were written");
  const size_t size = portion(to.padded - to.done, capacity - used);
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
  const size_t size = portion(end - from.done, available);
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
