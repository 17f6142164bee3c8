"""What runs inside every parameter server: updates of table partitions, and the answers to commands.

Commands come to :func:`carry_out`: sealed ones by way of :mod:`mxhybrid.server`, in servers that mxhybrid started,
pickled ones by way of :func:`execute` and :mod:`mxhybrid.stock`, in stock servers that ``launch.py`` started.  Either
has the server install the one :class:`Handler` of the process as its optimizer.

From then on the server calls the handler once for each partition and step with the merged gradient.  What it
does with it depends on the partition's mode:

========== ================================================================================================
optimize   update the weights with the table's optimizer
assign     overwrite the pushed rows; serves for weights and for sums of gradients
replace    overwrite the pushed rows and zero all others, as a store of MXNet without an optimizer does
state:N    overwrite the pushed rows of optimizer state N
capture    only remember where the partition lives
========== ================================================================================================

A partition whose rows travel as float16 (:mod:`mxhybrid.wire`) has a key to which gradients are pushed, and one
from which workers pull pairs of float16; rows that change are written there, rounded, as well.

Bulk answers travel through a mailbox, one dense key per server that a worker pulls.

In a stock server ``import mxnet`` has not finished when this module is imported: only what is imported before
``mxnet.kvstore`` (see ``mxnet/__init__.py``) is available, and threads must import nothing.
"""
import atexit
import json
import os
import traceback
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from mxnet import ndarray as nd
from mxnet.optimizer import Optimizer

from .arrays import allocate_rows, give_back_memory, host_view, make_row_sparse, row_sparse_parts, trim_heap
from .courier import Courier
from .lifeline import ABORT_STATUS, Lifeline
from .optimizers import build, changes_all_rows, is_sparse_kernel, state_arrays
from .partition import shared_rows
from .trace import OFF, AnyRecorder, Recorder

#: Elements of a mailbox, float32: 256 KiB.
MAILBOX_ELEMENTS = 1 << 16


class Partition:
    """One partition: its stored weights, its mode and its optimizer state."""

    def __init__(self, key: int, table: str, rows: int, width: int, mode: str):
        self.key = key
        self.table = table
        self.shape = (rows, width)
        self.mode = mode
        self.stored: Any = None
        self.state: Any = None
        self.has_state = False
        #: Rows of states of which every row is stored, by number: finding them costs a copy of all row ids.
        self._whole: Dict[int, np.ndarray] = {}
        self._dense: Any = None
        #: The rows as float16, writable, if that is how workers pull them.
        self.halves: Optional[np.ndarray] = None

    @property
    def view(self) -> np.ndarray:
        """The stored weights as a writable NumPy array of shape (rows, width); finding them copies all row ids."""
        return self._rows_of(self.stored)

    def _rows_of(self, stored: Any) -> np.ndarray:
        ids, rows = row_sparse_parts(stored)
        if len(rows) != self.shape[0]:
            raise RuntimeError('partition %d of %s holds %d of its %d rows'
                               % (self.key, self.table, len(ids), self.shape[0]))
        return rows

    def pull_from(self, pairs: Any) -> None:
        """Learn the array from which workers pull."""
        self.halves = self._rows_of(pairs).view(np.float16)[:, :self.shape[1]]

    def overwrite(self, ids: Any, rows: Any) -> None:
        """Set rows, in all places where the partition has them."""
        if self.stored is not None:
            host_view(self.dense)[ids] = rows
        if self.halves is not None:
            self.halves[ids] = rows

    def _publish(self, ids: Optional[np.ndarray]) -> None:
        """Show changed rows, all of them if `ids` is None, to the workers."""
        if self.halves is None:
            return
        rows = host_view(self.dense)
        if ids is None:
            self.halves[:] = rows
        else:
            self.halves[ids] = rows[ids]

    @property
    def dense(self) -> Any:
        """The stored weights as a dense MXNet array that shares their memory."""
        if self._dense is None:
            self._dense = nd.from_numpy(self.view, zero_copy=True)
        return self._dense

    def forget_state(self) -> None:
        """Drop the optimizer state; the next update starts afresh."""
        self.state, self.has_state = None, False
        self._whole.clear()

    def release(self) -> None:
        """Give all memory back; the partition can be filled anew."""
        self.mode = 'capture'
        self.forget_state()
        self._dense = None
        if self.stored is not None:
            give_back_memory(self.view)

    def weight(self, optimizer: Any) -> Any:
        """The array to hand to `optimizer`: row_sparse for MXNet's sparse kernels, else dense."""
        return self.stored if is_sparse_kernel(optimizer) else self.dense

    def ensure_state(self, optimizer: Any) -> None:
        """Create the optimizer state unless it exists."""
        if not self.has_state:
            self.state = optimizer.create_state_multi_precision(self.key, self.weight(optimizer))
            self.has_state = True

    def update(self, optimizer: Any, grad: Any) -> None:
        """Update the stored weights with a row_sparse gradient."""
        self.ensure_state(optimizer)
        weight = self.weight(optimizer)
        ids, rows = row_sparse_parts(grad)
        if not is_sparse_kernel(optimizer):
            grad = nd.zeros(self.shape, dtype=weight.dtype)
            host_view(grad)[ids] = rows
        elif self.halves is not None:
            # Its shape is that of the key it was pushed to, its dtype float32 by the server's own doing.
            grad = make_row_sparse(ids, rows.astype(weight.dtype, copy=False), self.shape)
        optimizer.update_multi_precision(self.key, weight, grad, self.state)
        weight.wait_to_read()
        self._publish(None if changes_all_rows(optimizer) else ids)

    def state_rows(self, slot: int) -> Optional[np.ndarray]:
        """Optimizer state `slot` as a writable array of all rows; None while MXNet keeps none, that is zeros."""
        array = state_arrays(self.state)[slot]
        if array.stype == 'default':
            return host_view(array).reshape(self.shape[0], -1)
        held, rows = row_sparse_parts(array)
        return rows if len(held) == self.shape[0] else None

    def all_state_rows(self, slot: int) -> np.ndarray:
        """Optimizer state `slot` as a writable array of all rows, made where MXNet keeps only some."""
        found = self.state_rows(slot)
        if found is None:
            array = state_arrays(self.state)[slot]
            held, rows = row_sparse_parts(array)
            full, filled = allocate_rows(np.arange(self.shape[0]), array.shape, array.dtype)
            filled[:] = 0
            filled[held] = rows
            full.copyto(array)
            _, found = row_sparse_parts(array)
        return found

    def write_state(self, slot: int, ids: np.ndarray, rows: np.ndarray) -> None:
        """Overwrite rows of optimizer state number `slot`; of wider pushed rows the first elements count."""
        current = self.all_state_rows(slot)
        current[ids] = rows[:, :current.shape[1]]

    def take(self, source: 'Partition', mine: slice, theirs: slice, optimizer: Any) -> None:
        """Copy rows of weights and optimizer state from another partition of the same table."""
        self.view[mine] = source.view[theirs]
        if not source.has_state:
            return
        self.ensure_state(optimizer)
        for slot in range(len(state_arrays(source.state))):
            rows = source.state_rows(slot)
            if rows is not None:
                self.all_state_rows(slot)[mine] = rows[theirs]

    def read(self, slot: int, start: int, stop: int, optimizer: Any) -> np.ndarray:
        """Rows ``start:stop`` of optimizer state number `slot`."""
        self.ensure_state(optimizer)
        array = state_arrays(self.state)[slot]
        width = int(np.prod(array.shape[1:]))
        if array.stype == 'default':
            return host_view(array).reshape(-1, width)[start:stop]
        if slot in self._whole:
            array.wait_to_read()
            return self._whole[slot][start:stop]
        ids, rows = row_sparse_parts(array)
        if len(ids) == self.shape[0]:
            self._whole[slot] = rows
            return rows[start:stop]
        full = np.zeros((stop - start, width), array.dtype)
        inside = (ids >= start) & (ids < stop)
        full[ids[inside] - start] = rows[inside]
        return full


class Handler(Optimizer):
    """The optimizer that a server of MXNet believes it has."""

    def __init__(self) -> None:
        super().__init__()
        self.aggregate_num = 0
        self._partitions: Dict[int, Partition] = {}
        #: Partitions by the keys to which gradients are pushed, and by those from which workers pull.
        self._pushed: Dict[int, Partition] = {}
        self._pairs: Dict[int, Partition] = {}
        self._optimizers: Dict[str, Any] = {}
        self._mailbox_keys: List[int] = []
        self._mailbox: Any = None
        self._lifeline: Optional[Lifeline] = None
        self._courier: Optional[Courier] = None
        self.trace: AnyRecorder = OFF

    # -- called by MXNet's Updater, once for every key and step --------------------------------------------

    def create_state_multi_precision(self, index: int, weight: Any) -> None:
        """The handler keeps state itself."""

    def update_multi_precision(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """Take one merged push; an error ends the server, since MXNet would swallow it."""
        try:
            self._update(index, grad, weight)
        except BaseException:
            self.die('update of key %s' % index)

    def _update(self, key: int, grad: Any, stored: Any) -> None:
        if key in self._mailbox_keys:
            self._mailbox = stored
            if isinstance(self.trace, Recorder):
                self.trace.place = self._mailbox_keys.index(key)
                self.trace.name = 'server %d (host %s)' % (self.trace.place, os.uname().nodename)
            return
        if key in self._pairs:
            self._pairs[key].pull_from(stored)
            return
        part = self._pushed.get(key) or self._partitions.get(key)
        if part is None:
            raise RuntimeError('push to key %d, which no table has' % key)
        if part.stored is None and key not in self._pushed:
            part.stored = stored
        with self.trace.span('%s %s' % (part.mode, part.table), 'update', table=part.table, key=key, mode=part.mode
                             ) as span:
            self._apply(part, grad)
            if self.trace.enabled:
                span.note(rows=len(row_sparse_parts(grad)[0]))

    def _apply(self, part: Partition, grad: Any) -> None:
        if part.mode == 'optimize':
            part.update(self._optimizers[part.table], grad)
            return
        if part.mode == 'capture':
            return
        ids, rows = row_sparse_parts(grad)
        if part.mode == 'assign':
            part.overwrite(ids, rows)
        elif part.mode == 'replace':
            part.overwrite(slice(None), 0)
            part.overwrite(ids, rows)
        elif part.mode.startswith('state:'):
            part.ensure_state(self._optimizers[part.table])
            part.write_state(int(part.mode[len('state:'):]), ids, rows)
        else:
            raise RuntimeError('unknown mode %r' % part.mode)

    # -- commands --------------------------------------------------------------------------------------------

    def do_mailbox(self, keys: List[int]) -> None:
        """Learn which keys are mailboxes; the server's own is the one it is called for."""
        self._mailbox_keys = keys

    def do_watch(self, host: str, port: int, timeout: float, trace: bool = False, secret: str = '') -> None:
        """Connect to the job monitor, unless the process did so when it started, and record events if asked."""
        if self._lifeline is None and process_lifeline is None:
            self._lifeline = Lifeline((host, port), server_name(), -1, timeout, secret)
            atexit.register(self._lifeline.bye)
        lifeline = self._lifeline or process_lifeline
        if trace and lifeline is not None and self._courier is None:
            self.trace = Recorder('a server (host %s)' % os.uname().nodename)
            self._courier = Courier(self.trace, lifeline)

    def do_table(self, table: str, keys: List[int], rows: List[int], width: int,
                 push_keys: Sequence[int] = (), pair_keys: Sequence[int] = ()) -> None:
        """Learn a table's partitions and, if rows travel as float16, the keys for that."""
        for key, count in zip(keys, rows):
            self._partitions[key] = Partition(key, table, count, width, 'capture')
        parts = [self._partitions[key] for key in keys]
        self._pushed.update(zip(push_keys, parts))
        self._pairs.update(zip(pair_keys, parts))

    def do_mode(self, keys: List[int], mode: str) -> None:
        """Set the mode of partitions."""
        for key in keys:
            self._partitions[key].mode = mode

    def do_optimizer(self, table: str, keys: List[int], name: str, attributes: Dict[str, Any],
                     count: Optional[int]) -> None:
        """Set or change a table's optimizer: its registry name, scalar attributes, updates made so far."""
        optimizer = self._optimizers.get(table)
        if optimizer is None or type(optimizer).__name__.lower() != name:
            optimizer = self._optimizers[table] = build(name, attributes)
            for key in keys:
                self._partitions[key].forget_state()
        else:
            optimizer.__dict__.update(attributes)
        if count is not None:
            for key in keys:
                optimizer._index_update_count[key] = count
        self.do_mode(keys, 'optimize')

    def do_forget_state(self, table: str, keys: List[int]) -> None:
        """Drop a table's optimizer and its state."""
        self._optimizers.pop(table, None)
        for key in keys:
            self._partitions[key].forget_state()

    def do_read(self, key: int, slot: int, start: int, stop: int, dtype: str) -> None:
        """Copy rows of a partition's optimizer state into the mailbox, as `dtype`, if the partition lives here.

        Servers may keep a table in float32 whatever its dtype is: MXNet never initialises the flag that says so
        (``multi_precision_`` in ``kvstore_dist_server.h``).
        """
        part = self._partitions[key]
        if part.stored is None:
            return
        rows = np.ascontiguousarray(part.read(slot, start, stop, self._optimizers[part.table]), dtype)
        data = rows.reshape(-1).view(np.uint8)
        host_view(self._mailbox).view(np.uint8)[:len(data)] = data

    def do_move(self, table: str, rows: int, old: List[int], new: List[int], count: int) -> None:
        """Copy what partitions `new` share with the partitions `old` of the same server, `count` updates made."""
        optimizer = self._optimizers.get(table)
        for to, key in enumerate(new):
            for at, old_key in enumerate(old):
                part, source = self._partitions[key], self._partitions[old_key]
                if part.stored is None or source.stored is None:
                    continue
                shared = shared_rows(rows, len(old), at, len(new), to)
                if shared is not None:
                    part.take(source, shared[1], shared[0], optimizer)
            if optimizer is not None:
                optimizer._index_update_count[key] = count

    def do_expose(self, keys: List[int], slot: int) -> None:
        """Overwrite weights by optimizer state `slot`, so that workers can pull it."""
        for part in (self._partitions[key] for key in keys):
            if part.stored is not None:
                part.ensure_state(self._optimizers[part.table])
                rows = part.all_state_rows(slot)
                part.view[:, :rows.shape[1]] = rows

    def do_release(self, keys: List[int]) -> None:
        """Free partitions that are no longer used; their keys stay, MXNet cannot delete one."""
        for part in (self._partitions[key] for key in keys):
            part.release()
        trim_heap()

    def die(self, doing: str) -> None:
        """End this server with the current exception, so that the job ends instead of training wrongly."""
        text = traceback.format_exc()
        os.write(2, ('[mxhybrid server] %s failed\n%s' % (doing, text)).encode())
        lifeline = self._lifeline or process_lifeline
        if self._courier is not None:
            self.trace.instant('failed: ' + doing)
            self._courier.finish()
        if lifeline is not None:
            lifeline.fail(text.strip().splitlines()[-1])
        os._exit(ABORT_STATUS)


#: Lifeline that the server's own main program opened, if it did.
process_lifeline: Optional[Lifeline] = None

_handler: Optional[Handler] = None


def server_name() -> str:
    """How failures name this server."""
    return 'a parameter server (host %s, pid %d)' % (os.uname().nodename, os.getpid())


def execute(text: str) -> Handler:
    """Carry out a command that was unpickled, the JSON of its name and arguments."""
    return carry_out(*json.loads(text))


def carry_out(name: str, arguments: Dict[str, Any]) -> Handler:
    """Carry out a command in this server; returns the handler for the server to install."""
    global _handler
    if _handler is None:
        _handler = Handler()
    try:
        with _handler.trace.span('command ' + name, 'command'):
            getattr(_handler, 'do_' + name)(**arguments)
    except BaseException:
        _handler.die('command %s' % name)
    return _handler
