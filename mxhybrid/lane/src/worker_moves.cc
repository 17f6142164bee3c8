#include "worker_moves.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace lane {
namespace {

/// Bytes after which the other side is told, so that both copy at the same time.
constexpr size_t kChunk = 128 << 10;

}  // namespace

// ------------------------------------------------------------------------------------------------------------- channels

int WorkerMoves::open_inbox(uint32_t rank, size_t room) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& place = links_[rank].in;
  if (place) throw std::runtime_error("a channel is opened twice");
  place = std::make_unique<Channel>(room ? room : kDefaultRingBytes);
  return place->memory().descriptor();
}

int WorkerMoves::open_outbox(uint32_t rank, size_t room) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& place = links_[rank].out;
  if (place) throw std::runtime_error("a channel is opened twice");
  place = std::make_unique<Channel>(room ? room : kDefaultRingBytes);
  return place->memory().descriptor();
}

void WorkerMoves::link(uint32_t rank, int inbox, int block) {
  std::lock_guard<std::mutex> lock(mutex_);
  Link& made = links_[rank];
  if (made.linked || !made.in || made.out) throw std::runtime_error("workers are linked twice, or not at all");
  made.out = std::make_unique<Channel>(Channel::map(inbox));
  made.block = Memory(block, sizeof(WorkerBlock));
  made.in->memory().close_descriptor();
  made.linked = true;
}

void WorkerMoves::link_by_agent(uint32_t rank, uint32_t agent) {
  std::lock_guard<std::mutex> lock(mutex_);
  Link& made = links_[rank];
  if (made.linked || !made.in || !made.out) throw std::runtime_error("workers are linked twice, or not at all");
  made.agent = agent;
  made.in->memory().close_descriptor();
  made.out->memory().close_descriptor();
  made.linked = true;
}

void WorkerMoves::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

WorkerMoves::Link& WorkerMoves::link(uint32_t rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = links_.find(rank);
  if (found == links_.end() || !found->second.linked) {
    throw std::runtime_error("no channel to worker " + std::to_string(rank));
  }
  return found->second;
}

void WorkerMoves::written(Link& link, uint32_t ring) {
  if (link.block.mapped()) {
    if (link.out->header().reader_waiting.load() && link.out->header().reader_waiting.exchange(0)) ring_bell(*link.block.at<WorkerBlock>(0));
    return;
  }
  link.out->mark(ring, block_.channel_changes.load());
  block_.channel_changes.add();
  ring_(link.agent);
}

void WorkerMoves::taken(Link& link, uint32_t ring) {
  if (link.block.mapped()) {
    if (link.in->header().writer_waiting.load() && link.in->header().writer_waiting.exchange(0)) ring_bell(*link.block.at<WorkerBlock>(0));
    return;
  }
  link.in->mark(ring, block_.channel_changes.load());
  block_.channel_changes.add();
  ring_(link.agent);
}

// ------------------------------------------------------------------------------------------------------ description

Move::~Move() {
  std::lock_guard<std::mutex> lock(all_->mutex_);
  if (all_->closed_) return;
  for (auto& [rank, from] : receives_) {  // all of it, so that the ring can become another move's
    if (from.data != nullptr && !from.link->block.mapped()) all_->taken(*from.link, from.ring);
  }
  for (auto& [rank, to] : sends_) {
    if (to.data != nullptr) to.link->out->close(to.ring);
  }
}

void Move::open() {
  size_t kept = 0;
  for (const Box& box : kept_) kept += box.bytes();
  bool own = kept > 0;  // has yet to get its place
  for (auto& [rank, from] : receives_) {
    from.link = &all_->link(rank);
    if (own && rank > rank_) addends_.push_back(nullptr);
    own = own && rank < rank_;
    addends_.push_back(&from);
  }
  if (own) addends_.push_back(nullptr);
  if (!addends_.empty()) first_covers_ = (addends_[0] == nullptr ? kept : addends_[0]->bytes) == target_bytes_;
  for (auto& [rank, to] : sends_) to.link = &all_->link(rank);
  std::lock_guard<std::mutex> lock(all_->mutex_);
  for (auto& [rank, to] : sends_) {
    to.ring = to.link->out->open(tag_, to.padded);
    to.data = to.link->out->data(to.ring);
  }
}

// ------------------------------------------------------------------------------------------------------------- uses

void Move::begin(const char* source, char* target, const OnComplete& complete) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    uses_.push_back({source, target, complete});
    if (attended_) return;
    attended_ = true;
  }
  if (!advance()) all_->waiter_.add_seen([self = shared_from_this()] { return self->advance(); }, [] {}, seen_);
}

bool Move::advance() {
  try {
    for (;;) {
      if (!step()) return false;
      bool last;
      const OnComplete complete = use_.complete;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        uses_.pop_front();
        last = uses_.empty();
        attended_ = !last;
      }
      complete();
      if (last) return true;
    }
  } catch (const std::exception& error) {
    // Nobody could be told: the engine's threads know no exceptions from here, and others wait for this worker.
    std::fprintf(stderr, "mxhybrid: pieces of arrays cannot be moved: %s\n", error.what());
    std::abort();
  }
}

/// Go on with the use at hand; returns whether it is made.
bool Move::step() {
  if (!started_) {
    std::lock_guard<std::mutex> lock(mutex_);
    use_ = uses_.front();
    start();
  }
  for (;;) {
    bool moved = work();
    if (!moved && !ended()) {
      // Others wake this worker from here on; what they did before is looked for once more.
      seen_ = all_->block_.bell.load();
      wait_for_others();
      moved = work();
      if (!moved) return false;
    }
    if (ended()) break;
  }
  started_ = false;
  return true;
}

void Move::start() {
  started_ = true;
  prepared_ = false;
  added_ = 0;
  for (auto* streams : {&sends_, &receives_}) {
    for (auto& [rank, each] : *streams) each.done = each.box = each.start = 0;
  }
}

bool Move::ended() const {
  const auto is_ended = [](const auto& each) { return each.second.ended(); };
  return prepared_ && (!adds_ || added_ == addends_.size()) && std::all_of(sends_.begin(), sends_.end(), is_ended) &&
         std::all_of(receives_.begin(), receives_.end(), is_ended);
}

void Move::wait_for_others() {
  for (auto& [rank, to] : sends_) {
    if (!to.ended()) to.link->out->header().writer_waiting.store(1);
  }
  if (adds_) {
    // Whatever comes from others waits until its turn in the sum comes.
    if (added_ < addends_.size() && addends_[added_]) addends_[added_]->link->in->header().reader_waiting.store(1);
    return;
  }
  // What fits into its ring needs nobody: it is enough to be woken for one of them, and to find most others there then.
  bool any = false;
  for (auto& [rank, from] : receives_) {
    if (from.ended() || (any && from.padded <= kChunk)) continue;
    from.link->in->header().reader_waiting.store(1);
    any = any || from.padded <= kChunk;
  }
}

/// Give, and take, a little of everything; returns whether that was anything.
bool Move::work() {
  bool moved = false;
  for (auto& [rank, to] : sends_) moved = give(to) || moved;
  if (!prepared_) {
    prepare();
    prepared_ = moved = true;
  }
  if (!adds_) {
    for (auto& [rank, from] : receives_) moved = take(from, copy) || moved;
    return moved;
  }
  for (; added_ < addends_.size(); ++added_) {
    const Apply apply = added_ == 0 && first_covers_ ? adding_to_zero(element_) : adding(element_);
    Stream* from = addends_[added_];
    if (from == nullptr) {
      keep_all(apply);
      moved = true;
    } else {
      moved = take(*from, apply) || moved;
      if (!from->ended()) break;
    }
  }
  return moved;
}

/// What needs nobody else.
void Move::prepare() {
  if (adds_) {
    if (!first_covers_ && target_bytes_) std::memset(use_.target, 0, target_bytes_);
    return;
  }
  const size_t size = size_of(element_);
  for (const Filling& filling : fillings_) {
    filling.at.each(0, filling.at.bytes(), [&](size_t to, size_t, size_t bytes) {
      for (size_t i = 0; i < bytes; i += size) std::memcpy(use_.target + to + i, &filling.value, size);
    });
  }
  keep_all(copy);
}

void Move::keep_all(Apply apply) {
  for (const Box& box : kept_) {
    box.each(0, box.bytes(), [&](size_t from, size_t to, size_t bytes) {
      apply(use_.target + to, use_.source + from, bytes);
    });
  }
}

/// Call `apply(offset in the array, offset in the ring, bytes)` for the next `count` bytes of a stream, of which the
/// first is number `position` in the ring.
template <typename Function>
void Move::each(Stream& stream, size_t count, size_t position, size_t capacity, Function apply) {
  while (count > 0 && stream.done < stream.bytes) {
    const Box& box = stream.boxes[stream.box];
    const size_t first = stream.done - stream.start, at = position % capacity;
    const size_t size = std::min({count, box.bytes() - first, capacity - at});
    box.each(first, size, [&](size_t offset, size_t packed, size_t bytes) {
      apply(offset, at + packed - first, bytes);
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

bool Move::give(Stream& to) {
  if (to.ended()) return false;
  RingHeader& ring = to.link->out->ring(to.ring);
  const uint32_t capacity = ring.capacity, written = ring.written.load(std::memory_order_relaxed);
  const uint32_t used = written - ring.taken.load();
  if (used > capacity) throw std::runtime_error("more was taken than was given");
  size_t size = std::min({to.padded - to.done, static_cast<size_t>(capacity - used), kChunk});
  size -= size % size_of(element_);
  if (size == 0) return false;
  each(to, size, written, capacity, [&](size_t offset, size_t at, size_t bytes) {
    std::memcpy(to.data + at, use_.source + offset, bytes);
  });
  ring.written.store(written + static_cast<uint32_t>(size));
  all_->written(*to.link, to.ring);
  return true;
}

bool Move::take(Stream& from, Apply apply) {
  if (from.ended()) return false;
  Channel& channel = *from.link->in;
  if (from.ring == kMaxRings) {
    from.ring = channel.find(tag_);
    if (from.ring == kMaxRings) return false;
    from.data = channel.data(from.ring);
    from.told = channel.ring(from.ring).taken.load();
  }
  RingHeader& ring = channel.ring(from.ring);
  const uint32_t capacity = ring.capacity, taken = ring.taken.load(std::memory_order_relaxed);
  const uint32_t there = ring.written.load() - taken;
  if (there > capacity) throw std::runtime_error("more was given than there is room for");
  size_t size = std::min({from.padded - from.done, static_cast<size_t>(there), kChunk});
  size -= size % size_of(element_);
  if (size == 0) return false;
  each(from, size, taken, capacity, [&](size_t offset, size_t at, size_t bytes) {
    apply(use_.target + offset, from.data + at, bytes);
  });
  const uint32_t now = taken + static_cast<uint32_t>(size);
  ring.taken.store(now);
  // Between hosts, news of half a ring at a time are enough: there is room for a move in the other half, and who fills
  // both with a part of one waits for news of all.
  if (from.link->block.mapped() || now - from.told >= capacity / 2) {
    from.told = now;
    all_->taken(*from.link, from.ring);
  }
  return true;
}

}  // namespace lane
