"""The dynamic tables of a Trainer: their keys in its optimizer, their part of a step, and their agreement in a job.

MXNet's Trainer handles parameters that have arrays, so it does not get a :class:`TableParameter`.  The tables have the
keys after those of the other parameters, by which the optimizer finds multipliers and counts updates.

==============================  ====================================================================================
``Trainer(...)``                :func:`split_off` takes the tables from the list of parameters
after that                      :meth:`TrainerTables.agree`: all workers compare their tables, and take the first
                                values of worker 0
when the store is made          :meth:`TrainerTables.open`: the rows move to the servers
``Trainer._allreduce_grads``    :meth:`TrainerTables.check`: refuses optimizers and batches before anything is sent
``Trainer._update``             :meth:`TrainerTables.push`: every worker pushes every table that is not frozen, also one
                                without gradients
==============================  ====================================================================================
"""
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Tuple

import numpy as np
from mxnet.gluon.parameter import ParameterDict

from ..base.errors import InputError
from ..base.settings import TablePlan
from ..lane.keyed_rows import KeyedRows
from ..native.optimizer_state import count_update, has_schedule, rates_of, rates_of_all, update_count, weight_decays
from ..native.trainers import params_of, store_of, trainer_of
from ..row_store.row_store import FirstValues
from ..servers.kernel_rules import check_kernel
from ..servers.optimized_table import recipe_of
from .counted_names import without_counters
from .table_parameter import TableParameter

#: Attribute of a Trainer: the tables that were taken from its list of parameters.
_ATTRIBUTE = '_mxhybrid_tables'


class TableTraffic:
    """The traffic of a dynamic table, for the report and for records."""

    kind, has_table, all_rows = 'dynamic table', True, False

    def __init__(self, key: int, param: TableParameter):
        self.key, self.name, self.param = key, param.name, param
        #: The number of rows that the table may have; None for any number.
        self.rows = param.rows
        self.traffic = param.traffic
        #: The name on worker 0, which counts for settings and names on the servers.
        self.name_of_all = param.name
        #: The table on the servers, until the parameter is initialised again and a step has made another one.
        self.served: Any = None

    def cache_counts(self) -> Dict[str, int]:
        """Return the numbers of rows that the workers of this host have requested, and that its cache had, so far."""
        return self.param.table.cache_counts()


class TrainerTables:
    """The dynamic tables of one Trainer; an empty collection for most Trainers."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        #: The parameters, in the order of their keys.
        self.params: List[TableParameter] = trainer.__dict__.get(_ATTRIBUTE, [])
        self._tables = [TableTraffic(len(params_of(trainer)) + index, param) for index, param in enumerate(self.params)]
        # For each table the number of initialisations on which the workers have agreed.
        self._agreed = [param.initialisations for param in self.params]
        self._last_checksum = self.checksum()

    def __bool__(self) -> bool:
        return bool(self.params)

    def __iter__(self) -> Iterator[TableTraffic]:
        return iter(self._tables)

    @property
    def _trained(self) -> List[TableTraffic]:
        return [table for table in self._tables if table.param.grad_req != 'null']

    def register(self) -> None:
        """Give the optimizer the tables' parameters, from which it reads multipliers."""
        self._trainer.optimizer.param_dict.update((table.key, table.param) for table in self._tables)

    # -- agreement -----------------------------------------------------------------------------------------------

    def descriptions(self) -> List[List[Any]]:
        """Return name, properties, first values, and the name on this worker, of each table, as JSON."""
        names = without_counters([param.name for param in self.params])
        return [[name, {'rows': param.rows, 'width': param.width, 'dtype': param.dtype, 'grad_req': param.grad_req,
                        **param.options}, list(param.first_values), param.name]
                for name, param in zip(names, self.params)]

    def agree(self, everyone: List[List[List[Any]]]) -> None:
        """Compare the descriptions of all workers, by rank, and take worker 0's first values.

        InputError on all workers if they differ in anything else than the first values.
        """
        for rank, descriptions in enumerate(everyone):
            _compare(everyone[0], descriptions, rank)
        for table, (_, _, first_values, name) in zip(self._tables, everyone[0]):
            table.param.take_first_values(FirstValues(*first_values))
            table.name_of_all = name
        self._agreed = [param.initialisations for param in self.params]

    def checksum(self) -> float:
        """Return a number that differs between workers if they have frozen or initialised other tables."""
        if not self.params:
            return 0.0
        states = [(param.grad_req == 'null', param.initialisations != agreed)
                  for param, agreed in zip(self.params, self._agreed)]
        return float(zlib.crc32(repr(states).encode()))

    def changed(self) -> bool:
        """Return whether the checksum differs from that of the last call: a worker alone may have changed a table."""
        before, self._last_checksum = self._last_checksum, self.checksum()
        return before != self._last_checksum

    # -- a step --------------------------------------------------------------------------------------------------

    def open(self, store: Any) -> None:
        """Let a store hold the rows (collective): on the servers, or in this process if there are none."""
        if not self:
            return
        self.register()
        if store.distributed:
            self.agree(store.backend.allgather_json(self.descriptions(), 'dynamic_tables'))
        for table in self._tables:
            param = table.param
            self._check_trainer(param)
            if not store.distributed:
                param.keep_in(*store.backend.storage_for(param.name))
            if not store.distributed or param.is_served:
                param.forget_former_optimizer()
                table.served = param.table if param.is_served else None
            else:
                self._serve(table, store)

    def reopen(self, store: Any) -> None:
        """Begin again with tables that all workers have initialised since the store was made (collective)."""
        are_new = [param.initialisations != agreed for param, agreed in zip(self.params, self._agreed)]
        if not store.distributed or not any(are_new):
            return
        self.agree(store.backend.allgather_json(self.descriptions(), 'dynamic_tables'))
        for table, is_new in zip(self._tables, are_new):
            if is_new:
                self._serve(table, store)

    def reopen_together(self, store: Any) -> None:
        """Do as :meth:`reopen` outside of a step, where nothing else has compared the workers (collective)."""
        if not self.params or store is None or not store.distributed:
            return
        checksums = store.backend.allgather_json(self.checksum(), 'dynamic_tables.initialised')
        others = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
        if others:
            raise InputError('worker %d has frozen or initialised other dynamic tables than worker 0: make the same '
                             'calls on all workers' % others[0])
        self.reopen(store)

    def _serve(self, table: TableTraffic, store: Any) -> None:
        """Create a table on the servers (collective)."""
        table.served = store.backend.open_dynamic_table(table)
        table.param.serve(table.served, store)

    def check(self, optimizer: Any) -> None:
        """Refuse an optimizer that cannot update the tables, and too many keys, before anything of a step is sent."""
        if not self.params:
            return
        trained = self._trained
        for number, (table, wd) in enumerate(zip(trained, weight_decays(optimizer, [table.key for table in trained]))):
            if not number:
                check_kernel(optimizer, table.name, table.param.dtype, wd)
            table.param.table.check_optimizer(optimizer, wd)
            self._check_trainer(table.param)
            table.param.check_capacity()

    def _check_trainer(self, param: TableParameter) -> None:
        if trainer_of(param) is not self._trainer:
            raise InputError('step: %s was given to another Trainer, which trains its rows: call step() of that Trainer'
                             % param.name)

    def overflow(self) -> bool:
        """Return whether a gradient of this worker is not finite."""
        return any(table.param.lookups.overflow(table.param.grad_req) for table in self._trained)

    def scale(self, factor: float) -> None:
        """Multiply the gradients by a number, as ``amp.unscale`` does with those of other parameters."""
        for table in self._trained:
            for gradient in table.param.lookups.gradients(table.param.grad_req):
                gradient *= factor

    def push(self, store: Any, optimizer: Any, devices: Iterable[int]) -> None:
        """Update the rows by the gradients of all workers (collective); the update counts for each of `devices`."""
        trained = self._trained
        if not trained:
            return
        recipe = recipe_of(optimizer)
        # A schedule sees the number of updates at the update of each table.
        rates = None if has_schedule(optimizer) else rates_of_all(optimizer, [table.key for table in trained])
        pushes = []
        for number, table in enumerate(trained):
            param, key = table.param, table.key
            count = update_count(optimizer, key)
            count_update(optimizer, key, devices)
            table_rates = rates_of(optimizer, key) if rates is None else rates[number]
            rows = param.lookups.take(param.grad_req)
            if rows is None:
                rows = KeyedRows(np.empty(0, np.int64), None, np.empty((0, param.width), param.dtype))
            store.backend.note_call('push of %s' % table.name_of_all)
            pushes.append((table, rows, table_rates, count))
        # A meter measures each table; otherwise one call pushes to all of them.
        for part in [pushes] if not store.meter.enabled else [[push] for push in pushes]:
            with store.meter.call('push', part[0][0]):
                for table, _, table_rates, count in part:
                    table.param.table.set_optimizer(optimizer, *table_rates, count, recipe)
                tables = [table.param.table for table, *_ in part]
                tables[0].push_all(tables, [rows for _, rows, *_ in part])
                for table, rows, *_ in part:
                    table.traffic.add(rows=len(rows.keys), pushed=len(rows.keys) * table.param.table.row_bytes)

    def drop_gradients(self) -> None:
        """Forget the gradients of a step that an overflow ends."""
        for table in self._trained:
            table.param.lookups.take(table.param.grad_req)

    def refuse_states(self, call: str) -> None:
        """Refuse a call for a file with the state of the optimizer (InputError)."""
        if self:
            raise InputError('%s: the optimizer state of %s is with its rows, which one file of MXNet cannot hold: use '
                             'mxhybrid.checkpoint.save and load' % (call, self.params[0].name))

    # -- for the report ------------------------------------------------------------------------------------------

    def report(self) -> List[Tuple[TableTraffic, Dict[str, int]]]:
        """Return the tables and their statistics, which worker 0 alone can ask for; {} on other workers."""
        return [(table, {} if store_of(self._trainer).rank else table.param.table.statistics())
                for table in self._tables]


def split_off(trainer: Any, params: Any) -> Any:
    """Return the parameters that MXNet's Trainer gets, and keep the dynamic tables among `params` for its hooks."""
    values = params
    if isinstance(params, (dict, ParameterDict)):
        values = [params[name] for name in sorted(params.keys())]
    if not isinstance(values, (list, tuple)):
        return params  # which MXNet refuses
    tables = [param for param in values if isinstance(param, TableParameter)]
    if not tables:
        return params
    trainer.__dict__[_ATTRIBUTE] = tables
    return [param for param in values if not isinstance(param, TableParameter)]


def tables_split_off(trainer: Any) -> List[TableParameter]:
    """Return the dynamic tables of a Trainer of any store."""
    return trainer.__dict__.get(_ATTRIBUTE, [])


def _compare(first: List[List[Any]], other: List[List[Any]], rank: int) -> None:
    names, other_names = [entry[0] for entry in first], [entry[0] for entry in other]
    advice = 'build the same net, with the same names, on every worker'
    if names != other_names:
        raise InputError('dynamic tables: workers disagree: worker 0 has %s, worker %d has %s; %s'
                         % (', '.join(names) or 'none', rank, ', '.join(other_names) or 'none', advice))
    for (name, properties, *_), (_, other_properties, *_) in zip(first, other):
        for what, value in properties.items():
            if other_properties.get(what) != value:
                raise InputError('dynamic table %s: workers disagree: worker 0 has %s=%s, worker %d has %s; %s'
                                 % (name, what, value, rank, other_properties.get(what), advice))


#: The attribute of a parameter with the choice of a plan for its table, until a Trainer tells its store.  Settings win.
_HINT = 'mxhybrid_table_hint'


def set_table_hint(param: Any, table: TablePlan) -> None:
    """Mark `param`, before a Trainer has it, with the route and the partitions that a plan has for its rows."""
    setattr(param, _HINT, table)


def table_hints(params: List[Any]) -> Dict[str, TablePlan]:
    """Return the marks of parameters, by name."""
    return {param.name: getattr(param, _HINT) for param in params if hasattr(param, _HINT)}
