#include "node.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>

#include "half.h"

namespace lane {
namespace {

/// Times as many rows as in the round before after which memory is given back: a whole table, say.
constexpr uint32_t kUnusual = 4;
/// Of pushes that wait behind others of their hosts, in bytes, and what each of them counts besides its size.
constexpr size_t kMostAhead = size_t(1) << 30, kAheadCost = 16 << 10;
/// How long the thread sleeps at most: should a ring ever be missed, training would be slow, and not hang.
constexpr int kSleepMs = 1000;
/// How many rows ahead memory is asked for.
constexpr uint32_t kAhead = 4;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct Node::Pushed {
  uint32_t count;
  Buffer places, rows;

  /// What it takes at most, with rows of so many bytes.
  static size_t cost(uint32_t count, size_t row_bytes) { return count * (sizeof(int32_t) + row_bytes) + kAheadCost; }
};

struct Node::Part {
  uint32_t owner;
  bool mine = false, handled = false;

  // Of a partition that this node owns.
  char* shard = nullptr;
  Rule rule;
  char* state[2] = {nullptr, nullptr};
  size_t state_bytes[2] = {0, 0};
  uint32_t version = 0;  // pushes that it shows
  uint32_t updates = 0;
  /// By host: what came from there and was not taken into account yet.  This host's entry stays empty.
  std::vector<std::deque<Pushed>> arrived;

  // Of one that this node handles for another.
  uint64_t first_slot = 0;  // of its places in `slots`

  bool elsewhere() const { return handled && !mine; }
};

struct Node::Side {
  Memory memory;
  WorkerTable* shared = nullptr;
  uint32_t activity = 0;
  uint32_t asked[kTickets] = {};
};

struct Node::Asked {
  uint32_t peer, part, count;
  uint8_t flags;
  char* to;
  Buffer halves;  // where rows arrive that have to be widened
};

struct Node::Question {
  uint32_t peer, part, want, count;
  uint8_t flags;
  uint64_t number;
  Buffer places;
};

struct Node::Pull {
  uint32_t worker, ticket;
  uint32_t asked;        // to be answered
  uint64_t last = 0;     // question that has to be answered before
};

struct Node::Table {
  Table(uint32_t number, const TableShape& shape, uint32_t node, const std::vector<uint8_t>& handled)
      : number(number),
        shape(shape),
        layout(shape, node, handled),
        sides_layout(shape),
        memory(layout.size),
        shared(memory.at<NodeTable>(0)),
        merger(shape.dtype, shape.width) {}

  const uint32_t number;
  const TableShape shape;
  const NodeTableLayout layout;
  const WorkerTableLayout sides_layout;
  Memory memory;
  NodeTable* const shared;
  Merger merger;
  std::vector<Part> parts;
  std::vector<Side> sides;
  /// Rounds of this host's workers that were taken; messages that still read their memory.
  uint32_t taken = 0;
  uint32_t unsent = 0;
  uint32_t version = 0;

  /// Slot + 1 of the cache by place of a partition of another host, 0 where the cache does not have the row.
  Memory slots;
  std::vector<uint64_t> held;
  uint32_t used = 0, used_before = 0;
  uint32_t aside = 0;
  std::vector<Pull> beside;  // pulls that use rows set aside

  std::deque<Pull> pulls;       // to be taken
  std::vector<Pull> under_way;  // to be answered
  std::map<uint64_t, Asked> asked;
  std::deque<Question> questions;
  /// By node: questions whose answers were not sent yet.
  std::map<uint32_t, std::shared_ptr<uint32_t>> unanswered;

  uint32_t* bounds_of(uint32_t worker) const { return sides[worker].memory.at<uint32_t>(sides_layout.push_bounds); }
  /// What a worker pushed to a partition in the round at hand.
  List pushed(uint32_t worker, uint32_t part) const {
    const Memory& memory = sides[worker].memory;
    const uint32_t first = bounds_of(worker)[part], last = bounds_of(worker)[part + 1];
    return {memory.at<int32_t>(sides_layout.push_places) + first,
            memory.at<char>(sides_layout.push_rows) + first * shape.row_bytes(), last - first};
  }
};

struct Node::Peer : public Inbox {
  Peer(Node& node, uint32_t number, int socket)
      : node(node), number(number), connection(socket, *this, node.block_.at<NodeBlock>(0)->traffic) {}

  void begin(const Header& header, Piece pieces[2]) override;
  void end(const Header& header) override;

  Node& node;
  const uint32_t number;
  Connection connection;
  bool writing = false, left = false;
  // Of messages that arrive, one of a kind at a time.
  Pushed arriving;     // a push
  Question asking;     // a question
  /// By stream: the table that a message is about, which stays until it is there.
  std::shared_ptr<Table> about[kPriorities];
};

// ---------------------------------------------------------------------------------------------------------- set up

Node::Node(uint32_t number, Roster roster, Call call, Failed failed)
    : number_(number),
      host_(roster.hosts.at(number)),
      roster_(std::move(roster)),
      local_([this] {
        const std::vector<uint32_t> nodes = roster_.nodes_of(host_);
        return static_cast<uint32_t>(std::find(nodes.begin(), nodes.end(), number_) - nodes.begin());
      }()),
      call_(std::move(call)),
      failed_(std::move(failed)),
      block_(sizeof(NodeBlock)),
      workers_(roster_.workers.at(host_)),
      sums_(number_, roster_, [this](uint32_t other) -> Connection& { return peer(other).connection; }),
      moves_(number_, roster_, [this](uint32_t other) -> Connection& { return peer(other).connection; }) {
  if (local_ >= kMaxLocalNodes) throw std::runtime_error("too many servers on one host, at most 16");
  bell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (bell_ < 0 || epoll_ < 0) fail_with_errno("eventfd");
  struct epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, bell_, &event);
}

Node::~Node() {
  while (!close(kSleepMs)) {
  }
  peers_.clear();
  ::close(epoll_);
  ::close(bell_);
}

void Node::connect(uint32_t number, int socket) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto peer = std::make_unique<Peer>(*this, number, socket);
  struct epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = peer.get();
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) fail_with_errno("epoll_ctl");
  peers_[number] = std::move(peer);
}

void Node::add_worker(uint32_t worker, int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  workers_.at(worker) = Memory(descriptor, sizeof(WorkerBlock));
}

void Node::add_table(uint32_t number, const TableShape& shape) {
  std::vector<uint8_t> handled;
  for (uint32_t owner : shape.owners) handled.push_back(roster_.handler(host_, owner) == number_);
  auto made = std::make_shared<Table>(number, shape, number_, handled);
  uint64_t elsewhere = 0;
  for (uint32_t i = 0; i < shape.partitions(); ++i) {
    Part part;
    part.owner = shape.owners[i];
    part.handled = handled[i];
    part.mine = part.owner == number_;
    part.first_slot = elsewhere;
    if (part.mine) {
      part.shard = made->memory.at<char>(made->layout.shards[i]);
      part.arrived.resize(roster_.workers.size());
    } else if (part.handled) {
      elsewhere += shape.rows_of(i);
    }
    made->parts.push_back(std::move(part));
  }
  made->slots = Memory(std::max<uint64_t>(1, elsewhere) * sizeof(uint32_t));
  made->sides.resize(workers_.size());
  std::lock_guard<std::mutex> lock(mutex_);
  tables_[number] = std::move(made);
}

int Node::table_descriptor(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  return table(number).memory.descriptor();
}

void Node::attach(uint32_t number, uint32_t worker, int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  Table& found = table(number);
  Side& side = found.sides.at(worker);
  side.memory = Memory(descriptor, found.sides_layout.size);
  side.shared = side.memory.at<WorkerTable>(0);
}

void Node::drop_table(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = tables_.find(number);
  if (found == tables_.end()) return;
  const size_t row_bytes = found->second->shape.row_bytes();
  for (const Part& part : found->second->parts) {
    for (const auto& queue : part.arrived) {
      for (size_t i = 1; i < queue.size(); ++i) ahead_ -= Pushed::cost(queue[i].count, row_bytes);
    }
  }
  tables_.erase(found);
}

int Node::open_sum(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  return sums_.open(number, worker, dtype, count, descriptor);
}

void Node::drop_sum(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  sums_.drop(number);
}

void Node::open_way(uint32_t worker, bool outgoing, uint32_t from, uint32_t to, uint32_t other, int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  moves_.open(worker, outgoing, from, to, other, descriptor);
}

const std::shared_ptr<Node::Table>& Node::shared_table(uint32_t number) {
  auto found = tables_.find(number);
  if (found == tables_.end()) throw std::runtime_error("no table has number " + std::to_string(number));
  return found->second;
}

Node::Table& Node::table(uint32_t number) { return *shared_table(number); }

Node::Part& Node::own_part(uint32_t number, uint32_t part) {
  Part& found = table(number).parts.at(part);
  if (!found.mine) throw std::runtime_error("partition " + std::to_string(part) + " is on another node");
  return found;
}

Node::Peer& Node::peer(uint32_t number) {
  auto found = peers_.find(number);
  if (found == peers_.end()) throw std::runtime_error("no connection with node " + std::to_string(number));
  return *found->second;
}

char* Node::shard(uint32_t number, uint32_t part) {
  std::lock_guard<std::mutex> lock(mutex_);
  return own_part(number, part).shard;
}

void Node::set_rule(uint32_t number, uint32_t part, const Rule& rule) {
  std::lock_guard<std::mutex> lock(mutex_);
  own_part(number, part).rule = rule;
}

void Node::set_state(uint32_t number, uint32_t part, uint32_t slot, char* rows, size_t row_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Part& found = own_part(number, part);
  if (slot >= 2) throw std::runtime_error("optimizer state number " + std::to_string(slot));
  found.state[slot] = rows;
  found.state_bytes[slot] = row_bytes;
}

void Node::set_updates(uint32_t number, uint32_t part, uint32_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  own_part(number, part).updates = count;
}

// --------------------------------------------------------------------------------------------------------- service

void Node::start() { thread_ = std::thread(&Node::serve, this); }

bool Node::close(int milliseconds) {
  if (!thread_.joinable()) return true;
  // Without the mutex, which the thread holds while it works: it may work for long.
  closing_ = true;
  const uint64_t ring = 1;
  if (::write(bell_, &ring, sizeof ring) < 0) {
    // It rings already.
  }
  const int64_t limit = now() + milliseconds * int64_t{1000000};
  while (ended_.load() == 0) {
    const int64_t left = (limit - now()) / 1000000;
    if (left <= 0) return false;
    sleep_while(ended_, 0, static_cast<int>(left));
  }
  thread_.join();
  return true;
}

std::string Node::hindrance() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return "a table or sum that is at work";
  std::string found;
  for (auto& each : peers_) {
    const size_t unsent = each.second->connection.unsent();
    if (unsent == 0) continue;
    found += (found.empty() ? "" : ", ") + ("node " + std::to_string(each.first)) + " to take the last " +
             std::to_string(unsent) + " bytes for it";
  }
  return found.empty() ? "its thread to end" : found;
}

void Node::say_bye() {
  said_bye_ = true;
  for (auto& each : peers_) {
    auto bye = std::make_unique<Outgoing>();
    bye->header.kind = Message::kBye;
    each.second->connection.send(std::move(bye));
  }
}

void Node::serve() {
  try {
    throw std::bad_alloc();  // which takes memory when a thread does it for the first time: not when there is none
  } catch (const std::bad_alloc&) {
  }
  bool ends_well = false;
  try {
    while (turn(kSleepMs)) {
    }
    ends_well = true;
  } catch (const std::bad_alloc&) {
    failed_(refused("cannot get memory", 0, ENOMEM));
  } catch (const std::exception& error) {
    failed_(error.what());
  }
  if (!ends_well) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& each : peers_) shutdown(each.second->connection.descriptor(), SHUT_RDWR);  // nobody is to wait for this node
  }
  ended_ = 1;
  wake(ended_);
}

bool Node::turn(int milliseconds) {
  NodeBlock& block = *block_.at<NodeBlock>(0);
  struct epoll_event events[64];
  bool writing = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (progress()) notify();
    if (closing_ && !said_bye_) say_bye();
    for (auto& each : peers_) {
      Peer& peer = *each.second;
      const bool wants = peer.connection.write();
      writing = writing || wants;
      if (wants != peer.writing) {
        peer.writing = wants;
        struct epoll_event event = {};
        event.events = EPOLLIN | (wants ? EPOLLOUT : 0U);
        event.data.ptr = &peer;
        epoll_ctl(epoll_, EPOLL_CTL_MOD, peer.connection.descriptor(), &event);
      }
    }
    if (said_bye_ && !writing) return false;
    block.asleep.store(1);
    if (freed_ || has_work()) {
      freed_ = false;
      block.asleep.store(0);
      return true;
    }
  }
  const int count = epoll_wait(epoll_, events, 64, milliseconds);
  block.asleep.store(0);
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == nullptr) {
      uint64_t rings;
      if (::read(bell_, &rings, sizeof rings) < 0) continue;
    } else if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
      hear(*static_cast<Peer*>(events[i].data.ptr));
    }
  }
  return true;
}

void Node::hear(Peer& peer) {
  bool there;
  try {
    there = peer.connection.read();
  } catch (const Refused&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("node " + std::to_string(peer.number) + " sent " + error.what());
  }
  if (there) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, peer.connection.descriptor(), nullptr);
  if (!closing_ && !peer.left) {
    throw std::runtime_error("the connection with node " + std::to_string(peer.number) + " is lost (" +
                             peer.connection.cause() + ")");
  }
}

bool Node::has_work() {
  if (sums_.has_work(workers_) || moves_.has_work(workers_)) return true;
  for (auto& each : tables_) {
    for (Side& side : each.second->sides) {
      if (side.shared != nullptr && side.shared->activity.load() != side.activity) return true;
    }
  }
  return false;
}

void Node::notify() {
  for (Memory& memory : workers_) {
    if (!memory.mapped()) continue;
    WorkerBlock& worker = *memory.at<WorkerBlock>(0);
    worker.bell.fetch_add(1);
    if (worker.sleepers.load() > 0) wake(worker.bell);
  }
}

bool Node::progress() {
  moves_.progress(workers_);
  bool news = sums_.progress(workers_);
  for (auto& each : tables_) news = progress(*each.second) || news;
  return news;
}

bool Node::progress(Table& table) {
  look(table);
  bool news = take_pulls(table);
  if (round_is_complete(table)) {
    take_round(table);
    news = take_pulls(table) || news;
  }
  for (uint32_t i = 0; i < table.parts.size(); ++i) {
    Part& part = table.parts[i];
    if (!part.mine) continue;
    for (;;) {
      bool complete = table.sides.empty() || reached(table.taken, part.version + 1);
      for (uint32_t host = 0; host < part.arrived.size(); ++host) {
        if (host != host_ && roster_.workers[host] > 0 && part.arrived[host].empty()) complete = false;
      }
      if (!complete) break;
      update(table, i);
    }
  }
  news = publish(table) || news;
  answer(table);
  return finish_pulls(table) || news;
}

bool Node::publish(Table& table) {
  uint32_t version = table.taken, consumed = table.taken - (table.unsent > 0 ? 1 : 0);
  bool first = true;
  for (const Part& part : table.parts) {
    if (!part.mine) continue;
    if (first || !reached(part.version, version)) version = part.version;
    first = false;
  }
  if (!first && !reached(version, consumed)) consumed = version;
  table.version = version;
  const bool news = table.shared->version.load() != version || table.shared->consumed.load() != consumed;
  table.shared->version.store(version);
  table.shared->consumed.store(consumed);
  return news;
}

// ----------------------------------------------------------------------------------------------------------- pushes

bool Node::round_is_complete(const Table& table) const {
  if (table.sides.empty() || table.unsent > 0) return false;
  for (const Side& side : table.sides) {
    if (side.shared == nullptr || !reached(side.shared->pushed.load(std::memory_order_acquire), table.taken + 1)) {
      return false;
    }
  }
  return true;
}

void Node::take_round(Table& table) {
  const uint32_t parts = table.shape.partitions();
  for (uint32_t worker = 0; worker < table.sides.size(); ++worker) {
    const uint32_t* bounds = table.bounds_of(worker);
    bool fine = bounds[0] == 0 && bounds[parts] <= table.shape.rows;
    for (uint32_t part = 0; fine && part < parts; ++part) {
      fine = bounds[part] <= bounds[part + 1];
      if (!fine || !table.parts[part].handled) continue;
      const List list = table.pushed(worker, part);
      fine = well_formed(list.places, list.count, table.shape.rows_of(part));
    }
    if (!fine) throw std::runtime_error("a worker of this host pushed malformed rows");
  }
  ++table.taken;
  forget_rows(table);
  for (uint32_t part = 0; part < parts; ++part) {
    if (table.parts[part].elsewhere()) send_on(table, part);
  }
}

void Node::send_on(Table& table, uint32_t part) {
  const TableShape& shape = table.shape;
  auto message = std::make_unique<Outgoing>();
  std::vector<List> lists;
  uint32_t most = 0;
  for (uint32_t worker = 0; worker < table.sides.size(); ++worker) {
    lists.push_back(table.pushed(worker, part));
    most += lists.back().count;
  }
  uint32_t count = most;
  if (lists.size() == 1 && !shape.halves) {  // from where they are
    message->pieces[0].data = const_cast<char*>(reinterpret_cast<const char*>(lists[0].places));
    message->pieces[1].data = const_cast<char*>(lists[0].rows);
    ++table.unsent;
    Table* sent = &table;
    message->sent = [this, sent] {
      --sent->unsent;
      freed_ = true;
    };
  } else {
    const size_t row_bytes = shape.travelling_bytes(false);
    message->buffers[0] = Buffer(most * sizeof(int32_t));
    message->buffers[1] = Buffer(most * row_bytes);
    int32_t* places = message->buffers[0].as<int32_t>();
    char* rows = message->buffers[1].data();
    count = 0;
    table.merger.each(lists, [&](int32_t place, const char* row) {
      places[count] = place;
      if (shape.halves) {
        narrow(reinterpret_cast<const float*>(row), reinterpret_cast<uint16_t*>(rows + count * row_bytes), shape.width);
      } else {
        std::memcpy(rows + count * row_bytes, row, row_bytes);
      }
      ++count;
    });
    message->pieces[0].data = message->buffers[0].data();
    message->pieces[1].data = rows;
  }
  message->pieces[0].size = count * sizeof(int32_t);
  message->pieces[1].size = count * shape.travelling_bytes(false);
  message->header.kind = Message::kPush;
  message->header.table = table.number;
  message->header.part = part;
  message->header.count = count;
  peer(table.parts[part].owner).connection.send(std::move(message));
}

void Node::take_push(Table& table, uint32_t part, uint32_t host, Pushed pushed) {
  auto& queue = table.parts[part].arrived[host];
  if (!queue.empty()) ahead_ += Pushed::cost(pushed.count, table.shape.row_bytes());
  queue.push_back(std::move(pushed));
}

void Node::update(Table& table, uint32_t number) {
  Part& part = table.parts[number];
  std::vector<List> mine, lists;
  for (uint32_t worker = 0; worker < table.sides.size(); ++worker) mine.push_back(table.pushed(worker, number));
  Buffer places, rows;
  const bool alone = std::all_of(part.arrived.begin(), part.arrived.end(),
                                 [](const std::deque<Pushed>& queue) { return queue.empty(); });
  if (mine.size() > 1 && !alone) {
    // As other hosts do before they send: sums are the same wherever a partition lies.
    uint32_t most = 0, count = 0;
    for (const List& list : mine) most += list.count;
    places = Buffer(most * sizeof(int32_t));
    rows = Buffer(most * table.merger.row_bytes());
    table.merger.each(mine, [&](int32_t place, const char* row) {
      places.as<int32_t>()[count] = place;
      std::memcpy(rows.data() + count++ * table.merger.row_bytes(), row, table.merger.row_bytes());
    });
    mine = {{places.as<int32_t>(), rows.data(), count}};
  }
  for (uint32_t host = 0; host < part.arrived.size(); ++host) {
    if (host == host_) {
      lists.insert(lists.end(), mine.begin(), mine.end());
    } else if (!part.arrived[host].empty()) {
      const Pushed& pushed = part.arrived[host].front();
      lists.push_back({pushed.places.as<int32_t>(), pushed.rows.data(), pushed.count});
    }
  }
  const int64_t begin = observer_ ? now() : 0;
  const uint32_t touched = apply(table, number, lists);
  if (observer_) observer_(table.number, number, begin, now(), touched);
  for (auto& queue : part.arrived) {
    if (queue.empty()) continue;
    queue.pop_front();
    if (!queue.empty()) ahead_ -= Pushed::cost(queue.front().count, table.shape.row_bytes());
  }
  ++part.version;
}

uint32_t Node::apply(Table& table, uint32_t number, const std::vector<List>& lists) {
  Part& part = table.parts[number];
  const Rule& rule = part.rule;
  const size_t row_bytes = table.shape.row_bytes();
  uint32_t touched = 0;
  switch (rule.kind) {
    case Kind::kCapture:
      return touched;
    case Kind::kReplace:
      std::memset(part.shard, 0, table.shape.rows_of(number) * row_bytes);
      [[fallthrough]];
    case Kind::kAssign:
      table.merger.each(lists, [&](int32_t place, const char* row) {
        std::memcpy(part.shard + place * row_bytes, row, row_bytes);
        ++touched;
      });
      return touched;
    case Kind::kAssignState: {
      char* state = rule.slot < 2 ? part.state[rule.slot] : nullptr;
      if (state == nullptr) throw std::runtime_error("state is assigned that no optimizer has");
      const size_t size = part.state_bytes[rule.slot];
      table.merger.each(lists, [&](int32_t place, const char* row) {
        std::memcpy(state + place * size, row, std::min(size, row_bytes));
        ++touched;
      });
      return touched;
    }
    case Kind::kCall: {
      uint32_t most = 0;
      for (const List& list : lists) most += list.count;
      Buffer places(most * sizeof(int32_t)), rows(most * row_bytes);
      table.merger.each(lists, [&](int32_t place, const char* row) {
        places.as<int32_t>()[touched] = place;
        std::memcpy(rows.data() + touched++ * row_bytes, row, row_bytes);
      });
      call_(table.number, number, {places.as<int32_t>(), rows.data(), touched});
      return touched;
    }
    default:
      break;
  }
  const Update update = kernel(rule.kind, table.shape.dtype);
  if (update == nullptr) throw std::runtime_error("no kernel for this rule and dtype");
  const Settings settings(rule, ++part.updates);
  table.merger.each(lists, [&](int32_t place, const char* row) {
    char* weight = part.shard + place * row_bytes;
    ++touched;
    update(settings, {weight, {part.state[0] ? part.state[0] + place * part.state_bytes[0] : nullptr,
                               part.state[1] ? part.state[1] + place * part.state_bytes[1] : nullptr},
                      row, table.shape.width});
  });
  return touched;
}

// ------------------------------------------------------------------------------------------------------------ pulls

void Node::look(Table& table) {
  for (uint32_t worker = 0; worker < table.sides.size(); ++worker) {
    Side& side = table.sides[worker];
    if (side.shared == nullptr) continue;
    const uint32_t activity = side.shared->activity.load(std::memory_order_acquire);
    if (activity == side.activity) continue;
    side.activity = activity;
    for (uint32_t i = 0; i < kTickets; ++i) {
      const uint32_t asked = side.shared->tickets[i].asked.load(std::memory_order_acquire);
      if (asked == side.asked[i]) continue;
      side.asked[i] = asked;
      table.pulls.push_back({worker, i, asked, 0});
    }
  }
}

bool Node::take_pulls(Table& table) {
  bool news = false;
  for (size_t i = 0; i < table.pulls.size();) {
    const Pull pull = table.pulls[i];
    if (!reached(table.taken, table.sides[pull.worker].shared->tickets[pull.ticket].want) || !take_pull(table, pull)) {
      ++i;
      continue;
    }
    table.pulls.erase(table.pulls.begin() + i);
    news = finish_pulls(table) || news;
  }
  return news;
}

bool Node::take_pull(Table& table, const Pull& taken) {
  Pull pull = taken;
  const Side& side = table.sides[pull.worker];
  const Ticket& ticket = side.shared->tickets[pull.ticket];
  const uint32_t want = ticket.want, flags = ticket.flags;
  const uint32_t* bounds = side.memory.at<uint32_t>(table.sides_layout.ticket_bounds[pull.ticket]);
  const int32_t* places = side.memory.at<int32_t>(table.sides_layout.ticket_places[pull.ticket]);
  uint32_t* slots = side.memory.at<uint32_t>(table.sides_layout.ticket_slots[pull.ticket]);
  const TableShape& shape = table.shape;
  const size_t row_bytes = shape.row_bytes();
  if (flags & kExact) {
    table.shared->crowded.store(1);
    // Room that was set aside is free again once nobody reads it.
    auto& beside = table.beside;
    beside.erase(std::remove_if(beside.begin(), beside.end(), [&](const Pull& other) {
      return reached(table.sides[other.worker].shared->tickets[other.ticket].released.load(std::memory_order_acquire),
                     other.asked);
    }), beside.end());
    if (beside.empty()) table.aside = 0;
    uint64_t rows = 0, all = 0;
    for (uint32_t part = 0; part < shape.partitions(); ++part) {
      if (!table.parts[part].elsewhere()) continue;
      rows += bounds[part + 1] - bounds[part];
      all += shape.rows_of(part);
    }
    if (table.aside + rows > all && !beside.empty()) return false;
    table.shared->crowded.store(0);
    beside.push_back(pull);
  }
  std::vector<int32_t> missing;
  std::vector<uint8_t> fenced(roster_.hosts.size(), 0);
  for (uint32_t part = 0; part < shape.partitions(); ++part) {
    const Part& there = table.parts[part];
    if (!there.elsewhere()) continue;
    if (flags & kFence) {
      if (!fenced[there.owner]) ask(table, part, want, kFence, missing, nullptr);
      fenced[there.owner] = 1;
      continue;
    }
    const uint32_t first = bounds[part], count = bounds[part + 1] - first;
    if (bounds[part + 1] < first || bounds[part + 1] > shape.rows ||
        !well_formed(places + first, count, shape.rows_of(part))) {
      throw std::runtime_error("a worker of this host asked for malformed rows");
    }
    if (count == 0) continue;
    if (flags & kExact) {
      missing.assign(places + first, places + first + count);
      for (uint32_t i = 0; i < count; ++i) slots[first + i] = table.aside + i;
      ask(table, part, want, kExact, missing, table.memory.at<char>(table.layout.aside) + table.aside * row_bytes);
      table.aside += count;
      continue;
    }
    missing.clear();
    uint32_t* known = table.slots.at<uint32_t>(0) + there.first_slot;
    const uint32_t start = table.used;
    for (uint32_t i = 0; i < count; ++i) {
      const int32_t place = places[first + i];
      if (known[place] == 0) {
        known[place] = ++table.used;
        table.held.push_back(there.first_slot + place);
        missing.push_back(place);
      }
      slots[first + i] = known[place] - 1;
    }
    if (missing.empty()) continue;
    ask(table, part, want, 0, missing, table.memory.at<char>(table.layout.cache) + start * row_bytes);
  }
  pull.last = questions_;
  table.under_way.push_back(pull);
  return true;
}

void Node::ask(Table& table, uint32_t part, uint32_t want, uint8_t flags, const std::vector<int32_t>& places,
               char* to) {
  const uint32_t owner = table.parts[part].owner, count = static_cast<uint32_t>(places.size());
  auto message = std::make_unique<Outgoing>();
  Header& header = message->header;
  header.kind = Message::kPull;
  header.flags = flags;
  header.table = table.number;
  header.part = part;
  header.count = count;
  header.want = want;
  header.number = ++questions_;
  message->buffers[0] = Buffer(count * sizeof(int32_t));
  if (count) std::memcpy(message->buffers[0].data(), places.data(), count * sizeof(int32_t));
  message->pieces[0] = {message->buffers[0].data(), message->buffers[0].size()};
  Asked& asked = table.asked[header.number];
  asked.peer = owner;
  asked.part = part;
  asked.count = count;
  asked.flags = flags;
  asked.to = to;
  peer(owner).connection.send(std::move(message));
}

bool Node::finish_pulls(Table& table) {
  bool news = false;
  for (size_t i = 0; i < table.under_way.size();) {
    const Pull& pull = table.under_way[i];
    if (!table.asked.empty() && table.asked.begin()->first <= pull.last) {
      ++i;
      continue;
    }
    table.sides[pull.worker].shared->tickets[pull.ticket].answered[local_].store(pull.asked);
    table.under_way.erase(table.under_way.begin() + i);
    news = true;
  }
  return news;
}

void Node::forget_rows(Table& table) {
  if (!table.under_way.empty()) throw std::runtime_error("a worker pushed before the rows that it asked for were there");
  uint32_t* slots = table.slots.at<uint32_t>(0);
  for (uint64_t at : table.held) slots[at] = 0;
  table.held.clear();
  if (table.used > kUnusual * std::max<uint32_t>(table.used_before, 1024)) {
    table.memory.give_back(table.layout.cache, table.used * table.shape.row_bytes());
    std::vector<uint64_t>().swap(table.held);
  }
  if (table.used) table.used_before = table.used;
  table.used = 0;
}

bool Node::too_many_questions(Table& table, uint32_t peer) {
  auto& unanswered = table.unanswered[peer];
  if (!unanswered) unanswered = std::make_shared<uint32_t>(0);
  // Each ticket of a worker asks for each partition once at a time.
  return *unanswered >= uint64_t(kTickets) * roster_.workers[roster_.hosts[peer]] * table.shape.partitions();
}

void Node::answer(Table& table) {
  const TableShape& shape = table.shape;
  for (size_t i = 0; i < table.questions.size();) {
    Question& question = table.questions[i];
    const Part& part = table.parts[question.part];
    if (!reached(question.flags & kFence ? table.version : part.version, question.want)) {
      ++i;
      continue;
    }
    const bool exact = question.flags & kExact;
    const size_t row_bytes = shape.row_bytes(), travelling = shape.travelling_bytes(exact);
    auto message = std::make_unique<Outgoing>();
    message->header.kind = Message::kRows;
    message->header.flags = question.flags;
    message->header.table = table.number;
    message->header.part = question.part;
    message->header.count = question.count;
    message->header.number = question.number;
    message->buffers[0] = Buffer(question.count * travelling);
    char* rows = message->buffers[0].data();
    const int32_t* places = question.places.as<int32_t>();
    if (travelling == row_bytes) {
      gather(part.shard, places, question.count, row_bytes, rows);
    } else {
      for (uint32_t k = 0; k < question.count; ++k) {
        if (k + kAhead < question.count) __builtin_prefetch(part.shard + places[k + kAhead] * row_bytes);
        narrow(reinterpret_cast<const float*>(part.shard + places[k] * row_bytes),
               reinterpret_cast<uint16_t*>(rows + k * travelling), shape.width);
      }
    }
    message->pieces[0] = {rows, message->buffers[0].size()};
    message->sent = [unanswered = table.unanswered[question.peer]] { --*unanswered; };
    peer(question.peer).connection.send(std::move(message));
    table.questions.erase(table.questions.begin() + i);
  }
}

// --------------------------------------------------------------------------------------------------- other nodes

void Node::Peer::begin(const Header& header, Piece pieces[2]) {
  if (header.kind == Message::kBye) return;
  if (header.kind == Message::kPart || header.kind == Message::kTotal) return node.sums_.begin(header, number, pieces);
  if (header.kind == Message::kMove || header.kind == Message::kTaken) return node.moves_.begin(header, number, pieces);
  auto& stays = about[priority_of(header.kind)];
  stays = node.shared_table(header.table);
  Table& table = *stays;
  if (header.part >= table.parts.size()) throw std::runtime_error("a message about no partition");
  Part& part = table.parts[header.part];
  const TableShape& shape = table.shape;
  switch (header.kind) {
    case Message::kPush: {
      const uint32_t host = node.roster_.hosts[number];
      if (!part.mine || node.roster_.handler(host, node.number_) != number || node.roster_.workers[host] == 0) {
        throw std::runtime_error("a push to a partition that is not here");
      }
      if (header.count > shape.rows_of(header.part)) throw std::runtime_error("a push of too many rows");
      if (!part.arrived[host].empty() &&
          node.ahead_ + Pushed::cost(header.count, shape.row_bytes()) > kMostAhead) {
        throw std::runtime_error("too many pushes before others have made theirs");
      }
      arriving.count = header.count;
      arriving.places = Buffer(header.count * sizeof(int32_t));
      arriving.rows = Buffer(header.count * shape.travelling_bytes(false));
      pieces[0] = {arriving.places.data(), arriving.places.size()};
      pieces[1] = {arriving.rows.data(), arriving.rows.size()};
      return;
    }
    case Message::kPull:
      if (!part.mine) throw std::runtime_error("a question for rows that are not here");
      if (header.count > shape.rows_of(header.part)) throw std::runtime_error("a question for too many rows");
      if (node.too_many_questions(table, number)) throw std::runtime_error("too many questions at a time");
      asking.peer = number;
      asking.part = header.part;
      asking.want = header.want;
      asking.count = header.count;
      asking.flags = header.flags;
      asking.number = header.number;
      asking.places = Buffer(header.count * sizeof(int32_t));
      pieces[0] = {asking.places.data(), asking.places.size()};
      return;
    case Message::kRows: {
      auto found = table.asked.find(header.number);
      if (found == table.asked.end() || found->second.peer != number || found->second.part != header.part ||
          found->second.count != header.count || found->second.flags != header.flags) {
        throw std::runtime_error("an answer to no question");
      }
      Asked& asked = found->second;
      const size_t size = asked.count * shape.travelling_bytes(asked.flags & kExact);
      if (shape.travelling_bytes(asked.flags & kExact) != shape.row_bytes()) {
        asked.halves = Buffer(size);
        pieces[0] = {asked.halves.data(), size};
      } else {
        pieces[0] = {asked.to, size};
      }
      return;
    }
    default:
      throw std::runtime_error("a message of no known kind");
  }
}

void Node::Peer::end(const Header& header) {
  if (header.kind == Message::kBye) {
    left = true;
    return;
  }
  if (header.kind == Message::kPart || header.kind == Message::kTotal) return node.sums_.end(header, number);
  if (header.kind == Message::kMove || header.kind == Message::kTaken) {
    return node.moves_.end(header, number, node.workers_);
  }
  const std::shared_ptr<Table> stayed = std::move(about[priority_of(header.kind)]);
  Table& table = *stayed;
  const TableShape& shape = table.shape;
  switch (header.kind) {
    case Message::kPush:
      if (!well_formed(arriving.places.as<int32_t>(), arriving.count, shape.rows_of(header.part))) {
        throw std::runtime_error("malformed places");
      }
      if (shape.halves) {
        Buffer rows(arriving.count * shape.row_bytes());
        widen(arriving.rows.as<uint16_t>(), rows.as<float>(), static_cast<size_t>(arriving.count) * shape.width);
        arriving.rows = std::move(rows);
      }
      node.take_push(table, header.part, node.roster_.hosts[number], std::move(arriving));
      return;
    case Message::kPull:
      if (!well_formed(asking.places.as<int32_t>(), asking.count, shape.rows_of(header.part))) {
        throw std::runtime_error("malformed places");
      }
      table.questions.push_back(std::move(asking));
      ++*table.unanswered[number];
      return;
    default: {
      auto found = table.asked.find(header.number);
      Asked& asked = found->second;
      if (asked.halves.size()) {
        widen(asked.halves.as<uint16_t>(), reinterpret_cast<float*>(asked.to),
              static_cast<size_t>(asked.count) * shape.width);
      }
      table.asked.erase(found);
    }
  }
}

}  // namespace lane
