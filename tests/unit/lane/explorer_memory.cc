// Shared memory as threads see it: replaces ThreadSanitizer's runtime and lane/src/memory/mapping.cc.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "explorer_run.h"
#include "memory/mapping.h"

namespace explorer {
namespace {

/// The mappings of shared memory.
constexpr uintptr_t kArena = uintptr_t(1) << 44, kArenaSize = uintptr_t(1) << 40;

bool is_shared(const volatile void* address) { return reinterpret_cast<uintptr_t>(address) - kArena < kArenaSize; }

bool is_explored(const volatile void* address) { return in_thread() && is_shared(address); }

template <typename T>
Location& location(volatile T* address) {
  auto [found, is_new] = at_hand->locations.try_emplace(reinterpret_cast<uintptr_t>(address));
  if (is_new) {
    found->second.number = at_hand->numbered++;
    found->second.stores.push_back({static_cast<uint64_t>(*address), {}});
  }
  return found->second;
}

/// All threads see the stores of the driver.
void forget(const volatile void* address) {
  if (at_hand && is_shared(address)) at_hand->locations.erase(reinterpret_cast<uintptr_t>(address));
}

struct Order {
  explicit Order(int order) {
    constexpr int kConsume = 1, kAcquire = 2, kRelease = 3, kBoth = 4, kSequential = 5;
    if (orders == Orders::kAllRelaxed) return;
    acquires = order == kConsume || order == kAcquire || order >= kBoth;
    releases = order == kRelease || order >= kBoth;
    sequential = order == kSequential && orders == Orders::kAsTheyAre;
  }
  bool acquires = false, releases = false, sequential = false;
};

template <typename T>
T load(const volatile T* address, int how) {
  auto* const target = const_cast<volatile T*>(address);
  if (!is_explored(address)) return *target;
  schedule();
  const Order order(how);
  Location& memory_location = location(target);
  View& view = at_hand->current->view;
  uint32_t& seen = View::at(view.seen, memory_location.number);
  uint32_t& floor = View::at(at_hand->sequential, memory_location.number);
  const uint32_t newest = static_cast<uint32_t>(memory_location.stores.size()) - 1;
  const uint32_t oldest = order.sequential ? std::max(seen, floor) : seen;
  const uint32_t taken = newest - choose(newest - oldest + 1);
  seen = taken;
  if (order.sequential) floor = std::max(floor, taken);
  if (order.acquires) view.join(memory_location.stores[taken].released);
  return static_cast<T>(memory_location.stores[taken].value);
}

template <typename T>
void add_store(Location& memory_location, volatile T* address, T value, const Order& order, const View* before) {
  View& view = at_hand->current->view;
  const uint32_t number = static_cast<uint32_t>(memory_location.stores.size()), me = id_of(at_hand->current);
  View::at(view.seen, memory_location.number) = number;
  if (order.sequential) View::at(at_hand->sequential, memory_location.number) = number;
  // For operations that read and write: the view that the previous one has released.
  View released = before ? *before : View();
  if (order.releases) {
    released.join(view);
    ++view.clock[me];
  }
  memory_location.stores.push_back({static_cast<uint64_t>(value), std::move(released)});
  *address = value;
}

template <typename T>
void store(volatile T* address, T value, int how) {
  if (!is_explored(address)) {
    *address = value;
    forget(address);
    return;
  }
  schedule();
  add_store(location(address), address, value, Order(how), nullptr);
}

/// Read the newest store and write `change` of its value.
template <typename T, typename Change>
T read_and_write(volatile T* address, int how, Change change) {
  if (!is_explored(address)) {
    const T old = *address;
    *address = static_cast<T>(change(old));
    forget(address);
    return old;
  }
  schedule();
  const Order order(how);
  Location& memory_location = location(address);
  const View before = memory_location.stores.back().released;
  if (order.acquires) at_hand->current->view.join(before);
  const T old = *address;
  add_store(memory_location, address, static_cast<T>(change(old)), order, &before);
  return old;
}

}  // namespace

void touch(const volatile void* address, size_t size, bool writes) {
  if (size == 0 || !is_explored(address)) return;
  Run& run = *at_hand;
  const uint32_t me = id_of(run.current);
  auto& clock = run.current->view.clock;
  const uintptr_t first = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t word = first / 4; word <= (first + size - 1) / 4; ++word) {
    Word& accesses = run.words[word];
    bool fine = accesses.writer == me || accesses.written <= View::at(clock, accesses.writer);
    for (auto& [reader, time] : accesses.reads) {
      fine = fine && (!writes || reader == me || time <= View::at(clock, reader));
    }
    if (!fine) fail(writes ? "a data race: a write" : "a data race: a read");
    if (writes) {
      accesses.reads.clear();
      accesses.writer = me;
      accesses.written = clock[me];
    } else {
      accesses.reads[me] = clock[me];
    }
  }
}

}  // namespace explorer

namespace lane {
namespace {

struct Mapping {
  void* base;
  size_t size;
  int users;
};

std::map<ino_t, Mapping> mappings;
uintptr_t free_from = explorer::kArena;
constexpr size_t kPage = 4096;

}  // namespace

void* map_memory(int descriptor, size_t size) {
  struct stat file;
  if (fstat(descriptor, &file) != 0) return MAP_FAILED;
  Mapping& mapping = mappings[file.st_ino];
  if (mapping.users++ > 0) return mapping.base;
  mapping.size = size;
  do {  // failed runs have left memory there
    if (free_from + size > explorer::kArena + explorer::kArenaSize) free_from = explorer::kArena;
    mapping.base = mmap(reinterpret_cast<void*>(free_from), size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, descriptor, 0);
    free_from += (size + kPage - 1) / kPage * kPage;
  } while (mapping.base == MAP_FAILED && errno == EEXIST);
  return mapping.base;
}

void unmap_memory(void* base, size_t) {
  for (auto& [number, mapping] : mappings) {
    if (mapping.base != base) continue;
    if (--mapping.users > 0) return;
    munmap(base, mapping.size);
    mappings.erase(number);
    return;
  }
}

}  // namespace lane

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* address, size_t size) { explorer::touch(address, size, false); }
void __tsan_write_range(void* address, size_t size) { explorer::touch(address, size, true); }

#define ACCESSES(size)                                                              \
  void __tsan_read##size(void* address) { explorer::touch(address, size, false); } \
  void __tsan_write##size(void* address) { explorer::touch(address, size, true); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

#define ATOMICS(bits, T)                                                                                            \
  T __tsan_atomic##bits##_load(const volatile T* address, int order) { return explorer::load(address, order); }    \
  void __tsan_atomic##bits##_store(volatile T* address, T value, int order) {                                      \
    explorer::store(address, value, order);                                                                        \
  }                                                                                                                \
  T __tsan_atomic##bits##_exchange(volatile T* address, T value, int order) {                                      \
    return explorer::read_and_write(address, order, [value](T) { return value; });                                 \
  }                                                                                                                \
  T __tsan_atomic##bits##_fetch_add(volatile T* address, T value, int order) {                                     \
    return explorer::read_and_write(address, order, [value](T old) { return old + value; });                       \
  }                                                                                                                \
  T __tsan_atomic##bits##_fetch_sub(volatile T* address, T value, int order) {                                     \
    return explorer::read_and_write(address, order, [value](T old) { return old - value; });                       \
  }                                                                                                                \
  T __tsan_atomic##bits##_fetch_or(volatile T* address, T value, int order) {                                      \
    return explorer::read_and_write(address, order, [value](T old) { return old | value; });                       \
  }                                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* address, T* expected, T value, int order, int) {   \
    bool equal = false;                                                                                            \
    const T found = explorer::read_and_write(address, order, [&](T old) {                                          \
      equal = old == *expected;                                                                                    \
      return equal ? value : old;                                                                                  \
    });                                                                                                            \
    *expected = found;                                                                                             \
    return equal;                                                                                                  \
  }                                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* address, T* expected, T value, int order, int) {     \
    return __tsan_atomic##bits##_compare_exchange_strong(address, expected, value, order, order);                  \
  }
ATOMICS(8, uint8_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

}  // extern "C"
