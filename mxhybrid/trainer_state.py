"""What a model and its Trainer have learned, wherever it lives, as arrays in pieces and JSON values.

========================================  ======================================  ==============================
what                                      where it lives                          in a job of one process
========================================  ======================================  ==============================
dense weights                             every worker, alike                     the worker
row_sparse weights, and their state       servers, or every worker                MXNet's store
dense weights that servers hold           servers (:mod:`mxhybrid.serving`)
optimizer state of dense weights          every worker, alike                     the worker, or MXNet's store
counters, rates, schedule                 the Trainer's optimizer, on every worker
========================================  ======================================  ==============================

Worker 0 reads all of it, tables in pieces of :data:`PIECE_BYTES`; :mod:`mxhybrid.trainer_restore` puts it back.
"""
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from . import states
from .arrays import host_view, row_sparse_parts
from .distributed import Distributed
from .errors import InputError
from .log import get_logger
from .optimizers import name_of, state_arrays
from .routes import rows_of
from .store import Hybrid

logger = get_logger(__name__)

#: Bytes of a table that are read at a time.
PIECE_BYTES = 8 << 20

#: Attributes of an optimizer that are not copied as they are: per step, stored apart, or this process's own.
_NOT_STORED = frozenset(['aggregate_num', 'rescale_grad', 'num_update', 'begin_num_update', 'lr_scheduler',
                         'param_dict', 'idx2name', 'sym_info', 'lr_mult', 'wd_mult', '_index_update_count',
                         '_all_index_update_counts'])


class Item(NamedTuple):
    """One parameter of the model: its name in the model's structure, and its number in the Trainer if it has one."""

    name: str
    param: Any
    key: Optional[int]


class Array(NamedTuple):
    """An array to be stored; `pieces` gives its elements in C order."""

    name: str
    shape: Tuple[int, ...]
    dtype: np.dtype
    pieces: Callable[[], Iterator[np.ndarray]]


def items_of(net: Any, trainer: Any) -> List[Item]:
    """All parameters of `net`, shared ones once.

    Raises
    ------
    InputError
        The Trainer has a parameter that is not in `net`.
    """
    params = net._collect_params_with_prefix() if hasattr(net, '_collect_params_with_prefix') else dict(net.items())
    keys = {id(param): key for key, param in enumerate(trainer._params)}
    items, seen = [], set()
    for name in sorted(params):
        param = params[name]
        if id(param) not in seen:
            seen.add(id(param))
            items.append(Item(name, param, keys.get(id(param))))
    missing = [param.name for param in trainer._params if id(param) not in seen]
    if missing:
        raise InputError('the Trainer has %s, which the net does not have: pass a Block that holds all of them'
                         % ', '.join(missing))
    return items


def start(trainer: Any) -> None:
    """Create the Trainer's store and initialise its parameters there, as the first step would."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()


def table_of(trainer: Any, item: Item) -> Any:
    """The table that holds weight and optimizer state of a parameter; None where a worker does."""
    store = trainer._kvstore
    if item.key is None or not isinstance(store, Hybrid) or not isinstance(store.backend, Distributed):
        return None
    route: Any = store.backend.routes[item.key]
    if route.sparse:
        return route.table
    return None if route.own is None else route.own.table


def updaters_of(trainer: Any) -> List[Any]:
    """What updates in this process: one for the store, or one for each device."""
    if trainer._kvstore is not None and trainer._update_on_kvstore:
        return [trainer._kvstore._updater]
    return trainer._updaters


def own_arrays(param: Any) -> List[Any]:
    """A parameter's arrays on this worker's devices."""
    return param._check_and_get(param._data, list)


def _row_pieces(rows: int, width: int, itemsize: int) -> Iterator[Tuple[int, int]]:
    step = max(1, PIECE_BYTES // max(1, width * itemsize))
    for first in range(0, rows, step):
        yield first, min(first + step, rows)


def row_width(shape: Tuple[int, ...]) -> int:
    """Elements of a row."""
    return int(np.prod(shape[1:]))


# -- reading -----------------------------------------------------------------------------------------------------


def arrays(trainer: Any, items: List[Item]) -> Iterator[Array]:
    """All weights and all optimizer state (worker 0 only, not collective)."""
    for item in items:
        yield _weight(trainer, item)
        for slot, array in enumerate(_state(trainer, item) or []):
            yield array._replace(name='%s/state%d' % (item.name, slot))


def _weight(trainer: Any, item: Item) -> Array:
    param, table = item.param, table_of(trainer, item)
    shape, dtype = tuple(param.shape), np.dtype(param.dtype)

    def from_table() -> Iterator[np.ndarray]:
        for first, last in _row_pieces(shape[0], row_width(shape), dtype.itemsize):
            rows = np.empty((last - first, row_width(shape)), dtype)
            table.pull_aside(np.arange(first, last, dtype=np.int64), rows)
            yield rows

    def from_store() -> Iterator[np.ndarray]:
        for first, last in _row_pieces(shape[0], row_width(shape), dtype.itemsize):
            ids = np.arange(first, last, dtype=np.int64)
            out = mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype)
            trainer._kvstore.row_sparse_pull(item.key, out=out, row_ids=mx.nd.from_numpy(ids))
            yield _dense_rows(out, first, last)

    def from_worker() -> Iterator[np.ndarray]:
        yield from _pieces_of(own_arrays(param)[0])

    if table is not None:
        pieces = from_table
    elif param._stype == 'row_sparse' and item.key is not None and trainer._kvstore is not None:
        pieces = from_store
    else:
        pieces = from_worker
    return Array(item.name + '/weight', shape, dtype, pieces)


def _dense_rows(array: Any, first: int, last: int) -> np.ndarray:
    held, stored = row_sparse_parts(array)
    rows = np.zeros((last - first, stored.shape[1]), stored.dtype)
    inside = (held >= first) & (held < last)
    rows[held[inside] - first] = stored[inside]
    return rows


def _pieces_of(array: Any) -> Iterator[np.ndarray]:
    if array.stype == 'default':
        yield host_view(array)
        return
    give = rows_of(array)
    for first, last in _row_pieces(array.shape[0], row_width(array.shape), np.dtype(array.dtype).itemsize):
        yield give(np.arange(first, last, dtype=np.int64))


def _state(trainer: Any, item: Item) -> Optional[List[Array]]:
    """Optimizer state of a parameter, arrays without their names; None before its first update."""
    optimizer, table = trainer._optimizer, table_of(trainer, item)
    if table is None:
        states_here = updaters_of(trainer)[0].states
        if item.key not in states_here:
            return None
        found = []
        for array in state_arrays(states_here[item.key]):
            if not isinstance(array, mx.nd.NDArray):
                raise InputError('optimizer %r keeps a %s for %s: checkpoints hold arrays only'
                                 % (name_of(optimizer), type(array).__name__, item.name))
            found.append(Array('', tuple(array.shape), np.dtype(array.dtype), _later(_pieces_of, array)))
        return found
    # New values for the weights drop the state, but not the count.
    if item.key not in optimizer._index_update_count or not table.has_optimizer:
        return None
    return [Array('', shape, table.dtype, _later(_table_state, table, slot, shape))
            for slot, shape in enumerate(table_state_shapes(trainer, item))]


def _later(pieces: Callable[..., Iterator[np.ndarray]], *arguments: Any) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: pieces(*arguments)


def _table_state(table: Any, slot: int, shape: Tuple[int, ...]) -> Iterator[np.ndarray]:
    for first, last in _row_pieces(shape[0], row_width(shape), table.dtype.itemsize):
        yield table.read_rows(slot, row_width(shape), first, last)


def table_state_shapes(trainer: Any, item: Item) -> List[Tuple[int, ...]]:
    """Shapes of the arrays of optimizer state of a parameter in a table."""
    route = trainer._kvstore.backend.routes[item.key]
    return [(route.rows, width) if width != route.width else route.shape
            for width in states.slot_widths(route, trainer._optimizer)]


def describe(trainer: Any, items: List[Item]) -> Dict[str, Any]:
    """Everything besides arrays, as JSON values (not collective).

    Returns
    -------
    dict
        'optimizer' and 'scheduler': class name and scalars; 'num_update'; 'loss_scaler': AMP's, if there is one;
        'parameters': by name, updates made, multipliers, and how many arrays of state there are, None before the
        first update.
    """
    optimizer = trainer._optimizer
    counts: Dict[Any, int] = {}
    for device in optimizer._all_index_update_counts.values():
        for key, count in device.items():
            counts[key] = max(count, counts.get(key, 0))
    parameters = {}
    for item in items:
        found = _state(trainer, item)
        parameters[item.name] = {'count': counts.get(item.key), 'state': None if found is None else len(found),
                                 'lr_mult': float(item.param.lr_mult), 'wd_mult': float(item.param.wd_mult)}
    left_out = sorted(name for name, value in vars(optimizer).items()
                      if name not in _NOT_STORED and not is_scalar(value)
                      and not (isinstance(value, (dict, list, tuple, set)) and not value))
    if left_out:
        logger.warning('the checkpoint lacks what optimizer %r keeps in %s: training that is resumed may differ',
                       name_of(optimizer), ', '.join(left_out))
    scheduler, scaler = optimizer.lr_scheduler, getattr(trainer, '_amp_loss_scaler', None)
    return {'optimizer': [name_of(optimizer), _scalars(optimizer)],
            'num_update': int(optimizer.num_update), 'begin_num_update': int(optimizer.begin_num_update),
            'scheduler': None if scheduler is None else [type(scheduler).__name__, _scalars(scheduler)],
            'loss_scaler': None if scaler is None else _scalars(scaler), 'parameters': parameters}


def is_scalar(value: Any) -> bool:
    """Whether a value is a number, a string or None, or a list of them."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(one, (bool, int, float, str, np.generic, type(None))) for one in value)
    return isinstance(value, (bool, int, float, str, np.generic, type(None)))


def _scalars(thing: Any) -> Dict[str, Any]:
    """Attributes of an object that are numbers, strings, or lists of them."""
    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return value.item() if isinstance(value, np.generic) else value
    return {name: plain(value) for name, value in getattr(thing, '__dict__', {}).items()
            if name not in _NOT_STORED and is_scalar(value)}
