"""Which optimizers may update a table that servers hold, and how their settings travel there.

Every partition is updated by itself, from the gradient rows that anyone touched.  So an optimizer must give
the same table however the rows are cut, and MXNet must have a sparse kernel for it or it must work element
by element:

* sparse kernels (``src/operator/optimizer_op.cc``): only touched rows change ("lazy"), as in one process;
* element by element: MXNet has no sparse kernel and computes on all rows; the servers do the same.

Norms over the whole table (lamb, lars, lbsgd), random noise (sgld), a schedule shared by all calls (nadam)
or state for untouched rows without a listed equality test (adamax, ftml, signum, dcasgd) are refused.
"""
import inspect
from typing import Any, Dict, List

import numpy as np
from mxnet.optimizer import Optimizer

from .errors import InputError

#: MXNet updates only the touched rows, given row_sparse weights, gradients and state.
SPARSE_KERNELS = ('sgd', 'ccsgd', 'adam', 'adagrad', 'groupadagrad', 'ftrl')

#: MXNet computes on all rows, each element by itself.
ELEMENTWISE = ('nag', 'rmsprop', 'adadelta')

#: MXNet keeps their state in float32 whatever the weight's dtype, and then refuses to mix the two.
FLOAT32_STATE = ('adagrad', 'groupadagrad', 'ftrl', 'rmsprop', 'adadelta')

#: Bookkeeping that every process keeps for itself, and what is sent as effective values per table.
_NOT_SENT = frozenset(['num_update', 'begin_num_update', 'aggregate_num', 'lr', 'wd', 'lr_scheduler'])


def name_of(optimizer: Any) -> str:
    """Registry name of an optimizer."""
    return type(optimizer).__name__.lower()


def is_sparse_kernel(optimizer: Any) -> bool:
    """Whether `optimizer` updates row_sparse weights by MXNet's sparse kernels."""
    name = name_of(optimizer)
    return name in SPARSE_KERNELS or (name == 'nag' and not optimizer.momentum)  # momentum 0: sgd_update


def changes_all_rows(optimizer: Any) -> bool:
    """Whether an update changes rows that the gradient does not touch, for example by weight decay."""
    return not is_sparse_kernel(optimizer) or not getattr(optimizer, 'lazy_update', True)


def check_for_table(optimizer: Any, table: str, dtype: Any, wd: float) -> None:
    """Refuse an optimizer that cannot update `table`, of `dtype`, with weight decay `wd`, on servers exactly.

    Raises
    ------
    InputError
        Naming the table, the optimizer and those that work.
    """
    name = name_of(optimizer)
    registered = Optimizer.opt_registry.get(name)
    if name not in SPARSE_KERNELS + ELEMENTWISE or registered is not type(optimizer):
        raise InputError(
            "optimizer %r cannot update %s, whose row_sparse weight lives in partitions on the servers: its result "
            "would depend on the partitioning or change untouched rows. Use one of %s, or give the layer a dense "
            "weight (nn.Embedding with sparse_grad=True works with every optimizer)"
            % (name, table, ', '.join(n for n in SPARSE_KERNELS + ELEMENTWISE if n != 'ccsgd')))
    if name in FLOAT32_STATE and np.dtype(dtype) != np.float32:
        raise InputError('optimizer %r cannot update %s, which is %s: MXNet keeps its state in float32. Make the table '
                         'float32, or use sgd, adam or nag' % (name, table, np.dtype(dtype)))
    if optimizer.multi_precision and np.dtype(dtype) == np.float16:
        raise InputError('optimizer %r with multi_precision=True cannot update %s: MXNet has no sparse update with a '
                         'float32 copy. Make the table float32, or set multi_precision=False' % (name, table))
    if name in ('adagrad', 'groupadagrad') and wd:
        raise InputError("optimizer %r with wd=%g cannot update %s: MXNet has no sparse %s with weight decay. "
                         "Set wd=0, or wd_mult=0 for this parameter" % (name, wd, table, name))


def scalars(optimizer: Any) -> Dict[str, Any]:
    """All scalar attributes of an optimizer (rescale_grad, momentum, …), as sent to the servers."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in vars(optimizer).items()}
    return {name: value for name, value in plain.items()
            if name not in _NOT_SENT and isinstance(value, (bool, int, float, str, type(None)))}


def build(name: str, attributes: Dict[str, Any]) -> Any:
    """Create the optimizer `name` with the attributes that :func:`scalars` and the worker sent."""
    arguments = {}
    for parameter in inspect.signature(Optimizer.opt_registry[name].__init__).parameters.values():
        if parameter.default is inspect.Parameter.empty and parameter.name in attributes:
            arguments[parameter.name] = attributes[parameter.name]
    optimizer = Optimizer.opt_registry[name](**arguments)
    optimizer.__dict__.update(attributes)
    return optimizer


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
