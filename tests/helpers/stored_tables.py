"""A dynamic table in memory, which is written to checkpoints and compared with readers of them."""
import os

import numpy as np

from mxhybrid.checkpoint import folder, table_files
from mxhybrid.checkpoint.files import Writer
from mxhybrid.checkpoint.npy_files import ArrayWriter
from mxhybrid.checkpoint.philox import fill_first_values
from mxhybrid.checkpoint.reader import Reader
from mxhybrid.checkpoint.table_files import PartWriter, TableDescription
from mxhybrid.row_store.row_files import WAITING_FILES

WIDTH = 3
FIRST = {'kind': 'uniform', 'value': 0.5, 'seed': 7}
DESCRIPTION = TableDescription(WIDTH, 'float32', None, FIRST, {'admit': 1}, 5, [WIDTH, 1], 5)


def row(key, version):
    return np.float32([key % 1000, version, 1])


class Table:
    """The rows of a table, in memory, which is written to checkpoints."""

    def __init__(self):
        self.rows, self.changed, self.removed, self.version = {}, set(), set(), 0

    def touch(self, *keys):
        self.version += 1
        for key in keys:
            self.rows[key] = self.version
            self.changed.add(key)
            self.removed.discard(key)

    def expire(self, *keys):
        for key in keys:
            self.rows.pop(key, None)
            self.changed.discard(key)
            self.removed.add(key)

    def write(self, path, delta, partitions):
        entries = []
        for partition in range(partitions):
            keys = np.array(sorted(key for key in (self.changed if delta else self.rows)
                                   if key % partitions == partition), np.int64)
            removed = np.array(sorted(key for key in self.removed if key % partitions == partition), np.int64)
            part_path = os.path.join(path, str(partition))
            with PartWriter(part_path, dict(table_files.columns_of(DESCRIPTION), used=(np.uint32, None))) as part:
                for piece in np.array_split(keys, 2):
                    part.append(piece, self.columns(piece))
            if delta and len(removed):
                with ArrayWriter(os.path.join(part_path, 'removed.npy'), np.int64) as file:
                    file.append(removed)
            for name, dtype in WAITING_FILES:
                with ArrayWriter(os.path.join(part_path, name + '.npy'), dtype) as file:
                    file.append(np.full(partition + 1, self.version, dtype))
            entries.append(table_files.seal(part_path))
        self.changed, self.removed = set(), set()
        return entries

    def columns(self, keys):
        versions = [self.rows[key] for key in keys.tolist()]
        rows = np.array([row(key, version) for key, version in zip(keys.tolist(), versions)],
                        np.float32).reshape(-1, WIDTH)
        return {'rows': rows, 'state0': rows * 2, 'state1': rows[:, :1], 'used': np.array(versions, np.uint32)}

    def assert_is(self, table):
        """A read-only table has these rows, and first values for other keys."""
        keys = np.array(sorted(self.rows) + [-5, 123456789], np.int64)[::-1].copy()
        expected = np.empty((len(keys), WIDTH), np.float32)
        fill_first_values(FIRST, keys, expected)
        for place, key in enumerate(keys.tolist()):
            if key in self.rows:
                expected[place] = row(key, self.rows[key])
        np.testing.assert_array_equal(table.rows(keys), expected)
        np.testing.assert_array_equal(table.contains(keys), [key in self.rows for key in keys.tolist()])
        assert len(table) == len(self.rows)
        stored = np.concatenate([keys for keys, _ in table.pieces()] or [np.zeros(0, np.int64)])
        assert stored.tolist() == sorted(self.rows)


def save(directory, table, step, delta=False, keep=3, partitions=2):
    os.makedirs(str(directory), exist_ok=True)
    with folder.locked(str(directory)), Writer(str(directory)) as writer:
        writer.add('dense/weight', (4, 2), 'float32', [np.arange(8, dtype='f4') + step])
        bases = []
        if delta:
            newest_one = Reader(os.path.join(str(directory), folder.names(str(directory))[0]))
            bases = [reader.identity for reader in [newest_one] + newest_one.bases()]
        parts = table.write(writer.make_directory('table-00000'), delta, partitions)
        writer.add_table('users.weight', DESCRIPTION, delta, parts)
        return writer.commit(step, {'extra': {'at': step}}, keep, bases)


def chain(directory):
    """A base and two deltas, of other numbers of partitions, in which keys change, expire and come back."""
    table = Table()
    table.touch(1, 2, 3, 2 ** 53 + 1, -2 ** 63, 10, 11)
    save(directory, table, 1)
    table.touch(2, 5)
    table.expire(3, 10, 11)
    save(directory, table, 2, delta=True, partitions=3)
    table.touch(3, 12)
    table.expire(1)
    save(directory, table, 3, delta=True, partitions=2)
    return table
