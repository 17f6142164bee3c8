#include "worker_sums.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lane {
namespace {

/// How long the thread sleeps at most: should a ring ever be missed, training would be slow, and not hang.
constexpr int kSleepMs = 1000;

}  // namespace

WorkerSums::WorkerSums(WorkerBlock& block, uint32_t workers, std::function<void(uint32_t)> ring)
    : block_(block), workers_(workers), ring_(std::move(ring)) {}

WorkerSums::~WorkerSums() { close(); }

int WorkerSums::open(uint64_t number, uint32_t node, Dtype dtype, uint64_t count) {
  auto made = std::make_unique<Sum>();
  made->all_ = this;
  made->node_ = node;
  made->size_ = kSumData + count * size_of(dtype);
  made->given_ = Memory(made->size_);
  const int descriptor = made->given_.descriptor();
  std::lock_guard<std::mutex> lock(mutex_);
  auto& place = sums_[number];
  if (place) throw std::runtime_error("a sum is opened twice");
  place = std::move(made);
  if (!thread_.joinable()) thread_ = std::thread(&WorkerSums::serve, this);
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
  WorkerSums& all = *all_;
  complete_ = complete;
  ++round_;
  {
    std::lock_guard<std::mutex> lock(all.mutex_);
    all.under_way_.push_back(this);
  }
  all.changed_.notify_one();
  given_.at<SumGiven>(0)->count.store(round_, std::memory_order_release);
  all.block_.given.fetch_add(1);
  if ((total_.at<SumTotal>(0)->arrived.fetch_add(1) + 1) % all.workers_ == 0) all.ring_(node_);
}

void WorkerSums::serve() {
  std::vector<Sum*> done;
  for (;;) {
    uint32_t seen;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !under_way_.empty(); });
      if (closing_) return;
      seen = block_.bell.load();
      auto first = std::stable_partition(under_way_.begin(), under_way_.end(), [](Sum* sum) { return !sum->is_done(); });
      done.assign(first, under_way_.end());
      under_way_.erase(first, under_way_.end());
    }
    for (Sum* sum : done) {
      const OnComplete complete = sum->complete_;  // another one may begin at once
      complete.callback(complete.engine, complete.parameter, nullptr);
    }
    if (!done.empty()) continue;
    block_.sleepers.fetch_add(1);
    sleep_while(block_.bell, seen, kSleepMs);
    block_.sleepers.fetch_sub(1);
  }
}

void WorkerSums::close() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  block_.bell.fetch_add(1);
  wake(block_.bell);
  thread_.join();
}

}  // namespace lane
