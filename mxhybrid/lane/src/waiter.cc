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
    added_.push_back({std::move(ready), std::move(finish)});
    if (!thread_.joinable()) thread_ = std::thread(&Waiter::serve, this);
  }
  changed_.notify_one();
  ring_bell(block_);  // it may sleep, and what is added may be ready
}

void Waiter::serve() {
  std::vector<Item> under_way, done;
  for (;;) {
    uint32_t seen;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !added_.empty() || !under_way.empty(); });
      if (closing_) return;
      seen = block_.bell.load();
      under_way.insert(under_way.end(), std::make_move_iterator(added_.begin()),
                       std::make_move_iterator(added_.end()));
      added_.clear();
    }
    const auto first = std::stable_partition(under_way.begin(), under_way.end(),
                                             [](const Item& item) { return !item.ready(); });
    done.assign(std::make_move_iterator(first), std::make_move_iterator(under_way.end()));
    under_way.erase(first, under_way.end());
    for (Item& item : done) item.finish();
    const bool any = !done.empty();
    done.clear();
    if (any) continue;
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
  added_.clear();
}

}  // namespace lane
