"""The state of an optimizer for each parameter: arrays, a count of updates, learning rate and weight decay."""
import copy
from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np
from mxnet import ndarray as nd
from mxnet.context import cpu
from mxnet.optimizer import Optimizer

#: Attributes that every process keeps for itself: counts, rates and names of parameters.
BOOKKEEPING = frozenset(['num_update', 'begin_num_update', 'aggregate_num', 'lr_scheduler', 'lr_mult', 'wd_mult',
                         'idx2name', 'sym_info', 'param_dict', '_index_update_count', '_all_index_update_counts'])


def rates_of(optimizer: Any, key: Any) -> Tuple[float, float]:
    """Return learning rate and weight decay of a parameter, before a class changes them in its update on servers."""
    return rates_of_all(optimizer, [key])[0]


def rates_of_all(optimizer: Any, keys: List[Any]) -> List[Tuple[float, float]]:
    """Return the rates of several parameters, see :func:`rates_of`; a schedule of learning rates is called once."""
    learning_rates = Optimizer._get_lrs(optimizer, keys)
    return [(float(lr), wd) for lr, wd in zip(learning_rates, weight_decays(optimizer, keys))]


def weight_decays(optimizer: Any, keys: List[Any]) -> List[float]:
    """Return the weight decays of parameters, as :func:`rates_of` does, without calling a schedule."""
    return [float(wd) for wd in Optimizer._get_wds(optimizer, keys)]


def has_schedule(optimizer: Any) -> bool:
    """Return whether the learning rate depends on the number of updates."""
    return optimizer.lr_scheduler is not None


def was_updated(optimizer: Any, key: Any) -> bool:
    """Return whether the optimizer has counted an update of a parameter."""
    return key in optimizer._index_update_count


def update_count(optimizer: Any, key: Any) -> int:
    """Return the number of updates of a parameter; it begins at the optimizer's ``begin_num_update``."""
    return optimizer._index_update_count.get(key, optimizer.begin_num_update)


def use_device(optimizer: Any, device: int) -> None:
    """Make later updates count for a device, which is given by number."""
    optimizer._set_current_context(device)


def counts_on(optimizer: Any, device: int) -> Dict[Any, int]:
    """Return the number of updates of each parameter on a device, which is given by number."""
    return optimizer._all_index_update_counts.get(device, {})


def count_update(optimizer: Any, key: Any, devices: Iterable[int] = ()) -> None:
    """Count an update for each of the `devices`, given by number; by default one count is for all devices."""
    numbers = list(devices)
    if not numbers:
        optimizer._update_count(key)
    for number in numbers:
        optimizer._set_current_context(number)
        optimizer._update_count(key)


def counts_of(optimizer: Any) -> Dict[Any, int]:
    """Return the number of updates of each parameter: the largest count of any device."""
    counts: Dict[Any, int] = {}
    for device in optimizer._all_index_update_counts.values():
        for key, count in device.items():
            counts[key] = max(count, counts.get(key, 0))
    return counts


def set_counts(optimizer: Any, counts: Dict[Any, int], devices: Iterable[int]) -> None:
    """Set these counts for all devices, also for devices that have counted nothing so far."""
    by_device = optimizer._all_index_update_counts
    for number in {0}.union(by_device, devices):
        by_device.setdefault(number, {}).clear()
        by_device[number].update(counts)


def state_arrays(state: Any) -> List[Any]:
    """Return the arrays of an optimizer state (None, an array, or nested tuples of them), in order."""
    if state is None:
        return []
    if isinstance(state, (list, tuple)):
        return [array for item in state for array in state_arrays(item)]
    return [state]


def replace_arrays(state: Any, arrays: List[Any]) -> Any:
    """Rebuild the structure of `state` around other arrays, taken in order from `arrays` (consumed)."""
    if state is None:
        return None
    if isinstance(state, (list, tuple)):
        return type(state)(replace_arrays(item, arrays) for item in state)
    return arrays.pop(0)


def put_state(updater: Any, key: Any, template: Any, arrays: List[Any]) -> None:
    """Give an Updater the state of a parameter: `arrays` (consumed) in the structure of `template`."""
    updater.states[key], updater.states_synced[key] = replace_arrays(template, arrays), True


def drop_state(updater: Any, key: Any) -> None:
    """Drop the state of a parameter from an Updater, which makes a new one at the next update."""
    updater.states.pop(key, None)
    updater.states_synced.pop(key, None)


def state_shapes(optimizer: Any, key: Any, shape: Tuple[int, ...], dtype: Any) -> List[Tuple[int, ...]]:
    """Return the shapes of the state arrays that `optimizer` makes for a table of `shape`, without memory for its rows.

    For a table that has state, give the optimizer that made it (``state_maker()``): MXNet makes state only once.
    """
    row = nd.sparse.zeros('row_sparse', (1,) + tuple(shape[1:]), dtype=dtype, ctx=cpu())
    return [(shape[0],) + tuple(array.shape[1:])
            for array in state_arrays(optimizer.create_state_multi_precision(key, row))]


def state_widths(optimizer: Any, key: Any, shape: Tuple[int, ...], dtype: Any) -> List[int]:
    """Return the number of elements per row of each array of a table's state."""
    return [int(np.prod(state_shape[1:])) for state_shape in state_shapes(optimizer, key, shape, dtype)]


def maker_of(state_shapes: List[Tuple[int, ...]], optimizer: Any,
             shapes_by: Callable[[Any], List[Tuple[int, ...]]]) -> Any:
    """Return the optimizer that made state of these shapes; `shapes_by` gives the shapes that an optimizer makes.

    That is `optimizer`, or a copy with momentum: MXNet keeps the state that it has made when momentum becomes 0.
    Callers refuse state whose shapes differ nevertheless.
    """
    if shapes_by(optimizer) != state_shapes and getattr(optimizer, 'momentum', None) == 0:
        with_momentum = copy.copy(optimizer)
        with_momentum.momentum = 0.9
        if shapes_by(with_momentum) == state_shapes:
            return with_momentum
    return optimizer
