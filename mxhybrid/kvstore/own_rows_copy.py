"""Own rows: a worker pulls what its next forward pass needs, not what anyone touched.

The weight of an ``nn.Embedding(sparse_grad=True)`` is dense, and anybody may read all of it at any time; so at first
every worker keeps a whole and current copy.  Most such weights are read by their embedding alone, which knows the
row ids beforehand.  Where that is so, the servers take weight and optimizer state (:mod:`mxhybrid.routes.own_rows`), a
worker's copy has current rows only where its forward passes ask for them, and each asks for its own.

Whoever reads the value in another way gets it whole, pulled for that: :class:`OwnRowsParameter` has a ``_data`` that
completes itself.  Who got arrays may keep them, or write to them, so before the next step all workers go back, with
what the arrays hold then (:mod:`mxhybrid.kvstore.own_rows_switch`).  ``save_parameters``, ``export`` and whatever
else copies the value only make the worker pull it.
"""
import threading
from contextlib import contextmanager, nullcontext
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
    """How the value of one parameter is used; as a context manager: reads by this thread that do not count."""

    def __init__(self) -> None:
        #: Forward passes of ``nn.Embedding``, which know the rows beforehand.
        self.forwards = 0
        #: Whether anything else read the value.
        self.read = False
        #: What this worker has of the value while servers hold it.
        self.copy: Optional['WorkerCopy'] = None
        self._uncounted: Dict[int, int] = {}

    def __reduce__(self) -> Tuple[Any, ...]:
        return ValueWatch, ()  # a copy of a parameter has arrays of its own, which nobody has read

    @property
    def uncounted(self) -> bool:
        """Whether a read by this thread does not count."""
        return threading.get_ident() in self._uncounted

    def __enter__(self) -> 'ValueWatch':
        me = threading.get_ident()
        self._uncounted[me] = self._uncounted.get(me, 0) + 1
        return self

    def __exit__(self, *_: Any) -> None:
        me = threading.get_ident()
        self._uncounted[me] -= 1
        if not self._uncounted[me]:
            del self._uncounted[me]

    def note_forward(self) -> None:
        """A forward pass of ``nn.Embedding`` reads the value."""
        self.forwards += 1

    def note_read(self) -> None:
        """Something else reads it."""
        self.read = True

    def held_by_servers(self, copy: 'WorkerCopy') -> None:
        """Servers hold the value from now on."""
        self.copy = copy

    def back_in_the_worker(self) -> None:
        """Servers hold it no more; forward passes count anew."""
        self.copy, self.forwards = None, 0

    def begin_anew(self) -> None:
        """As :meth:`back_in_the_worker`, and what was read does not count any more."""
        self.back_in_the_worker()
        self.read = False


def watch_of(param: Any) -> Optional[ValueWatch]:
    """The watch of a dense parameter with row_sparse gradients; None for any other."""
    if not has_sparse_gradient(param) or is_row_sparse(param):
        return None
    return param.__dict__.setdefault(_WATCH, ValueWatch())


class OwnRowsParameter(Parameter):
    """What the class of a parameter is while servers hold its value: reading it makes it whole first."""

    @property
    def _data(self) -> Any:
        watch = self.__dict__[_WATCH]
        if watch.copy is not None and not watch.uncounted:
            watch.note_read()
            watch.copy.hand_out()
        return self.__dict__['_data']

    @_data.setter
    def _data(self, arrays: Any) -> None:
        self.__dict__['_data'] = arrays
        copy = self.__dict__[_WATCH].copy
        if copy is not None:
            copy.replaced()


class WorkerCopy:
    """What this worker has of a parameter whose value servers hold: which rows are current, and how to get others."""

    def __init__(self, trainer: Any, key: int):
        self.trainer = trainer
        self._key, self._param, self._store = key, trainer._params[key], trainer._kvstore
        self._route = self._store.backend.routes[key]
        self._lock = threading.RLock()
        self._current = self._all_current()
        #: Whether all workers are to go back before the next step.
        self.leaves = False

    @property
    def arrays(self) -> List[Any]:
        """The worker's copies on its devices, as they are."""
        return self._param.__dict__['_data']

    def _all_current(self) -> List[np.ndarray]:
        return [np.ones(self._route.rows, bool) for _ in self.arrays or ()]

    def replaced(self) -> None:
        """New values came from this worker: they are what counts, and all workers go back."""
        self._current = self._all_current()
        self.leave()

    def leave(self) -> None:
        """Have all workers go back before the next step."""
        self.leaves = True

    def pushed(self) -> None:
        """The servers have new values."""
        for current in self._current:
            current[:] = False

    def need(self, ids: Any) -> None:
        """Get the rows for a forward pass with `ids`, an NDArray, on its device."""
        device = place_on(self._param, ids.context)
        if device is not None:
            # The operator refuses rows that do not exist.
            whole = checks.whole_ids('nn.Embedding', self._param.name, host_view(ids))
            rows = np.clip(np.unique(whole), 0, self._route.rows - 1)
            self._get([device], np.unique(rows))

    def complete(self) -> None:
        """Get all rows."""
        for ids in self._route.chunks():
            rows = self._get(range(len(self._current)), ids)
            if rows is not None:
                rows.wait_to_read()

    def come_home(self) -> None:
        """Get all rows, for good: the next step of the Trainer goes back to them, should it make any more."""
        self.complete()
        self.leave()

    def hand_out(self) -> None:
        """Get all rows for somebody who may keep the arrays."""
        self.complete()
        if not self.leaves:
            self.leave()
            logger.warning('%s: something else than nn.Embedding reads its value, so all its rows were pulled, and '
                           'from the next step on all workers pull the rows that anyone touched; %s=0 has them do so '
                           'always', self._route.name, variable('own_rows'))

    def _get(self, devices: Iterable[int], ids: np.ndarray) -> Any:
        """Have the engine write rows that are not current on any of the devices; returns them, if there are any."""
        with self._lock:
            lacking = np.zeros(len(ids), bool)
            for device in devices:
                lacking |= ~self._current[device][ids]
            missing = ids[lacking]
            if not len(missing):
                return None
            rows = self._store.pull_own(self._key, missing, -self._key)
            for device in devices:
                write_rows(self.arrays[device], missing, rows)
                self._current[device][missing] = True
            return rows


# -- called by the hooks -----------------------------------------------------------------------------------------


@contextmanager
def uncounted_reads(trainer: Any) -> Iterator[None]:
    """Reads by a Trainer of its own parameters do not count."""
    watches = [watch for watch in map(watch_of, trainer._params) if watch is not None
               and (watch.copy is None or watch.copy.trainer is trainer)]
    for watch in watches:
        watch.__enter__()
    try:
        yield
    finally:
        for watch in watches:
            watch.__exit__()


def forward(embedding: Any, ids: Any, trains: bool) -> Any:
    """A context manager around a forward pass of an ``nn.Embedding``, whose rows are there then.  Where it `trains`
    with a store of ours, it refuses fractional ids as soon as it can see them, as it does when servers have the weight.
    """
    watch = watch_of(embedding.weight)
    if watch is None or type(ids) is not mx.nd.NDArray or (
            type(embedding).hybrid_forward is not nn.Embedding.hybrid_forward):
        return _NOTHING
    watch.note_forward()
    if watch.copy is not None:
        watch.copy.need(ids)
    elif trains and ids.context.device_type == 'cpu' and np.dtype(ids.dtype).kind == 'f':
        checks.whole_ids('nn.Embedding', embedding.weight.name, host_view(ids))
    return watch


def copied(param: Any) -> Any:
    """A context manager around something that copies a parameter's value."""
    watch = watch_of(param)
    if watch is not None and watch.copy is not None:
        watch.copy.complete()
    return watch or _NOTHING


@contextmanager
def overwritten(param: Any) -> Iterator[None]:
    """Around something that overwrites the whole value of a parameter."""
    watch = watch_of(param)
    if watch is None:
        yield
        return
    with watch:
        yield
    if watch.copy is not None:
        watch.copy.replaced()


def taken_over(param: Any, trainer: Any) -> None:
    """A parameter gets a Trainer: what another one has on servers comes home, and counts wherever it trains next."""
    watch = watch_of(param)
    if watch is None or watch.copy is None or watch.copy.trainer is trainer:
        return
    watch.copy.come_home()
    param.__class__ = Parameter
    watch.begin_anew()


def value_read(param: Any) -> None:
    """The value of a parameter is handed out."""
    watch = watch_of(param)
    if watch is not None and not watch.uncounted:
        watch.note_read()


def unread(param: Any) -> Any:
    """A context manager around something that looks at a parameter's arrays, but not into them."""
    return watch_of(param) or _NOTHING


def gradient_read(param: Any) -> Any:
    """A context manager around handing out a gradient: after a step it must be the sum over all workers.

    One that is handed out before the first step, or fresh from backward, does not count: it is this worker's, and
    whether it is kept until after a step cannot be seen.
    """
    watch = watch_of(param)
    if watch is None:
        return _NOTHING
    arrays, trainer = param.__dict__['_data'], trainer_of(param)
    # One that could not be made has no store, but its parameters know it.
    if watch.uncounted or not isinstance(getattr(trainer, '_kvstore', None), Hybrid) or updates_on_store(trainer):
        return watch
    if arrays and not any(map(is_fresh, arrays)):
        watch.note_read()
        if watch.copy is not None and not watch.copy.leaves:
            watch.copy.leave()
            logger.warning('%s: its gradient is read after a step, and is this worker\'s alone, since servers have '
                           'the sum; from the next step on it is the sum, as always with %s=0', param.name,
                           variable('own_rows'))
    return watch
