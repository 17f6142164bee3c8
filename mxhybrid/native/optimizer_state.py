"""What an optimizer keeps for each parameter: arrays of state, a count of updates, learning rate and weight decay."""
import copy
from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np
from mxnet import ndarray as nd
from mxnet.context import cpu
from mxnet.optimizer import Optimizer

#: Attributes in which every process keeps books: counts, rates and names of parameters.
BOOKKEEPING = frozenset(['num_update', 'begin_num_update', 'aggregate_num', 'lr_scheduler', 'lr_mult', 'wd_mult',
                         'idx2name', 'sym_info', 'param_dict', '_index_update_count', '_all_index_update_counts'])


def rates_of(optimizer: Any, key: Any) -> Tuple[float, float]:
    """Learning rate and weight decay of a parameter, as sent: before what a class makes of them, on servers."""
    return float(Optimizer._get_lrs(optimizer, [key])[0]), float(Optimizer._get_wds(optimizer, [key])[0])


def was_updated(optimizer: Any, key: Any) -> bool:
    """Whether the optimizer has counted an update of a parameter."""
    return key in optimizer._index_update_count


def update_count(optimizer: Any, key: Any) -> int:
    """Updates made to a parameter; those before the first are what the optimizer was made to begin with."""
    return optimizer._index_update_count.get(key, optimizer.begin_num_update)


def count_update(optimizer: Any, key: Any, devices: Iterable[int] = ()) -> None:
    """Count one more update, for each of the `devices` (their numbers); by default one count serves all."""
    numbers = list(devices)
    if not numbers:
        optimizer._update_count(key)
    for number in numbers:
        optimizer._set_current_context(number)
        optimizer._update_count(key)


def counts_of(optimizer: Any) -> Dict[Any, int]:
    """Updates made to each parameter, the most that any device has counted."""
    counts: Dict[Any, int] = {}
    for device in optimizer._all_index_update_counts.values():
        for key, count in device.items():
            counts[key] = max(count, counts.get(key, 0))
    return counts


def set_counts(optimizer: Any, counts: Dict[Any, int], devices: Iterable[int]) -> None:
    """Have all devices, also those that have counted nothing so far, go on from these counts."""
    by_device = optimizer._all_index_update_counts
    for number in {0}.union(by_device, devices):
        by_device.setdefault(number, {}).clear()
        by_device[number].update(counts)


def state_arrays(state: Any) -> List[Any]:
    """The arrays of an optimizer state (None, an array, or nested tuples of them), in order."""
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
    """Have an Updater make the state of a parameter anew."""
    updater.states.pop(key, None)
    updater.states_synced.pop(key, None)


def state_shapes(optimizer: Any, key: Any, shape: Tuple[int, ...], dtype: Any) -> List[Tuple[int, ...]]:
    """Shapes of the arrays of state that `optimizer` makes for a table of `shape`, whose rows take no memory here.

    Where a table has state, ask what made it (``state_maker()``): MXNet makes state once, whatever changes.
    """
    row = nd.sparse.zeros('row_sparse', (1,) + tuple(shape[1:]), dtype=dtype, ctx=cpu())
    return [(shape[0],) + tuple(array.shape[1:])
            for array in state_arrays(optimizer.create_state_multi_precision(key, row))]


def state_widths(optimizer: Any, key: Any, shape: Tuple[int, ...], dtype: Any) -> List[int]:
    """Elements per row of each array of a table's state."""
    return [int(np.prod(found[1:])) for found in state_shapes(optimizer, key, shape, dtype)]


def maker_of(found: List[Tuple[int, ...]], optimizer: Any, shapes: Callable[[Any], List[Tuple[int, ...]]]) -> Any:
    """What made state of the shapes `found`, given what tells the `shapes` that an optimizer makes.

    That is `optimizer`, if need be with momentum again: MXNet keeps the state that it has made when momentum goes to
    0.  Who finds other shapes nevertheless refuses them.
    """
    if shapes(optimizer) != found and getattr(optimizer, 'momentum', None) == 0:
        before = copy.copy(optimizer)
        before.momentum = 0.9
        if shapes(before) == found:
            return before
    return optimizer
