"""Own rows: a worker pulls what its next forward pass needs, not what anyone touched.

The weight of an ``nn.Embedding(sparse_grad=True)`` is dense, and anybody may read all of it at any time; so at first
every worker keeps a whole and current copy.  Most such weights are read by their embedding alone, which knows the
row ids beforehand.  Where that is so, the servers take weight and optimizer state (:mod:`mxhybrid.serving`), a
worker's copy has current rows only where its forward passes ask for them, and each asks for its own.

Whoever reads the value in another way gets it whole, pulled for that: :class:`ServedParameter` has a ``_data`` that
completes itself.  Who got arrays may keep them, or write to them, so before the next step all workers go back, with
what the arrays hold then (:mod:`mxhybrid.switching`).  ``save_parameters``, ``export`` and whatever else copies the
value only make the worker pull it.
"""
import threading
from contextlib import contextmanager, nullcontext
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from mxnet.gluon.parameter import Parameter

from .arrays import host_view
from .log import get_logger
from .settings import variable
from .store import Hybrid

logger = get_logger(__name__)

_WATCH = '_mxhybrid_watch'

_NOTHING: Any = nullcontext()


class Watch:
    """How the value of one parameter is used; as a context manager: reads by this thread that do not count.

    Attributes
    ----------
    forwards : int
        Forward passes of ``nn.Embedding``, which know the rows beforehand.
    read : bool
        Whether anything else read the value.
    served : Served or None
        Set while servers hold the value.
    """

    def __init__(self) -> None:
        self.forwards = 0
        self.read = False
        self.served: Optional['Served'] = None
        self._quiet: Dict[int, int] = {}

    def __reduce__(self) -> Tuple[Any, ...]:
        return Watch, ()  # a copy of a parameter has arrays of its own, which nobody has read

    @property
    def quiet(self) -> bool:
        """Whether a read by this thread does not count."""
        return threading.get_ident() in self._quiet

    def __enter__(self) -> 'Watch':
        me = threading.get_ident()
        self._quiet[me] = self._quiet.get(me, 0) + 1
        return self

    def __exit__(self, *_: Any) -> None:
        me = threading.get_ident()
        self._quiet[me] -= 1
        if not self._quiet[me]:
            del self._quiet[me]


def watch_of(param: Any) -> Optional[Watch]:
    """The watch of a dense parameter with row_sparse gradients; None for any other."""
    if param._grad_stype != 'row_sparse' or param._stype != 'default':
        return None
    return param.__dict__.setdefault(_WATCH, Watch())


class ServedParameter(Parameter):
    """What the class of a parameter is while servers hold its value: reading it makes it whole first."""

    @property
    def _data(self) -> Any:
        watch = self.__dict__[_WATCH]
        if watch.served is not None and not watch.quiet:
            watch.read = True
            watch.served.hand_out()
        return self.__dict__['_data']

    @_data.setter
    def _data(self, arrays: Any) -> None:
        self.__dict__['_data'] = arrays
        served = self.__dict__[_WATCH].served
        if served is not None:
            served.replaced()


class Served:
    """A parameter whose value servers hold, and the rows of it that this worker has.

    Parameters
    ----------
    trainer : gluon.Trainer
    key : int
        Of the parameter in the Trainer.
    """

    def __init__(self, trainer: Any, key: int):
        self.trainer = trainer
        self._key, self._param, self._store = key, trainer._params[key], trainer._kvstore
        self._route = self._store.backend.routes[key]
        self._lock = threading.RLock()
        self._current = self._all_current()
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
        self.leaves = True

    def pushed(self) -> None:
        """The servers have new values."""
        for current in self._current:
            current[:] = False

    def need(self, ids: Any) -> None:
        """Get the rows for a forward pass with `ids`, an NDArray, on its device."""
        if ids.context in self._param._ctx_list:
            # The operator cuts fractions off; it refuses rows that do not exist.
            rows = np.clip(np.unique(host_view(ids).astype(np.int64)), 0, self._route.rows - 1)
            self._get([self._param._ctx_list.index(ids.context)], np.unique(rows))

    def complete(self) -> None:
        """Get all rows."""
        for ids in self._route.own.chunks():
            rows = self._get(range(len(self._current)), ids)
            if rows is not None:
                rows.wait_to_read()

    def hand_out(self) -> None:
        """Get all rows for somebody who may keep the arrays."""
        self.complete()
        if not self.leaves:
            self.leaves = True
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


def write_rows(array: Any, ids: np.ndarray, rows: Any) -> None:
    """Overwrite rows of a dense array, on any device, after all that the engine has yet to do with it."""
    with mx.autograd.pause():
        where = mx.nd.from_numpy(ids.reshape(1, -1)).as_in_context(array.context)
        values = rows.as_in_context(array.context)
        mx.nd._internal._scatter_set_nd(lhs=array, rhs=values, indices=where, shape=array.shape, out=array)


# -- called by the hooks -----------------------------------------------------------------------------------------


@contextmanager
def quiet(trainer: Any) -> Iterator[None]:
    """Reads by a Trainer of its own parameters do not count."""
    watches = [watch for watch in map(watch_of, trainer._params) if watch is not None
               and (watch.served is None or watch.served.trainer is trainer)]
    for watch in watches:
        watch.__enter__()
    try:
        yield
    finally:
        for watch in watches:
            watch.__exit__()


def forward(embedding: Any, ids: Any) -> Any:
    """A context manager around a forward pass of an ``nn.Embedding``, whose rows are there then."""
    watch = watch_of(embedding.weight)
    if watch is None or type(ids) is not mx.nd.NDArray or (
            type(embedding).hybrid_forward is not nn.Embedding.hybrid_forward):
        return _NOTHING
    watch.forwards += 1
    if watch.served is not None:
        watch.served.need(ids)
    return watch


def copied(param: Any) -> Any:
    """A context manager around something that copies a parameter's value."""
    watch = watch_of(param)
    if watch is not None and watch.served is not None:
        watch.served.complete()
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
    if watch.served is not None:
        watch.served.replaced()


def value_read(param: Any) -> None:
    """The value of a parameter is handed out."""
    watch = watch_of(param)
    if watch is not None and not watch.quiet:
        watch.read = True


def unread(param: Any) -> Any:
    """A context manager around something that looks at a parameter's arrays, but not into them."""
    return watch_of(param) or _NOTHING


def gradient(param: Any) -> Any:
    """A context manager around handing out a gradient: after a step it must be the sum over all workers.

    One that is handed out before the first step, or fresh from backward, does not count: it is this worker's, and
    whether it is kept until after a step cannot be seen.
    """
    watch = watch_of(param)
    if watch is None:
        return _NOTHING
    arrays, trainer = param.__dict__['_data'], param._trainer
    if watch.quiet or trainer is None or trainer._update_on_kvstore or not isinstance(trainer._kvstore, Hybrid):
        return watch
    if arrays and not any(array._fresh_grad for array in arrays):
        watch.read = True
        if watch.served is not None and not watch.served.leaves:
            watch.served.leaves = True
            logger.warning('%s: its gradient is read after a step, and is this worker\'s alone, since servers have '
                           'the sum; from the next step on it is the sum, as always with %s=0', param.name,
                           variable('own_rows'))
    return watch
