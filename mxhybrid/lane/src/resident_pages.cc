#include "resident_pages.h"

#include <algorithm>
#include <utility>

#include "memory.h"

namespace lane {
namespace {

constexpr size_t kPage = Layout::kPage;
/// The share of the budget that is given back at once.
constexpr size_t kShare = 16;
/// The least budget in pages.
constexpr size_t kLeast = 256;
/// The number of uses in a unit of time, and the time at which it begins again, with all pages as old as each other.
constexpr uint32_t kUsesPerTime = 64, kMaxTime = UINT32_MAX;

}  // namespace

ResidentPages::ResidentPages(size_t budget) : budget_(std::max(budget / kPage, kLeast)) {}

void ResidentPages::use(const GrowingMemory& memory, size_t offset, size_t length) {
  if (++uses_ == kUsesPerTime) {
    uses_ = 0;
    if (++time_ == kMaxTime) {
      for (uint32_t& last_use : last_uses_) last_use = last_use ? 1 : 0;
      time_ = 2;
    }
  }
  const size_t first = offset / kPage, last = (offset + length - 1) / kPage;
  if (last >= last_uses_.size()) last_uses_.resize(memory.size() / kPage, 0);
  for (size_t page = first; page <= last; ++page) {
    if (last_uses_[page] == 0) {
      ++resident_;
      memory.fetch(page * kPage, kPage);
    }
    last_uses_[page] = time_;
  }
}

size_t ResidentPages::bytes() const { return resident_ * kPage; }

void ResidentPages::release_coldest(const GrowingMemory& memory) {
  std::vector<std::pair<uint32_t, uint32_t>> pages;  // time of the last use, number
  pages.reserve(resident_);
  for (size_t page = 0; page < last_uses_.size(); ++page) {
    if (last_uses_[page]) pages.emplace_back(last_uses_[page], static_cast<uint32_t>(page));
  }
  const size_t count = resident_ - budget_ + budget_ / kShare;
  std::nth_element(pages.begin(), pages.begin() + count, pages.end());
  pages.resize(count);
  std::sort(pages.begin(), pages.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<std::pair<size_t, size_t>> runs;  // first page and number of pages
  for (const auto& [time, page] : pages) {
    last_uses_[page] = 0;
    if (!runs.empty() && runs.back().first + runs.back().second == page) {
      ++runs.back().second;
    } else {
      runs.emplace_back(page, 1);
    }
  }
  resident_ -= count;
  for (const auto& [first, number] : runs) memory.write_back(first * kPage, number * kPage);
  for (const auto& [first, number] : runs) memory.release(first * kPage, number * kPage);
}

}  // namespace lane
