"""Rows on demand: a worker pulls the rows that its next forward pass needs, not all rows that any worker touched.

The weight of an ``nn.Embedding(sparse_grad=True)`` is dense, and a script may read all of it at any time; so at first
every worker keeps a whole and current copy.  Most such weights are read by their embedding only, which knows the row
ids beforehand.  Then the servers take over weight and optimizer state (:mod:`mxhybrid.routes.on_demand_rows`), and a
worker's copy has current rows only where its own forward passes need them.

A read of the value in another way pulls the whole value first: :class:`OnDemandParameter` has a ``_data`` that
completes itself.  The script may keep the arrays that it got, or write to them, so before the next step all workers
take the weight back, with the values that the arrays have then (:mod:`mxhybrid.kvstore.on_demand_switch`).
``save_parameters``, ``export`` and other calls that copy the value only pull it.
"""
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from mxnet.gluon.parameter import Parameter

from ..base.log import get_logger
from ..base.settings import variable
from ..native.arrays import host_view, write_rows
from ..native.trainers import has_sparse_gradient, is_fresh, is_row_sparse, place_on, trainer_of, updates_on_store
from ..routes import checks
from .hybrid import Hybrid

logger = get_logger(__name__)

_WATCH = '_mxhybrid_watch'

_NOTHING: Any = nullcontext()


class ValueWatch:
    """A record of the reads of one parameter's value; as a context manager it excludes the reads of this thread."""

    def __init__(self) -> None:
        #: Number of forward passes of ``nn.Embedding``, which know the rows beforehand.
        self.forwards = 0
        #: Whether anything else has read the value.
        self.read = False
        #: This worker's copy of the value while servers hold it.
        self.copy: Optional['WorkerCopy'] = None
        # The number of blocks of each thread in which its reads are excluded.
        self._uncounted: Dict[int, int] = Counter()

    def __reduce__(self) -> Tuple[Any, ...]:
        return ValueWatch, ()  # a copy of a parameter has arrays of its own, which were never read

    @property
    def uncounted(self) -> bool:
        """True if reads of this thread are excluded."""
        return self._uncounted[threading.get_ident()] > 0

    def __enter__(self) -> 'ValueWatch':
        self._uncounted[threading.get_ident()] += 1
        return self

    def __exit__(self, *_: Any) -> None:
        self._uncounted[threading.get_ident()] -= 1

    def note_move_to_worker(self) -> None:
        """Note that servers no longer hold the value, and count forward passes again."""
        self.copy, self.forwards = None, 0


def watch_of(param: Any) -> Optional[ValueWatch]:
    """Return the watch of a dense parameter with row_sparse gradients, None for any other parameter."""
    if not has_sparse_gradient(param) or is_row_sparse(param):
        return None
    return param.__dict__.setdefault(_WATCH, ValueWatch())


class OnDemandParameter(Parameter):
    """The class of a parameter while servers hold its value: a read pulls the missing rows first."""

    @property
    def _data(self) -> Any:
        watch = self.__dict__[_WATCH]
        if watch.copy is not None and not watch.uncounted:
            watch.read = True
            watch.copy.hand_out()
        return self.__dict__['_data']

    @_data.setter
    def _data(self, arrays: Any) -> None:
        self.__dict__['_data'] = arrays
        copy = self.__dict__[_WATCH].copy
        if copy is not None:
            copy.replaced()


class WorkerCopy:
    """Copy, on this worker, of a value that servers hold. It knows which rows are current, and pulls the other rows."""

    def __init__(self, trainer: Any, key: int):
        self.trainer = trainer
        self._key, self._param, self._store = key, trainer._params[key], trainer._kvstore
        self._route = self._store.backend.routes[key]
        self._lock = threading.RLock()
        self._current = self._all_current()
        #: Whether all workers are to take the weight back before the next step.
        self.leaves = False

    @property
    def arrays(self) -> List[Any]:
        """The arrays on this worker's devices, current or not."""
        return self._param.__dict__['_data']

    def _all_current(self) -> List[np.ndarray]:
        return [np.ones(self._route.rows, bool) for _ in self.arrays or ()]

    def replaced(self) -> None:
        """Note that the script has set all values on this worker; all workers take the weight back."""
        self._current = self._all_current()
        self.leaves = True

    def pushed(self) -> None:
        """Mark all rows as outdated: the servers have new values."""
        for current in self._current:
            current[:] = False

    def need(self, ids: Any) -> None:
        """Pull the rows for a forward pass with `ids`, an NDArray, to its device."""
        device = place_on(self._param, ids.context)
        if device is not None:
            # The operator itself refuses rows that do not exist.
            row_ids = checks.whole_ids('nn.Embedding', self._param.name, host_view(ids))
            rows = np.unique(np.clip(row_ids, 0, self._route.rows - 1))
            # Evaluation gets rows without staleness.
            with _NOTHING if mx.autograd.is_recording() else self._store.backend.fresh_pulls():
                self._get([device], rows)

    def complete(self) -> None:
        """Pull all rows that are not current."""
        with self._store.backend.fresh_pulls():
            for ids in self._route.chunks():
                rows = self._get(range(len(self._current)), ids)
                if rows is not None:
                    rows.wait_to_read()

    def hand_out(self) -> None:
        """Pull all rows for a script that may keep the arrays."""
        self.complete()
        if not self.leaves:
            self.leaves = True
            logger.warning('%s: its value was read by something other than nn.Embedding, so all its rows were pulled; '
                           'from the next step on all workers pull the rows that any worker touched. Set %s=0 to do '
                           'that always', self._route.name, variable('on_demand_rows'))

    def _get(self, devices: Iterable[int], ids: np.ndarray) -> Any:
        """Let the engine write the rows of `ids` that are not current on some device; return them, or None."""
        with self._lock:
            lacking = np.zeros(len(ids), bool)
            for device in devices:
                lacking |= ~self._current[device][ids]
            missing = ids[lacking]
            if not len(missing):
                return None
            rows = self._store.pull_on_demand(self._key, missing, -self._key)
            for device in devices:
                write_rows(self.arrays[device], missing, rows)
                # Rows that may lack pushes of other workers are good for one forward pass only.
                self._current[device][missing] = not self._route.server_table.lag
            return rows


# -- called by the hooks -----------------------------------------------------------------------------------------


@contextmanager
def uncounted_reads(trainer: Any) -> Iterator[None]:
    """Exclude reads of a Trainer's parameters, for calls of the Trainer itself."""
    with ExitStack() as stack:
        for watch in map(watch_of, trainer._params if trainer._contains_sparse_grad else ()):
            if watch is not None and (watch.copy is None or watch.copy.trainer is trainer):
                stack.enter_context(watch)
        yield


def forward(embedding: Any, ids: Any, trains: bool) -> Any:
    """Return a context manager around a forward pass of an ``nn.Embedding``; the rows of `ids` are pulled.

    If the embedding `trains` with a hybrid store, fractional ids are refused as soon as they can be seen, as they are
    when servers hold the weight.
    """
    watch = watch_of(embedding.weight)
    if watch is None or type(ids) is not mx.nd.NDArray or (
            type(embedding).hybrid_forward is not nn.Embedding.hybrid_forward):
        return _NOTHING
    watch.forwards += 1
    if watch.copy is not None:
        watch.copy.need(ids)
    elif trains and ids.context.device_type == 'cpu' and np.dtype(ids.dtype).kind == 'f':
        checks.whole_ids('nn.Embedding', embedding.weight.name, host_view(ids))
    return watch


def copied(param: Any) -> Any:
    """Return a context manager around a call that copies a parameter's value."""
    watch = watch_of(param)
    if watch is not None and watch.copy is not None:
        watch.copy.complete()
    return watch or _NOTHING


def replaced(param: Any) -> None:
    """Note that a call of :func:`unread` has overwritten the whole value of a parameter."""
    watch = watch_of(param)
    if watch is not None and watch.copy is not None:
        watch.copy.replaced()


def taken_over(param: Any, trainer: Any) -> None:
    """Note that a parameter gets a Trainer: a value that another Trainer has on servers returns to the worker."""
    watch = watch_of(param)
    if watch is None or watch.copy is None or watch.copy.trainer is trainer:
        return
    watch.copy.complete()
    watch.copy.leaves = True  # a further step of the former Trainer begins by taking the weight back
    param.__class__ = Parameter
    watch.note_move_to_worker()
    watch.read = False


def value_read(param: Any) -> None:
    """Note that the script gets the value of a parameter."""
    watch = watch_of(param)
    if watch is not None and not watch.uncounted:
        watch.read = True


def unread(param: Any) -> Any:
    """Return a context manager around a call that uses a parameter's arrays, but does not read their values."""
    return watch_of(param) or _NOTHING


def gradient_read(param: Any) -> Any:
    """Return a context manager around a read of a gradient: after a step it must be the sum over all workers.

    A read before the first step, or of a gradient fresh from backward, does not count: the gradient is this worker's,
    and a script that keeps it until after a step cannot be noticed.
    """
    watch = watch_of(param)
    if watch is None:
        return _NOTHING
    arrays, trainer = param.__dict__['_data'], trainer_of(param)
    # A Trainer that could not be made has no store, but its parameters know it.
    if watch.uncounted or not isinstance(getattr(trainer, '_kvstore', None), Hybrid) or updates_on_store(trainer):
        return watch
    if arrays and not any(map(is_fresh, arrays)):
        watch.read = True
        if watch.copy is not None and not watch.copy.leaves:
            watch.copy.leaves = True
            logger.warning('%s: its gradient was read after a step. It is the gradient of this worker only, since '
                           'servers have the sum; from the next step on it is the sum. Set %s=0 to have the sum always',
                           param.name, variable('on_demand_rows'))
    return watch
