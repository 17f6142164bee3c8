#include "sums.h"

#include <unistd.h>

#include <algorithm>
#include <fcntl.h>
#include <stdexcept>

#include "add.h"

namespace lane {
namespace {

/// Pieces have at most that many bytes, so that one is added up while the next one travels; and no fewer than that
/// many, for a message costs more than a few bytes.
constexpr size_t kLargestPiece = 256 << 10, kSmallestPiece = 32 << 10;
/// What each part that comes before a sum was opened here counts besides its size.
constexpr size_t kEarlyCost = 4 << 10;

/// The most bytes that may come before sums were opened here, which honest hosts never reach: of sums that this host
/// will make, it has to keep twice as many bytes itself.
size_t most_early() {
  static const size_t pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
  return pages / 2 * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t size_of_values(const Header& header) { return header.count * size_of(static_cast<Dtype>(header.flags)); }

}  // namespace

struct Sums::Sum {
  struct Owned {
    std::vector<Buffer> parts;  // by place among the hosts
    uint32_t arrived = 0;
    bool given = false;  // by this host
  };

  uint64_t number = 0;
  // Unknown until a worker of this host opens it; parts may come before.
  bool known = false;
  Dtype dtype = Dtype::kFloat32;
  uint64_t count = 0;
  uint64_t piece = 1;  // elements
  uint32_t pieces = 0;
  std::shared_ptr<Memory> memory;
  SumTotal* shared = nullptr;
  std::vector<std::shared_ptr<Memory>> sides;  // by worker
  uint32_t open = 0, dropped = 0;

  /// Results that have yet to be sent, from where the next sum will be made.
  std::shared_ptr<uint32_t> unsent = std::make_shared<uint32_t>(0);

  uint32_t round = kFirst, waiting = 0;
  bool under_way = false;
  std::map<uint32_t, Owned> owned;  // by piece
  std::vector<uint8_t> expected;    // by piece: whether its result is to come from another host

  SumGiven& given(uint32_t worker) const { return *sides[worker]->at<SumGiven>(0); }
  int32_t priority() const { return given(0).priority.load(std::memory_order_relaxed); }
  bool complete() const {
    for (uint32_t worker = 0; worker < sides.size(); ++worker) {
      if (!reached(given(worker).count.load(std::memory_order_acquire), round + 1)) return false;
    }
    return true;
  }
  size_t offset(uint32_t which) const { return kSumData + which * piece * size_of(dtype); }
  uint64_t size(uint32_t which) const { return std::min(piece, count - which * piece); }
};

Sums::Sums(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer)
    : agent_(agent), host_(membership.agent_hosts.at(agent)), membership_(membership), peer_(std::move(peer)),
      seen_(membership.worker_counts.at(host_), kFirst) {
  for (uint32_t host = 0; host < membership.worker_counts.size(); ++host) {
    if (membership.worker_counts[host] > 0) hosts_.push_back(host);
  }
}

Sums::~Sums() = default;

uint32_t Sums::owner(const Sum& sum, uint32_t piece) const { return hosts_[(sum.number + piece) % hosts_.size()]; }

void Sums::cut(Sum& sum) {
  const size_t bytes = sum.count * size_of(sum.dtype), hosts = hosts_.size();
  size_t piece = bytes;
  if (hosts > 1) {
    const size_t each = std::max<size_t>(1, (bytes + hosts * kLargestPiece - 1) / (hosts * kLargestPiece));
    piece = std::max((bytes + hosts * each - 1) / (hosts * each), kSmallestPiece);
    piece = (piece + Layout::kAlignment - 1) / Layout::kAlignment * Layout::kAlignment;
  }
  sum.piece = std::max<uint64_t>(1, piece / size_of(sum.dtype));
  sum.pieces = static_cast<uint32_t>((sum.count + sum.piece - 1) / sum.piece);
  sum.expected.assign(sum.pieces, 0);
}

int Sums::open(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor) {
  auto& found = sums_[number];
  if (!found) found = std::make_unique<Sum>();
  Sum& sum = *found;
  const size_t size = kSumData + count * size_of(dtype);
  if (!sum.known) {
    sum.memory = std::make_shared<Memory>(size);  // first: it may be refused, and the sum is made by another thread
    sum.number = number;
    sum.dtype = dtype;
    sum.count = count;
    sum.known = true;
    sum.shared = sum.memory->at<SumTotal>(0);
    sum.sides.resize(seen_.size());
    cut(sum);
    for (auto& [piece, owned] : sum.owned) {  // what came before
      for (const Buffer& part : owned.parts) {
        if (part.size() == 0) continue;
        early_ -= part.size() + kEarlyCost;
        if (piece >= sum.pieces || owner(sum, piece) != host_ || part.size() != sum.size(piece) * size_of(dtype)) {
          throw std::runtime_error("hosts make sums of different sizes of one name");
        }
      }
    }
  }
  if (sum.dtype != dtype || sum.count != count || sum.sides.at(worker)) {
    throw std::runtime_error("workers of this host make sums of different sizes of one name");
  }
  sum.sides[worker] = std::make_shared<Memory>(descriptor, size);
  ++sum.open;
  const int result = fcntl(sum.memory->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (result < 0) fail_with_errno("dup");
  if (sum.open == sum.sides.size()) sum.memory->close_descriptor();
  return result;
}

void Sums::drop(uint64_t number) {
  auto found = sums_.find(number);
  if (found == sums_.end()) throw std::runtime_error("a sum is dropped that is not there");
  if (++found->second->dropped == found->second->sides.size()) sums_.erase(found);
}

bool Sums::has_work(const std::vector<Memory>& workers) const {
  if (again_) return true;
  for (uint32_t worker = 0; worker < workers.size(); ++worker) {
    if (workers[worker].mapped() && workers[worker].at<WorkerBlock>(0)->given.load() != seen_[worker]) return true;
  }
  return false;
}

bool Sums::progress(const std::vector<Memory>& workers) {
  if (has_work(workers)) {
    again_ = false;
    for (uint32_t worker = 0; worker < workers.size(); ++worker) {
      if (workers[worker].mapped()) seen_[worker] = workers[worker].at<WorkerBlock>(0)->given.load();
    }
    std::vector<Sum*> ready;
    for (auto& each : sums_) {
      Sum& sum = *each.second;
      if (sum.known && !sum.under_way && *sum.unsent == 0 && sum.open == sum.sides.size() && sum.complete()) {
        ready.push_back(&sum);
      }
    }
    std::stable_sort(ready.begin(), ready.end(), [](const Sum* one, const Sum* other) {
      return one->priority() > other->priority();
    });
    for (Sum* sum : ready) start(*sum);
  }
  const bool news = news_;
  news_ = false;
  return news;
}

void Sums::start(Sum& sum) {
  sum.under_way = true;
  ++sum.round;
  sum.waiting = sum.pieces;
  std::vector<const char*> sources(sum.sides.size());
  for (uint32_t piece = 0; piece < sum.pieces; ++piece) {
    const size_t offset = sum.offset(piece);
    for (uint32_t worker = 0; worker < sources.size(); ++worker) sources[worker] = sum.sides[worker]->at<char>(offset);
    char* result = sum.memory->at<char>(offset);
    const uint32_t owner = this->owner(sum, piece);
    // What one worker gave stays as it is until the result is there, so it can be sent from its place.
    const bool copied = sources.size() > 1 || hosts_.size() == 1;
    if (copied) add(sum.dtype, sources, sum.size(piece), result);
    if (hosts_.size() == 1) {
      --sum.waiting;
    } else if (owner == host_) {
      sum.owned[piece].given = true;
      finish_piece(sum, piece);
    } else {
      sum.expected[piece] = 1;
      send(sum, piece, Message::kPart, copied ? result : sources[0], copied ? sum.memory : sum.sides[0], owner);
    }
  }
  if (sum.waiting == 0 && sum.under_way) done(sum);
}

void Sums::finish_piece(Sum& sum, uint32_t piece) {
  Sum::Owned& owned = sum.owned[piece];
  if (!owned.given || owned.arrived + 1 < hosts_.size()) return;
  const size_t offset = sum.offset(piece);
  char* result = sum.memory->at<char>(offset);
  std::vector<const char*> sources;
  for (uint32_t place = 0; place < hosts_.size(); ++place) {
    if (hosts_[place] == host_) {
      sources.push_back(sum.sides.size() > 1 ? result : sum.sides[0]->at<char>(offset));
    } else {
      sources.push_back(owned.parts[place].data());
    }
  }
  add(sum.dtype, sources, sum.size(piece), result);
  sum.owned.erase(piece);
  for (uint32_t host : hosts_) {
    if (host != host_) send(sum, piece, Message::kTotal, result, sum.memory, host);
  }
  --sum.waiting;
}

void Sums::done(Sum& sum) {
  sum.under_way = false;
  sum.shared->done.store(sum.round, std::memory_order_release);
  news_ = true;
}

void Sums::send(Sum& sum, uint32_t piece, Message kind, const char* data, std::shared_ptr<Memory> owner,
                uint32_t host) {
  auto message = std::make_unique<Outgoing>();
  message->header.kind = kind;
  message->header.flags = static_cast<uint8_t>(sum.dtype);
  message->header.part = piece;
  message->header.count = static_cast<uint32_t>(sum.size(piece));
  message->header.number = sum.number;
  message->pieces[0] = {const_cast<char*>(data), sum.size(piece) * size_of(sum.dtype)};
  if (kind == Message::kTotal) ++*sum.unsent;
  message->sent = [this, kind, owner, unsent = sum.unsent] {  // until then the memory has to stay, and to stay as it is
    if (kind == Message::kTotal && --*unsent == 0) again_ = true;
  };
  peer_(membership_.sums_agent(host, sum.number)).send(std::move(message));
}

Sums::Sum& Sums::from_other(const Header& header, uint32_t from) {
  const uint32_t host = membership_.agent_hosts[from];
  if (membership_.worker_counts[host] == 0 || membership_.sums_agent(host, header.number) != from ||
      membership_.sums_agent(host_, header.number) != agent_) {
    throw std::runtime_error("a sum that is not this agent's");
  }
  if (header.flags > static_cast<uint8_t>(Dtype::kInt64)) throw std::runtime_error("a sum of no known type");
  if (header.count == 0) throw std::runtime_error("nothing of a sum");
  auto& found = sums_[header.number];
  if (!found) found = std::make_unique<Sum>();
  Sum& sum = *found;
  const bool part = header.kind == Message::kPart;
  if (sum.known) {
    if (header.part >= sum.pieces || static_cast<Dtype>(header.flags) != sum.dtype ||
        header.count != sum.size(header.part) || owner(sum, header.part) != (part ? host_ : host) ||
        (!part && !sum.expected[header.part])) {
      throw std::runtime_error("a piece of another sum of that name");
    }
  } else {
    if (!part) throw std::runtime_error("a result of no sum");
    const size_t size = size_of_values(header);
    if (size > kLargestPiece + Layout::kAlignment || early_ + size + kEarlyCost > most_early()) {
      throw std::runtime_error("too much of a sum that no worker of this host makes");
    }
  }
  return sum;
}

void Sums::begin(const Header& header, uint32_t from, Piece pieces[2]) {
  Sum& sum = from_other(header, from);
  const size_t size = size_of_values(header);
  if (header.kind == Message::kTotal) {
    pieces[0] = {sum.memory->at<char>(sum.offset(header.part)), size};
    return;
  }
  Buffer& arriving = arriving_[from];
  arriving = Buffer(size);
  pieces[0] = {arriving.data(), size};
}

void Sums::end(const Header& header, uint32_t from) {
  Sum& sum = from_other(header, from);  // which has been opened, or dropped, since the message began
  if (header.kind == Message::kTotal) {
    sum.expected[header.part] = 0;
    if (--sum.waiting == 0) done(sum);
    return;
  }
  Sum::Owned& owned = sum.owned[header.part];
  owned.parts.resize(hosts_.size());
  Buffer& part = owned.parts[std::find(hosts_.begin(), hosts_.end(), membership_.agent_hosts[from]) - hosts_.begin()];
  if (part.size() > 0) throw std::runtime_error("a piece of a sum twice");
  part = std::move(arriving_[from]);
  ++owned.arrived;
  if (!sum.known) {
    early_ += part.size() + kEarlyCost;
    return;
  }
  finish_piece(sum, header.part);
  if (sum.under_way && sum.waiting == 0) done(sum);
}

}  // namespace lane
