#include "network/fragment_plan.h"

#include <cstring>

namespace lane {

SendPlan::SendPlan(const SentFragment& first) : left_(first.left) {
  heads_[0] = first.head;
  if (first.head_left > 0) {
    push(reinterpret_cast<char*>(&heads_[0]) + sizeof first.head - first.head_left, first.head_left);
  }
}

void SendPlan::push(void* data, size_t size) {
  parts_[count_++] = {data, size};
  bytes_ += size;
}

size_t SendPlan::begin_fragment(size_t queued) {
  uint32_t& head = heads_[fragments_++];
  head = fragment_head(stream_of(heads_[0]), queued);
  push(&head, sizeof head);
  return left_ = size_of_fragment(head);
}

size_t SendPlan::add(Segment bytes) {
  const size_t size = std::min(bytes.size, left_);
  push(bytes.data, size);
  left_ -= size;
  return size;
}

ReceivePlan::ReceivePlan(Segment lacking, size_t left, Segment buffer) {
  if (lacking.size >= kDirect) {
    rest_ = std::min(lacking.size, left);
    if (rest_ > 0) push(lacking.data, rest_);
    for (size_t done = rest_; rest_ == left && done < lacking.size && fragments_ < kFragmentsAtOnce;) {
      const size_t size = std::min(lacking.size - done, kFragment);
      push(&heads_[fragments_++], sizeof(uint32_t));
      push(lacking.data + done, size);
      done += size;
    }
  }
  push(buffer.data, buffer.size);
}

void ReceivePlan::push(void* data, size_t size) {
  parts_[count_++] = {data, size};
  bytes_ += size;
}

Buffer ReceivePlan::received_from(int number, size_t count) const {
  Buffer received(count);
  const struct iovec* part = &parts_[part_of(number) + 1];
  for (size_t copied = 0; copied < count; ++part) {
    const size_t size = std::min(count - copied, part->iov_len);
    std::memcpy(received.data() + copied, part->iov_base, size);
    copied += size;
  }
  return received;
}

}  // namespace lane
