#include "worker_allreduce.h"

#include <stdexcept>
#include <string>

namespace lane {

int WorkerAllreduce::open(uint64_t number, uint32_t agent, Dtype dtype, uint64_t count) {
  auto made = std::make_unique<Buffer>();
  made->all_ = this;
  made->agent_ = agent;
  made->size_ = kAllreduceData + count * size_of(dtype);
  made->input_ = Memory(made->size_);
  const int descriptor = made->input_.descriptor();
  std::lock_guard<std::mutex> lock(mutex_);
  auto& place = buffers_[number];
  if (place) throw std::runtime_error("allreduce " + std::to_string(number) + " is opened twice");
  place = std::move(made);
  return descriptor;
}

void WorkerAllreduce::attach(uint64_t number, int descriptor) {
  Buffer& found = buffer(number);
  found.output_ = Memory(descriptor, found.size_);
  found.input_.close_descriptor();
}

void WorkerAllreduce::drop(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  buffers_.erase(number);
}

WorkerAllreduce::Buffer& WorkerAllreduce::buffer(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = buffers_.find(number);
  if (found == buffers_.end()) throw std::runtime_error("no allreduce has number " + std::to_string(number));
  return *found->second;
}

void WorkerAllreduce::Buffer::start(const OnComplete& complete) {
  const uint32_t round = ++round_;
  AllreduceOutput* output = output_.at<AllreduceOutput>(0);
  all_->completions_.add([output, round] { return reached(output->rounds.load(std::memory_order_acquire), round); },
                         complete);
  input_.at<AllreduceInput>(0)->rounds.store(round, std::memory_order_release);
  all_->block_.allreduce_inputs.add();
  if (completes_round(output->arrived, all_->workers_)) all_->notify_agent_(agent_);
}

}  // namespace lane
