#include "agent/agent.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <stdexcept>

#include "agent/agent_tables.h"
#include "base/system_calls.h"

namespace lane {
namespace {

/// The longest wait of the destructor at a time.
constexpr int kCloseMs = 1000;

}  // namespace

// ---------------------------------------------------------------------------------------------------------- set up

Agent::Agent(uint32_t number, Membership membership, Callback callback, Failed failed)
    : number_(number),
      host_(membership.agent_hosts.at(number)),
      membership_(std::move(membership)),
      local_([this] {
        const std::vector<uint32_t> agents = membership_.agents_of(host_);
        return static_cast<uint32_t>(std::find(agents.begin(), agents.end(), number_) - agents.begin());
      }()),
      callback_(std::move(callback)),
      failed_(std::move(failed)),
      block_(sizeof(AgentBlock)),
      workers_(membership_.worker_counts.at(host_)),
      allreduce_(number_, membership_, [this](uint32_t other) -> Connection& { return peer(other).connection; }),
      relay_(number_, membership_, [this](uint32_t other) -> Connection& { return peer(other).connection; }) {
  if (local_ >= kMaxLocalAgents) {
    throw std::runtime_error("a host has more than " + std::to_string(kMaxLocalAgents) +
                             " servers: start fewer servers on it");
  }
  doorbell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (doorbell_ < 0 || epoll_ < 0) fail_with_errno("eventfd");
  struct epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, doorbell_, &event);
}

Agent::~Agent() {
  while (!close(kCloseMs)) {
  }
  peers_.clear();
  ::close(epoll_);
  ::close(doorbell_);
}

void Agent::connect(uint32_t number, int socket) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto peer = std::make_unique<Peer>(*this, number, socket);
  struct epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = peer.get();
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) fail_with_errno("epoll_ctl");
  peers_[number] = std::move(peer);
}

void Agent::add_worker(uint32_t worker, int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  workers_.at(worker) = Memory(descriptor, sizeof(WorkerBlock));
}

std::shared_ptr<Agent::Table> Agent::new_table(uint32_t number, const TableShape& shape) {
  if (shape.staleness > kMaxStaleness) throw std::runtime_error("a staleness of " + std::to_string(shape.staleness));
  std::vector<uint8_t> handled;
  for (uint32_t owner : shape.owners) handled.push_back(membership_.handler(host_, owner) == number_);
  const uint32_t workers = static_cast<uint32_t>(workers_.size());
  auto table = std::make_shared<Table>(number, shape, number_, handled, workers);
  uint64_t remote_rows = 0;
  for (uint32_t i = 0; i < shape.partitions(); ++i) {
    Part part;
    part.owner = shape.owners[i];
    part.handled = handled[i];
    part.is_owned = part.owner == number_;
    part.first_slot = remote_rows;
    if (part.is_owned) {
      if (!shape.dynamic) part.shard = table->memory.at<char>(table->layout.shards[i]);
      part.pushes.resize(membership_.worker_counts.size());
    } else if (part.handled) {
      if (!shape.requested()) remote_rows += shape.rows_of(i);
      table->owners[part.owner].part = i;
    }
    table->parts.push_back(std::move(part));
  }
  table->slots = Memory(std::max<uint64_t>(1, remote_rows) * sizeof(uint32_t));
  table->slots.close_descriptor();  // only this process maps it
  if (shape.requested()) table->key_cache = std::make_unique<KeyCache>(shape.max_rows(), workers);
  if (std::find(handled.begin(), handled.end(), true) != handled.end()) table->views.resize(workers);
  for (WorkerView& view : table->views) {
    view.posted.resize(shape.requested() || !table->owners.empty() ? kMaxRowRequests : 0, kFirst);
    if (shape.requested()) view.regions.resize(kMaxRowRequests, WorkerView::kNoRegion);
  }
  return table;
}

void Agent::add_table(uint32_t number, const TableShape& shape) {
  std::shared_ptr<Table> table = new_table(number, shape);
  std::lock_guard<std::mutex> lock(mutex_);
  tables_[number] = std::move(table);
}

void Agent::add_dynamic_table(uint32_t number, const TableShape& shape, const std::string& name,
                              const RowStoreOptions& options) {
  std::shared_ptr<Table> table = new_table(number, shape);
  table->name = name;
  for (uint32_t i = 0; i < shape.partitions(); ++i) {
    if (!table->parts[i].is_owned) continue;
    table->with_name([&] { table->parts[i].store = std::make_unique<RowStore>(options); });
  }
  std::lock_guard<std::mutex> lock(mutex_);
  tables_[number] = std::move(table);
}

int Agent::share_table(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Table& table = this->table(number);
  const int descriptor = fcntl(table.memory.descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) throw MemoryRefused(refusal_text("cannot share memory", 0, errno));
  if (++table.shared_with == workers_.size()) table.memory.close_descriptor();
  return descriptor;
}

void Agent::attach(uint32_t number, uint32_t worker, int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  Table& table = this->table(number);
  if (worker >= workers_.size()) {
    throw std::runtime_error("worker " + std::to_string(worker) + " is not on this host, which has " +
                             std::to_string(workers_.size()));
  }
  if (table.views.empty()) return;  // this agent handles no partition of the table
  WorkerView& view = table.views[worker];
  view.memory = Memory(descriptor, table.worker_layout.size);
  view.shared = view.memory.at<WorkerTable>(0);
}

void Agent::drop_table(uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  tables_.erase(number);
}

int Agent::open_allreduce(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor,
                          const std::vector<uint64_t>& ends, bool quantized) {
  std::lock_guard<std::mutex> lock(mutex_);
  return allreduce_.open(number, worker, dtype, count, descriptor, ends, quantized);
}

void Agent::drop_allreduce(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  allreduce_.drop(number);
}

void Agent::open_channel(uint32_t worker, bool outgoing, uint32_t from, uint32_t to, uint32_t other, int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  relay_.open(worker, outgoing, from, to, other, descriptor);
}

const std::shared_ptr<Agent::Table>& Agent::shared_table(uint32_t number) {
  auto entry = tables_.find(number);
  if (entry == tables_.end()) throw std::runtime_error("no table has number " + std::to_string(number));
  return entry->second;
}

Agent::Table& Agent::table(uint32_t number) { return *shared_table(number); }

Agent::Part& Agent::owned_part(uint32_t number, uint32_t part) {
  Part& partition = table(number).parts.at(part);
  if (!partition.is_owned) throw std::runtime_error("partition " + std::to_string(part) + " belongs to another server");
  return partition;
}

Agent::Peer& Agent::peer(uint32_t number) {
  auto entry = peers_.find(number);
  if (entry == peers_.end()) throw std::runtime_error("no connection with server " + std::to_string(number));
  return *entry->second;
}

char* Agent::shard(uint32_t number, uint32_t part) {
  std::lock_guard<std::mutex> lock(mutex_);
  return owned_part(number, part).shard;
}

void Agent::with_store(uint32_t number, uint32_t part, const std::function<void(RowStore&)>& use) {
  std::lock_guard<std::mutex> lock(mutex_);
  Part& partition = owned_part(number, part);
  if (!partition.store) throw std::runtime_error("table " + std::to_string(number) + " is not a dynamic table");
  use(*partition.store);
}

void Agent::set_rule(uint32_t number, uint32_t part, const Rule& rule) {
  std::lock_guard<std::mutex> lock(mutex_);
  owned_part(number, part).rule = rule;
}

void Agent::set_state(uint32_t number, uint32_t part, uint32_t slot, char* rows, size_t row_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Part& partition = owned_part(number, part);
  if (slot >= 2) {
    throw std::runtime_error("a row has no optimizer state number " + std::to_string(slot) +
                             ": the numbers are 0 and 1");
  }
  partition.state[slot] = rows;
  partition.state_bytes[slot] = row_bytes;
}

void Agent::set_updates(uint32_t number, uint32_t part, uint64_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  Part& partition = owned_part(number, part);
  partition.updates = count;
  if (partition.store) partition.store->set_updates(count);
}

// --------------------------------------------------------------------------------------------------------- service

void Agent::start() { thread_ = std::thread(&Agent::serve, this); }

bool Agent::close(int milliseconds) {
  if (!thread_.joinable()) return true;
  // The mutex is not taken: the thread holds it while it works, which may take long.
  closing_ = true;
  const uint64_t signal = 1;
  // It fails if the doorbell was rung before, and the agent has not read it yet.
  uninterrupted([&] { return ::write(doorbell_, &signal, sizeof signal); });
  const int64_t deadline = now() + milliseconds * int64_t{1000000};
  while (ended_.load() == 0) {
    const int64_t left_ms = (deadline - now()) / 1000000;
    if (left_ms <= 0) return false;
    sleep_while(ended_, 0, static_cast<int>(left_ms));
  }
  thread_.join();
  return true;
}

std::string Agent::pending_work() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return "a table or an allreduce that is being updated";
  std::string work;
  for (auto& [number, peer] : peers_) {
    const size_t unsent = peer->connection.unsent();
    if (unsent == 0) continue;
    work += (work.empty() ? "" : ", ") + ("server " + std::to_string(number)) + " to receive the last " +
            std::to_string(unsent) + " bytes that were sent to it";
  }
  return work.empty() ? "its thread to end" : work;
}

void Agent::send_bye() {
  bye_sent_ = true;
  for (auto& [number, peer] : peers_) {
    auto bye = std::make_unique<OutgoingMessage>();
    bye->header.kind = Message::kBye;
    peer->connection.send(std::move(bye));
  }
}

void Agent::serve() {
  try {
    throw std::bad_alloc();  // the first exception of a thread takes memory: take it now, not when there is none
  } catch (const std::bad_alloc&) {
  }
  bool ends_well = false;
  try {
    while (run_once(kFallbackMs)) {
    }
    ends_well = true;
  } catch (const std::bad_alloc&) {
    failed_(refusal_text("cannot get memory", 0, ENOMEM));
  } catch (const std::exception& error) {
    failed_(error.what());
  }
  if (!ends_well) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [number, peer] : peers_) {
      shutdown(peer->connection.descriptor(), SHUT_RDWR);  // no other agent may wait for this one
    }
  }
  ended_ = 1;
  wake(ended_);
}

bool Agent::run_once(int milliseconds) {
  AgentBlock& block = *block_.at<AgentBlock>(0);
  struct epoll_event events[64];
  bool writing = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (progress()) notify_workers();
    if (closing_ && !bye_sent_) send_bye();
    for (auto& [number, entry] : peers_) {
      Peer& peer = *entry;
      const bool has_unsent = peer.connection.write();
      writing = writing || has_unsent;
      if (has_unsent != peer.writing) {
        peer.writing = has_unsent;
        struct epoll_event event = {};
        event.events = EPOLLIN | (has_unsent ? EPOLLOUT : 0U);
        event.data.ptr = &peer;
        epoll_ctl(epoll_, EPOLL_CTL_MOD, peer.connection.descriptor(), &event);
      }
    }
    if (bye_sent_ && !writing) return false;
    block.asleep.store(1);
    if (memory_freed_ || has_work()) {
      memory_freed_ = false;
      block.asleep.store(0);
      return true;
    }
  }
  const int count = epoll_wait(epoll_, events, 64, milliseconds);  // none if a signal has interrupted it
  block.asleep.store(0);
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == nullptr) {
      uint64_t signals;
      uninterrupted([&] { return ::read(doorbell_, &signals, sizeof signals); });
      continue;
    }
    Peer& peer = *static_cast<Peer*>(events[i].data.ptr);
    if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) peer.connection.set_writable();
    if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(peer);
  }
  if (!peers_.empty()) adapt_to_link();
  return true;
}

void Agent::adapt_to_link() {
  if (!receive_rate_.note(block_.at<AgentBlock>(0)->traffic.total_received(), now())) return;
  for (auto& [number, peer] : peers_) {
    const int socket = peer->connection.descriptor();
    const uint32_t window = receive_window(receive_rate_.bytes_per_s(), min_rtt_s(socket), peers_.size());
    // Also if the window has not changed: the kernel raises the limit when it enlarges the socket's buffer.
    if (window != 0 || peer->receive_window != 0) limit_receive_window(socket, window);
    peer->receive_window = window;
    peer->connection.set_threshold(wake_threshold(receive_rate_.bytes_per_s(), peers_.size()));
  }
}

void Agent::receive(Peer& peer) {
  bool is_open;
  try {
    is_open = peer.connection.read();
  } catch (const MemoryRefused&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("server " + std::to_string(peer.number) + " sent " + error.what());
  }
  if (is_open) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, peer.connection.descriptor(), nullptr);
  if (!closing_ && !peer.has_left) {
    throw std::runtime_error("the connection with server " + std::to_string(peer.number) + " is lost (" +
                             peer.connection.cause() + ")");
  }
}

bool Agent::has_work() {
  if (allreduce_.has_work(workers_) || relay_.has_work(workers_)) return true;
  for (auto& [number, table] : tables_) {
    for (WorkerView& view : table->views) {
      if (view.shared != nullptr && view.shared->activity.load() != view.activity) return true;
    }
  }
  return false;
}

void Agent::notify_workers() {
  for (Memory& memory : workers_) {
    if (!memory.mapped()) continue;
    notify(*memory.at<WorkerBlock>(0));
  }
}

bool Agent::progress() {
  relay_.progress(workers_);
  bool has_news = allreduce_.progress(workers_);
  for (auto& [number, table] : tables_) has_news = progress(*table) || has_news;
  return has_news;
}

bool Agent::progress(Table& table) {
  collect_requests(table);
  bool has_news = start_requests(table);
  if (round_is_complete(table)) {
    accept_round(table);
    has_news = start_requests(table) || has_news;
  }
  for (uint32_t i = 0; i < table.parts.size(); ++i) {
    Part& part = table.parts[i];
    if (!part.is_owned) continue;
    for (;;) {
      bool complete = table.views.empty() || reached(table.rounds, part.version + 1);  // this host's push has arrived
      for (uint32_t host = 0; host < part.pushes.size(); ++host) {
        if (host != host_ && membership_.worker_counts[host] > 0 && part.pushes[host].empty()) complete = false;
      }
      if (!complete) break;
      update(table, i);
    }
  }
  has_news = publish(table) || has_news;
  answer_pulls(table);
  return complete_requests(table) || has_news;
}

bool Agent::publish(Table& table) {
  uint32_t version = table.rounds, consumed = table.rounds - (table.reading > 0 ? 1 : 0);
  bool first = true;
  for (const Part& part : table.parts) {
    if (!part.is_owned) continue;
    if (first || !reached(part.version, version)) version = part.version;
    first = false;
  }
  if (table.shape.staleness > 0) {
    consumed = table.rounds;  // this agent has copies of all pushes
  } else if (!first && !reached(version, consumed)) {
    consumed = version;
  }
  table.version = version;
  const bool news = table.shared->version.load() != version || table.shared->consumed.load() != consumed;
  table.shared->version.store(version);
  table.shared->consumed.store(consumed);
  return news;
}

}  // namespace lane
