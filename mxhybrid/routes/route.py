"""What a store asks of the route that a parameter takes; one object per key, each class in a file of its own.

===================================================  ===============================  ================================
route                                                for                              how
===================================================  ===============================  ================================
:class:`~.dense_allreduce.DenseAllreduce`            dense weight                     gradients summed by allreduce
:class:`~.server_gradients.ServerGradients`          dense weight, row_sparse         servers sum the rows, workers
                                                     gradient                         pull those that anyone touched
:class:`~.row_allreduce.RowAllreduce`                the same                         allreduce sums the rows
:class:`~.own_rows.OwnRows`                          the same                         servers hold and update the
                                                                                      weight, workers pull their rows
:class:`~.server_weights.ServerWeights`              row_sparse weight                servers hold and update it
:class:`~.replicated.Replicated`                     row_sparse weight                every worker holds and updates it
===================================================  ===============================  ================================

Where there are two ways, :mod:`mxhybrid.routes.chooser` says which, and may say so in mid-training.  A parameter that
changes over gets another object, which takes over from the one before; the store puts it in that one's place.
"""
import math
from typing import Any, List, Mapping, Optional

import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import Settings, TablePlan, variable
from ..comm.float16 import dtype_for
from ..servers.cluster import ParameterServers
from ..servers.partitioning import Partitioning
from ..servers.repartition import repartition
from ..servers.table import Table
from ..telemetry.traffic import Traffic
from .choice import Choice
from .wire import Sums

logger = get_logger(__name__)


class Means:
    """What the routes of a store have in common: what they travel by, and how they begin.

    `prefix` starts the names of all that the store has in its job; `tuner` knows the counts of a plan file, if there
    may be one.
    """

    def __init__(self, collective: Sums, servers: ParameterServers, settings: Settings, prefix: str, tuner: Any = None):
        self.collective, self.servers, self.settings, self.prefix = collective, servers, settings, prefix
        self._given, self._tuner = settings, tuner

    def plan(self, tables: Mapping[str, TablePlan]) -> None:
        """Have tables go as a plan says, but for those of which settings say something."""
        self.settings = self._given.with_tables(tables)
        for name, wanted in tables.items() if self.collective.rank == 0 else ():
            way, count = self.settings.way_for(name), self.settings.partitions_for(name)
            if way != wanted.route:
                logger.warning('the plan has %s go by %s, but routes says %s, which counts', name, wanted.route, way)
            elif way == 'servers' and wanted.partitions is not None and count != wanted.partitions:
                logger.warning('the plan has %s cut into %d partitions, but partitions says %s, which counts', name,
                               wanted.partitions, 'auto' if count is None else count)

    def tag(self, key: Any, name: str) -> str:
        """What operations and tables of a key are called; names, unlike keys, need not be unique in a store."""
        return '%s.%r' % (self.prefix, key) + ('.' + name if name != str(key) else '')

    def partitions_for(self, route: 'Route') -> int:
        """Partitions with which a table starts."""
        wanted = self.settings.partitions_for(route.name)
        if wanted is None and self._tuner is not None:
            wanted = self._tuner.start(route.name, route.shape, route.dtype)
        if wanted is None:
            return min(self.servers.num_servers, route.rows)
        if wanted > route.rows and self.collective.rank == 0:
            logger.warning('partitions=%d is more than the %d rows of %s: using %d', wanted, route.rows, route.name,
                           route.rows)
        return wanted


class Identity:
    """A key of a store, as reports and messages see it; `array` gives shape and dtype."""

    #: The route's name in reports.
    kind = ''
    #: Whether the weight is row_sparse.
    sparse = False
    #: Whether every step moves all rows, so that nobody counts them.
    all_rows = False
    #: Whether there is a table, of which a step may move no row at all.
    has_table = False

    def __init__(self, key: Any, name: str, array: Any, wire: str = 'float32'):
        self.key = key
        self.name = name
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        #: What values travel as.
        self.wire = dtype_for(self.dtype, wire)
        self.traffic = Traffic()
        #: Why a table takes servers or allreduce, once that was weighed or given.
        self.choice: Optional[Choice] = None

    @property
    def rows(self) -> int:
        """Rows of the parameter."""
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[1:])

    @property
    def partitioning(self) -> Optional[Partitioning]:
        """How the table on the servers is cut, if there is one."""
        return None


class Route(Identity):
    """The one interface of all routes.  Every call is made by all workers alike, but for pulls and prefetch.

    `updater` is the store's ``mxnet.optimizer.Updater``, None where it only sums.  Arrays were checked before
    (:mod:`mxhybrid.routes.checks`), so a dense weight is asked for no rows, and a row_sparse one gets no dense array.

    What else the hooks of a Trainer need to have servers hold a dense weight is in the two classes that it is about,
    :class:`mxhybrid.routes.server_gradients.ServerGradients` and :class:`mxhybrid.routes.own_rows.OwnRows`.
    """

    #: Whether servers update the weight or sum its gradients, so that they have to know the optimizer's class.
    uses_servers = False
    #: Whether weight and optimizer state lie in a table, and not in this worker's arrays; then the methods of
    #: :class:`mxhybrid.routes.held_weight.HeldWeight` read and write both.
    holds_weight = False
    #: Whether row_sparse gradients may be pushed; if not, the chooser finds a route that takes them.
    takes_rows = True
    _without_table = 'no row_sparse value was pushed to it'

    def __init__(self, key: Any, name: str, array: Any, means: Means):
        super().__init__(key, name, array, means.settings.wire_dtype)
        self.means = means
        self.tag = means.tag(key, name)

    def take_over(self, former: 'Route') -> None:
        """Go on with what another route of the same key has counted, and why it was chosen."""
        self.traffic, self.choice = former.traffic, former.choice

    def decide(self, choice: Choice) -> None:
        """Note why this route was chosen."""
        self.choice = choice

    def init(self, value: Any, outs: List[Any], priority: int, keeps_dense: bool = True, was_set: bool = True) -> None:
        """Set the initial value to worker 0's and write it to `outs`.

        A dense value stays in the store if it `keeps_dense`.  Called once more, it begins anew, without optimizer
        state, and where `value` `was_set`, from that.
        """
        raise NotImplementedError

    def push(self, arrays: List[Any], updater: Any, priority: int) -> None:
        """Sum dense arrays, one a device, over devices and workers, and update with the sum or keep it."""
        raise NotImplementedError

    def pushpull(self, arrays: List[Any], outs: List[Any], updater: Any, priority: int) -> None:
        """As :meth:`push`, and write the value to `outs`."""
        raise NotImplementedError

    def push_rows(self, ids: np.ndarray, rows: np.ndarray, updater: Any, priority: int) -> None:
        """Sum this worker's rows, of sorted and unique ids, over all workers, and update with them or keep them."""
        raise NotImplementedError

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        """Write the whole value to `outs`; a row_sparse output of a dense weight takes the summed gradient."""
        raise NotImplementedError

    def pull_rows(self, wanted: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows of one array of ids to all outputs, or of one array to each; may return before they are there."""
        raise NotImplementedError

    def prefetch(self, ids: np.ndarray, priority: int, after_push: bool) -> None:
        """Ask for rows that will be pulled; nothing where all rows are here."""

    def to_allreduce(self, optimizer: Any) -> 'Route':
        """The route that goes on without servers, with weight and state if those hold them (collective)."""
        return self

    def widths_to_move(self) -> List[int]:
        """Elements per row of each array that every worker has to hold after :meth:`to_allreduce`."""
        return []

    def can_move(self) -> bool:
        """Whether all that has to move can be read."""
        return True

    @property
    def server_table(self) -> Optional[Table]:
        """The table on the servers, if there is one."""
        return None

    @property
    def partitioning(self) -> Optional[Partitioning]:
        """How that is cut."""
        return None if self.server_table is None else self.server_table.partitioning

    def repartition(self, partitions: int) -> None:
        """Cut the table on the servers into another number of partitions, between two steps."""
        table = self.server_table
        if table is None:
            raise InputError('repartition: %s has no table on the servers: %s' % (self.name, self._without_table))
        if self.wire != self.dtype:
            raise InputError('repartition: %s has rows that travel as %s, and keeps the partitions that it has: leave '
                             '%s out, or start with another count' % (self.name, self.wire, variable('wire_dtype')))
        repartition(table, partitions)
