#include "dense/completion_thread.h"

#include <algorithm>
#include <exception>
#include <iterator>

#include "base/end_process.h"

namespace lane {

void CompletionThread::push(Item item) {
  std::lock_guard<std::mutex> lock(mutex_);
  added_.push_back(std::move(item));
  if (!thread_.joinable()) thread_ = std::thread(&CompletionThread::run, this);
}

void CompletionThread::add(std::function<bool()> ready, std::function<void()> finish) {
  push({std::move(ready), std::move(finish)});
  notify(block_);  // the thread may sleep, and the operation may be ready
}

void CompletionThread::add_unready(std::function<bool()> ready, std::function<void()> finish, uint32_t seen) {
  push({std::move(ready), std::move(finish)});
  // If the doorbell has rung since, that may have been for this operation, which the thread did not know yet.
  if (block_.doorbell.load() != seen) notify(block_);
}

void CompletionThread::run() {
  try {
    serve();
  } catch (const std::exception& error) {
    end_process("an operation of the lane cannot be completed", error.what());
  }
}

void CompletionThread::serve() {
  std::vector<Item> under_way, done;
  for (;;) {
    const uint32_t seen = block_.doorbell.load();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closing_) return;
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
    block_.doorbell.sleep_while(seen, kFallbackMs);
    block_.sleepers.fetch_sub(1);
  }
}

void CompletionThread::close() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  block_.doorbell.add();
  block_.doorbell.wake();
  thread_.join();
  added_.clear();
}

}  // namespace lane
