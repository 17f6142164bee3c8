"""The compiled kernels that update tables, for the optimizers that have one: a rule's name and its settings."""
from typing import Any, Dict, Tuple

import numpy as np

from ..base.errors import InputError
from ..native.optimizers import as_read, check_state_type, is_known, name_of, usable

#: Rule and attributes of each optimizer with a compiled kernel; :func:`kernel_rule` adds the common attributes.
_KERNELS: Dict[str, Any] = {
    'sgd': ('sgd', {'momentum': 'momentum'}),
    'ccsgd': ('sgd', {'momentum': 'momentum'}),
    'adam': ('adam', {'beta1': 'beta1', 'beta2': 'beta2', 'epsilon': 'epsilon'}),
    'adagrad': ('adagrad', {'epsilon': 'float_stable_eps'}),
    'groupadagrad': ('group adagrad', {'epsilon': 'float_stable_eps'}),
    'ftrl': ('ftrl', {'lamda1': 'lamda1', 'beta': 'beta'}),
}


def has_kernel(optimizer: Any, dtype: Any) -> bool:
    """Return whether a compiled kernel makes the updates of an optimizer for rows of `dtype`."""
    return (is_known(optimizer) and name_of(optimizer) in _KERNELS and np.dtype(dtype) != np.float16
            and getattr(optimizer, 'lazy_update', True))


def kernel_rule(optimizer: Any, has_state: bool) -> Tuple[str, Dict[str, float]]:
    """Return the name of a rule of ``kernels/update.cc`` and its settings; sgd has two rules, one with state."""
    rule, names = _KERNELS[name_of(optimizer)]
    if rule == 'sgd' and has_state:
        rule = 'momentum'
    clip = optimizer.clip_gradient
    settings = {'lr': optimizer.lr, 'wd': optimizer.wd, 'rescale': optimizer.rescale_grad,
                'clip': clip if clip else -1.0}
    settings.update((name, getattr(optimizer, attribute)) for name, attribute in names.items())
    # Python computes adam's learning rate with its betas; from 0.0001 to 1 their floats are equal either way.
    return rule, {name: float(value) if name in ('beta1', 'beta2') else as_read(value)
                  for name, value in settings.items()}


def check_kernel(optimizer: Any, table: str, dtype: Any, wd: float) -> None:
    """Refuse an optimizer that cannot update a dynamic table, of which only touched rows exist (InputError)."""
    name = name_of(optimizer)
    if is_known(optimizer) and not getattr(optimizer, 'lazy_update', True):
        raise InputError('optimizer %r with lazy_update=False cannot update %s: it would change rows without a '
                         'gradient, and only touched rows of a dynamic table exist. Leave lazy_update out'
                         % (name, table))
    if not is_known(optimizer) or name not in _KERNELS:
        raise InputError('optimizer %r cannot update %s: the rows of a dynamic table are updated by compiled kernels, '
                         'and those for %s are %s. Use one of them'
                         % (name, table, np.dtype(dtype), usable(sorted(_KERNELS), dtype, wd)))
    check_state_type(optimizer, table, dtype, wd, sorted(_KERNELS))
