#include "agent/agent_allreduce.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <utility>

#include "agent/allreduce_round.h"
#include "kernels/add.h"
#include "kernels/int8.h"

namespace lane {
namespace {

/// The largest and the smallest chunk.  Large arrays have several chunks, so that one is summed while the next one is
/// sent; small chunks would not be worth the cost of a message.
constexpr size_t kMaxChunkBytes = 256 << 10, kMinChunkBytes = 32 << 10;
/// The cost of an early contribution besides its bytes; it is early if it comes before the allreduce is open here.
constexpr size_t kEarlyCost = 4 << 10;

/// The limit of early contributions in bytes.  Honest hosts never reach it: the workers of this host have to keep twice
/// as many bytes for the same allreduces.
size_t max_early_bytes() {
  static const size_t pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
  return pages / 2 * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

bool is_quantized(const Header& header) { return header.flags & kQuantized; }
Dtype dtype_of(const Header& header) { return static_cast<Dtype>(header.flags & ~kQuantized); }
size_t size_of_values(const Header& header) {
  return is_quantized(header) ? int8_bytes(header.count) : header.count * size_of(dtype_of(header));
}

}  // namespace

struct AgentAllreduce::Operation {
  struct OwnedChunk {
    std::vector<Buffer> contributions;  // by position in hosts_
    uint32_t arrived = 0;
    bool has_own = false;  // whether this host's own contribution is ready
  };

  uint64_t number = 0;
  // False until a worker of this host opens the allreduce; contributions may come earlier.
  bool known = false;
  Dtype dtype = Dtype::kFloat32;
  bool quantized = false;
  uint64_t count = 0;
  std::vector<uint64_t> first;   // by chunk: its first element; the last entry is `count`
  std::vector<uint32_t> owners;  // by chunk: the host that owns it
  uint32_t chunks = 0;
  uint32_t first_chunk = 0;  // the chunk that is sent first
  /// The ends of the ranges of all workers, and the range of each worker of this host; empty without ranges.
  std::vector<uint64_t> ends;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  std::shared_ptr<Memory> memory;
  AllreduceOutput* shared = nullptr;
  std::vector<std::shared_ptr<Memory>> inputs;  // by local number of the worker
  uint32_t open = 0, dropped = 0;

  /// The number of messages kResult that are not sent yet: they are read from the output, so the next run waits for
  /// them.
  std::shared_ptr<uint32_t> unsent = std::make_shared<uint32_t>(0);

  uint32_t rounds = kFirst;  // that have begun
  bool under_way = false;
  AllreduceRound round;  // the current one
  std::map<uint32_t, OwnedChunk> owned;      // by chunk
  std::vector<uint8_t> expected;             // by chunk: whether its result is expected from another host
  std::map<uint32_t, Buffer> early_results;  // by chunk: results of an allgather that has not begun here

  /// Memory of contributions that were added up, for later ones: as much as arrive in a round, at most.
  std::vector<Buffer> spare;

  Memory residuals;     // one float for each element, if values are quantized
  Int8Squares squares;  // of the current round

  AllreduceInput& input(uint32_t worker) const { return *inputs[worker]->at<AllreduceInput>(0); }
  int32_t priority() const { return input(0).priority.load(std::memory_order_relaxed); }
  bool has_all_inputs() const {
    for (uint32_t worker = 0; worker < inputs.size(); ++worker) {
      if (!reached(input(worker).rounds.load(std::memory_order_acquire), rounds + 1)) return false;
    }
    return true;
  }
  size_t offset(uint32_t number) const { return kAllreduceData + first[number] * size_of(dtype); }
  uint64_t size(uint32_t number) const { return first[number + 1] - first[number]; }
  size_t wire_bytes(uint32_t number) const {
    return quantized ? int8_bytes(size(number)) : size(number) * size_of(dtype);
  }
  /// Return memory for a contribution.
  Buffer take_buffer(size_t bytes) {
    for (Buffer& buffer : spare) {
      if (buffer.size() != bytes) continue;
      std::swap(buffer, spare.back());
      Buffer taken = std::move(spare.back());
      spare.pop_back();
      return taken;
    }
    return Buffer(bytes);
  }
  uint8_t flags() const { return static_cast<uint8_t>(static_cast<uint8_t>(dtype) | (quantized ? kQuantized : 0)); }
};

AgentAllreduce::AgentAllreduce(uint32_t agent, const Membership& membership, std::function<Connection&(uint32_t)> peer)
    : agent_(agent), host_(membership.agent_hosts.at(agent)), membership_(membership), peer_(std::move(peer)),
      seen_(membership.worker_counts.at(host_), kFirst) {
  for (uint32_t host = 0; host < membership.worker_counts.size(); ++host) {
    if (membership.worker_counts[host] > 0) hosts_.push_back(host);
  }
}

AgentAllreduce::~AgentAllreduce() = default;

void AgentAllreduce::set_ranges(Operation& operation, const std::vector<uint64_t>& ends) {
  operation.ends = ends;
  if (ends.empty()) return;
  size_t workers = 0;
  for (uint32_t host : hosts_) workers += membership_.worker_counts[host];
  if (ends.size() != workers || ends.back() != operation.count || !std::is_sorted(ends.begin(), ends.end())) {
    throw std::runtime_error("the ranges of an allreduce do not cover its array");
  }
  size_t worker = 0;
  for (uint32_t host : hosts_) {
    for (uint32_t local = 0; local < membership_.worker_counts[host]; ++local, ++worker) {
      if (host == host_) operation.ranges.emplace_back(worker == 0 ? 0 : ends[worker - 1], ends[worker]);
    }
  }
}

void AgentAllreduce::set_chunks(Operation& operation) {
  const size_t bytes = operation.count * size_of(operation.dtype), hosts = hosts_.size();
  size_t chunk_bytes = bytes;
  if (hosts > 1) {
    const size_t chunks_per_host = std::max<size_t>(1, (bytes + hosts * kMaxChunkBytes - 1) / (hosts * kMaxChunkBytes));
    chunk_bytes = std::max((bytes + hosts * chunks_per_host - 1) / (hosts * chunks_per_host), kMinChunkBytes);
    const size_t alignment = operation.quantized ? kInt8Block * sizeof(float) : Layout::kAlignment;
    chunk_bytes = rounded_up(chunk_bytes, alignment);
  }
  const uint64_t chunk = std::max<uint64_t>(1, chunk_bytes / size_of(operation.dtype));
  if (operation.ends.empty()) {
    for (uint64_t first = 0; first < operation.count; first += chunk) {
      operation.owners.push_back(hosts_[(operation.number + operation.owners.size()) % hosts]);
      operation.first.push_back(first);
    }
  } else {
    uint64_t first = 0;
    size_t worker = 0;
    for (uint32_t host : hosts_) {
      if (host == host_) operation.first_chunk = static_cast<uint32_t>(operation.owners.size());
      worker += membership_.worker_counts[host];
      for (const uint64_t end = operation.ends[worker - 1]; first < end; first = std::min(first + chunk, end)) {
        operation.owners.push_back(host);
        operation.first.push_back(first);
      }
    }
  }
  operation.first.push_back(operation.count);
  operation.chunks = static_cast<uint32_t>(operation.owners.size());
  operation.expected.assign(operation.chunks, 0);
}

int AgentAllreduce::open(uint64_t number, uint32_t worker, Dtype dtype, uint64_t count, int descriptor,
                         const std::vector<uint64_t>& ends, bool quantized) {
  if (quantized && (dtype != Dtype::kFloat32 || !ends.empty())) {
    throw std::runtime_error("only sums of float32 without ranges of workers travel as int8");
  }
  auto& entry = operations_[number];
  if (!entry) entry = std::make_unique<Operation>();
  Operation& operation = *entry;
  const size_t bytes = count * size_of(dtype);
  const bool is_one_host = membership_.has_one_host();
  if (!operation.known) {
    const AllreduceLayout layout(bytes, static_cast<uint32_t>(seen_.size()));
    // First: it may be refused, and another thread uses the operation.
    operation.memory = std::make_shared<Memory>(is_one_host ? layout.size : kAllreduceData + bytes);
    operation.number = number;
    operation.dtype = dtype;
    operation.quantized = quantized;
    operation.count = count;
    if (quantized && hosts_.size() > 1) {
      operation.residuals = Memory(count * sizeof(float));
      operation.residuals.close_descriptor();  // only this process maps it
    }
    set_ranges(operation, ends);
    if (is_one_host) std::copy(ends.begin(), ends.end(), operation.memory->at<uint64_t>(layout.ends));
    operation.known = true;
    operation.shared = operation.memory->at<AllreduceOutput>(0);
    operation.inputs.resize(seen_.size());
    set_chunks(operation);
    for (auto& [chunk, owned] : operation.owned) {  // early contributions
      for (const Buffer& contribution : owned.contributions) {
        if (contribution.size() == 0) continue;
        early_bytes_ -= contribution.size() + kEarlyCost;
        if (chunk >= operation.chunks || operation.owners[chunk] != host_ ||
            contribution.size() != operation.wire_bytes(chunk)) {
          throw std::runtime_error("hosts sum arrays of different sizes or types under one name");
        }
      }
    }
  }
  if (operation.dtype != dtype || operation.quantized != quantized || operation.count != count ||
      operation.ends != ends || operation.inputs.at(worker)) {
    throw std::runtime_error("workers of this host sum arrays of different sizes or types under one name");
  }
  operation.inputs[worker] = std::make_shared<Memory>(descriptor, kAllreduceData + (is_one_host ? 0 : bytes));
  ++operation.open;
  const int output = fcntl(operation.memory->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (output < 0) fail_with_errno("dup");
  if (operation.open == operation.inputs.size()) operation.memory->close_descriptor();
  return output;
}

void AgentAllreduce::drop(uint64_t number) {
  auto entry = operations_.find(number);
  if (entry == operations_.end()) throw std::runtime_error("no allreduce has number " + std::to_string(number));
  if (++entry->second->dropped == entry->second->inputs.size()) operations_.erase(entry);
}

bool AgentAllreduce::has_work(const std::vector<Memory>& workers) const {
  if (retry_) return true;
  for (uint32_t worker = 0; worker < workers.size(); ++worker) {
    if (workers[worker].mapped() && workers[worker].at<WorkerBlock>(0)->allreduce_inputs.load() != seen_[worker]) {
      return true;
    }
  }
  return false;
}

bool AgentAllreduce::progress(const std::vector<Memory>& workers) {
  if (has_work(workers)) {
    retry_ = false;
    for (uint32_t worker = 0; worker < workers.size(); ++worker) {
      if (workers[worker].mapped()) seen_[worker] = workers[worker].at<WorkerBlock>(0)->allreduce_inputs.load();
    }
    std::vector<Operation*> ready;
    for (auto& each : operations_) {
      Operation& operation = *each.second;
      if (operation.known && !operation.under_way && *operation.unsent == 0 &&
          operation.open == operation.inputs.size() && operation.has_all_inputs()) {
        ready.push_back(&operation);
      }
    }
    std::stable_sort(ready.begin(), ready.end(), [](const Operation* first, const Operation* second) {
      return first->priority() > second->priority();
    });
    for (Operation* operation : ready) start(*operation);
    if (membership_.has_one_host()) has_results_ = true;  // a worker has written an output
  }
  const bool has_news = has_results_;
  has_results_ = false;
  return has_news;
}

void AgentAllreduce::start(Operation& operation) {
  operation.under_way = true;
  ++operation.rounds;
  auto kind = static_cast<AllreduceKind>(operation.input(0).kind.load(std::memory_order_relaxed));
  if (kind == AllreduceKind::kGather && operation.ends.empty()) kind = AllreduceKind::kSum;
  const auto own_chunks = static_cast<uint32_t>(std::count(operation.owners.begin(), operation.owners.end(), host_));
  operation.round = AllreduceRound(kind, own_chunks, operation.chunks - own_chunks);
  operation.squares = {};
  kind == AllreduceKind::kGather ? gather(operation) : sum(operation);
  finish_if_complete(operation);
}

void AgentAllreduce::sum(Operation& operation) {
  std::vector<const char*> sources(operation.inputs.size());
  for (uint32_t i = 0; i < operation.chunks; ++i) {
    const uint32_t chunk = (operation.first_chunk + i) % operation.chunks;
    const size_t offset = operation.offset(chunk);
    for (uint32_t worker = 0; worker < sources.size(); ++worker) {
      sources[worker] = operation.inputs[worker]->at<char>(offset);
    }
    char* result = operation.memory->at<char>(offset);
    const uint32_t owner = operation.owners[chunk];
    // The input of a single worker stays unchanged until the output is complete, so it is sent from where it is.
    const bool copied = sources.size() > 1 || hosts_.size() == 1;
    if (copied) add_arrays(operation.dtype, sources, operation.size(chunk), result);
    if (hosts_.size() == 1) {
      operation.round.chunk_added();
    } else if (owner == host_) {
      operation.owned[chunk].has_own = true;
      finish_chunk(operation, chunk);
    } else {
      operation.expected[chunk] = operation.round.has_results();
      const char* host_sum = copied ? result : sources[0];
      if (operation.quantized) {
        const std::shared_ptr<Buffer> rounded = quantize(operation, chunk, host_sum);
        send(operation, chunk, Message::kContribution, rounded->data(), rounded, owner);
      } else {
        send(operation, chunk, Message::kContribution, host_sum, copied ? operation.memory : operation.inputs[0],
             owner);
      }
    }
  }
}

void AgentAllreduce::gather(Operation& operation) {
  const size_t size = size_of(operation.dtype);
  for (uint32_t worker = 0; worker < operation.inputs.size(); ++worker) {
    const auto [first, end] = operation.ranges[worker];
    const size_t offset = kAllreduceData + first * size;
    std::memcpy(operation.memory->at<char>(offset), operation.inputs[worker]->at<char>(offset), (end - first) * size);
  }
  for (uint32_t chunk = 0; chunk < operation.chunks; ++chunk) {
    auto early = operation.early_results.find(chunk);
    if (operation.owners[chunk] == host_) {
      for (uint32_t host : hosts_) {
        if (host == host_) continue;
        send(operation, chunk, Message::kResult, operation.memory->at<char>(operation.offset(chunk)),
             operation.memory, host);
      }
    } else if (early != operation.early_results.end()) {
      std::memcpy(operation.memory->at<char>(operation.offset(chunk)), early->second.data(), early->second.size());
      operation.early_results.erase(early);
      operation.round.result_arrived();
    } else {
      operation.expected[chunk] = 1;
    }
  }
}

void AgentAllreduce::finish_chunk(Operation& operation, uint32_t chunk) {
  Operation::OwnedChunk& owned = operation.owned[chunk];
  if (!owned.has_own || owned.arrived + 1 < hosts_.size()) return;
  const size_t offset = operation.offset(chunk);
  char* result = operation.memory->at<char>(offset);
  std::vector<const char*> sources;
  for (uint32_t position = 0; position < hosts_.size(); ++position) {
    if (hosts_[position] == host_) {
      sources.push_back(operation.inputs.size() > 1 ? result : operation.inputs[0]->at<char>(offset));
      continue;
    }
    Buffer& contribution = owned.contributions[position];
    if (operation.quantized) {
      Buffer values(operation.size(chunk) * sizeof(float));
      dequantize_blocks(contribution.data(), operation.size(chunk), values.as<float>());
      contribution = std::move(values);
    }
    sources.push_back(contribution.data());
  }
  add_arrays(operation.dtype, sources, operation.size(chunk), result);
  for (Buffer& contribution : owned.contributions) {
    if (contribution.size() == operation.wire_bytes(chunk)) operation.spare.push_back(std::move(contribution));
  }
  operation.owned.erase(chunk);
  if (operation.round.has_results()) {
    const char* values = result;
    std::shared_ptr<const void> owner = operation.memory;
    if (operation.quantized) {
      const std::shared_ptr<Buffer> rounded = quantize(operation, chunk, result);
      dequantize_blocks(rounded->data(), operation.size(chunk), reinterpret_cast<float*>(result));
      values = rounded->data();
      owner = rounded;
    }
    for (uint32_t host : hosts_) {
      if (host != host_) send(operation, chunk, Message::kResult, values, owner, host);
    }
  }
  operation.round.chunk_added();
}

std::shared_ptr<Buffer> AgentAllreduce::quantize(Operation& operation, uint32_t chunk, const char* values) {
  auto rounded = std::make_shared<Buffer>(operation.wire_bytes(chunk));
  quantize_blocks(reinterpret_cast<const float*>(values), operation.residuals.at<float>(0) + operation.first[chunk],
                  operation.size(chunk), rounded->data(), operation.squares);
  return rounded;
}

bool AgentAllreduce::finish_if_complete(Operation& operation) {
  if (!operation.under_way || !operation.round.is_complete()) return false;
  operation.under_way = false;
  operation.shared->value_squares.store(operation.squares.values, std::memory_order_relaxed);
  operation.shared->residual_squares.store(operation.squares.residuals, std::memory_order_relaxed);
  operation.shared->rounds.store(operation.rounds, std::memory_order_release);
  has_results_ = true;
  return true;
}

void AgentAllreduce::send(Operation& operation, uint32_t chunk, Message kind, const char* data,
                          std::shared_ptr<const void> owner, uint32_t host) {
  auto message = std::make_unique<OutgoingMessage>();
  message->header.kind = kind;
  message->header.flags = operation.flags();
  message->header.part = chunk;
  message->header.count = static_cast<uint32_t>(operation.size(chunk));
  message->header.number = operation.number;
  message->segments[0] = {const_cast<char*>(data), operation.wire_bytes(chunk)};
  Operation* const counting = operation.round.has_results() ? nullptr : &operation;
  const bool reads_output = kind == Message::kResult && !operation.quantized;
  if (reads_output) ++*operation.unsent;
  message->sent = [this, reads_output, counting, owner,
                   unsent = operation.unsent] {  // keeps the memory until the message is sent
    if (reads_output && --*unsent == 0) {
      retry_ = true;
    } else if (counting != nullptr) {
      counting->round.contribution_sent();
      if (finish_if_complete(*counting)) retry_ = true;
    }
  };
  peer_(membership_.allreduce_agent(host, operation.number)).send(std::move(message));
}

AgentAllreduce::Operation& AgentAllreduce::checked_operation(const Header& header, uint32_t from) {
  const uint32_t host = membership_.agent_hosts[from];
  if (membership_.worker_counts[host] == 0 || membership_.allreduce_agent(host, header.number) != from ||
      membership_.allreduce_agent(host_, header.number) != agent_) {
    throw std::runtime_error("a message about an allreduce that another server handles");
  }
  if (dtype_of(header) > Dtype::kInt64 || (is_quantized(header) && dtype_of(header) != Dtype::kFloat32)) {
    throw std::runtime_error("an allreduce of an unknown type");
  }
  if (header.count == 0) throw std::runtime_error("an empty chunk of an allreduce");
  auto& entry = operations_[header.number];
  if (!entry) entry = std::make_unique<Operation>();
  Operation& operation = *entry;
  const bool is_contribution = header.kind == Message::kContribution;
  if (operation.known) {
    if (header.part >= operation.chunks || header.flags != operation.flags() ||
        header.count != operation.size(header.part) ||
        operation.owners[header.part] != (is_contribution ? host_ : host) ||
        (!is_contribution && !operation.expected[header.part] &&
         (operation.ends.empty() || operation.early_results.count(header.part) > 0))) {
      throw std::runtime_error("a chunk of an allreduce that has another size or type here");
    }
  } else {
    if (!is_contribution) throw std::runtime_error("a result of an unknown allreduce");
    const size_t size = size_of_values(header);
    if (size > kMaxChunkBytes + Layout::kAlignment || early_bytes_ + size + kEarlyCost > max_early_bytes()) {
      throw std::runtime_error("too much data of allreduces that no worker of this host has opened");
    }
  }
  return operation;
}

void AgentAllreduce::begin(const Header& header, uint32_t from, Segment segments[2]) {
  Operation& operation = checked_operation(header, from);
  const size_t size = size_of_values(header);
  Buffer& arriving = arriving_[from];
  if (header.kind == Message::kResult && operation.expected[header.part] && !operation.quantized) {
    arriving = Buffer();
    segments[0] = {operation.memory->at<char>(operation.offset(header.part)), size};
    return;
  }
  arriving = header.kind == Message::kContribution ? operation.take_buffer(size) : Buffer(size);
  segments[0] = {arriving.data(), size};
}

void AgentAllreduce::end(const Header& header, uint32_t from) {
  Operation& operation = checked_operation(header, from);  // it may have been opened or dropped since `begin`
  if (header.kind == Message::kResult) {
    Buffer early = std::move(arriving_[from]);
    if (!operation.expected[header.part]) {
      if (early.size() == 0) throw std::runtime_error("a result of an allreduce that has been dropped");
      operation.early_results[header.part] = std::move(early);
      return;
    }
    if (operation.quantized) {
      dequantize_blocks(early.data(), operation.size(header.part),
                        operation.memory->at<float>(operation.offset(header.part)));
    } else if (early.size() > 0) {  // the allgather has begun while the result arrived
      std::memcpy(operation.memory->at<char>(operation.offset(header.part)), early.data(), early.size());
    }
    operation.expected[header.part] = 0;
    operation.round.result_arrived();
    finish_if_complete(operation);
    return;
  }
  Operation::OwnedChunk& owned = operation.owned[header.part];
  owned.contributions.resize(hosts_.size());
  Buffer& contribution =
      owned.contributions[std::find(hosts_.begin(), hosts_.end(), membership_.agent_hosts[from]) - hosts_.begin()];
  if (contribution.size() > 0) {
    throw std::runtime_error("a chunk of an allreduce twice");
  }
  contribution = std::move(arriving_[from]);
  ++owned.arrived;
  if (!operation.known) {
    early_bytes_ += contribution.size() + kEarlyCost;
    return;
  }
  finish_chunk(operation, header.part);
  finish_if_complete(operation);
}

}  // namespace lane
