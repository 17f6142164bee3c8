"""The interface of routes: how the gradients and the value of a parameter travel; one route per key.

Each route has a module of its own, and a line in the table of ``docs/routes.md``.  If a parameter may take two routes,
:mod:`mxhybrid.routes.chooser` chooses one, also during training.  A parameter that changes its route gets a new object,
which takes over from the former one, and which the store uses from then on.
"""
import math
from typing import Any, List, Mapping, Optional

import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import Settings, TablePlan, variable
from ..comm.collective import Collective
from ..comm.float16 import dtype_for
from ..servers.cluster import ParameterServers
from ..servers.partitioning import Partitioning
from ..servers.repartition import repartition
from ..servers.table import Table
from ..telemetry.traffic import Traffic
from .costs import Choice

logger = get_logger(__name__)


class RouteContext:
    """The common context of the routes of a store: the transports, the settings, and the names of operations.

    `prefix` begins all names of the store in its job.  `tuner` knows the counts of a partition file, if there may be
    one.
    """

    def __init__(self, collective: Collective, servers: ParameterServers, settings: Settings, prefix: str,
                 tuner: Any = None):
        self.collective, self.servers, self.settings, self.prefix = collective, servers, settings, prefix
        self._explicit_settings, self._tuner = settings, tuner

    def take_hints(self, hints: Mapping[str, TablePlan]) -> None:
        """Give tables, by name, the route and the partitions of a plan, where settings say nothing of them."""
        self.settings = self._explicit_settings.with_tables(hints)
        for name, hint in hints.items() if self.collective.rank == 0 else ():
            route, count = self.settings.route_for(name), self.settings.partitions_for(name)
            if route != hint.route:
                logger.warning('the plan sends the rows of %s by %s, but the setting routes says %s, which has '
                               'precedence', name, hint.route, route)
            elif route == 'servers' and hint.partitions is not None and count != hint.partitions:
                logger.warning('the plan cuts %s into %d partitions, but the setting partitions says %s, which has '
                               'precedence', name, hint.partitions, 'auto' if count is None else count)

    def tag(self, key: Any, name: str) -> str:
        """Return the name of a key's operations and tables; parameter names, unlike keys, need not be unique."""
        return '%s.%r' % (self.prefix, key) + ('.' + name if name != str(key) else '')

    def partitions_for(self, route: 'Route') -> int:
        """Return the number of partitions with which a table starts."""
        count = self.settings.partitions_for(route.name)
        if count is None and self._tuner is not None:
            count = self._tuner.start(route.name, route.shape, route.dtype)
        if count is None:
            return min(self.servers.num_servers, route.rows)
        if count > route.rows and self.collective.rank == 0:
            logger.warning('partitions=%d is more than the %d rows of %s: using %d', count, route.rows, route.name,
                           route.rows)
        return count


class ParameterSpec:
    """Key, name, shape and dtype of a parameter, for reports and messages; `array` gives shape and dtype."""

    #: The route's name in reports.
    kind = ''
    #: Whether the weight is row_sparse.
    sparse = False
    #: Whether every step moves all rows, so that rows are not counted.
    all_rows = False
    #: Whether there is a table, of which a step may move no row.
    has_table = False
    #: The table on the servers, if there is one.
    server_table: Optional[Table] = None

    def __init__(self, key: Any, name: str, array: Any, wire_dtype: str = 'float32'):
        self.key = key
        self.name = name
        self.shape = tuple(array.shape)
        #: Rows, and elements of a row.
        self.rows, self.width = self.shape[0] if self.shape else 1, math.prod(self.shape[1:])
        self.dtype = np.dtype(array.dtype)
        #: Type in which values travel.
        self.wire_dtype = dtype_for(self.dtype, wire_dtype)
        self.traffic = Traffic()
        #: The choice between servers and allreduce for a table, once it was made.
        self.choice: Optional[Choice] = None

    @property
    def carried_error(self) -> Optional[float]:
        """The error that error feedback carries over from the last dense sum, relative to the gradients; None without.
        """
        return None

    @property
    def is_quantized(self) -> bool:
        """True if values travel as int8, which the transport rounds: they are float32 where routes handle them."""
        return self.wire_dtype != self.dtype and self.wire_dtype == np.int8

    @property
    def buffer_dtype(self) -> np.dtype:
        """The type of values in the buffers of sums."""
        return self.dtype if self.is_quantized else self.wire_dtype

    @property
    def partitioning(self) -> Optional[Partitioning]:
        """The partitioning of the table on the servers, if there is one."""
        return None if self.server_table is None else self.server_table.partitioning


class Route(ParameterSpec):
    """The interface of all routes.  All workers make the same calls, except pulls and prefetch.

    `updater` is the store's ``mxnet.optimizer.Updater``, None if the store only sums.  Arrays were checked before
    (:mod:`mxhybrid.routes.checks`): a dense weight gets no calls for rows, a row_sparse weight gets no dense arrays.

    Two classes have further methods, by which a Trainer's hooks move a dense weight to servers and back:
    :class:`mxhybrid.routes.server_gradients.ServerGradients` and :class:`mxhybrid.routes.on_demand_rows.OnDemandRows`.
    """

    #: Whether servers update the weight or sum its gradients, so that they need the optimizer's class.
    uses_servers = False
    #: Whether weight and optimizer state are in a table, and not in this worker's arrays; then the methods of
    #: :class:`mxhybrid.routes.table_weight.TableWeight` read and write both.
    weight_in_table = False
    _without_table = 'no row_sparse value was pushed to it'

    def __init__(self, key: Any, name: str, array: Any, context: RouteContext):
        super().__init__(key, name, array, context.settings.wire_dtype_for(name))
        self.context = context
        self.tag = context.tag(key, name)

    def take_over(self, former: 'Route') -> None:
        """Take over the traffic and the choice of the former route of the same key."""
        self.traffic, self.choice = former.traffic, former.choice

    def init(self, value: Any, outs: List[Any], priority: int, keeps_dense: bool = True, was_set: bool = True) -> None:
        """Set the initial value to worker 0's, and write it to `outs`.

        A dense value stays in the store if it `keeps_dense`.  A further call begins again, without optimizer state, and
        from `value` if that `was_set`.
        """
        raise NotImplementedError

    def push(self, arrays: List[Any], updater: Any, priority: int) -> None:
        """Sum dense arrays, one for each device, over devices and workers; update with the sum, or keep it."""
        raise NotImplementedError

    def pushpull(self, arrays: List[Any], outs: List[Any], updater: Any, priority: int) -> None:
        """Do as :meth:`push`, and write the value to `outs`."""
        raise NotImplementedError

    def push_rows(self, ids: np.ndarray, rows: np.ndarray, updater: Any, priority: int) -> None:
        """Sum this worker's rows, of sorted and unique ids, over all workers; update with the sums, or keep them."""
        raise NotImplementedError

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        """Write the whole value to `outs`; a row_sparse output of a dense weight takes the summed gradient."""
        raise NotImplementedError

    def pull_rows(self, id_arrays: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows to `outs`; may return before they arrive.

        `id_arrays` has one array of ids for all outputs, or one for each.
        """
        raise NotImplementedError

    def prefetch(self, ids: np.ndarray, priority: int, after_push: bool) -> None:
        """Request rows that will be pulled; nothing happens where all rows are here."""

    def to_allreduce(self, optimizer: Any) -> 'Route':
        """Return the route that goes on without servers; it takes weight and state from them (collective)."""
        return self

    def widths_to_move(self) -> List[int]:
        """Return the elements per row of each array that every worker has to hold after :meth:`to_allreduce`."""
        return []

    def can_move(self) -> bool:
        """Return whether all arrays that have to move can be read."""
        return True

    def repartition(self, partitions: int) -> None:
        """Change the number of partitions of the table on the servers, between two steps."""
        table = self.server_table
        if table is None:
            raise InputError('repartition: %s has no table on the servers: %s' % (self.name, self._without_table))
        if self.wire_dtype != self.dtype:
            raise InputError('repartition: the rows of %s travel as %s, so its partitions cannot change: leave %s out, '
                             'or start with another count' % (self.name, self.wire_dtype, variable('wire_dtype')))
        repartition(table, partitions)
