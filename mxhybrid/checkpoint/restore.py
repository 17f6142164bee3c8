"""Restores the weights and the state that :mod:`mxhybrid.checkpoint.collect` has collected.

All workers call :func:`put`; worker 0 provides the values.  Tables are restored in pieces.  Dense weights and their
state, of which every worker holds a copy anyway, are restored one array at a time.
"""
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import CheckpointError
from ..base.log import get_logger, speaks_for_all
from ..kvstore.on_demand_copy import uncounted_reads
from ..kvstore.trainer_step import hooks_of
from ..kvstore.weight_shards import shard_of
from ..native import trainers
from ..native.arrays import allocate_rows, host_view
from ..native.optimizer_state import drop_state, maker_of, put_state, set_counts, state_arrays
from ..native.optimizers import name_of
from . import collect
from .collect import Item, is_scalar, row_width, table_route
from .split_weights import WholeArray, misfit_of_state, put_states, put_weight
from .workers import start_training

logger = get_logger(__name__)


class Source:
    """Reads stored arrays on worker 0; after a failure it returns zeros, so that the workers stay in step.

    ``read(name, start, stop)`` returns elements of an array, flat.  It is None on the other workers, which receive
    the elements.
    """

    def __init__(self, read: Optional[Callable[[str, int, int], np.ndarray]]):
        self._read = read
        self.problem = ''

    def read(self, name: str, start: int, stop: int, dtype: Any) -> np.ndarray:
        """Return elements ``start:stop`` of an array."""
        if self._read is not None and not self.problem:
            try:
                return self._read(name, start, stop).astype(dtype, copy=False)
            except (CheckpointError, OSError, MemoryError) as error:
                self.problem = str(error) or type(error).__name__
        return np.zeros(stop - start, dtype)

    def fail(self, problem: str) -> None:
        """Note a failure after a part was restored."""
        self.problem = self.problem or problem

    def fill(self, view: np.ndarray, name: str) -> None:
        """Overwrite a contiguous array on worker 0; do nothing on other workers."""
        if self._read is None:
            return
        flat = view.reshape(-1)
        step = max(1, collect.PIECE_BYTES // flat.itemsize)
        for first in range(0, len(flat), step):
            last = min(first + step, len(flat))
            flat[first:last] = self.read(name, first, last, flat.dtype)


def misfit(trainer: Any, items: List[Item], tables: List[Item], described: Any, stored: Dict[str, Any]) -> str:
    """Return why a checkpoint does not fit the model and its Trainer, '' if it fits.

    `described` is the result of :func:`~mxhybrid.checkpoint.collect.describe`, but may be damaged.  `stored` has shape
    and dtype of the arrays by name, ``{'shape': [...], 'dtype': '...'}``.  Only the names of dynamic `tables` are
    compared here, see :func:`~mxhybrid.checkpoint.dynamic_tables.misfit_of_tables`.
    """
    if not _is_sound(described):
        return 'its description of the Trainer is not what this version writes'
    stored_names, names = set(described['parameters']), {item.name for item in items + tables}
    if stored_names != names:
        return 'it has parameters %s, the net has %s instead' % (_some(stored_names - names),
                                                                 _some(names - stored_names))
    for item in items:
        entry, shape, dtype = stored.get(item.name + '/weight'), _shape(item.param), np.dtype(item.param.dtype).name
        if entry is None:
            return 'it has no values of %s' % item.name
        if entry['dtype'] != dtype:
            return '%s is %s in the checkpoint, %s in the net' % (item.name, entry['dtype'], dtype)
        if shape is not None and (len(shape) != len(entry['shape']) or
                                  any(known not in (0, -1, size) for known, size in zip(shape, entry['shape']))):
            return '%s has shape %s in the checkpoint, %s in the net' % (item.name, tuple(entry['shape']),
                                                                         tuple(shape))
        if not trainers.has_values(item.param) and not trainers.awaits_shape(item.param):
            return '%s has not been initialised: call net.initialize() before load' % item.name
        slots = described['parameters'][item.name]['state'] or 0
        if any('%s/state%d' % (item.name, slot) not in stored for slot in range(slots)):
            return 'it lacks optimizer state of %s' % item.name
    if described['optimizer'][0] != name_of(trainer.optimizer):
        return 'it was written with optimizer %r, the Trainer has %r' % (described['optimizer'][0],
                                                                          name_of(trainer.optimizer))
    return ''


def _shape(param: Any) -> Any:
    """Return the shape of the whole weight; zeros stand for dimensions that are not known yet."""
    shard = shard_of(param)
    return param.shape if shard is None else shard.whole_shape


def _is_sound(described: Any) -> bool:
    def count(value: Any) -> bool:
        return value is None or isinstance(value, int)

    def has_attributes(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)

    return (isinstance(described, dict) and has_attributes(described.get('optimizer'))
            and isinstance(described.get('num_update'), int) and isinstance(described.get('begin_num_update'), int)
            and (described.get('scheduler') is None or has_attributes(described['scheduler']))
            and isinstance(described.get('loss_scaler') or {}, dict) and isinstance(described.get('parameters'), dict)
            and all(isinstance(entry, dict) and count(entry.get('count')) and count(entry.get('state'))
                    and all(isinstance(entry.get(name), (int, float)) for name in ('lr_mult', 'wd_mult'))
                    for entry in described['parameters'].values()))


def _some(names: Any) -> str:
    return ', '.join(sorted(names)[:5]) + (', …' if len(names) > 5 else '') if names else 'none'


def put(trainer: Any, items: List[Item], tables: List[Item], described: Dict[str, Any], stored: Dict[str, Any],
        source: Source, workers: Any) -> None:
    """Restore weights, optimizer state and counters, of dynamic `tables` counters only (collective).

    All workers give the same arguments, except `source`: worker 0's has the values.  CheckpointError on all workers if
    the stored state is not of the kind that the optimizer keeps.
    """
    trainer_hooks = hooks_of(trainer)
    if trainer_hooks is not None:
        trainer_hooks.move_weights_to_workers()
        trainer_hooks.release_arrays()
    for item in items:
        if shard_of(item.param) is None:
            _put_weight(item, stored, source, workers)
        else:
            shape = tuple(stored[item.name + '/weight']['shape'])
            put_weight(item, shape, _adjacent(source, item.name + '/weight', shape, item.param.dtype))
    start_training(trainer)
    _put_scalars(trainer, items + tables, described)
    split: List[Tuple[Item, Optional[Dict[str, WholeArray]]]] = []
    sharding = None if trainer_hooks is None else trainer_hooks.sharding
    if sharding is not None:
        sharding.prepare([item.key for item in items if item.key is not None and item.param.grad_req != 'null'])
    for item in items:
        if item.key is not None:
            state = _stored_state(item, described, stored)
            if shard_of(item.param) is not None:
                split.append((item, state))
            elif table_route(trainer, item) is None:
                _put_state(trainer, item, state, source, workers)
                if sharding is not None:
                    sharding.note_whole_states([item.key])
            else:
                _put_table(trainer, item, state, stored, source)
    put_states(trainer, split, lambda name, whole: _adjacent(source, name, whole.shape, whole.dtype), workers)


def _stored_state(item: Item, described: Dict[str, Any], stored: Dict[str, Any]) -> Optional[Dict[str, WholeArray]]:
    """Return the arrays of an item's state by name, None for no state."""
    count = described['parameters'][item.name]['state']
    names = ['%s/state%d' % (item.name, slot) for slot in range(count or 0)]
    return None if count is None else {
        name: WholeArray(tuple(stored[name]['shape']), np.dtype(stored[name]['dtype'])) for name in names}


def _adjacent(source: Source, name: str, shape: Tuple[int, ...], dtype: Any) -> Callable[[int, int], np.ndarray]:
    """Return a function that reads the rows of a stored array, from the first to before the last."""
    width = row_width(shape)
    return lambda first, last: source.read(name, first * width, last * width, dtype).reshape(
        (last - first,) + tuple(shape[1:]))


def _put_weight(item: Item, stored: Dict[str, Any], source: Source, workers: Any) -> None:
    """Set a weight before the store is made; tables of several workers are filled later."""
    param, name = item.param, item.name + '/weight'
    shape, dtype = tuple(stored[name]['shape']), np.dtype(param.dtype)
    if not trainers.is_row_sparse(param) or item.key is None:
        array = mx.nd.zeros(shape, dtype=dtype, ctx=mx.cpu())
        source.fill(host_view(array), name)
        workers.broadcast(array, 'checkpoint.weight')
        if trainers.is_row_sparse(param):
            array = array.tostype('row_sparse')
        elif mx.util.is_np_array():
            array = array.as_np_ndarray()
    elif workers.together:
        param.shape = shape
        trainers.initialise_now(param)
        return
    else:
        array, rows = allocate_rows(np.arange(shape[0], dtype=np.int64), shape, dtype)
        source.fill(rows, name)
    param.set_data(array)
    trainers.initialise_now(param)


def _put_scalars(trainer: Any, items: List[Item], described: Dict[str, Any]) -> None:
    optimizer, changed = trainer.optimizer, []
    changed += _set_scalars(optimizer, described['optimizer'][1], 'optimizer')
    optimizer.num_update, optimizer.begin_num_update = described['num_update'], described['begin_num_update']
    counts = {item.key: described['parameters'][item.name]['count'] for item in items
              if item.key is not None and described['parameters'][item.name]['count'] is not None}
    set_counts(optimizer, counts, trainers.device_numbers(trainer))
    for item in items:
        item.param.lr_mult = described['parameters'][item.name]['lr_mult']
        item.param.wd_mult = described['parameters'][item.name]['wd_mult']
    scheduler, stored_scheduler = optimizer.lr_scheduler, described.get('scheduler')
    if (stored_scheduler and stored_scheduler[0]) != (scheduler and type(scheduler).__name__):
        if speaks_for_all():
            logger.warning('the checkpoint was written with lr_scheduler %s, the Trainer has %s, which starts at '
                           'update %d', stored_scheduler and stored_scheduler[0],
                           scheduler and type(scheduler).__name__, optimizer.num_update)
    elif stored_scheduler:
        changed += _set_scalars(scheduler, stored_scheduler[1], 'lr_scheduler')
    scaler = trainers.loss_scaler_of(trainer)
    if scaler is not None and described.get('loss_scaler'):
        _set_scalars(scaler, described['loss_scaler'], 'loss scaler')
    if changed and speaks_for_all():
        logger.info('the checkpoint, not the script, decides: %s; to change these values, set them after load',
                    ', '.join(changed))


def _set_scalars(instance: Any, values: Dict[str, Any], label: str) -> List[str]:
    """Set the attributes that an object has; return a description of each that changed."""
    changed = []
    for name, value in values.items():
        if name in vars(instance) and is_scalar(vars(instance)[name]):
            old = vars(instance)[name]
            if isinstance(old, tuple) and isinstance(value, list):
                value = tuple(value)
            if old != value and not (old != old and value != value):
                changed.append('%s.%s %s (was %s)' % (label, name, value, old))
            setattr(instance, name, value)
    return changed


def _maker(item: Item, optimizer: Any, state: Dict[str, WholeArray],
           shapes_by: Callable[[Any], List[Tuple[int, ...]]]) -> Any:
    """Return the optimizer that makes state of the stored shapes, see `maker_of`; CheckpointError if none does."""
    stored_shapes = [whole.shape for whole in state.values()]
    maker = maker_of(stored_shapes, optimizer, shapes_by)
    shapes = shapes_by(maker)
    if shapes != stored_shapes:
        raise CheckpointError(misfit_of_state(optimizer, item.name, stored_shapes, shapes))
    return maker


def _put_table(trainer: Any, item: Item, state: Optional[Dict[str, WholeArray]], stored: Dict[str, Any],
               source: Source) -> None:
    """Fill a table with rows and state (collective)."""
    route, optimizer = table_route(trainer, item), trainer.optimizer
    route.forget_optimizer()
    table_width = row_width(stored[item.name + '/weight']['shape'])
    route.write_weight(_rows(source, item.name + '/weight', table_width, table_width, route.dtype))
    if state is None:
        return
    maker = _maker(item, optimizer, state, route.state_shapes)
    route.write_state(maker, optimizer, [_rows(source, name, row_width(whole.shape), table_width, route.dtype)
                                         for name, whole in state.items()])


def _rows(source: Source, name: str, width: int, table_width: int, dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that reads adjacent rows of a stored array by ids, padded to the width of its table."""
    read = _adjacent(source, name, (0, width), dtype)

    def values(ids: np.ndarray) -> np.ndarray:
        rows = read(int(ids[0]), int(ids[-1]) + 1)
        return rows if width == table_width else np.pad(rows, ((0, 0), (0, table_width - width)))
    return values


def _put_state(trainer: Any, item: Item, state: Optional[Dict[str, WholeArray]], source: Source,
               workers: Any) -> None:
    """Give every worker the state of a parameter that it updates itself (collective)."""
    updaters = trainers.updaters_of(trainer)
    for updater in updaters:
        drop_state(updater, item.key)
    if state is None:
        return
    with uncounted_reads(trainer):
        weights = trainers.arrays_of(item.param)

    def shapes_by(maker: Any) -> List[Tuple[int, ...]]:
        return [tuple(array.shape) for array in state_arrays(maker.create_state_multi_precision(item.key, weights[0]))]

    maker = _maker(item, trainer.optimizer, state, shapes_by)
    templates = [maker.create_state_multi_precision(item.key, weight) for _, weight in zip(updaters, weights)]
    arrays: List[List[Any]] = [[] for _ in templates]
    for slot, (name, like) in enumerate(zip(state, state_arrays(templates[0]))):
        value, view = _empty_like(like)
        source.fill(view, name)
        if value.stype == 'default':
            workers.broadcast(value, 'checkpoint.state')
        for template, copies in zip(templates, arrays):
            copies.append(value.copyto(state_arrays(template)[slot].context))
    for updater, template, copies in zip(updaters, templates, arrays):
        put_state(updater, item.key, template, copies)


def _empty_like(array: Any) -> Tuple[Any, np.ndarray]:
    """Return an array on the host of the same shape and kind, with all rows stored, and a view of its elements."""
    if array.stype == 'default':
        empty = mx.nd.zeros(array.shape, dtype=array.dtype, ctx=mx.cpu())
        return empty, host_view(empty)
    return allocate_rows(np.arange(array.shape[0], dtype=np.int64), array.shape, array.dtype)
