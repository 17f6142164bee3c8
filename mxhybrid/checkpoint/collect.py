"""Collects weights, optimizer state and counters of a model and its Trainer, as arrays in pieces and JSON values.

========================================  ======================================  ==============================
values                                    place                                   in a job of one process
========================================  ======================================  ==============================
dense weights                             every worker, alike                     the worker
row_sparse weights, and their state       servers, or every worker                MXNet's store
dense weights that servers hold           servers (:mod:`mxhybrid.routes.on_demand_rows`)
optimizer state of dense weights          every worker, alike, or shards on all   the worker, or MXNet's store
split weights, and their state            shards on workers (:mod:`mxhybrid.checkpoint.split_weights`)
counters, rates, schedule                 the Trainer's optimizer, on every worker
========================================  ======================================  ==============================

Worker 0 reads all values, tables in pieces of :data:`PIECE_BYTES`; :mod:`mxhybrid.checkpoint.restore` restores them.
"""
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..kvstore.hybrid import Hybrid
from ..kvstore.trainer_tables import tables_split_off
from ..native import trainers
from ..native.arrays import host_view, row_reader
from ..native.optimizer_state import BOOKKEEPING, counts_of, state_arrays, was_updated
from ..native.optimizers import name_of
from .split_weights import Gathering

logger = get_logger(__name__)

#: Bytes of a table that are read at a time.
PIECE_BYTES = 8 << 20
#: Attributes of an optimizer that are not copied: they change in each step, are stored elsewhere, or belong to this
#: process.
_NOT_STORED = BOOKKEEPING | {'rescale_grad'}


class Item(NamedTuple):
    """A parameter of the model: its name in the structure of the model, and its number in the Trainer, if any."""

    name: str
    param: Any
    key: Optional[int]


class Array(NamedTuple):
    """An array to be stored; `pieces` yields its elements in C order."""

    name: str
    shape: Tuple[int, ...]
    dtype: np.dtype
    pieces: Callable[[], Iterator[np.ndarray]]


def items_of(net: Any, trainer: Any) -> List[Item]:
    """Return all parameters of `net`, shared ones once; InputError if the Trainer has a parameter that is not in it."""
    params = trainers.params_by_place(net)
    keys = {id(param): key for key, param in enumerate(trainers.params_of(trainer))}
    trained = trainers.params_of(trainer) + tables_split_off(trainer)
    items, seen = [], set()
    for name in sorted(params):
        param = params[name]
        if id(param) not in seen:
            seen.add(id(param))
            items.append(Item(name, param, keys.get(id(param))))
    missing = [param.name for param in trained if id(param) not in seen]
    if missing:
        raise InputError('the Trainer has %s, which the net does not have: pass a Block that holds all of them'
                         % ', '.join(missing))
    return items


def table_route(trainer: Any, item: Item) -> Any:
    """Return the route of a parameter whose weight and state are in a table, None if a worker has them."""
    store = trainers.store_of(trainer)
    if item.key is None or not isinstance(store, Hybrid) or not store.distributed:
        return None
    route: Any = store.backend.routes[item.key]
    return route if route.weight_in_table else None


def _in_pieces(shape: Tuple[int, ...], dtype: Any, read: Callable[[int, int], np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the rows of an array; ``read(first, last)`` returns those from `first` to before `last`."""
    step = max(1, PIECE_BYTES // max(1, row_width(shape) * np.dtype(dtype).itemsize))
    for first in range(0, shape[0], step):
        yield read(first, min(first + step, shape[0]))


def row_width(shape: Tuple[int, ...]) -> int:
    """Return the number of elements of a row."""
    return int(np.prod(shape[1:]))


def arrays(trainer: Any, items: List[Item], gathering: Gathering) -> Iterator[Array]:
    """Yield all weights and all optimizer state (worker 0 only, while the other workers take part in `gathering`)."""
    for name, whole, pieces in gathering.arrays:
        yield Array(name, whole.shape, whole.dtype, partial(iter, pieces))
    for item in items:
        if item.name not in gathering.counts:
            yield _weight(trainer, item)
        if item.name not in gathering.states:
            for slot, array in enumerate(_state(trainer, item) or []):
                yield array._replace(name='%s/state%d' % (item.name, slot))


def _weight(trainer: Any, item: Item) -> Array:
    param, route = item.param, table_route(trainer, item)
    shape, dtype = tuple(param.shape), np.dtype(param.dtype)

    def from_store(first: int, last: int) -> np.ndarray:
        ids = np.arange(first, last, dtype=np.int64)
        out = mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype, ctx=mx.cpu())
        trainers.store_of(trainer).row_sparse_pull(item.key, out=out, row_ids=mx.nd.from_numpy(ids))
        return row_reader(out)(ids)

    if route is not None:
        pieces: Callable[[], Iterator[np.ndarray]] = partial(_in_pieces, shape, dtype, route.read_weight)
    elif trainers.is_row_sparse(param) and item.key is not None and trainers.store_of(trainer) is not None:
        pieces = partial(_in_pieces, shape, dtype, from_store)
    else:
        pieces = partial(_pieces_of, trainers.arrays_of(param)[0])
    return Array(item.name + '/weight', shape, dtype, pieces)


def _pieces_of(array: Any) -> Iterator[np.ndarray]:
    if array.stype == 'default':
        yield host_view(array)
        return
    read_rows = row_reader(array)
    yield from _in_pieces(array.shape, array.dtype,
                          lambda first, last: read_rows(np.arange(first, last, dtype=np.int64)))


def _state(trainer: Any, item: Item) -> Optional[List[Array]]:
    """Return the optimizer state of a parameter, arrays without their names; None before the first update."""
    optimizer, route = trainer.optimizer, table_route(trainer, item)
    if route is None:
        states_here = trainers.updaters_of(trainer)[0].states
        if item.key not in states_here:
            return None
        arrays_of_state = []
        for array in state_arrays(states_here[item.key]):
            if not isinstance(array, mx.nd.NDArray):
                raise InputError('optimizer %r keeps a %s for %s: checkpoints hold arrays only: make it an NDArray'
                                 % (name_of(optimizer), type(array).__name__, item.name))
            arrays_of_state.append(Array('', tuple(array.shape), np.dtype(array.dtype), partial(_pieces_of, array)))
        return arrays_of_state
    # New values of the weight drop the state, but not the count.
    if not was_updated(optimizer, item.key) or not route.has_state:
        return None
    return [Array('', shape, route.dtype,
                  partial(_in_pieces, shape, route.dtype, partial(route.read_state, slot, row_width(shape))))
            for slot, shape in enumerate(route.state_shapes(route.state_maker()))]


def describe(trainer: Any, items: List[Item], tables: List[Item], gathering: Gathering) -> Dict[str, Any]:
    """Return all values that are not arrays, as JSON values (not collective); `tables` are the dynamic tables.

    'optimizer' and 'scheduler' have class name and scalars, 'num_update' is the optimizer's, 'loss_scaler' has the
    attributes of AMP's, if there is one, and 'parameters' has, by name, the number of updates, the multipliers, and the
    number of arrays of state, None before the first update.
    """
    optimizer = trainer.optimizer
    counts, parameters = counts_of(optimizer), {}
    states: Dict[str, Optional[List[Any]]] = {item.name: None for item in tables}  # it is with their rows
    states.update(gathering.states)
    for item in items + tables:
        state = states[item.name] if item.name in states else _state(trainer, item)
        parameters[item.name] = {'count': gathering.counts.get(item.name, counts.get(item.key)),
                                 'state': None if state is None else len(state),
                                 'lr_mult': float(item.param.lr_mult), 'wd_mult': float(item.param.wd_mult)}
    left_out = sorted(name for name, value in vars(optimizer).items()
                      if name not in _NOT_STORED and not is_scalar(value)
                      and not (isinstance(value, (dict, list, tuple, set)) and not value))
    if left_out:
        logger.warning('the checkpoint does not have the attributes %s of optimizer %r: resumed training may differ',
                       ', '.join(left_out), name_of(optimizer))
    scheduler, scaler = optimizer.lr_scheduler, trainers.loss_scaler_of(trainer)
    return {'optimizer': [name_of(optimizer), _plain_attributes(optimizer)],
            'num_update': gathering.num_update, 'begin_num_update': int(optimizer.begin_num_update),
            'scheduler': None if scheduler is None else [type(scheduler).__name__, _plain_attributes(scheduler)],
            'loss_scaler': None if scaler is None else _plain_attributes(scaler), 'parameters': parameters}


def is_scalar(value: Any) -> bool:
    """Return whether a value is a number, a string or None, or a list of them."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(element, (bool, int, float, str, np.generic, type(None))) for element in value)
    return isinstance(value, (bool, int, float, str, np.generic, type(None)))


def _plain_attributes(instance: Any) -> Dict[str, Any]:
    """Return the attributes of an object that are numbers, strings, or lists of them."""
    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(element) for element in value]
        return value.item() if isinstance(value, np.generic) else value
    return {name: plain(value) for name, value in getattr(instance, '__dict__', {}).items()
            if name not in _NOT_STORED and is_scalar(value)}
