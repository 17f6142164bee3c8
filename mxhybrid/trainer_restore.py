"""Puts back what a model and its Trainer have learned, as :mod:`mxhybrid.trainer_state` read it.

All workers call :func:`put`; worker 0 gives the values.  Tables pass through in pieces, dense weights and their state,
of which every worker holds a copy anyway, one array at a time.
"""
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from . import own_rows, switching, trainer_state
from .arrays import allocate_rows, host_view
from .errors import CheckpointError
from .log import get_logger
from .optimizers import name_of, replace_arrays, state_arrays
from .trainer_state import Item, is_scalar, own_arrays, row_width, start, table_of, table_state_shapes, updaters_of

logger = get_logger(__name__)


class Source:
    """Gives stored arrays on worker 0; after a failure it gives zeros, so that the workers stay in step.

    Parameters
    ----------
    read : callable or None
        ``read(name, start, stop)`` gives elements of an array, flat; None on the other workers, which get them.
    """

    def __init__(self, read: Optional[Callable[[str, int, int], np.ndarray]]):
        self._read = read
        self.problem = ''

    def read(self, name: str, start: int, stop: int, dtype: Any) -> np.ndarray:
        """Elements ``start:stop`` of an array."""
        if self._read is not None and not self.problem:
            try:
                return self._read(name, start, stop).astype(dtype, copy=False)
            except (CheckpointError, OSError, MemoryError) as error:
                self.problem = str(error) or type(error).__name__
        return np.zeros(stop - start, dtype)

    def fill(self, view: np.ndarray, name: str) -> None:
        """Overwrite a contiguous array; a no-op on the other workers."""
        if self._read is None:
            return
        flat = view.reshape(-1)
        step = max(1, trainer_state.PIECE_BYTES // flat.itemsize)
        for first in range(0, len(flat), step):
            last = min(first + step, len(flat))
            flat[first:last] = self.read(name, first, last, flat.dtype)


def misfit(trainer: Any, items: List[Item], about: Any, stored: Dict[str, Any]) -> str:
    """Why a checkpoint is of another model or Trainer; empty if it fits.

    Parameters
    ----------
    about : dict
        Of :func:`describe`, if it is sound.
    stored : dict
        Shape and dtype of the stored arrays by name, ``{'shape': [...], 'dtype': '...'}``.
    """
    if not _is_sound(about):
        return 'its description of the Trainer is not what this version writes'
    there, here = set(about['parameters']), {item.name for item in items}
    if there != here:
        return 'it has parameters %s, the net has %s instead' % (_some(there - here), _some(here - there))
    for item in items:
        found, shape, dtype = stored.get(item.name + '/weight'), item.param.shape, np.dtype(item.param.dtype).name
        if found is None:
            return 'it has no values of %s' % item.name
        if found['dtype'] != dtype:
            return '%s is %s there, %s in the net' % (item.name, found['dtype'], dtype)
        if shape is not None and (len(shape) != len(found['shape']) or
                                  any(known not in (0, -1, size) for known, size in zip(shape, found['shape']))):
            return '%s has shape %s there, %s in the net' % (item.name, tuple(found['shape']), tuple(shape))
        if item.param._data is None and not item.param._deferred_init:
            return '%s has not been initialised: call net.initialize() before load' % item.name
        slots = about['parameters'][item.name]['state'] or 0
        if any('%s/state%d' % (item.name, slot) not in stored for slot in range(slots)):
            return 'it lacks optimizer state of %s' % item.name
    if about['optimizer'][0] != name_of(trainer._optimizer):
        return 'it was written with optimizer %r, the Trainer has %r' % (about['optimizer'][0],
                                                                          name_of(trainer._optimizer))
    return ''


def _is_sound(about: Any) -> bool:
    def count(value: Any) -> bool:
        return value is None or isinstance(value, int)

    def described(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)

    return (isinstance(about, dict) and described(about.get('optimizer'))
            and isinstance(about.get('num_update'), int) and isinstance(about.get('begin_num_update'), int)
            and (about.get('scheduler') is None or described(about['scheduler']))
            and isinstance(about.get('loss_scaler') or {}, dict) and isinstance(about.get('parameters'), dict)
            and all(isinstance(one, dict) and count(one.get('count')) and count(one.get('state'))
                    and all(isinstance(one.get(name), (int, float)) for name in ('lr_mult', 'wd_mult'))
                    for one in about['parameters'].values()))


def _some(names: Any) -> str:
    return ', '.join(sorted(names)[:5]) + (', …' if len(names) > 5 else '') if names else 'none'


def put(trainer: Any, items: List[Item], about: Dict[str, Any], stored: Dict[str, Any], source: Source,
        spread: Callable[[Any, str], None], together: bool) -> None:
    """Put weights, optimizer state and counters back (collective), all workers with the same arguments but `source`.

    Parameters
    ----------
    about, stored
        As for :func:`misfit`.
    source : Source
        Of worker 0; what the others pass is not asked.
    spread : callable
        Overwrites a dense array with worker 0's.
    together : bool
        Whether there are several workers.

    Raises
    ------
    CheckpointError
        On all workers: stored optimizer state is not what the optimizer keeps.
    """
    switch = switching.switch_of(trainer)
    if switch is not None:
        switch.go_back()
    for item in items:
        _put_weight(item, stored, source, spread, together)
    start(trainer)
    _put_scalars(trainer, items, about)
    for item in items:
        if item.key is not None:
            count = about['parameters'][item.name]['state']
            names = None if count is None else ['%s/state%d' % (item.name, slot) for slot in range(count)]
            if table_of(trainer, item) is None:
                _put_state(trainer, item, names, stored, source, spread)
            else:
                _put_table(trainer, item, names, stored, source)


def _put_weight(item: Item, stored: Dict[str, Any], source: Source, spread: Callable[[Any, str], None],
                together: bool) -> None:
    """Set a weight before the store learns it; tables of several workers are filled later."""
    param, name = item.param, item.name + '/weight'
    shape, dtype = tuple(stored[name]['shape']), np.dtype(param.dtype)
    if param._stype == 'default' or item.key is None:
        array = mx.nd.zeros(shape, dtype=dtype)
        source.fill(host_view(array), name)
        spread(array, 'checkpoint.weight')
        if param._stype != 'default':
            array = array.tostype('row_sparse')
    elif together:
        param.shape = shape
        param._finish_deferred_init()
        return
    else:
        array, rows = allocate_rows(np.arange(shape[0], dtype=np.int64), shape, dtype)
        source.fill(rows, name)
    param.set_data(array)
    param._finish_deferred_init()


def _put_scalars(trainer: Any, items: List[Item], about: Dict[str, Any]) -> None:
    optimizer, changed = trainer._optimizer, []
    changed += _set_scalars(optimizer, about['optimizer'][1], 'optimizer')
    optimizer.num_update, optimizer.begin_num_update = about['num_update'], about['begin_num_update']
    counts = {item.key: about['parameters'][item.name]['count'] for item in items
              if item.key is not None and about['parameters'][item.name]['count'] is not None}
    by_device = optimizer._all_index_update_counts
    for device in {0}.union(by_device, (context.device_id for context in trainer._contexts)):
        by_device.setdefault(device, {}).clear()
        by_device[device].update(counts)
    for item in items:
        item.param.lr_mult = about['parameters'][item.name]['lr_mult']
        item.param.wd_mult = about['parameters'][item.name]['wd_mult']
    scheduler, there = optimizer.lr_scheduler, about.get('scheduler')
    if (there and there[0]) != (scheduler and type(scheduler).__name__):
        logger.warning('the checkpoint was written with lr_scheduler %s, the Trainer has %s, which starts at update %d',
                       there and there[0], scheduler and type(scheduler).__name__, optimizer.num_update)
    elif there:
        changed += _set_scalars(scheduler, there[1], 'lr_scheduler')
    scaler = getattr(trainer, '_amp_loss_scaler', None)
    if scaler is not None and about.get('loss_scaler'):
        _set_scalars(scaler, about['loss_scaler'], 'loss scaler')
    if changed:
        logger.info('taken from the checkpoint, not from the script: %s; to change them, set them after load',
                    ', '.join(changed))


def _set_scalars(thing: Any, values: Dict[str, Any], what: str) -> List[str]:
    """Set attributes that an object has; tells which were others."""
    changed = []
    for name, value in values.items():
        if name in vars(thing) and is_scalar(vars(thing)[name]):
            old = vars(thing)[name]
            if isinstance(old, tuple) and isinstance(value, list):
                value = tuple(value)
            if old != value and not (old != old and value != value):
                changed.append('%s.%s %s (was %s)' % (what, name, value, old))
            setattr(thing, name, value)
    return changed


def _refuse(item: Item, optimizer: Any, wanted: List[Tuple[int, ...]], names: List[str], stored: Dict[str, Any]
            ) -> None:
    found = [tuple(stored[name]['shape']) for name in names]
    if wanted != found:
        raise CheckpointError('the state of optimizer %r for %s has shapes %s in the checkpoint, but should have %s: '
                              'set momentum, centered and the like as when it was written'
                              % (name_of(optimizer), item.name, found, wanted))


def _put_table(trainer: Any, item: Item, names: Optional[List[str]], stored: Dict[str, Any], source: Source) -> None:
    """Fill a table with rows and state (collective)."""
    table, optimizer = table_of(trainer, item), trainer._optimizer
    table.forget_optimizer()
    rows, *rest = stored[item.name + '/weight']['shape']
    table.assign(_rows(source, item.name + '/weight', int(np.prod(rest)), int(np.prod(rest)), table.dtype))
    if names is None:
        return
    shapes = table_state_shapes(trainer, item)
    _refuse(item, optimizer, shapes, names, stored)
    count = optimizer._index_update_count.get(item.key, optimizer.begin_num_update)
    table.set_optimizer(optimizer, optimizer.learning_rate, optimizer.wd, count)
    table.expect_count(count)
    for slot, (name, shape) in enumerate(zip(names, shapes)):
        table.assign(_rows(source, name, row_width(shape), int(np.prod(rest)), table.dtype), slot)


def _rows(source: Source, name: str, width: int, wide: int, dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Give adjacent rows of a stored array, made as wide as the rows of its table."""
    def values(ids: np.ndarray) -> np.ndarray:
        found = source.read(name, int(ids[0]) * width, (int(ids[-1]) + 1) * width, dtype).reshape(len(ids), width)
        if width == wide:
            return found
        rows = np.zeros((len(ids), wide), dtype)
        rows[:, :width] = found
        return rows
    return values


def _put_state(trainer: Any, item: Item, names: Optional[List[str]], stored: Dict[str, Any], source: Source,
               spread: Callable[[Any, str], None]) -> None:
    """Give every worker the state of a parameter that it updates itself (collective)."""
    optimizer, updaters = trainer._optimizer, updaters_of(trainer)
    for updater in updaters:
        updater.states.pop(item.key, None)
        updater.states_synced.pop(item.key, None)
    if names is None:
        return
    with own_rows.quiet(trainer):
        weights = own_arrays(item.param)
    templates = [optimizer.create_state_multi_precision(item.key, weight) for _, weight in zip(updaters, weights)]
    _refuse(item, optimizer, [tuple(array.shape) for array in state_arrays(templates[0])], names, stored)
    found: List[List[Any]] = [[] for _ in templates]
    for slot, (name, like) in enumerate(zip(names, state_arrays(templates[0]))):
        value, view = _empty_like(like)
        source.fill(view, name)
        if value.stype == 'default':
            spread(value, 'checkpoint.state')
        for template, copies in zip(templates, found):
            copies.append(value.copyto(state_arrays(template)[slot].context))
    for updater, template, copies in zip(updaters, templates, found):
        updater.states[item.key], updater.states_synced[item.key] = replace_arrays(template, copies), True


def _empty_like(array: Any) -> Tuple[Any, np.ndarray]:
    """An array on the host of the same shape and kind, all rows stored, and a view of them."""
    if array.stype == 'default':
        made = mx.nd.zeros(array.shape, dtype=array.dtype)
        return made, host_view(made)
    made, rows = allocate_rows(np.arange(array.shape[0], dtype=np.int64), array.shape, array.dtype)
    return made, rows
