"""The handler inside every parameter server: it updates partitions of tables and carries out commands.

Commands reach :meth:`Handler.carry_out` in two ways: sealed, by :mod:`mxhybrid.servers.main`, in servers that mxhybrid
started; pickled, by :mod:`mxhybrid.servers.pickled`, in stock servers that ``launch.py`` started.  Either way makes the
server install the single :class:`Handler` of the process as its optimizer.  From then on the server calls the handler
once for each partition and step with the merged gradient.

In a stock server ``import mxnet`` has not finished when this module is imported: only modules that are imported before
``mxnet.kvstore`` (see ``mxnet/__init__.py``) are available, and threads must import nothing.  Modules of the user, for
classes marked with :func:`mxhybrid.row_wise`, are imported while a command is carried out, in the main thread.
"""
import atexit
import functools
import json
import operator
import os
import struct
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
from mxnet.optimizer import Optimizer

from ..base.errors import HybridError
from ..base.files import has_digest
from ..base.machine import remedy
from ..base.memory_copy import work_on_copy
from ..base.storage_probe import problem_with
from ..lane.agent import Agent, Shape
from ..lane.membership import Membership
from ..messaging.addresses import address_towards
from ..native import log_filter
from ..native.arrays import host_view, make_row_sparse, row_sparse_parts, trim_heap
from ..native.optimizers import TableOptimizer, find_class
from ..row_store.row_files import Marks
from ..row_store.row_store import FirstValues, RowStore, RowStoreOptions, newest_parts
from ..telemetry.recorder import OFF, AnyRecorder, Recorder
from ..telemetry.trace_sender import TraceSender
from ..watchdog.leaving import ECHO_DELAY_S, TOLD_STATUS, leave
from ..watchdog.lifeline import Lifeline
from .dynamic_shard import DynamicShard, named_table
from .file_pieces import ScratchFiles
from .partition_state import Partition, updated_optimizer
from .partitioning import rows_in_partition, shared_rows
from .protocol import ASSIGN, CAPTURE, OPTIMIZE, REPLACE, state_slot
from .shard import Shard


class Handler(Optimizer):
    """The handler, in the place of the optimizer of a server; `lifeline` is that of the process, if it has one."""

    #: The agent of the lane, which the command `listen` makes.
    _agent: Agent

    def __init__(self, lifeline: Optional[Lifeline] = None, secret: str = '', address: str = '') -> None:
        super().__init__()
        log_filter.suppress_repeated_logs()
        self.aggregate_num = 0
        self._partitions: Dict[int, Partition] = {}
        #: Partitions by the keys to which float16 gradients are pushed, and by the keys of float16 pairs.
        self._pushed: Dict[int, Partition] = {}
        self._pairs: Dict[int, Partition] = {}
        self._optimizers: Dict[str, TableOptimizer] = {}
        self._mailbox_keys: List[int] = []
        self._mailbox: Any = None
        self._lifeline = lifeline
        self._secret, self._address = secret, address
        #: Partitions on the lane by numbers of table and partition there.
        self._shards: Dict[Tuple[int, int], Union[Shard, DynamicShard]] = {}
        #: The keys of the partitions of dynamic tables by their numbers there.
        self._dynamic_keys: Dict[int, List[int]] = {}
        #: The directories of dynamic tables in files by their numbers there.
        self._directories: Dict[int, str] = {}
        self._answer_text = b''
        self._scratch = ScratchFiles()
        self._trace_sender: Optional[TraceSender] = None
        self.trace: AnyRecorder = OFF

    # -- called by MXNet's Updater, once for every key and step --------------------------------------------

    def create_state_multi_precision(self, index: int, weight: Any) -> None:
        """Return no state: the handler keeps state itself."""

    def update_multi_precision(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """Handle one merged push; an error ends the server, because MXNet would ignore it."""
        try:
            self._update(index, grad, weight)
        except BaseException:
            self.die('update of key %s' % index)

    def _update(self, key: int, grad: Any, stored: Any) -> None:
        if key in self._mailbox_keys:
            self._mailbox = stored
            if isinstance(self.trace, Recorder):
                number = self._mailbox_keys.index(key)
                self.trace.name, self.trace.number = 'server %d (host %s)' % (number, os.uname().nodename), number
            return
        if key in self._pairs:
            self._pairs[key].pull_from(stored)
            return
        part = self._pushed.get(key) or self._partitions.get(key)
        if part is None:
            raise RuntimeError('push to key %d, which belongs to no table: report this as a bug of mxhybrid' % key)
        if part.stored is None and key not in self._pushed:
            part.hold(stored)
        with self.trace.span('%s %s' % (part.mode, part.table), 'update', table=part.table, key=key, mode=part.mode
                             ) as span:
            self._apply(part, grad)
            if self.trace.enabled:
                span.note(rows=len(row_sparse_parts(grad)[0]))

    def _apply(self, part: Partition, grad: Any) -> None:
        if part.mode == OPTIMIZE:
            part.update(self._optimizers[part.table], grad)
            return
        if part.mode == CAPTURE:
            return
        ids, rows = row_sparse_parts(grad)
        if part.mode == ASSIGN:
            part.overwrite(ids, rows)
        elif part.mode == REPLACE:
            part.overwrite(slice(None), 0)
            part.overwrite(ids, rows)
        elif state_slot(part.mode) >= 0:
            part.ensure_state(self._optimizers[part.table])
            part.write_state(state_slot(part.mode), ids, rows)
        else:
            raise RuntimeError('mode of partition %d: %r is unknown: report this as a bug of mxhybrid'
                               % (part.key, part.mode))

    # -- commands --------------------------------------------------------------------------------------------

    def carry_out(self, name: str, arguments: Dict[str, Any]) -> None:
        """Carry out a command of worker 0; an error ends the server."""
        try:
            with self.trace.span('command ' + name, 'command'):
                getattr(self, 'do_' + name)(**arguments)
        except BaseException:
            self.die('command %s' % name)

    def do_mailbox(self, keys: List[int]) -> None:
        """Register the keys of all mailboxes; a push to the mailbox of this server follows."""
        self._mailbox_keys = keys

    def do_watch(self, host: str, port: int, timeout: float, trace: bool = False, secret: str = '') -> None:
        """Connect to the job monitor, if the process has not done so at its start; with `trace` record events."""
        if self._lifeline is None:
            self._lifeline = Lifeline((host, port), server_name(), -1, timeout, secret, told_status=TOLD_STATUS)
            atexit.register(self._lifeline.bye)
            self._secret, self._address = secret, address_towards(host, port)
        if trace and self._trace_sender is None:
            self.trace = Recorder('a server (host %s)' % os.uname().nodename)
            self._trace_sender = TraceSender(self.trace, self._lifeline)

    def do_table(self, table: str, keys: List[int], rows: List[int], width: int,
                 push_keys: Sequence[int] = (), pair_keys: Sequence[int] = ()) -> None:
        """Register the partitions of a table and, if its rows travel as float16, the keys for them."""
        for key, count in zip(keys, rows):
            self._partitions[key] = Partition(key, table, count, width, CAPTURE)
        parts = [self._partitions[key] for key in keys]
        self._pushed.update(zip(push_keys, parts))
        self._pairs.update(zip(pair_keys, parts))

    def do_listen(self) -> None:
        """Create this server's agent of the lane, and leave its address in the mailbox."""
        self._agent = Agent(self._address, self._secret, self._update_shard, self._lane_failed,
                          self._saw_update if self.trace.enabled else None)
        self._answer(self._agent.endpoint)

    def do_connect(self, agents: List[List[Any]], memory_domains: List[str], timeout: float) -> None:
        """Connect the agent to all other agents, which get the same command."""
        self._agent.connect(Membership.from_json(agents, memory_domains), timeout)

    def do_shards(self, table: str, keys: List[int], number: int, shape: List[Any]) -> None:
        """Register a table on the lane, and the partitions of it that this server owns."""
        table_shape = Shape(*shape)
        self._agent.add_table(number, table_shape)
        for part, (key, owner) in enumerate(zip(keys, table_shape.owners)):
            count, width = rows_in_partition(table_shape.rows, len(keys), part), table_shape.width
            if owner == self._agent.number:
                self._partitions[key] = self._shards[number, part] = Shard(key, table, self._agent, number, part, count,
                                                                           width)
            else:
                self._partitions[key] = Partition(key, table, count, width, CAPTURE)

    def do_dynamic_table(self, table: str, keys: List[int], number: int, shape: List[Any], first_values: List[Any],
                         options: List[Any]) -> None:
        """Register a dynamic table, and the partitions of it that this server owns."""
        table_shape = Shape(*shape)
        own_parts = [part for part, owner in enumerate(table_shape.owners) if owner == self._agent.number]
        store_options = RowStoreOptions(*options)
        self._directories[number] = store_options.directory
        with named_table(table, table_shape.max_batch_rows):
            self._agent.add_dynamic_table(number, table, table_shape, FirstValues(*first_values),
                                          store_options.of_partition(len(keys), len(own_parts)))
        for part, key in enumerate(keys):
            if part in own_parts:
                shard = DynamicShard(key, table, self._agent, number, part, table_shape, FirstValues(*first_values))
                self._partitions[key] = self._shards[number, part] = shard
            else:
                self._partitions[key] = Partition(key, table, 0, table_shape.width, CAPTURE)
        self._dynamic_keys[number] = keys

    def do_storage(self, directory: str) -> None:
        """Leave in the mailbox this host's name, and the reason why it cannot keep rows in files of a directory."""
        self._answer([os.uname().nodename, problem_with(directory)])

    def _dynamic_shards(self, keys: List[int]) -> Dict[int, DynamicShard]:
        """Return those partitions of a dynamic table that this server owns, by number."""
        parts = {number: self._partitions[key] for number, key in enumerate(keys)}
        return {number: part for number, part in parts.items() if isinstance(part, DynamicShard)}

    def do_dynamic_statistics(self, keys: List[int]) -> None:
        """Leave the statistics of a dynamic table in the mailbox, by partition."""
        self._answer_about(keys, lambda number, store: store.statistics())

    def do_dynamic_save(self, keys: List[int], directory: str, since: Optional[Marks], file: str, digest: str) -> None:
        """Save the partitions of a dynamic table; leave the results by partition, or an error, in the mailbox.

        If this host does not see a file of worker 0's host, save nothing, and leave the answer of `do_dynamic_look`.
        """
        if not has_digest(file, digest):
            self.do_dynamic_look(keys, file, digest)
            return
        self._answer_about(keys, lambda number, store: store.save(
            os.path.join(directory, str(number)), since[str(number)] if since else None))

    def do_dynamic_knows(self, keys: List[int], tables: List[Tuple[List[int], Optional[Marks]]], file: str,
                         digest: str) -> None:
        """Leave in the mailbox, for each of the `tables`, whether saves since these marks would write changes only.

        If this host does not see a file of worker 0's host, leave the answer of `do_dynamic_look`.
        """
        if not has_digest(file, digest):
            self.do_dynamic_look(keys, file, digest)
            return
        self._answer({'answer': [since is not None and all(
            shard.with_store(operator.methodcaller('knows_changes', since[str(number)]))
            for number, shard in self._dynamic_shards(table_keys).items()) for table_keys, since in tables]})

    def do_dynamic_save_copy(self, keys: List[int], tables: List[Tuple[List[int], str, Optional[Marks]]],
                             results: List[str]) -> None:
        """Save the partitions of several tables from a copy of this server's memory, see `work_on_copy`.

        The copy writes the results, by table and partition, to the file of this server among `results`.
        """
        result = results[self._agent.number]
        shards = [(shard, str(number), directory, since) for table_keys, directory, since in tables
                  for number, shard in self._dynamic_shards(table_keys).items()]
        addresses = [shard.with_address(lambda address: address) for shard, *_ in shards]

        def save() -> Any:
            saved: Dict[str, Dict[str, Any]] = {}
            for (shard, part, directory, since), address in zip(shards, addresses):
                with shard.borrowed(address) as store:
                    saved.setdefault(directory, {})[part] = store.save(os.path.join(directory, part),
                                                                       since[part] if since else None)
            return saved

        try:
            if shards:  # the agent's thread is at rest meanwhile
                shards[0][0].with_address(lambda _: work_on_copy(save, result))
            for shard, *_ in shards:
                shard.with_store(RowStore.mark)
            self._answer({'answer': bool(shards)})
        except OSError as error:
            self._answer({'error': '%s: %s' % (type(error).__name__, error)})

    def do_dynamic_save_here(self, keys: List[int], since: Optional[Marks]) -> None:
        """Save the partitions of a dynamic table into files of this server, which :meth:`do_dynamic_read` reads."""
        self._scratch.close()
        # Where the rows are in files, their directory has room for files.
        directory = next(path for number, path in self._directories.items() if self._dynamic_keys[number] == keys)
        self._answer_about(keys, lambda number, store: store.save(
            self._scratch.folder(directory, str(number)), since[str(number)] if since else None))

    def do_dynamic_read(self, keys: List[int], server: int, file: str, start: int) -> None:
        """Leave a piece of a saved file in the mailbox, if this is the server that has it."""
        if server == self._agent.number:
            piece = self._scratch.read(file, start)
            host_view(self._mailbox).view(np.uint8)[:len(piece)] = np.frombuffer(piece, np.uint8)

    def do_dynamic_forget(self, keys: List[int]) -> None:
        """Free the saved files."""
        self._scratch.close()

    def do_dynamic_load(self, keys: List[int], directories: List[str], clock: int) -> None:
        """Replace the rows of a dynamic table; leave their numbers by partition, or an error, in the mailbox."""
        def load(number: int, store: RowStore) -> int:
            store.clear()
            store.set_clock(clock)
            for directory in directories:
                store.load(directory, number, len(keys))
            for directory in newest_parts(directories):
                store.load_waiting(directory, number, len(keys))
            return len(store)
        self._answer_about(keys, load)

    def _answer_about(self, keys: List[int], use: Callable[[int, RowStore], Any]) -> None:
        try:
            results = {str(number): shard.with_store(functools.partial(use, number))
                       for number, shard in self._dynamic_shards(keys).items()}
        except (OSError, HybridError) as error:
            self._answer({'error': '%s: %s' % (type(error).__name__, error)})
            return
        self._answer({'answer': results})

    def do_dynamic_look(self, keys: List[int], file: str, digest: str) -> None:
        """Leave in the mailbox this host's name, and whether it sees a file of worker 0's host."""
        self._answer({'answer': {'host': os.uname().nodename, 'sees': has_digest(file, digest)}})

    def _answer(self, answer: Any) -> None:
        """Leave a JSON value in the mailbox: its length and its text, as much as there is room for."""
        self._answer_text = json.dumps(answer).encode()
        self.do_rest_of_answer(0)

    def do_rest_of_answer(self, start: int) -> None:
        """Leave the rest of the last answer in the mailbox, from a position on, after its whole length."""
        mailbox = host_view(self._mailbox).view(np.uint8)
        data = struct.pack('<I', len(self._answer_text)) + self._answer_text[start:start + len(mailbox) - 4]
        mailbox[:len(data)] = np.frombuffer(data, np.uint8)

    def do_drop(self, number: int) -> None:
        """Drop a table on the lane."""
        for key in self._dynamic_keys.pop(number, []):
            del self._partitions[key]
        for shard_id in [shard_id for shard_id in self._shards if shard_id[0] == number]:
            self._partitions.pop(self._shards.pop(shard_id).key, None)
        self._agent.drop_table(number)
        self._directories.pop(number, None)
        trim_heap()

    def do_part(self) -> None:
        """End the lane, after all workers have ended."""
        self._agent.close()

    def _update_shard(self, number: int, part: int, local_ids: np.ndarray, rows: np.ndarray) -> None:
        """Update a partition on the lane by an optimizer without a compiled kernel."""
        try:
            shard = self._shards[number, part]
            shard.update(self._optimizers[shard.table], make_row_sparse(local_ids.astype(np.int64), rows, shard.shape))
        except BaseException:
            self.die('update of partition %d of table %d on the lane' % (part, number))

    def _saw_update(self, number: int, part: int, begin: int, end: int, rows: int) -> None:
        """Record an update on the lane in the trace."""
        shard = self._shards[number, part]
        self.trace.complete('%s %s' % (shard.mode, shard.table), begin, end, 'update',
                            {'table': shard.table, 'key': shard.key, 'mode': shard.mode, 'rows': rows})

    def _lane_failed(self, reason: str) -> None:
        """End this server after a failure of the lane.

        First wait a moment: if a process has died, the job monitor reports it.
        """
        time.sleep(ECHO_DELAY_S)
        os.write(2, ('[mxhybrid server] the lane failed: %s\n' % reason).encode())
        leave(last_words=lambda: self._tell('the lane', reason))

    def do_mode(self, keys: List[int], mode: str) -> None:
        """Set the meaning of pushes to partitions, see :mod:`mxhybrid.servers.protocol`."""
        for key in keys:
            self._partitions[key].set_mode(mode)

    def do_optimizer(self, table: str, keys: List[int], name: str, attributes: Dict[str, Any],
                     count: Optional[int]) -> None:
        """Set or change a table's optimizer: name, or module and name; attributes; number of updates so far."""
        parts = [self._partitions[key] for key in keys]
        self._optimizers[table] = updated_optimizer(self._optimizers.get(table), parts, name, attributes, count)
        self.do_mode(keys, OPTIMIZE)

    def do_find(self, name: str) -> None:
        """Import an optimizer class, so that an import that fails ends the job before it trains."""
        find_class(name)

    def do_forget_state(self, table: str, keys: List[int]) -> None:
        """Drop a table's optimizer and its state."""
        self._optimizers.pop(table, None)
        for key in keys:
            self._partitions[key].forget_state()

    def do_read(self, key: int, slot: int, start: int, stop: int, dtype: str) -> None:
        """Copy rows of a partition's optimizer state into the mailbox, as `dtype`, if this server has the partition.

        Servers may keep a table in float32 whatever its dtype is: MXNet never initialises the flag that decides it
        (``multi_precision_`` in ``kvstore_dist_server.h``).
        """
        part = self._partitions[key]
        if not part.is_here:
            return
        rows = np.ascontiguousarray(part.read(slot, start, stop, self._optimizers[part.table]), dtype)
        data = rows.reshape(-1).view(np.uint8)
        host_view(self._mailbox).view(np.uint8)[:len(data)] = data

    def do_move(self, table: str, rows: int, old: List[int], new: List[int], count: int) -> None:
        """Copy the rows that partitions `new` share with partitions `old` of this server, after `count` updates."""
        optimizer = self._optimizers.get(table)
        for index, key in enumerate(new):
            for old_index, old_key in enumerate(old):
                part, source = self._partitions[key], self._partitions[old_key]
                if not (part.is_here and source.is_here):
                    continue
                shared = shared_rows(rows, len(old), old_index, len(new), index)
                if shared is not None:
                    part.take(source, shared[1], shared[0], optimizer)
            if optimizer is not None:
                self._partitions[key].follow(optimizer)
                self._partitions[key].expect_count(optimizer, count)

    def do_expose(self, keys: List[int], slot: int) -> None:
        """Overwrite weights with optimizer state `slot`, so that workers can pull it."""
        for part in (self._partitions[key] for key in keys):
            if part.is_here:
                part.ensure_state(self._optimizers[part.table])
                rows = part.all_state_rows(slot)
                part.view[:, :rows.shape[1]] = rows

    def do_release(self, keys: List[int]) -> None:
        """Free partitions that are no longer used; their keys remain, because MXNet cannot delete a key."""
        for part in (self._partitions[key] for key in keys):
            part.release()
        trim_heap()

    def die(self, doing: str) -> None:
        """End this server because of the current exception, so that the job ends instead of training wrongly."""
        text = traceback.format_exc()
        error: Any = sys.exc_info()[1]
        text = text.strip() + remedy(error)
        os.write(2, ('[mxhybrid server] %s failed\n%s\n' % (doing, text)).encode())
        leave(last_words=lambda: self._tell(doing, text.splitlines()[-1]))

    def _tell(self, doing: str, text: str) -> None:
        """Send the rest of the trace, and report the failure to the job monitor."""
        if self._trace_sender is not None:
            self.trace.instant('failed: ' + doing)
            self._trace_sender.finish()
        if self._lifeline is not None:
            self._lifeline.fail(text)


def server_name() -> str:
    """Return the name of this server in messages."""
    return 'a parameter server (host %s, pid %d)' % (os.uname().nodename, os.getpid())
