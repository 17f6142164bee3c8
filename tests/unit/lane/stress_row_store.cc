// Random programs of row stores, compared with a map: rows grow, change, expire and are scanned, under sanitizers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/avx2.h"
#include "kernels/int8.h"
#include "store/row_scan.h"
#include "store/row_store.h"

using namespace lane;

namespace {

/// A program on a store of doubles.  The rule is SGD with rate 1, so gradients of small integers are subtracted exactly
/// from rows that begin with a constant.
class Program {
 public:
  Program(uint32_t seed, const std::string& directory) : random_(seed) {
    RowStoreOptions options;
    options.dtype = Dtype::kFloat64;
    options.width = static_cast<uint32_t>(below(20) + 1);
    options.first_values = {FirstValueKind::kConstant, kFirst, seed};
    if (below(3) == 0) options.admit = 2;
    if (below(3) == 0) options.capacity = 600;
    if (below(3) == 0) options.expire_after = 20;
    options.evict_rarest = below(2);
    if (below(3) == 0) options.directory = directory;
    options.resident_bytes = below(4) != 0;
    // Wide rows, so that most of them leave the cache, and the segments of the file are cleaned.
    if (!options.directory.empty() && options.resident_bytes) options.width = static_cast<uint32_t>(below(80) + 1);
    forgets_ = options.admit > 1 || options.capacity || options.expire_after;
    width_ = options.width;
    store_ = std::make_unique<RowStore>(options);
    const size_t bytes[2] = {width_ * sizeof(double), sizeof(double)};
    store_->set_state_bytes(bytes);
    rule_.kind = RuleKind::kSgd;
    rule_.lr = 1;
  }

  void run() {
    for (int step = 0; step < 40; ++step) {
      switch (below(8)) {
        case 0:
          erase();
          break;
        case 1:
          scan();
          break;
        case 2:
          update_by_block();
          break;
        case 3:
          forget_state();
          break;
        default:
          update();
      }
      compare();
    }
    store_->clear();
    check(store_->size() == 0, "a store has rows after it was cleared");
  }

 private:
  static constexpr double kFirst = 0.5;

  uint64_t below(uint64_t end) { return random_() % end; }

  std::vector<int64_t> keys() {
    std::vector<int64_t> keys;
    const uint64_t count = below(500), range = below(2) ? 1000 : UINT64_MAX;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(static_cast<int64_t>(below(range)));
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  }

  /// Subtract the gradient of a key from its row in the map.  Rows that the store may forget are read from it.
  void subtract(int64_t key, double gradient) { rows_.emplace(key, kFirst).first->second -= gradient; }

  void update() {
    const std::vector<int64_t> list = keys();
    const double gradient = static_cast<double>(below(8));
    const std::vector<double> gradients(list.size() * width_, gradient);
    const uint32_t touched =
        store_->update(rule_, list.data(), reinterpret_cast<const char*>(gradients.data()), list.size());
    check(forgets_ || touched == list.size(), "an update changed too few rows");
    for (int64_t key : list) subtract(key, gradient);
  }

  void update_by_block() {
    const std::vector<int64_t> list = keys();
    const std::vector<double> gradient(width_, 3);
    const std::vector<const char*> gradients(list.size(), reinterpret_cast<const char*>(gradient.data()));
    store_->begin_update(rule_);
    for (size_t first = 0; first < list.size();) {
      const size_t count = std::min<size_t>(1 + below(2 * store_->block()), list.size() - first);
      store_->update_block(list.data() + first, gradients.data() + first, count);
      first += count;
    }
    store_->end_update();
    for (int64_t key : list) subtract(key, 3);
  }

  /// Give rows state of another size.
  void forget_state() {
    const size_t bytes[2] = {below(2) * width_ * sizeof(double), sizeof(double)};
    store_->set_state_bytes(bytes);
  }

  void erase() {
    std::vector<int64_t> list = keys();
    for (const auto& row : rows_) {
      if (below(2)) list.push_back(row.first);
    }
    store_->erase(list.data(), list.size());
    for (int64_t key : list) rows_.erase(key);
    store_->mark();
  }

  void scan() {
    RowScan scan(*store_, below(2) ? -1 : static_cast<int64_t>(below(20)), below(50) + 1);
    uint64_t rows = 0;
    int64_t last = INT64_MIN;
    while (const size_t count = scan.next()) {
      std::vector<int64_t> list(count);
      std::vector<double> values(count * width_), states(count * width_), more_states(count * width_);
      std::vector<uint32_t> clocks(count), numbers(count);
      scan.read({list.data(), reinterpret_cast<char*>(values.data()),
                 {reinterpret_cast<char*>(states.data()), reinterpret_cast<char*>(more_states.data())},
                 {store_->num_ages() > 0 ? clocks.data() : nullptr,
                  store_->num_ages() > 1 ? numbers.data() : nullptr}});
      check(std::is_sorted(list.begin(), list.end()) && (rows == 0 || list[0] > last), "a scan is not sorted");
      last = list.back();
      rows += count;
      std::vector<double> read(count * width_);
      store_->read(list.data(), count, reinterpret_cast<char*>(read.data()));
      check(read == values, "a scan has other rows");
    }
    check(rows == scan.count(), "a scan lacks rows");
  }

  void compare() {
    check(forgets_ || store_->size() == rows_.size(), "a store has another number of rows");
    std::vector<int64_t> list;
    for (const auto& row : rows_) list.push_back(row.first);
    std::vector<double> values(list.size() * width_);
    store_->read(list.data(), list.size(), reinterpret_cast<char*>(values.data()));
    for (size_t i = 0; i < list.size(); ++i) {
      const bool is_same = values[i * width_] == rows_[list[i]] && values[(i + 1) * width_ - 1] == rows_[list[i]];
      check(forgets_ || is_same, "a row is wrong");
      if (forgets_) rows_[list[i]] = values[i * width_];
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<RowStore> store_;
  Rule rule_;
  uint32_t width_;
  bool forgets_;
  std::map<int64_t, double> rows_;
};

/// Compare random sightings of keys, of which old ones are forgotten, with maps of their counts.
void check_waiting_keys(uint32_t seed) {
  constexpr size_t kMostYoung = LANE_MOST_YOUNG_KEYS;
  std::mt19937_64 random(seed);
  WaitingKeys waiting;
  std::map<int64_t, uint32_t> young, old;
  for (int i = 0; i < 2000; ++i) {
    const int64_t key = static_cast<int64_t>(random() % 250) - 125;
    if (random() % 8 == 0) {
      waiting.remove(key, hash_of(key));
      young.erase(key);
      old.erase(key);
    } else {
      if (young.size() == kMostYoung) {
        old = young;
        young.clear();
      }
      const uint32_t count = std::max(young[key], old[key]) + 1;
      old.erase(key);
      check(waiting.add(key, hash_of(key)) == (young[key] = count), "a key has another number of sightings");
    }
    check(waiting.size() == young.size() + old.size(), "another number of keys wait");
    if (random() % 500) continue;
    WaitingKeys again;
    again.restore(waiting.keys(), waiting.numbers(), waiting.size());
    waiting = std::move(again);
  }
}

/// Check that the kernels for all processors and those for AVX2 give the same bits.
void check_int8() {
  if (!is_fast()) return;
  std::mt19937_64 random(0);
  const auto value = [&] {
    const uint32_t bits = static_cast<uint32_t>(random());
    float any;
    std::memcpy(&any, &bits, sizeof any);
    return random() % 64 ? std::ldexp(static_cast<float>(random() % 2001) - 1000, static_cast<int>(random() % 40) - 20)
                         : any;
  };
  for (uint32_t width = 1; width < 700; width += 1 + width / 7) {
    std::vector<float> row(width), residuals(width);
    for (float& element : row) element = value();
    for (float& residual : residuals) residual = std::ldexp(static_cast<float>(random() % 256), -20);
    const RowRounding rounding{random(), width, 3, 1};
    for (const RowRounding* how : {static_cast<const RowRounding*>(nullptr), &rounding}) {
      std::vector<char> portable(int8_row_bytes(width)), fast(int8_row_bytes(width));
      kPortableInt8.quantize(row.data(), width, how, portable.data());
      kFastInt8.quantize(row.data(), width, how, fast.data());
      check(portable == fast, "quantized rows differ");
      std::vector<float> values(width), fast_values(width);
      kPortableInt8.dequantize(portable.data(), width, values.data());
      kFastInt8.dequantize(fast.data(), width, fast_values.data());
      check(std::memcmp(values.data(), fast_values.data(), width * sizeof(float)) == 0, "dequantized rows differ");
    }
    std::vector<char> portable(int8_bytes(width)), fast(int8_bytes(width));
    std::vector<float> fast_residuals = residuals;
    Int8Squares squares, fast_squares;
    kPortableInt8.quantize_blocks(row.data(), residuals.data(), width, portable.data(), squares);
    kFastInt8.quantize_blocks(row.data(), fast_residuals.data(), width, fast.data(), fast_squares);
    check(portable == fast && residuals == fast_residuals && squares.values == fast_squares.values &&
              squares.residuals == fast_squares.residuals,
          "quantized blocks differ");
  }
}

}  // namespace

int main(int, char** arguments) {
  check_int8();
  const uint32_t programs = static_cast<uint32_t>(std::stoul(arguments[1]));
  for (uint32_t seed = 0; seed < programs; ++seed) check_waiting_keys(seed);
  for (uint32_t seed = 0; seed < programs; ++seed) Program(seed, arguments[2]).run();
}
