"""Optimizers of tables on servers: those that are allowed, the messages with their settings, their copies on servers.

Every partition is updated by itself, from the gradient rows that any worker touched.  So an optimizer must compute the
same table for every partitioning.  Allowed are

* optimizers with sparse kernels (``src/operator/optimizer_op.cc``): only touched rows change ("lazy"), as in one
  process;
* optimizers that work element by element, for which MXNet has no sparse kernel and computes on all rows; servers do the
  same;
* classes that the user marks with :func:`mxhybrid.row_wise`.

Other optimizers are refused: they use norms over the whole table (lamb, lars, lbsgd), random noise (sgld), a schedule
shared by all calls (nadam), or state for untouched rows without a test of equality (adamax, ftml, signum, dcasgd).

The reference is the result of one process with a row_sparse weight.  Where MXNet has no sparse kernel it works on dense
copies and writes the result back, and the copies matter: ``nag_mom_update`` in place would take weight decay from
the weight that it has just written.
"""
import importlib
import sys
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np
from mxnet.optimizer import Optimizer, contrib as _contrib, optimizer as _optimizer

from ..base.errors import InputError
from .optimizer_state import BOOKKEEPING
from .row_wise import is_marked

#: MXNet updates only the touched rows, given row_sparse weights, gradients and state.
SPARSE_KERNELS = ('sgd', 'ccsgd', 'adam', 'adagrad', 'groupadagrad', 'ftrl')
#: MXNet computes on all rows, each element by itself.  'test' belongs to MXNet's own tests.
ELEMENTWISE = ('nag', 'rmsprop', 'adadelta', 'test')

#: Those of them with the same result in place, on a dense array, which saves the copies.  'test' fails on a row_sparse
#: weight, but only after it has changed the weight, and MXNet's stores ignore errors of Python.
IN_PLACE = ('rmsprop', 'adadelta', 'test')
#: MXNet keeps their state in float32 for every dtype of the weight, and then refuses to mix the two.
FLOAT32_STATE = ('adagrad', 'groupadagrad', 'ftrl', 'rmsprop', 'adadelta')
#: MXNet has no sparse update with weight decay for them.
_WITHOUT_DECAY = ('adagrad', 'groupadagrad')

#: MXNet's own classes by name, even if a script has registered another class under that name.
_OF_MXNET = {name.lower(): kind for module in (_optimizer, _contrib) for name, kind in vars(module).items()
             if isinstance(kind, type) and issubclass(kind, Optimizer) and kind.__module__ == module.__name__}
#: Those of them that may update tables.
_KNOWN = frozenset(_OF_MXNET[name] for name in SPARSE_KERNELS + ELEMENTWISE)

#: Attributes that are not sent: bookkeeping, and rates, which are sent as effective values per table.
_NOT_SENT = BOOKKEEPING | {'lr', 'wd'}

#: Short names that ``import mxnet`` gives to its modules near its end, which a server of launch.py never reaches.
_SHORT_NAMES = {'nd': 'ndarray', 'sym': 'symbol', 'np': 'numpy', 'npx': 'numpy_extension', 'rnd': 'random'}

_SCALARS = (bool, int, float, str, type(None))
#: Marks of a tuple in JSON, which has lists only, and of a NumPy number that is less precise than Python's.
_TUPLE, _NUMPY = '__tuple__', '__numpy__'


def name_of(optimizer: Any) -> str:
    """Return the registry name of an optimizer."""
    return type(optimizer).__name__.lower()


def is_known(optimizer: Any) -> bool:
    """Return whether `optimizer` is one of MXNet's own that may update tables."""
    return type(optimizer) in _KNOWN


def depends_on_order(optimizer: Any) -> bool:
    """Return whether an update changes later updates of other weights: by a common schedule, or random numbers."""
    return isinstance(optimizer, (_OF_MXNET['nadam'], _OF_MXNET['sgld']))


def reference_of(optimizer: Any) -> str:
    """Return the name by which servers find the class: the name of a class of MXNet, else ``module:name``."""
    return name_of(optimizer) if is_known(optimizer) else '%s:%s' % (type(optimizer).__module__,
                                                                     type(optimizer).__qualname__)


def find_class(reference: str) -> Any:
    """Return the class with a name from :func:`reference_of`; ImportError, in one line, if it cannot be imported."""
    if ':' not in reference:
        return _OF_MXNET[reference]
    module, _, name = reference.partition(':')
    mxnet = sys.modules['mxnet']
    for short, full in _SHORT_NAMES.items():
        if not hasattr(mxnet, short) and 'mxnet.' + full in sys.modules:
            setattr(mxnet, short, sys.modules['mxnet.' + full])
    try:
        attribute: Any = importlib.import_module(module)
        for part in name.split('.'):
            attribute = getattr(attribute, part)
        if not issubclass(attribute, Optimizer):
            raise TypeError('%r is not a subclass of mxnet.optimizer.Optimizer' % (attribute,))
    except Exception as error:  # a module of the user may raise anything
        raise ImportError('cannot import optimizer class %s from module %s here: %s: %s. The module, and the modules '
                          'that it imports, must be beside the script or in PYTHONPATH. Under launch.py they can use '
                          'mx.nd and mx.optimizer of MXNet, but not gluon'
                          % (name, module, type(error).__name__, ' '.join(str(error).split()))) from error
    return attribute


def check_for_table(optimizer: Any, table: str, dtype: Any, wd: float) -> None:
    """Refuse (InputError) an optimizer that cannot update `table`, of `dtype`, exactly, with weight decay `wd`."""
    name = name_of(optimizer)
    if not is_known(optimizer):
        if not is_marked(optimizer):
            raise InputError(
                "optimizer %r cannot update %s, whose row_sparse weight is partitioned over the servers: the result "
                "would depend on the partitioning, or untouched rows would change. Use one of %s, or give the layer a "
                "dense weight (nn.Embedding with sparse_grad=True works with every optimizer), or mark a class of your "
                "own with mxhybrid.row_wise if it works row by row"
                % (name, table, usable(SPARSE_KERNELS + ELEMENTWISE, dtype, wd)))
        _check_class(optimizer, table)
        attributes_of(optimizer)
    check_state_type(optimizer, table, dtype, wd, SPARSE_KERNELS + ELEMENTWISE)
    if is_known(optimizer) and name in _WITHOUT_DECAY and wd:
        raise InputError("optimizer %r with wd=%g cannot update %s: MXNet has no sparse %s with weight decay. "
                         "Set wd=0, or wd_mult=0 for this parameter" % (name, wd, table, name))
    if optimizer.multi_precision and np.dtype(dtype) == np.float16:
        raise InputError('optimizer %r with multi_precision=True cannot update %s: MXNet has no sparse update with a '
                         'float32 copy. Make the table float32, or set multi_precision=False' % (name, table))


def check_state_type(optimizer: Any, table: str, dtype: Any, wd: float, known: Sequence[str]) -> None:
    """Refuse (InputError) an optimizer whose state has another type than `table`; use another one of those `known`."""
    name = name_of(optimizer)
    if is_known(optimizer) and name in FLOAT32_STATE and np.dtype(dtype) != np.float32:
        raise InputError('optimizer %r cannot update %s, which is %s: MXNet keeps its state in float32. Make the table '
                         'float32, or use one of %s' % (name, table, np.dtype(dtype), usable(known, dtype, wd)))


def usable(known: Sequence[str], dtype: Any, wd: float) -> str:
    """Return the names of known optimizers that can update a table of `dtype` with weight decay `wd`, for messages."""
    refused = ('ccsgd', 'test') + (FLOAT32_STATE if np.dtype(dtype) != np.float32 else ())
    return ', '.join(name for name in known if name not in refused + (_WITHOUT_DECAY if wd else ()))


def _check_class(optimizer: Any, table: str) -> None:
    """Refuse a marked class that servers cannot import by its name (InputError)."""
    kind = type(optimizer)
    about = 'optimizer class %s cannot update %s on servers, which would import it as %s: ' % (
        kind.__qualname__, table, reference_of(optimizer))
    if kind.__module__ == '__main__':
        raise InputError(about + 'it is defined in the script itself. Move it into a module of its own beside the '
                                 'script, and import it from there')
    if '<locals>' in kind.__qualname__:
        raise InputError(about + 'it is defined inside a function. Define it at the top of its module')
    attribute: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split('.'):
        attribute = getattr(attribute, part, None)
    if attribute is not kind:
        raise InputError(about + 'that name refers to %r. Keep the class under its own name' % (attribute,))


def check_change(made_with: Optional[Tuple[str, Dict[str, Any]]], optimizer: Any, table: str) -> None:
    """Refuse settings that need other state (InputError): MXNet makes state only once, before the first update.

    `made_with` is the reference and the attributes of the optimizer when the state of `table` was made; None if it was
    not made yet.  One process fails, too, with an error of MXNet.
    """
    name = name_of(optimizer)
    if made_with is None or made_with[0] != name or not is_known(optimizer):
        return
    before = _unpacked(made_with[1])
    if 'momentum' in before and not before['momentum'] and optimizer.momentum > 0:
        setting, was = 'momentum=%g' % optimizer.momentum, '0'
    elif 'centered' in before and bool(before['centered']) != bool(optimizer.centered):
        setting, was = 'centered=%s' % optimizer.centered, str(before['centered'])
    else:
        return
    raise InputError('optimizer %r cannot continue with %s for %s: the value was %s before the first update, when '
                     'MXNet made the state, and this value needs other state. Set it from the start, or make a new '
                     'Trainer when it changes' % (name, setting, table, was))


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, but keep the dtype of float16 and float32.

    MXNet's operators get settings as text, and ``np.float32(0.1)`` has another text than the float64 of the same value.
    """
    if isinstance(value, (np.float16, np.float32)):
        return {_NUMPY: [value.dtype.name, value.item()]}
    return value.item() if isinstance(value, np.generic) else value


def as_read(value: Any) -> float:
    """Return the number that MXNet's operators parse from the text of a setting."""
    return float(str(value))


def attributes_of(optimizer: Any) -> Dict[str, Any]:
    """Return the attributes of an optimizer that servers need, as JSON: its scalars, or all of a marked class.

    InputError if an attribute of a marked class cannot be sent.
    """
    if is_known(optimizer):
        return {name: _plain(value) for name, value in vars(optimizer).items() if name not in _NOT_SENT
                and isinstance(value.item() if isinstance(value, np.generic) else value, _SCALARS)}
    sent = {}
    for name, value in vars(optimizer).items():
        if name not in _NOT_SENT or name == 'aggregate_num':
            try:
                sent[name] = _packed(value)
            except TypeError as error:
                raise InputError('optimizer %r cannot update tables on servers: its attribute %s holds %s. Keep only '
                                 'numbers, strings, None, and lists, tuples and dicts (by string) of them there'
                                 % (name_of(optimizer), name, error)) from None
    return sent


def _packed(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _plain(value)
    if type(value) is list:
        return [_packed(item) for item in value]
    if type(value) is tuple:
        return {_TUPLE: [_packed(item) for item in value]}
    if type(value) is dict and all(type(name) is str and name not in (_TUPLE, _NUMPY) for name in value):
        return {name: _packed(item) for name, item in value.items()}
    if not isinstance(value, _SCALARS):
        raise TypeError('a value of type %s' % type(value).__name__)
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if isinstance(value, dict):
        if _TUPLE in value:
            return tuple(_unpacked(item) for item in value[_TUPLE])
        if _NUMPY in value:
            return np.dtype(value[_NUMPY][0]).type(value[_NUMPY][1])
        return {name: _unpacked(item) for name, item in value.items()}
    return value


def build(reference: str, attributes: Dict[str, Any]) -> Any:
    """Create the optimizer `reference` with attributes from :func:`attributes_of` that the worker sent.

    Its own ``__init__`` is not called, as if it were unpickled; that of the base class makes the bookkeeping.
    """
    optimizer = object.__new__(find_class(reference))
    Optimizer.__init__(optimizer)
    optimizer.__dict__.update(_unpacked(attributes))
    return optimizer


class TableOptimizer:
    """The optimizer of one table, and a second one with the attributes with which its state is made."""

    def __init__(self, reference: str, attributes: Dict[str, Any], made_with: Optional[Dict[str, Any]] = None):
        self.reference = reference
        self.live = build(reference, attributes)
        self.maker = build(reference, attributes if made_with is None else made_with)
        self._kernel = reference if ':' not in reference else ''

    def change(self, attributes: Dict[str, Any]) -> None:
        """Set attributes from the result of :func:`attributes_of`."""
        self.live.__dict__.update(_unpacked(attributes))

    def expect_count(self, key: int, count: int) -> None:
        """Set the number of updates of partition `key`."""
        self.live._index_update_count[key] = count

    def create_state(self, key: int, weight: Any) -> Any:
        """Create the state for a weight, which depends on its shape, dtype and storage type."""
        return self.maker.create_state_multi_precision(key, weight)

    @property
    def takes_dense(self) -> bool:
        """True if weight and gradient must be dense arrays; otherwise they are row_sparse."""
        return self._kernel in IN_PLACE

    def keeps_rows(self, state: Any) -> bool:
        """Return whether an update keeps all rows stored; MXNet's dense copies come back without rows of zeros."""
        return self._kernel in SPARSE_KERNELS or (self._kernel == 'nag' and state is None)  # which is sgd_update

    def changes_all_rows(self, state: Any) -> bool:
        """Return whether an update changes rows that the gradient does not touch, for example by weight decay."""
        return not self.keeps_rows(state) or not getattr(self.live, 'lazy_update', True)

    def update(self, key: int, weight: Any, grad: Any, state: Any) -> None:
        """Make an update, like MXNet's Updater."""
        if not self._kernel and self.live.aggregate_num > 0:
            self.live.update_multi_precision((key,), (weight,), (grad,), [state])
        else:
            self.live.update_multi_precision(key, weight, grad, state)
