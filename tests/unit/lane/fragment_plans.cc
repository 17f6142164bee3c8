// Plans of system calls that send and receive fragments, against streams of bytes that are made one by one.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "network/fragment_plan.h"

using namespace lane;

namespace {

std::mt19937 engine(7);

size_t random_below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(engine); }

/// Return a size that is often small, often near a fragment's, and sometimes that of several fragments.
size_t random_size() {
  const size_t sizes[] = {1 + random_below(64), kFragment - 2 + random_below(4), 1 + random_below(8 * kFragment)};
  return sizes[random_below(3)];
}

std::vector<char> random_bytes(size_t size) {
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(engine());
  return bytes;
}

void append_head(std::vector<char>& bytes, uint32_t head) {
  bytes.insert(bytes.end(), reinterpret_cast<char*>(&head), reinterpret_cast<char*>(&head) + sizeof head);
}

void check(bool condition, const char* what) {
  if (condition) return;
  std::printf("%s\n", what);
  std::exit(1);
}

/// A plan sends the rest of a fragment, also of its head, and further fragments: together the next bytes of the stream.
void check_sending() {
  constexpr uint32_t kStream = 3;
  const size_t queued = random_size();
  SentFragment first(fragment_head(kStream, queued));
  const size_t total = first.left;
  if (random_below(2)) {  // a part of it was sent before
    first.head_left = random_below(sizeof first.head + 1);
    if (first.head_left == 0) first.left -= random_below(total);
  }
  std::vector<char> message = random_bytes(first.left + queued - total), expected;
  append_head(expected, first.head);
  expected.erase(expected.begin(), expected.begin() + sizeof first.head - first.head_left);
  SendPlan plan(first);
  size_t position = 0, fragments = 1;
  while (plan.has_room() && position < message.size()) {
    if (plan.fragment_ended()) {
      if (!plan.may_begin_fragment()) break;
      const size_t left = message.size() - position, size = plan.begin_fragment(left);
      check(size == std::min(left, kFragment), "a fragment does not hold as much as it can");
      append_head(expected, fragment_head(kStream, left));
      check(plan.fragment(static_cast<int>(fragments)).left == size, "a fragment has another size in the plan");
      ++fragments;
    }
    const size_t added = plan.add({message.data() + position, 1 + random_below(message.size() - position)});
    expected.insert(expected.end(), message.begin() + position, message.begin() + position + added);
    position += added;
  }
  check(fragments <= kFragmentsAtOnce, "a plan has too many fragments");
  std::vector<char> sent;
  for (int i = 0; i < plan.count(); ++i) {
    const char* data = static_cast<const char*>(plan.parts()[i].iov_base);
    sent.insert(sent.end(), data, data + plan.parts()[i].iov_len);
  }
  check(sent == expected && sent.size() == plan.bytes(), "a plan sends other bytes");
}

/// If the next fragments are those that a plan expects, the segment is received at its place; `received_from` returns
/// what came after a head, whatever that is.
void check_receiving() {
  const size_t lacking = random_size(), left = 1 + random_below(kFragment);
  const std::vector<char> message = random_bytes(lacking);
  std::vector<char> segment(lacking, 0), buffer(100), stream;
  ReceivePlan plan({segment.data(), lacking}, left, {buffer.data(), buffer.size()});
  size_t position = std::min(lacking, left);
  stream.insert(stream.end(), message.begin(), message.begin() + position);
  std::vector<size_t> after_heads;
  while (position < lacking) {
    const uint32_t head = fragment_head(1, lacking - position);
    append_head(stream, head);
    after_heads.push_back(stream.size());
    stream.insert(stream.end(), message.begin() + position, message.begin() + position + size_of_fragment(head));
    position += size_of_fragment(head);
  }
  const std::vector<char> later = random_bytes(plan.bytes());
  stream.insert(stream.end(), later.begin(), later.end());
  size_t received = 0;
  for (int i = 0; i < plan.count(); ++i) {
    std::memcpy(plan.parts()[i].iov_base, stream.data() + received, plan.parts()[i].iov_len);
    received += plan.parts()[i].iov_len;
  }
  check(received == plan.bytes(), "the parts of a plan have another size than the plan");
  size_t in_place = plan.rest();
  for (int number = 0; number < plan.fragments(); ++number) {
    uint32_t head;
    std::memcpy(&head, plan.head(number), sizeof head);
    check(head == fragment_head(1, lacking - in_place), "a head is received at another place");
    check(plan.size(number) == size_of_fragment(head), "a fragment is expected with another size");
    in_place += plan.size(number);
    const size_t count = 1 + random_below(received - after_heads[number]);
    const Buffer taken = plan.received_from(number, count);
    check(std::memcmp(taken.data(), stream.data() + after_heads[number], count) == 0, "other bytes came after a head");
  }
  check(lacking >= ReceivePlan::kDirect ? in_place > 0 : in_place == 0, "a segment is received at the wrong place");
  check(in_place == lacking || lacking < ReceivePlan::kDirect || plan.fragments() == kFragmentsAtOnce || left > lacking,
        "a plan ends before the segment");
  check(std::equal(segment.begin(), segment.begin() + in_place, message.begin()), "a segment has other bytes");
}

}  // namespace

int main() {
  for (int i = 0; i < 300; ++i) {
    check_sending();
    check_receiving();
  }
  std::printf("all plans are right\n");
}
