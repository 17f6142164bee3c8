"""The parameter of a dynamic table: a weight of which no process holds an array.

Its rows are on the servers, or in this process if there is no job, and the Blocks of :mod:`mxhybrid.nn` look them up by
key.  The parameter has an entry in ``collect_params()``, multipliers, a `grad_req`, an initializer and devices as any
other one.  Calls of ``gluon.Parameter`` that need an array of its shape are refused, with another way to do it.
"""
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Mapping, NoReturn, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import Parameter

from ..base.errors import InputError
from ..lane.keyed_rows import distinct_keys
from ..row_store.row_store import DTYPES, FirstValues, RowStoreOptions, check_capacity, check_row_dtype
from ..telemetry.traffic import Traffic
from .ids import checked_ids
from .local_table import LocalTable
from .lookups import PendingLookups
from .table_initializers import first_values_of

#: Most columns of a row: the limit of the compiled part.
_MAX_WIDTH = 1 << 24
#: MXNet's own default.
_UNIFORM = mx.initializer.Uniform()
#: Rows are numbered by int64.
_MAX_ROWS = (1 << 63) - 1

_READ_ROWS = "Read rows by id with the Block's rows(ids)"


def _refuse(call: str, param: Any, reason: str, remedy: str) -> NoReturn:
    raise InputError('%s: %s %s. %s' % (call, param.name, reason, remedy))


def _refusal(call: str, remedy: str) -> Callable[..., NoReturn]:
    """Return a method that raises InputError, for a call that needs an array of the whole weight."""
    return lambda self, *_, **keywords: _refuse(
        call, self, 'is a dynamic table, of which no process holds an array', remedy)


class TableParameter(Parameter):
    """The parameter of a dynamic table.

    Parameters
    ----------
    name : str
    rows : int or None
        Number of rows, whose keys are 0 to `rows` - 1.  None: keys are any int64.
    width : int
        Number of elements of a row.
    dtype : str or numpy.dtype
        float32 or float64.
    init : mxnet.initializer.Initializer or str, optional
    options : dict
        Options of :class:`mxhybrid.row_store.row_store.RowStore`: admit, capacity, expire_after, evict, row_dtype.

    Notes
    -----
    The shape is ``(rows, width)``, and ``(0, width)`` for any int64: MXNet writes 0 for a number that is not known.
    """

    _dtype: str
    _ctx_list: Optional[List[Any]]

    def __init__(self, name: str, rows: Optional[int], width: int, dtype: Any = 'float32', init: Any = None,
                 options: Mapping[str, Any] = {}, **keywords: Any):
        _check_count(name, 'rows', rows if rows is not None else 1, _MAX_ROWS)
        _check_count(name, 'width', width, _MAX_WIDTH)
        super().__init__(name, shape=(int(rows or 0), int(width)), dtype=_dtype(name, dtype), init=init, **keywords)
        self.rows, self.width = rows, int(width)
        #: Options of the rows' store.
        RowStoreOptions(**options).check(name + ': ')
        self.options: Dict[str, Any] = {option: value if isinstance(value, str) else int(value)
                                        for option, value in options.items()}
        check_row_dtype(name + ': ', self.dtype, self.options.get('row_dtype', ''))
        # The directory of rows that are in files in this process, and their resident bytes.
        self._storage = '', 0
        self._first_values: Optional[FirstValues] = None
        self._table: Any = None
        #: The lookups whose gradients the next step takes.
        self.lookups = PendingLookups()
        #: A function that gets the keys of every request, if there is one.
        self.observer: Optional[Callable[[np.ndarray], None]] = None
        #: Rows that this worker has pushed, and bytes that it has moved.
        self.traffic = Traffic()
        #: Number of calls of ``initialize`` that gave new values.
        self.initialisations = 0
        #: The store whose lease the rows on the servers have.
        self._store: Any = None
        # Whether the optimizer that the table may have is that of a former Trainer.
        self._has_former_optimizer = False

    def __repr__(self) -> str:
        return 'TableParameter %s (%s rows, width=%d, dtype=%s)' % (
            self.name, 'any number of' if self.rows is None else self.rows, self.width, self.dtype)

    def changed_options(self) -> List[Tuple[str, Any]]:
        """Return the options that differ from their defaults, with their values."""
        return [item for item in self.options.items() if item not in RowStoreOptions._field_defaults.items()]

    def __getstate__(self) -> Dict[str, Any]:
        if self._has_rows():
            _refuse('a copy', self, 'has rows that were trained, which a copy would not share',
                    'Save them with mxhybrid.checkpoint.save, or copy and pickle the net before it is trained')
        return dict(self.__dict__, _trainer=None, _table=None, _store=None, observer=None, lookups=PendingLookups())

    # -- values ------------------------------------------------------------------------------------------------------

    def initialize(self, init: Any = None, ctx: Any = None, default_init: Any = _UNIFORM,
                   force_reinit: bool = False) -> None:
        """Give the rows first values by an initializer, and a seed that MXNet's generator draws; makes no array.

        `init` has precedence over the initializer of the Block, and that over `default_init`.
        """
        if self._first_values is not None and not force_reinit:
            mx.gluon.parameter.warnings.warn(
                "Parameter '%s' is already initialized, ignoring. Set force_reinit=True to re-initialize." % self.name,
                stacklevel=2)
            return
        if init is None:
            init = default_init if self.init is None else self.init
        words = mx.nd.random.randint(0, 1 << 31, shape=(2,), dtype='int32', ctx=mx.cpu()).asnumpy()
        seed = int(words[0]) << 31 | int(words[1])
        first_values = first_values_of(init, self.name, self.width, seed)
        self._ctx_list = _contexts(ctx)
        self.initialisations += 1
        # A table on the servers is left to its store.
        self._first_values, self._table, self._store = first_values, None, None
        self.lookups.clear()

    @property
    def first_values(self) -> FirstValues:
        """The first values of rows; InputError before ``initialize``."""
        if self._first_values is None:
            raise InputError("%s has not been initialised: call initialize() of the net, and give the Trainer its "
                             "collect_params()" % self.name)
        return self._first_values

    def take_first_values(self, first_values: FirstValues) -> None:
        """Begin with the first values of another worker, unless they are those of this worker."""
        if self.first_values != first_values:
            self._first_values, self._table, self._store = first_values, None, None

    @property
    def table(self) -> Any:
        """The table of rows: in this process, until a store of a job has opened it on the servers."""
        if self._table is None:
            self._table = LocalTable(self.name, self.width, self.dtype, self.first_values, self.options,
                                     *self._storage)
        return self._table

    def keep_in(self, directory: str, resident_bytes: int) -> None:
        """Keep rows in files of a directory of this host, '' for memory; existing rows stay where they are."""
        if self._storage != (directory, resident_bytes) and not self._has_rows():
            self._storage, self._table = (directory, resident_bytes), None

    @property
    def is_served(self) -> bool:
        """True if the rows are on the servers."""
        return self._store is not None

    def _has_rows(self) -> bool:
        """Return whether rows exist, or may exist on the servers."""
        return self.is_served or self._table is not None and bool(self._table.statistics()['rows'])

    def serve(self, table: Any, store: Any) -> None:
        """Use a table on the servers, which lives at least as long as `store`, from now on."""
        self._table, self._store, self._has_former_optimizer = table, store, False

    def fresh_pulls(self) -> ContextManager[None]:
        """Surround pulls that get rows without staleness."""
        return self._store.backend.fresh_pulls() if self.is_served else nullcontext()

    def prefetch(self, ids: Any, after_step: bool) -> None:
        """Request rows before they are looked up, see :func:`mxhybrid.prefetch`; InputError for an id without a row."""
        (keys, _), = distinct_keys([checked_ids(ids, self.name, self.rows)])
        self.table.prefetch(keys, after_push=after_step)

    def note_request(self, keys: np.ndarray) -> None:
        """Count the traffic of a request of sorted, unique keys, and tell the observer of it."""
        self.traffic.add(steps=0, pulled=len(keys) * self.table.row_bytes)
        if self.observer is not None:
            self.observer(keys)

    def context_for(self, ids: Any) -> Any:
        """Return the device for the rows of `ids`: that of the parameter, or that of the ids if there are several."""
        contexts = self.list_ctx()
        if len(contexts) == 1:
            return contexts[0]
        context = ids.context if isinstance(ids, mx.nd.NDArray) else mx.context.current_context()
        if context not in contexts:
            raise InputError('%s has devices %s, but the ids are on %s: give the ids of each device as an array on it'
                             % (self.name, ', '.join(map(str, contexts)), context))
        return context

    # -- gradients -----------------------------------------------------------------------------------------------------

    def check_capacity(self) -> None:
        """Refuse the gradients of the next step if they have more keys than the table may have rows (InputError)."""
        capacity = self.options.get('capacity', 0)
        if capacity:
            check_capacity(self.name, self.lookups.keys(self.grad_req), capacity, self.table.partitions)

    def zero_grad(self) -> None:
        """Forget the gradients that backward passes have computed."""
        self.lookups.zero()

    # -- devices and types -----------------------------------------------------------------------------------------

    def list_ctx(self) -> List[Any]:
        """Return the devices to which rows are brought."""
        if self._ctx_list is None:
            raise InputError('%s has not been initialised: call initialize() of the net' % self.name)
        return self._ctx_list

    def reset_ctx(self, ctx: Any) -> None:
        """Bring rows to other devices from now on."""
        self.list_ctx()
        self._ctx_list = _contexts(ctx)

    def cast(self, dtype: Any) -> None:
        """Change the type of the rows, before there are any; InputError if there are rows."""
        changed = _dtype(self.name, dtype)
        if changed != self._dtype and self._has_rows():
            _refuse('cast to %s' % changed, self, 'has rows of type %s' % self._dtype,
                    'Cast the net before its first step, or cast what its Block returns')
        if changed != self._dtype:
            self._dtype, self._table = changed, None

    def _set_trainer(self, trainer: Any) -> None:
        self._has_former_optimizer = True
        self._trainer = trainer

    def forget_former_optimizer(self) -> None:
        """Drop optimizer state of a former Trainer; that of this Trainer stays when its store is made again."""
        if self._has_former_optimizer:
            self.table.forget_optimizer()
        self._has_former_optimizer = False

    # -- calls that need an array of the shape --------------------------------------------------------------------

    data = _refusal('data', "Read rows by id with the Block's rows(ids); print(net) shows its tables, since summary() "
                    'needs arrays')
    list_data = _refusal('list_data', _READ_ROWS)
    row_sparse_data = _refusal('row_sparse_data', _READ_ROWS)
    list_row_sparse_data = _refusal('list_row_sparse_data', _READ_ROWS)
    grad = list_grad = _refusal('grad', "To clip gradients give the optimizer clip_gradient; the other parameters' "
                                'gradients can be read')
    set_data = _refusal('set_data', 'Its rows begin with the values of weight_initializer')
    var = _refusal('var', 'Its Block cannot be traced: keep it outside of hybridized blocks, of parallelize and of '
                   'export, and give them the rows')
    _reduce = _refusal('save_parameters', 'Save the training with mxhybrid.checkpoint.save, or the other parameters '
                       'with save_parameters of the child Blocks that have them')
    _load_init = _refusal('load_parameters', 'Load the training with mxhybrid.checkpoint.load, or give load_parameters '
                          'a file without this parameter and allow_missing=True')


def _contexts(ctx: Any) -> List[Any]:
    if ctx is None:
        return [mx.context.current_context()]
    return [ctx] if isinstance(ctx, mx.context.Context) else list(ctx)


def _dtype(name: str, dtype: Any) -> str:
    kind = np.dtype(dtype).name
    if kind not in DTYPES:
        raise InputError('%s: dtype %s: the rows of a dynamic table are %s, because their optimizers have kernels for '
                         'these types only. Cast what the Block returns instead; rows may travel as float16, see the '
                         'setting wire_dtype' % (name, kind, ' or '.join(DTYPES)))
    return kind


def _check_count(name: str, what: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= most:
        raise InputError('%s: %s=%r: give an integer from 1 to %d' % (name, what, value, most))
