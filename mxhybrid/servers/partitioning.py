"""The partitions of a table and their placement on servers: arithmetic only, no communication.

Rows are assigned round robin: row r is local row ``r // P`` of partition ``r % P``.  So a vocabulary that is sorted by
frequency, whose hot rows are its first ones, loads all partitions evenly.  Contiguous ranges would put all hot rows on
one server.

A partition is one ps-lite key.  MXNet sends a key whose size is below ``MXNET_KVSTORE_BIGARRAY_BOUND`` to server
``(key * 9973) % num_servers`` (``EncodeRowSparseKey`` in ``src/kvstore/kvstore_dist.h``), so the key of a partition
decides its server.
"""
import math
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

import numpy as np

#: Most bytes of a key: ps-lite keeps sizes in C ints, both for the rows and for their 8-byte row keys.
MAX_KEY_BYTES = 2 ** 31 - 1
#: Bytes on the wire per row besides its values: 8 for the row key, 4 for its length.
ROW_OVERHEAD_BYTES = 12
#: MXNet's placement rule, and the largest key whose product with it fits a C int.
_PLACEMENT_PRIME = 9973
MAX_KEY = (2 ** 31 - 1) // _PLACEMENT_PRIME


@dataclass(frozen=True)
class Partitioning:
    """The partitions of a table of `rows` x `width` (all other dimensions) elements: ps-lite key and server of each."""

    rows: int
    width: int
    keys: Tuple[int, ...]
    servers: Tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of partitions."""
        return len(self.keys)

    def shape(self, part: int) -> Tuple[int, int]:
        """Return rows and width of partition `part`."""
        return rows_in_partition(self.rows, self.count, part), self.width

    @property
    def stride(self) -> int:
        """The distance between the first offsets of two neighbouring partitions; at least the rows of a partition."""
        return rows_in_partition(self.rows, self.count, 0)

    def offsets(self, ids: np.ndarray) -> np.ndarray:
        """Return the offsets of the rows `ids` (int64): ``partition * stride + local row``."""
        if self.count == 1:
            return ids
        local, parts = np.divmod(ids, self.count)
        return parts * self.stride + local

    def order(self, ids: np.ndarray) -> np.ndarray:
        """Return the positions in `ids` (sorted, unique, int64) in ascending order of their offsets."""
        if self.count == 1:
            return np.arange(len(ids))
        parts = ids % self.count
        # NumPy sorts 16-bit integers by radix sort, in linear time.
        return np.argsort(parts.astype(np.uint16) if self.count < 1 << 16 else parts, kind='stable')

    def bounds(self, offsets: np.ndarray) -> np.ndarray:
        """Return the positions in `offsets` (sorted) at which partitions begin, and the end: count + 1 positions."""
        return np.searchsorted(offsets, np.arange(self.count + 1) * self.stride)

    def members(self, part: int) -> np.ndarray:
        """Return the global ids of all rows of partition `part`, in local order."""
        return np.arange(part, self.rows, self.count, dtype=np.int64)


def rows_in_partition(rows: int, count: int, part: int) -> int:
    """Return the number of rows of partition `part` of `count`."""
    return (rows - part + count - 1) // count


def chunks(rows: int, row_bytes: int, limit: int) -> Iterator[np.ndarray]:
    """Yield the ids from 0 to `rows` in chunks whose rows take at most `limit` bytes, or of one row."""
    step = max(1, limit // max(1, row_bytes))
    for start in range(0, rows, step):
        yield np.arange(start, min(start + step, rows), dtype=np.int64)


def id_dtype(rows: int) -> type:
    """Return the dtype in which row ids of a table travel."""
    return np.int32 if rows < 2 ** 31 else np.int64


def shared_rows(rows: int, old_count: int, old: int, new_count: int, new: int) -> Optional[Tuple[slice, slice]]:
    """Return the rows, local to `old` and to `new`, that partition `old` of `old_count` shares with `new`."""
    step = math.gcd(old_count, new_count)
    if (old - new) % step:
        return None
    period = old_count * new_count // step
    first = next(row for row in range(old, period, old_count) if row % new_count == new)
    if first >= rows:
        return None
    return slice(first // old_count, None, period // old_count), slice(first // new_count, None, period // new_count)


def partition_count(rows: int, width: int, itemsize: int, requested: int, max_bytes: int = MAX_KEY_BYTES) -> int:
    """Return `requested`, at most one partition a row, or more if a key would exceed `max_bytes`."""
    per_row = max(width * itemsize, 8)
    rows_per_key = max(1, max_bytes // per_row - 1)
    needed = -(-rows // rows_per_key)
    return max(min(requested, rows), needed)


class Placement:
    """The placement of partitions: servers, the one with the fewest bytes first, and keys, from `first_key` on.

    All workers make the same calls in the same order, and so make the same choices.
    """

    def __init__(self, num_servers: int, first_key: int = 1):
        self.num_servers = num_servers
        self.bytes_on = [0] * num_servers
        self._next_key = [self._first(server, first_key) for server in range(num_servers)]

    def _first(self, server: int, start: int) -> int:
        key = start
        while (key * _PLACEMENT_PRIME) % self.num_servers != server:
            key += 1
        return key

    def key_on(self, server: int) -> int:
        """Take the next free key that MXNet sends to `server`; OverflowError if its keys are used up."""
        key = self._next_key[server]
        if key > MAX_KEY:
            raise OverflowError('server %d has no key left up to %d' % (server, MAX_KEY))
        self._next_key[server] = self._first(server, key + 1)
        return key

    def place(self, rows: int, width: int, itemsize: int, count: int) -> Partitioning:
        """Place the `count` partitions of a table."""
        servers = []
        for part in range(count):
            server = min(range(self.num_servers), key=lambda s: (self.bytes_on[s], s))
            self.bytes_on[server] += rows_in_partition(rows, count, part) * width * itemsize
            servers.append(server)
        return self._with_keys(rows, width, servers)

    def spread(self, rows: int, width: int, itemsize: int, count: int) -> Partitioning:
        """Place the `count` partitions of a table on all servers in turn, whatever their loads."""
        partitioning = self._with_keys(rows, width, [part % self.num_servers for part in range(count)])
        self.claim(partitioning, itemsize)
        return partitioning

    def move(self, old: Partitioning, itemsize: int, count: int) -> Partitioning:
        """Place `count` new partitions of a table with `old` ones, close to its rows; OverflowError as in `key_on`.

        Each partition goes to the server that has most of its rows, among the servers whose load stays within one
        partition of the lowest load.  So partitions that are cut in two stay in place as long as every server has some.
        The old partitions no longer count as load.
        """
        self.release(old, itemsize)
        servers = []
        step = math.gcd(old.count, count)
        for part in range(count):
            size = rows_in_partition(old.rows, count, part) * old.width * itemsize
            sources_on = [0] * self.num_servers
            for source in range(part % step, old.count, step):
                sources_on[old.servers[source]] += 1
            limit = min(self.bytes_on) + max(size, 1)
            server = max((s for s in range(self.num_servers) if self.bytes_on[s] < limit),
                         key=lambda s: (sources_on[s], -self.bytes_on[s], -s))
            self.bytes_on[server] += size
            servers.append(server)
        return self._with_keys(old.rows, old.width, servers)

    def _with_keys(self, rows: int, width: int, servers: List[int]) -> Partitioning:
        return Partitioning(rows, width, tuple(map(self.key_on, servers)), tuple(servers))

    def release(self, partitioning: Partitioning, itemsize: int) -> None:
        """Subtract partitions from the loads of their servers."""
        self.claim(partitioning, -itemsize)

    def claim(self, partitioning: Partitioning, itemsize: int) -> None:
        """Add partitions to the loads of their servers."""
        for part, server in enumerate(partitioning.servers):
            self.bytes_on[server] += partitioning.shape(part)[0] * partitioning.width * itemsize

    def keys_left(self) -> int:
        """Return the number of keys that every server has left at least."""
        return max(0, min((MAX_KEY - key) // self.num_servers + 1 for key in self._next_key))
