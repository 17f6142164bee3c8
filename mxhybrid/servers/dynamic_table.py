"""Dynamic tables: tables of which only the rows that were pushed exist, on their servers alone.

A row has a key, any int64.  A key without a row reads as its first values, a function of seed, key and column, and
reading makes no row: the first push of a key does.  Rows travel by the lane only.
"""
import os
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

import numpy as np

from ..base.errors import InputError, JobError
from ..base.files import digest_of
from ..base.settings import variable
from ..lane.keyed_rows import KeyedRows
from ..lane.row_format import row_format
from ..row_store.row_files import Marks, remove_parts
from ..row_store.row_store import FirstValues, RowStoreOptions, check_capacity
from .cluster import ParameterServers
from .file_pieces import fetch
from .kernel_rules import check_kernel
from .optimized_table import Recipe, Saved
from .protocol import CAPTURE, overwrite_mode
from .served_table import ServedTable

#: Work of servers, in words.
_WORK = {'statistics': 'count its rows', 'save': 'save its rows', 'save_here': 'save its rows',
         'load': 'load its rows', 'knows': 'look for changes', 'save_copy': 'copy its rows'}
_Result = TypeVar('_Result')


class DynamicTableSpec(NamedTuple):
    """The properties of a dynamic table."""

    name: str
    #: The elements of a row.
    width: int
    #: float32 or float64.
    dtype: Any
    #: The values of rows before their first update, equal on all workers.
    first_values: FirstValues
    #: The number of partitions, which are placed on the servers in turn.
    partitions: int
    #: Admission, expiry and storage of rows; by default in memory, without admission or expiry.
    options: RowStoreOptions = RowStoreOptions()
    #: The type in which float32 rows travel: float32, float16 or int8.
    wire_dtype: Any = 'float32'
    #: The most distinct rows of a worker in a push or pull.
    max_batch_rows: int = 1 << 20
    #: The number of last pushes of other workers that pulled rows may lack.
    staleness: int = 0


class DynamicTable(ServedTable):
    """A dynamic table on the servers, made by :func:`create_dynamic_table`."""

    def __init__(self, servers: ParameterServers, spec: DynamicTableSpec):
        dtype = np.dtype(spec.dtype)
        super().__init__(servers, spec.name, spec.width, dtype,
                         row_format(dtype, np.dtype(spec.wire_dtype), spec.width), spec.staleness)
        self.max_batch_rows, self.first_values, self.options = spec.max_batch_rows, spec.first_values, spec.options
        self._lane: Any = servers.lane  # there is one, see _check
        self.partitions = spec.partitions
        #: Bytes of a row on the wire.
        self.row_bytes = self.row_format.row_bytes(self.width, self.dtype)
        #: Whether the rows are in memory, which a server can copy, and not in files.
        self.is_in_memory = not spec.options.directory
        #: The server of each partition.
        self.owners = tuple((self.index + part) % servers.num_servers for part in range(spec.partitions))
        #: The names of the partitions in commands: numbers below 0, since the native store has no keys for them.
        self.server_keys: Sequence[int] = tuple(-1 - (self.index << 20) - part for part in range(spec.partitions))
        #: Whether pushed rows are weights or optimizer state, which travel unrounded.
        self._overwrites = False
        #: Whether worker 0 fetched the rows at the last save, since some servers did not see its directory.
        self._fetches = False

    def _checked_keys(self, keys: Any, doing: str) -> np.ndarray:
        """Return keys as an array of int64; InputError if they are not sorted and unique, or too many."""
        array = np.asarray(keys)
        is_integer = array.dtype.kind in 'iu' and np.can_cast(array.dtype, np.int64)
        if array.ndim != 1 or (len(array) and not is_integer):
            raise InputError('%s: keys of shape %s and type %s: give a vector of int64'
                             % (self.name, array.shape, array.dtype))
        array = np.ascontiguousarray(array, np.int64)
        self._check_count(array, doing)
        if (array[1:] <= array[:-1]).any():
            raise InputError('%s: keys are not sorted or not unique: sum the rows of equal keys, and sort the keys '
                             'first' % self.name)
        return array

    def _check_count(self, keys: np.ndarray, doing: str) -> None:
        """Refuse more keys than a push or pull may have (InputError)."""
        if len(keys) > self.max_batch_rows:
            raise InputError('%s: %s %d distinct rows at a time, but max_batch_rows allows %d: raise max_batch_rows '
                             '(%s), or use smaller batches' % (self.name, doing, len(keys), self.max_batch_rows,
                                                               variable('max_batch_rows')))

    # -- rows ------------------------------------------------------------------------------------------------------

    def push(self, keys: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Push rows, (n, width), of `keys`, int64, sorted and unique (collective); returns before servers answer.

        Every worker pushes once a step, possibly no rows.  InputError, with nothing sent, for other keys or rows.
        """
        keys = self._checked_keys(keys, 'pushing')
        if np.shape(rows) != (len(keys), self.width):
            raise InputError('%s: rows of shape %s for %d keys: give rows of shape %s'
                             % (self.name, np.shape(rows), len(keys), (len(keys), self.width)))
        self._prefetcher.before_push(keys if self.lag else None)
        self._push(keys, rows, priority, self._overwrites)
        self._prefetcher.after_push()
        self._warn()

    @staticmethod
    def push_all(tables: Sequence['DynamicTable'], rows: Sequence[KeyedRows], priority: int = 0) -> None:
        """Push rows to several tables of one job, the sum for each key (collective), as :meth:`push` does.

        Keys are those of :func:`mxhybrid.lane.keyed_rows.distinct_keys`.
        """
        for table, part in zip(tables, rows):
            table._check_count(part.keys, 'pushing')
            check_capacity(table.name, part.keys, table.options.capacity, table.partitions)
        for table, part in zip(tables, rows):
            table._prefetcher.before_push(part.keys if table.lag else None)
        # After a push the host drops the rows that it caches; so the push waits for deliveries.
        tables[0]._lane.push_tables(tables, rows)
        for table in tables:
            table._prefetcher.after_push()
            table._warn()

    def pull(self, keys: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Write the rows of `keys`, int64, sorted and unique, to `result`, (n, width) (blocks; not collective).

        They include all earlier pushes of this worker.
        """
        self._prefetcher.pull(self._checked_keys(keys, 'pulling'), result, priority)

    @staticmethod
    def deliver(tables: Sequence['DynamicTable'], rows: Sequence[KeyedRows], array: Any, priority: int = 0) -> None:
        """Request rows of several tables of one job that the engine writes to the memory of `array`.

        The rows of each part are in that memory; readers of the array wait for them.  Keys are those of
        :func:`mxhybrid.lane.keyed_rows.distinct_keys`.
        """
        for table, part in zip(tables, rows):
            table._check_count(part.keys, 'pulling')
        tables[0]._deliver(tables, rows, array, priority)

    def prefetch(self, keys: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """Request rows before they are pulled, see :meth:`mxhybrid.servers.row_prefetcher.RowPrefetcher.prefetch`."""
        self._prefetcher.prefetch(self._checked_keys(keys, 'prefetching'), priority, after_push)

    def touch(self) -> None:
        """Push no rows (collective)."""
        self.push(np.empty(0, np.int64), np.empty((0, self.width), self.dtype))

    # -- optimizer -------------------------------------------------------------------------------------------------

    def _check_kind(self, optimizer: Any, wd: float) -> None:
        """Refuse an optimizer without a kernel (InputError)."""
        check_kernel(optimizer, self.name, self.dtype, wd)

    def set_optimizer(self, optimizer: Any, lr: float, wd: float, count: int, recipe: Optional[Recipe] = None) -> None:
        self.check_optimizer(optimizer, wd)
        super().set_optimizer(optimizer, lr, wd, count, recipe)

    # -- all rows --------------------------------------------------------------------------------------------------

    @contextmanager
    def assigning(self, slot: int = -1) -> Iterator[None]:
        """Let pushes overwrite rows, or optimizer state `slot`, instead of updating them (collective).

        Until all rows are written, all workers push equally often, and only one worker pushes a key.  Rows of optimizer
        state that are narrower than the table are followed by elements of any value.
        """
        former_mode = self.mode
        try:
            self.set_mode(overwrite_mode(slot))
            self._overwrites = True
            yield
        finally:
            self._overwrites = False
            self.set_mode(former_mode)

    def statistics(self) -> Dict[str, int]:
        """Return the sums over partitions of the statistics of their row stores, by name (worker 0 only)."""
        totals: Counter[str] = Counter()
        for answer in self._ask('statistics'):
            for statistics in answer.values():
                totals.update(statistics)
        return dict(totals)

    def cache_counts(self) -> Dict[str, int]:
        """Return 'requested', the rows that the workers of this host have requested so far, and 'cached', those of
        them that another request had brought to this host since the last push.
        """
        return dict(zip(('requested', 'cached'), self._lane.cache_counts(self)))

    @staticmethod
    def at_rest(tables: Sequence['DynamicTable'], act: Callable[[], _Result]) -> Optional[_Result]:
        """Return in worker 0 the result of `act`, which it calls when all pushes to the tables of one job are applied
        and no worker pushes to them or pulls from them (collective); None in other workers.
        """
        for table in tables:
            table.collect()
        servers = tables[0].servers
        servers.link.settle()
        servers.barrier()
        try:
            return act() if servers.is_root else None
        finally:
            servers.barrier()

    def save(self, directory: str, since: Optional[Marks], token: str) -> Saved:
        """Save each partition p in ``directory/p`` (worker 0 only, at rest).

        `directory` is empty, and `token` is a small file in a directory around it.  If all servers see it, they write
        on their hosts.  Otherwise each server writes its partitions on its own disk, and worker 0 fetches the files in
        pieces.
        JobError if a server fails, CheckpointError if worker 0 cannot write.
        """
        # Servers that see the file write at once.  If some did not at the last save, all are asked first.
        hosts = self.hosts_without(token) if self._fetches else []
        if not hosts:
            answers = self._ask('save', directory=directory, since=since, file=token, digest=digest_of(token))
            hosts = sorted({answer['host'] for answer in answers if 'host' in answer})
            if not hosts:
                self._fetches = False
                return Saved({part: result for answer in answers for part, result in answer.items()}, [])
            remove_parts(directory)
        self._fetches = True
        return Saved(self._fetch(directory, since), hosts)

    @staticmethod
    def save_copies(tables: Sequence['DynamicTable'], directories: Sequence[str], since: Sequence[Optional[Marks]],
                    token: str, results: str) -> Optional[List[str]]:
        """Let servers save tables in memory as :meth:`save` does, but from copies of their memory, while this worker
        goes on (worker 0 only, at rest).

        Return the files in the directory `results` in which servers will leave their results, by directory and
        partition; None, with nothing written, if a server does not see the directories.
        """
        first = tables[0]
        work: List[Any] = [[table.server_keys, directory, marks]
                           for table, directory, marks in zip(tables, directories, since)]
        known = first._ask('knows', tables=[[keys, marks] for keys, _, marks in work], file=token,
                           digest=digest_of(token))
        if any('host' in answer for answer in known if isinstance(answer, dict)):
            return None
        for number, answers in enumerate(zip(*known)):
            if not all(answers):  # some owners have to write all rows
                work[number][2] = None
        files = [os.path.join(results, '%d.json' % server) for server in range(first.servers.num_servers)]
        writing = first._ask('save_copy', tables=work, results=files)
        return [file for file, writes in zip(files, writing) if writes]

    def _fetch(self, directory: str, since: Optional[Marks]) -> Dict[str, Any]:
        results: Dict[str, Any] = {}
        try:
            for server, answer in zip(sorted(set(self.owners)), self._ask('save_here', since=since)):
                for part, result in answer.items():
                    fetch(partial(self._piece, server), result['files'], part, os.path.join(directory, part))
                results.update(answer)
        finally:
            self.servers.command('dynamic_forget', keys=self.server_keys)
        return results

    def _piece(self, server: int, file: str, start: int, size_bytes: int) -> bytes:
        self.servers.command('dynamic_read', keys=self.server_keys, server=server, file=file, start=start)
        return self.servers.read_mailbox(server, np.uint8, size_bytes).tobytes()

    def load(self, directories: Sequence[str], clock: int) -> None:
        """Replace all rows by those of directories of parts, from old to new, and set the clock (collective).

        Each server reads the rows of its partitions from all directories.  JobError in worker 0 if a server fails.
        """
        former_mode = self.mode
        self.set_mode(CAPTURE)
        try:
            self.at_rest([self], lambda: self._ask('load', directories=list(directories), clock=clock))
        finally:
            self.touch()  # hosts keep the rows that they cache until a push
            self.set_mode(former_mode)

    def hosts_without(self, file: str) -> List[str]:
        """Return the names of the servers' hosts that do not see a file of this host (worker 0 only)."""
        answers = self._ask('look', file=file, digest=digest_of(file))
        return sorted({answer['host'] for answer in answers if not answer['sees']})

    def _ask(self, method: str, **arguments: Any) -> List[Any]:
        """Return the answer of each server to a command about its partitions, or all servers' if it is about several
        tables (worker 0 only).
        """
        servers = sorted(set(self.owners)) if 'tables' not in arguments else range(self.servers.num_servers)
        self.servers.command('dynamic_' + method, keys=self.server_keys, **arguments)
        answers = [self.servers.read_answer(server) for server in servers]
        for server, answer in zip(servers, answers):
            if 'error' in answer:
                raise JobError('%s: server %d cannot %s: %s' % (self.name, server, _WORK[method], answer['error']))
        return [answer['answer'] for answer in answers]


def create_dynamic_table(servers: ParameterServers, spec: DynamicTableSpec) -> DynamicTable:
    """Create a dynamic table without rows (collective).

    Raises InputError on all workers, before anything is sent, if settings are not valid.
    """
    _check(servers, spec)
    table = DynamicTable(servers, spec)
    servers.open_dynamic_table(table)
    servers.tables[spec.name] = table, None
    return table


def _check(servers: ParameterServers, spec: DynamicTableSpec) -> None:
    """Raise InputError for settings of a dynamic table that are not valid; width and dtype were checked before."""
    name, partitions, options = spec.name, spec.partitions, spec.options
    if not servers.on_lane:
        raise InputError('%s: the rows of a dynamic table travel by the lane only, but this job uses ps-lite: leave %s '
                         'out, and see the log of worker 0 for the reason if it is not set'
                         % (name, variable('row_transport')))
    for setting, count, most in (('partitions', partitions, (1 << 16) - 1),
                                 ('max_batch_rows', spec.max_batch_rows, 1 << 28)):
        if count > most:
            raise InputError('%s: %s=%d: give an integer from 1 to %d' % (name, setting, count, most))
    options.check(name + ': ')
    if 0 < options.capacity < partitions:
        raise InputError('%s: capacity=%d is less than one row for each of %d partitions: give a larger capacity, or '
                         'fewer partitions' % (name, options.capacity, partitions))
