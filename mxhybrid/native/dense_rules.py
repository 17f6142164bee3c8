"""Update dense weights by compiled kernels in MXNet's place, with the same results.

Like MXNet's optimizers this module counts updates, and finds rates and state, in Python.
"""
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from .optimizers import as_read


class Update(NamedTuple):
    """An update of several weights: a rule of ``kernels/src/kernels/update.h``, its settings, state, and rates.

    `states` holds two arrays for each weight, None where the rule has fewer; `rates` are learning rates and weight
    decays.  `in_lists` says whether MXNet's operator would get them as lists for several weights, or as the two numbers
    of one weight: MXNet rounds a list and a number differently.
    """

    rule: str
    settings: Dict[str, float]
    states: List[Any]
    rates: Tuple[List[float], List[float]]
    in_lists: bool = True


def begin_update(updater: Any, keys: Sequence[Any], context: Any, dtype: Any, together: bool = True
                 ) -> Optional[Update]:
    """Count an update of weights in `context` in place of MXNet's ``Updater``, and return it.

    Return None, with nothing counted, if MXNet must make the update: for other optimizers, and before it has made the
    state.  `together` says whether MXNet would update several weights by one operator, as sgd can if none of them has
    a row_sparse gradient.
    """
    optimizer = updater.optimizer
    # The state of MXNet's adagrad is float32 whatever the type of the weight.
    types = (np.float32,) if isinstance(optimizer, mx.optimizer.AdaGrad) else (np.float32, np.float64)
    if (np.dtype(dtype) not in types
            or not all(key in updater.states and updater.states_synced[key] for key in keys)):
        return None
    find = _FINDERS.get(type(optimizer))
    states = None if find is None else find(optimizer, [updater.states[key] for key in keys], together)
    if states is None:
        return None
    optimizer._set_current_context(context.device_id)
    return Update(rule_of(optimizer, together), settings_of(optimizer), states, count_and_rates(optimizer, list(keys)),
                  _in_lists(optimizer, together))


def _in_lists(optimizer: Any, together: bool) -> bool:
    # AdaGrad's operators get doubles, which are rounded as numbers of lists are.
    return isinstance(optimizer, mx.optimizer.AdaGrad) or together and not isinstance(optimizer, mx.optimizer.Adam)


def rule_of(optimizer: Any, together: bool) -> str:
    """Return the rule of an update, '' if there is none; see :func:`begin_update`."""
    if isinstance(optimizer, mx.optimizer.Adam):
        return 'dense adam'
    if isinstance(optimizer, mx.optimizer.AdaGrad):
        return 'dense adagrad'
    if optimizer.momentum > 0:
        return 'momentum'
    return '' if optimizer.momentum < 0 else 'multi sgd' if together else 'sgd'


def settings_of(optimizer: Any) -> Dict[str, float]:
    """Return the settings of the rule of an optimizer."""
    clip = optimizer.clip_gradient
    settings = {'rescale': as_read(optimizer.rescale_grad), 'clip': as_read(clip) if clip else -1.0}
    if isinstance(optimizer, mx.optimizer.Adam):
        return dict(settings, beta1=as_read(optimizer.beta1), beta2=as_read(optimizer.beta2),
                    epsilon=as_read(optimizer.epsilon))
    if isinstance(optimizer, mx.optimizer.AdaGrad):
        return dict(settings, epsilon=as_read(optimizer.float_stable_eps))
    return dict(settings, momentum=as_read(optimizer.momentum)) if optimizer.momentum > 0 else settings


def count_and_rates(optimizer: Any, keys: List[Any]) -> Tuple[List[float], List[float]]:
    """Count an update of weights on the optimizer's current device; return their learning rates and weight decays."""
    optimizer._update_count(keys)
    lrs, wds = optimizer._get_lrs(keys), optimizer._get_wds(keys)
    if isinstance(optimizer, mx.optimizer.Adam):
        last_count, factor = None, 1.0
        for index, key in enumerate(keys):
            count = optimizer._index_update_count[key]
            if count != last_count:
                factor = math.sqrt(1. - optimizer.beta2 ** count) / (1. - optimizer.beta1 ** count)
                last_count = count
            lrs[index] *= factor
    return lrs, wds


def calls_of(updater: Any, dtypes: Sequence[Any]) -> List[List[int]]:
    """Return the positions of the weights in each call of the optimizer that MXNet's ``Updater`` makes, in its order;
    `dtypes` has the type of each weight.

    The order counts for schedules of learning rates, which follow the number of updates.
    """
    if not updater.aggregate_updates:
        return [[position] for position in range(len(dtypes))]
    by_type: Dict[Any, List[int]] = {}
    for position, dtype in enumerate(dtypes):
        by_type.setdefault(dtype, []).append(position)
    number = updater.optimizer.aggregate_num
    return [positions[first:first + number] for positions in by_type.values()
            for first in range(0, len(positions), number)]


def has_kernel(updater: Any) -> bool:
    """Return whether :func:`begin_update` may update for an updater: one of MXNet, with an optimizer of a known class
    without methods of its own.
    """
    optimizer = updater.optimizer
    return (type(updater) is mx.optimizer.Updater and type(optimizer) in _FINDERS
            and not any(callable(getattr(type(optimizer), name, None)) for name in vars(optimizer)))


def _of_sgd(optimizer: Any, states: Sequence[Any], together: bool) -> Optional[List[Any]]:
    if optimizer.aggregate_num < 2 or optimizer.momentum < 0:
        return None  # MXNet uses other kernels
    has_none = [state is None for state in states]
    if optimizer.momentum == 0 and (together or all(has_none)):
        return [None, None] * len(states)
    if optimizer.momentum == 0 or any(has_none):
        return None
    return [array for state in states for array in (state, None)]


def _of_adam(optimizer: Any, states: Sequence[Any], together: bool) -> Optional[List[Any]]:
    return [array for state in states for array in state]


def _of_adagrad(optimizer: Any, states: Sequence[Any], together: bool) -> Optional[List[Any]]:
    clip = optimizer.clip_gradient
    if clip is not None and not clip > 0:
        return None
    return [array for state in states for array in (state, None)]


#: State finders by class, not by name: a subclass may compute anything.
_FINDERS: Dict[type, Any] = {mx.optimizer.SGD: _of_sgd, mx.optimizer.Adam: _of_adam,
                             mx.optimizer.AdaGrad: _of_adagrad}
