#include "waiter.h"

#include <algorithm>
#include <iterator>

namespace lane {
namespace {

/// How long the thread sleeps at most: should a ring ever be missed, training would be slow, and not hang.
constexpr int kSleepMs = 1000;

}  // namespace

void Waiter::add(std::function<bool()> ready, std::function<void()> finish) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_.push_back({std::move(ready), std::move(finish)});
    if (!thread_.joinable()) thread_ = std::thread(&Waiter::serve, this);
  }
  changed_.notify_one();
  // It may sleep, and what is added may be ready.
  block_.bell.fetch_add(1);
  if (block_.sleepers.load() > 0) wake(block_.bell);
}

void Waiter::serve() {
  std::vector<Item> done;
  for (;;) {
    uint32_t seen;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !under_way_.empty(); });
      if (closing_) return;
      seen = block_.bell.load();
      const auto first = std::stable_partition(under_way_.begin(), under_way_.end(),
                                               [](const Item& item) { return !item.ready(); });
      done.assign(std::make_move_iterator(first), std::make_move_iterator(under_way_.end()));
      under_way_.erase(first, under_way_.end());
    }
    for (Item& item : done) item.finish();
    if (!done.empty()) continue;
    block_.sleepers.fetch_add(1);
    sleep_while(block_.bell, seen, kSleepMs);
    block_.sleepers.fetch_sub(1);
  }
}

void Waiter::close() {
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
