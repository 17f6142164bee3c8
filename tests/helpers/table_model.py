"""A model of a dynamic table, in a dictionary: updates by SGD with momentum, admission, expiry, and eviction."""
from mxhybrid.row_store.row_store import partition_of

#: The value of every new row.
FIRST = 0.25


class Model:
    """A table of rows [value, momentum, clock at the last update, number of updates] by key, in partitions."""

    def __init__(self, admit=1, capacity=0, expire_after=0, evict='lru'):
        self.admit, self.capacity, self.expire_after, self.evict = admit, capacity, expire_after, evict
        self.rows, self.sightings, self.clock, self.partitions, self.expired = {}, {}, 0, 1, 0
        #: The first operation after which the table differs; the program goes on, since other workers do.
        self.difference = None

    def step(self, keys, gradient):
        self.clock += 1
        for key in keys:
            if key not in self.rows:
                self.sightings[key] = self.sightings.get(key, 0) + 1
                if self.sightings[key] < self.admit:
                    continue
                self.rows[key] = [FIRST, 0.0, 0, 0]
                del self.sightings[key]
            value, momentum, _, updates = self.rows[key]
            momentum = momentum / 2 - gradient
            self.rows[key] = [value + momentum, momentum, self.clock, updates + 1]
        if self.expire_after and self.clock % max(1, self.expire_after // 16) == 0:
            self._keep(lambda key: self.rows[key][2] + self.expire_after > self.clock)
        for partition in range(self.partitions if self.capacity else 0):
            self._evict([key for key in self.rows if partition_of([key], self.partitions)[0] == partition])

    def _keep(self, stays):
        kept_rows = {key: row for key, row in self.rows.items() if stays(key)}
        self.expired += len(self.rows) - len(kept_rows)
        self.rows = kept_rows

    def _evict(self, keys):
        """Remove rows of a partition that are over its capacity, but none that this step has touched."""
        capacity = self.capacity // self.partitions
        if len(keys) <= capacity:
            return
        untouched = [key for key in keys if self.rows[key][2] < self.clock]
        excess = len(keys) - max(capacity - capacity // 16, len(keys) - len(untouched))

        def rank(key):
            _, _, last_update, updates = self.rows[key]
            return (updates if self.evict == 'rarest' else 0, last_update, key)
        removed = set(sorted(untouched, key=rank)[:excess])
        self._keep(lambda key: key not in removed)

    def assign(self, keys, value):
        for key in keys:
            _, momentum, _, updates = self.rows.get(key, [FIRST, 0.0, 0, 0])
            self.rows[key] = [value, momentum, self.clock, updates]
            self.sightings.pop(key, None)
