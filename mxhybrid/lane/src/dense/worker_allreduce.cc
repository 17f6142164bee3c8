#include "dense/worker_allreduce.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/add.h"

namespace lane {

int WorkerAllreduce::open(uint64_t number, uint32_t agent, Dtype dtype, uint64_t count) {
  auto buffer = std::make_unique<Buffer>();
  buffer->owner_ = this;
  buffer->agent_ = agent;
  buffer->dtype_ = dtype;
  buffer->count_ = count;
  buffer->input_ = Memory(kAllreduceData + (local_.is_one_host ? 0 : count * size_of(dtype)));
  const int descriptor = buffer->input_.descriptor();
  std::lock_guard<std::mutex> lock(mutex_);
  auto& entry = buffers_[number];
  if (entry) throw std::runtime_error("allreduce " + std::to_string(number) + " is opened twice");
  entry = std::move(buffer);
  return descriptor;
}

WorkerAllreduce::Buffer& WorkerAllreduce::attach(uint64_t number, int descriptor) {
  Buffer& buffer = this->buffer(number);
  const size_t bytes = buffer.count_ * size_of(buffer.dtype_);
  if (local_.is_one_host) {
    const AllreduceLayout layout(bytes, local_.workers);
    buffer.output_ = Memory(descriptor, layout.size);
    for (size_t offset : layout.inputs) buffer.inputs_.push_back(buffer.output_.at<char>(offset));
    buffer.ends_ = buffer.output_.at<uint64_t>(layout.ends);
    buffer.values_ = buffer.inputs_.at(local_.number);
  } else {
    buffer.output_ = Memory(descriptor, kAllreduceData + bytes);
    buffer.values_ = buffer.input_.at<char>(kAllreduceData);
  }
  buffer.input_.close_descriptor();
  return buffer;
}

void WorkerAllreduce::drop(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  buffers_.erase(number);
}

WorkerAllreduce::Buffer& WorkerAllreduce::buffer(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto entry = buffers_.find(number);
  if (entry == buffers_.end()) throw std::runtime_error("no allreduce has number " + std::to_string(number));
  return *entry->second;
}

void WorkerAllreduce::Buffer::start(const OnComplete& complete, AllreduceKind kind,
                                    const std::vector<InputPiece>& pieces) {
  const uint32_t round = ++round_;
  AllreduceOutput* output = output_.at<AllreduceOutput>(0);
  WorkerBlock& block = owner_->block_;
  // The last worker adds its pieces from where they are.
  const bool is_one_host = owner_->local_.is_one_host, copies = !(is_one_host && is_last());
  if (copies) copy(pieces);
  const uint32_t seen = block.doorbell.load();
  if (!is_one_host) {
    input_.at<AllreduceInput>(0)->kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
    input_.at<AllreduceInput>(0)->rounds.store(round, std::memory_order_release);
    block.allreduce_inputs.add();
  }
  if (completes_round(output->arrived, owner_->local_.workers)) {
    if (is_one_host) {
      write_output(kind, copies ? std::vector<InputPiece>() : pieces);
      output->rounds.store(round, std::memory_order_release);
      block.allreduce_inputs.add();
    }
    owner_->notify_agent_(agent_);
    if (is_one_host) return complete();
  }
  owner_->completions_.add_unready(
      [output, round] { return reached(output->rounds.load(std::memory_order_acquire), round); }, complete, seen);
}

/// Return whether all other workers of the host have given their inputs.
bool WorkerAllreduce::Buffer::is_last() const {
  const uint32_t workers = owner_->local_.workers;
  return output_.at<AllreduceOutput>(0)->arrived.load() % workers == workers - 1;
}

void WorkerAllreduce::Buffer::copy(const std::vector<InputPiece>& pieces) {
  const size_t size = size_of(dtype_);
  for (const InputPiece& piece : pieces) std::memcpy(values_ + piece.first * size, piece.data, piece.count * size);
}

void WorkerAllreduce::Buffer::write_output(AllreduceKind kind, const std::vector<InputPiece>& pieces) {
  const size_t size = size_of(dtype_);
  size_t next = 0;
  if (kind == AllreduceKind::kGather && ends_[inputs_.size() - 1] > 0) {
    for (size_t worker = 0; worker < inputs_.size(); ++worker) {
      std::memcpy(output() + next * size, inputs_[worker] + next * size, (ends_[worker] - next) * size);
      next = ends_[worker];
    }
    return;
  }
  for (const InputPiece& piece : pieces) {
    add_inputs(next, piece.first - next, values_ + next * size);
    add_inputs(piece.first, piece.count, piece.data);
    next = piece.first + piece.count;
  }
  add_inputs(next, count_ - next, values_ + next * size);
}

/// Write the sums of some elements, those of this worker at `local_input`, to the output.
void WorkerAllreduce::Buffer::add_inputs(size_t first, size_t count, const char* local_input) {
  if (count == 0) return;
  const size_t offset = first * size_of(dtype_);
  std::vector<const char*> sources;
  for (const char* input : inputs_) sources.push_back(input + offset);
  sources[owner_->local_.number] = local_input;
  add_arrays(dtype_, sources, count, output() + offset);
}

}  // namespace lane
