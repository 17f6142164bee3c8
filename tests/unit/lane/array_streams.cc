// Streams of boxes, and partial sums that advance side by side.
#include <deque>
#include <vector>

#include "check.h"
#include "dense/array_stream.h"

using namespace lane;

namespace {

constexpr size_t kElement = 4;

/// Return boxes of rows: each has some columns of some rows of an array with `columns` columns.
std::vector<Box> random_boxes(size_t rows, size_t columns) {
  std::vector<Box> boxes;
  for (size_t row = 0; row < rows;) {
    const size_t count = 1 + random_below(rows - row), first = random_below(columns);
    const size_t width = 1 + random_below(columns - first);
    boxes.emplace_back(kElement, std::vector<uint64_t>{count, width},
                       Box::Position{(row * columns + first) * kElement, {columns * kElement, kElement}});
    row += count;
  }
  return boxes;
}

/// A stream that advances in portions passes each byte of its boxes once, in order, and never beyond a limit.
void check_stream() {
  ArrayStream stream;
  std::vector<size_t> expected, found;  // offsets in the array
  for (const Box& box : random_boxes(1 + random_below(8), 1 + random_below(8))) {
    stream.add(box);
    box.each(0, box.bytes(), [&](size_t offset, size_t, size_t bytes) {
      for (size_t i = 0; i < bytes; ++i) expected.push_back(offset + i);
    });
  }
  check(stream.bytes == expected.size() && stream.padded % ArrayStream::kPadding == 0, "a stream has another size");
  const size_t limit = kElement * (1 + random_below(8));
  while (!stream.ended()) {
    const size_t count = std::min(kElement * (1 + random_below(10)), stream.padded - stream.done), before = stream.done;
    stream.advance(count, [&] { return limit; }, [&](const Box& box, size_t first, size_t size) {
      check(size <= limit, "a call has more bytes than its limit");
      box.each(first, size, [&](size_t offset, size_t, size_t bytes) {
        for (size_t i = 0; i < bytes; ++i) found.push_back(offset + i);
      });
    });
    check(stream.done == before + count, "a stream advanced by another number of bytes");
  }
  check(found == expected, "a stream passed other bytes");
  stream.reset();
  check(stream.done == 0 && stream.box == 0, "a stream did not begin again");
}

/// Every element adds up its partial sums in their order, whatever arrives first, and the sums come to an end.
void check_sums() {
  const size_t rows = 1 + random_below(6), columns = 1 + random_below(6);
  std::vector<std::vector<size_t>> added(rows * columns);  // the partial sums that each element has, in order
  std::deque<ArrayStream> streams;
  std::deque<std::vector<Box>> targets;
  PartialSums sums;
  const size_t count = 1 + random_below(4);
  for (size_t number = 0; number < count; ++number) {
    targets.push_back(number > 0 && random_below(2) ? targets.back() : random_boxes(rows, columns));
    streams.emplace_back();
    for (const Box& box : targets.back()) streams.back().add(box);
    sums.add(&streams.back(), targets.back());
  }
  std::vector<size_t> arrived(count, 0);
  for (int idle = 0; sums.first_unended() < sums.size(); ++idle) {
    check(idle < 10000, "partial sums do not end");
    const size_t number = random_below(count);
    ArrayStream& stream = sums[number];
    arrived[number] = std::min(stream.padded, arrived[number] + kElement * random_below(8));
    const size_t end = std::min(arrived[number], sums.addable_bytes(number));
    if (end <= stream.done) continue;
    stream.advance(end - stream.done, [] { return SIZE_MAX; }, [&](const Box& box, size_t first, size_t size) {
      box.each(first, size, [&](size_t offset, size_t, size_t bytes) {
        for (size_t i = 0; i < bytes; i += kElement) added[(offset + i) / kElement].push_back(number);
      });
    });
  }
  for (const std::vector<size_t>& numbers : added) {
    for (size_t i = 1; i < numbers.size(); ++i) {
      check(numbers[i - 1] < numbers[i], "an element added a partial sum before an earlier one");
    }
  }
}

}  // namespace

int main() {
  for (int i = 0; i < 2000; ++i) {
    check_stream();
    check_sums();
  }
}
