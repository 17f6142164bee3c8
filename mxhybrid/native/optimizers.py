"""Which optimizers may update a table that servers hold, how their settings travel there, and what is made of them.

Every partition is updated by itself, from the gradient rows that anyone touched.  So an optimizer must give
the same table however the rows are cut:

* sparse kernels (``src/operator/optimizer_op.cc``): only touched rows change ("lazy"), as in one process;
* element by element: MXNet has no sparse kernel and computes on all rows; the servers do the same;
* classes that the user marks with :func:`mxhybrid.row_wise`.

Norms over the whole table (lamb, lars, lbsgd), random noise (sgld), a schedule shared by all calls (nadam)
or state for untouched rows without a listed equality test (adamax, ftml, signum, dcasgd) are refused.

What one process does with a row_sparse weight is what counts.  Where MXNet has no sparse kernel it works on dense
copies and writes the result back, and the copies matter: ``nag_mom_update`` in place would take weight decay from
the weight that it has just written.
"""
import importlib
import sys
from typing import Any, Dict, Optional, Tuple

import numpy as np
from mxnet.optimizer import Optimizer, contrib as _contrib, optimizer as _optimizer

from ..base.errors import InputError
from .optimizer_state import BOOKKEEPING
from .row_wise import is_marked

#: MXNet updates only the touched rows, given row_sparse weights, gradients and state.
SPARSE_KERNELS = ('sgd', 'ccsgd', 'adam', 'adagrad', 'groupadagrad', 'ftrl')
#: MXNet computes on all rows, each element by itself.  'test' is MXNet's own, for its tests.
ELEMENTWISE = ('nag', 'rmsprop', 'adadelta', 'test')

#: Of these, those that give the same weights in place, on a dense array, which saves the copies.  'test' fails on a
#: row_sparse weight, but not before it has changed it, and MXNet's stores ignore errors of Python.
IN_PLACE = ('rmsprop', 'adadelta', 'test')
#: MXNet keeps their state in float32 whatever the weight's dtype, and then refuses to mix the two.
FLOAT32_STATE = ('adagrad', 'groupadagrad', 'ftrl', 'rmsprop', 'adadelta')

#: MXNet's own classes by name, whatever a script has registered under that name.
_OF_MXNET = {name.lower(): kind for module in (_optimizer, _contrib) for name, kind in vars(module).items()
             if isinstance(kind, type) and issubclass(kind, Optimizer) and kind.__module__ == module.__name__}
#: Those of them that may update tables.
_KNOWN = frozenset(_OF_MXNET[name] for name in SPARSE_KERNELS + ELEMENTWISE)

#: Attributes that are not sent: bookkeeping, and what goes as effective values per table.
_NOT_SENT = BOOKKEEPING | {'lr', 'wd'}

#: Short names that ``import mxnet`` gives to its modules near its end, which a server of launch.py never reaches.
_SHORT_NAMES = {'nd': 'ndarray', 'sym': 'symbol', 'np': 'numpy', 'npx': 'numpy_extension', 'rnd': 'random'}

_SCALARS = (bool, int, float, str, type(None))
#: Marks a tuple in JSON, which has lists only, and a number of NumPy's that is less precise than Python's.
_TUPLE, _NUMPY = '__tuple__', '__numpy__'


def name_of(optimizer: Any) -> str:
    """Registry name of an optimizer."""
    return type(optimizer).__name__.lower()


def is_known(optimizer: Any) -> bool:
    """Whether `optimizer` is one of MXNet's own that may update tables."""
    return type(optimizer) in _KNOWN


def reference_of(optimizer: Any) -> str:
    """How servers find the class: the name of one of MXNet's, else ``module:name``."""
    return name_of(optimizer) if is_known(optimizer) else '%s:%s' % (type(optimizer).__module__,
                                                                     type(optimizer).__qualname__)


def find_class(reference: str) -> Any:
    """The class that :func:`reference_of` refers to; ImportError, in one line, if there is none."""
    if ':' not in reference:
        return _OF_MXNET[reference]
    module, _, name = reference.partition(':')
    mxnet = sys.modules['mxnet']
    for short, full in _SHORT_NAMES.items():
        if not hasattr(mxnet, short) and 'mxnet.' + full in sys.modules:
            setattr(mxnet, short, sys.modules['mxnet.' + full])
    try:
        found: Any = importlib.import_module(module)
        for part in name.split('.'):
            found = getattr(found, part)
        if not issubclass(found, Optimizer):
            raise TypeError('%r is no subclass of mxnet.optimizer.Optimizer' % (found,))
    except Exception as error:  # the module is the user's: anything
        raise ImportError('cannot import optimizer class %s from module %s here: %s: %s. Servers import what workers '
                          'find beside the script or in PYTHONPATH; so must be what that module imports. Under '
                          'launch.py it can use mx.nd and mx.optimizer of MXNet, but not gluon'
                          % (name, module, type(error).__name__, ' '.join(str(error).split()))) from error
    return found


def check_for_table(optimizer: Any, table: str, dtype: Any, wd: float) -> None:
    """Refuse (InputError) an optimizer that cannot update `table`, of `dtype`, with weight decay `wd`, exactly."""
    name = name_of(optimizer)
    if not is_known(optimizer):
        if not is_marked(optimizer):
            raise InputError(
                "optimizer %r cannot update %s, whose row_sparse weight lives in partitions on the servers: its result "
                "would depend on the partitioning or change untouched rows. Use one of %s, or give the layer a dense "
                "weight (nn.Embedding with sparse_grad=True works with every optimizer), or mark a class of your own "
                "with mxhybrid.row_wise if it works row by row"
                % (name, table, ', '.join(n for n in SPARSE_KERNELS + ELEMENTWISE if n not in ('ccsgd', 'test'))))
        _check_class(optimizer, table)
        attributes_of(optimizer)
    elif name in FLOAT32_STATE and np.dtype(dtype) != np.float32:
        raise InputError('optimizer %r cannot update %s, which is %s: MXNet keeps its state in float32. Make the table '
                         'float32, or use sgd, adam or nag' % (name, table, np.dtype(dtype)))
    elif name in ('adagrad', 'groupadagrad') and wd:
        raise InputError("optimizer %r with wd=%g cannot update %s: MXNet has no sparse %s with weight decay. "
                         "Set wd=0, or wd_mult=0 for this parameter" % (name, wd, table, name))
    if optimizer.multi_precision and np.dtype(dtype) == np.float16:
        raise InputError('optimizer %r with multi_precision=True cannot update %s: MXNet has no sparse update with a '
                         'float32 copy. Make the table float32, or set multi_precision=False' % (name, table))


def _check_class(optimizer: Any, table: str) -> None:
    """Refuse a marked class that servers cannot import by its name."""
    kind = type(optimizer)
    about = 'optimizer class %s cannot update %s on servers, which would import it as %s: ' % (
        kind.__qualname__, table, reference_of(optimizer))
    if kind.__module__ == '__main__':
        raise InputError(about + 'it is defined in the script itself. Move it into a module of its own beside the '
                                 'script, and import it from there')
    if '<locals>' in kind.__qualname__:
        raise InputError(about + 'it is defined inside a function. Define it at the top of its module')
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split('.'):
        found = getattr(found, part, None)
    if found is not kind:
        raise InputError(about + 'that name leads to %r. Keep the class under its own name' % (found,))


def check_change(made_with: Optional[Tuple[str, Dict[str, Any]]], optimizer: Any, table: str) -> None:
    """Refuse settings for which there is no state: MXNet makes it before the first update, and only then.

    `made_with` is reference and attributes of the optimizer when the state of `table` was made, if it was.  One process
    fails, too, with an error of MXNet's.
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
    raise InputError('optimizer %r cannot go on with %s for %s: it was %s before the first update, when MXNet makes '
                     'the state, and other state is needed now. Set it from the start, or make a new Trainer when it '
                     'changes' % (name, setting, table, was))


def scalars(optimizer: Any) -> Dict[str, Any]:
    """All scalar attributes of an optimizer (rescale_grad, momentum, …), as sent to the servers."""
    return {name: _plain(value) for name, value in vars(optimizer).items()
            if name not in _NOT_SENT and isinstance(value.item() if isinstance(value, np.generic) else value, _SCALARS)}


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's.  One of fewer bits keeps its type: MXNet's operators get settings as text, and
    ``np.float32(0.1)`` has another text than the float64 of the same value.
    """
    if isinstance(value, (np.float16, np.float32)):
        return {_NUMPY: [value.dtype.name, value.item()]}
    return value.item() if isinstance(value, np.generic) else value


def as_read(value: Any) -> float:
    """The number that the text of a setting says, which is what MXNet's operators get of it."""
    return float(str(value))


def attributes_of(optimizer: Any) -> Dict[str, Any]:
    """All attributes of an optimizer that servers need, as JSON: scalars, and of a marked class all, or InputError."""
    if is_known(optimizer):
        return scalars(optimizer)
    sent = {}
    for name, value in vars(optimizer).items():
        if name not in _NOT_SENT or name == 'aggregate_num':
            try:
                sent[name] = _packed(value)
            except TypeError as error:
                raise InputError('optimizer %r cannot update tables on servers: its attribute %s holds %s, and only '
                                 'numbers, strings, None, and lists, tuples and dicts (by string) of them are sent'
                                 % (name_of(optimizer), name, error)) from None
    return sent


def _packed(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _plain(value)
    if type(value) is list:
        return [_packed(one) for one in value]
    if type(value) is tuple:
        return {_TUPLE: [_packed(one) for one in value]}
    if type(value) is dict and all(type(name) is str and name not in (_TUPLE, _NUMPY) for name in value):
        return {name: _packed(one) for name, one in value.items()}
    if not isinstance(value, _SCALARS):
        raise TypeError('a value of type %s' % type(value).__name__)
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(one) for one in value]
    if isinstance(value, dict):
        if _TUPLE in value:
            return tuple(_unpacked(one) for one in value[_TUPLE])
        if _NUMPY in value:
            return np.dtype(value[_NUMPY][0]).type(value[_NUMPY][1])
        return {name: _unpacked(one) for name, one in value.items()}
    return value


def build(reference: str, attributes: Dict[str, Any]) -> Any:
    """Create the optimizer `reference` with the attributes that :func:`attributes_of` and the worker sent.

    As if it were unpickled, without a call of its own ``__init__``: that of the base class makes the bookkeeping.
    """
    made = object.__new__(find_class(reference))
    Optimizer.__init__(made)
    set_attributes(made, attributes)
    return made


def set_attributes(optimizer: Any, attributes: Dict[str, Any]) -> None:
    """Give an optimizer attributes that :func:`attributes_of` made."""
    optimizer.__dict__.update((name, _unpacked(value)) for name, value in attributes.items())


class TableOptimizer:
    """The optimizer of one table, and the attributes that it had when the state was made, if there is any."""

    def __init__(self, reference: str, attributes: Dict[str, Any], made_with: Optional[Dict[str, Any]] = None):
        self.reference = reference
        self.live = build(reference, attributes)
        self.maker = build(reference, attributes if made_with is None else made_with)
        self._kernel = reference if ':' not in reference else ''

    def change(self, attributes: Dict[str, Any]) -> None:
        """Change settings."""
        set_attributes(self.live, attributes)

    def expect_count(self, key: int, count: int) -> None:
        """Correct the number of updates made to partition `key`."""
        self.live._index_update_count[key] = count

    def create_state(self, key: int, weight: Any) -> Any:
        """State for a weight, of which MXNet looks at shape, dtype and storage type."""
        return self.maker.create_state_multi_precision(key, weight)

    @property
    def takes_dense(self) -> bool:
        """Whether weight and gradient are to be dense arrays; row_sparse otherwise."""
        return self._kernel in IN_PLACE

    def keeps_rows(self, state: Any) -> bool:
        """Whether an update leaves all rows stored where they are; MXNet's copies come back without rows of zeros."""
        return self._kernel in SPARSE_KERNELS or (self._kernel == 'nag' and state is None)  # which is sgd_update

    def changes_all_rows(self, state: Any) -> bool:
        """Whether an update changes rows that the gradient does not touch, for example by weight decay."""
        return not self.keeps_rows(state) or not getattr(self.live, 'lazy_update', True)

    def update(self, key: int, weight: Any, grad: Any, state: Any) -> None:
        """Make one update, as MXNet's Updater calls an optimizer."""
        if not self._kernel and self.live.aggregate_num > 0:
            self.live.update_multi_precision((key,), (weight,), (grad,), [state])
        else:
            self.live.update_multi_precision(key, weight, grad, state)
