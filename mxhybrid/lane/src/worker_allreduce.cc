#include "worker_allreduce.h"

#include <stdexcept>
#include <string>

namespace lane {

int WorkerAllreduce::open(uint64_t number, uint32_t agent, Dtype dtype, uint64_t count) {
  auto buffer = std::make_unique<Buffer>();
  buffer->owner_ = this;
  buffer->agent_ = agent;
  buffer->size_ = kAllreduceData + count * size_of(dtype);
  buffer->input_ = Memory(buffer->size_);
  const int descriptor = buffer->input_.descriptor();
  std::lock_guard<std::mutex> lock(mutex_);
  auto& entry = buffers_[number];
  if (entry) throw std::runtime_error("allreduce " + std::to_string(number) + " is opened twice");
  entry = std::move(buffer);
  return descriptor;
}

void WorkerAllreduce::attach(uint64_t number, int descriptor) {
  Buffer& buffer = this->buffer(number);
  buffer.output_ = Memory(descriptor, buffer.size_);
  buffer.input_.close_descriptor();
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

void WorkerAllreduce::Buffer::start(const OnComplete& complete, AllreduceKind kind) {
  const uint32_t round = ++round_;
  AllreduceOutput* output = output_.at<AllreduceOutput>(0);
  owner_->completions_.add([output, round] { return reached(output->rounds.load(std::memory_order_acquire), round); },
                         complete);
  input_.at<AllreduceInput>(0)->kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  input_.at<AllreduceInput>(0)->rounds.store(round, std::memory_order_release);
  owner_->block_.allreduce_inputs.add();
  if (completes_round(output->arrived, owner_->workers_)) owner_->notify_agent_(agent_);
}

}  // namespace lane
