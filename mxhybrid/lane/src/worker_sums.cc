#include "worker_sums.h"

#include <stdexcept>
#include <string>

namespace lane {

int WorkerSums::open(uint64_t number, uint32_t agent, Dtype dtype, uint64_t count) {
  auto made = std::make_unique<Sum>();
  made->all_ = this;
  made->agent_ = agent;
  made->size_ = kSumData + count * size_of(dtype);
  made->given_ = Memory(made->size_);
  const int descriptor = made->given_.descriptor();
  std::lock_guard<std::mutex> lock(mutex_);
  auto& place = sums_[number];
  if (place) throw std::runtime_error("a sum is opened twice");
  place = std::move(made);
  return descriptor;
}

void WorkerSums::attach(uint64_t number, int descriptor) {
  Sum& found = sum(number);
  found.total_ = Memory(descriptor, found.size_);
  found.given_.close_descriptor();
}

void WorkerSums::drop(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  sums_.erase(number);
}

WorkerSums::Sum& WorkerSums::sum(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = sums_.find(number);
  if (found == sums_.end()) throw std::runtime_error("no sum has number " + std::to_string(number));
  return *found->second;
}

void WorkerSums::Sum::begin(const OnComplete& complete) {
  const uint32_t round = ++round_;
  SumTotal* total = total_.at<SumTotal>(0);
  all_->completions_.add([total, round] { return reached(total->done.load(std::memory_order_acquire), round); },
                         complete);
  given_.at<SumGiven>(0)->count.store(round, std::memory_order_release);
  all_->block_.given.add();
  if (completes_round(total->arrived, all_->workers_)) all_->notify_agent_(agent_);
}

}  // namespace lane
