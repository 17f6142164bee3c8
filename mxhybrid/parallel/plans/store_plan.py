"""The choices of a plan for the store: the routes of tables."""
from typing import Any, Dict, List, Mapping, NamedTuple

from ...base.errors import InputError
from ...base.setting_values import TABLE_ROUTES
from ...base.settings import TablePlan
from ..ops.graph import Graph

#: The routes that a plan may have.  The setting also allows 'auto', a choice while training; a plan leaves it out.
ROUTES = [route for route in TABLE_ROUTES if route != 'auto']


class StorePlan(NamedTuple):
    """The choices of a plan for the store."""

    #: By :meth:`Graph.label` of parameters with row_sparse gradients; the store chooses the routes of all others.
    tables: Mapping[str, TablePlan] = {}

    def as_json(self) -> Dict[str, Any]:
        """Return keys of a plan's JSON, which :func:`store_plan_from_json` reads, without choices that are None."""
        return {'tables': {label: {key: value for key, value in table._asdict().items() if value is not None}
                           for label, table in sorted(self.tables.items())}} if self.tables else {}

    def by_name(self, graph: Graph) -> Dict[str, TablePlan]:
        """Return the tables by the names of their parameters.

        Raises InputError for a table that the network does not have.
        """
        names = {graph.label(graph.operators[number]): graph.operators[number].name for number in graph.tables}
        unknown = sorted(set(self.tables) - set(names))
        if unknown:
            raise InputError('plan: %s is not a table of the network: give parameters with row_sparse gradients, of '
                             'which it has %s' % (unknown[0], ', '.join(sorted(names)) or 'none'))
        return {names[label]: table for label, table in self.tables.items()}

    def left_out(self, graph: Graph) -> List[int]:
        """Return the numbers of the tables that the plan does not name."""
        return [number for number in graph.tables if graph.label(graph.operators[number]) not in self.tables]

    def words(self) -> List[str]:
        """Return a line for each choice."""
        lines = []
        for label, (route, partitions) in sorted(self.tables.items()):
            count = '' if partitions is None else ', %d partition%s' % (partitions, 's' * (partitions != 1))
            lines.append('%s: rows by %s%s' % (label, route, count))
        return lines


def store_plan_from_json(value: Mapping[str, Any]) -> StorePlan:
    """Return the choices in a plan's JSON; InputError for values that are not valid."""
    tables = value.get('tables', {})
    if not isinstance(tables, Mapping):
        raise InputError("plan: tables=%r: give an object by names of parameters, like {'embedding0_weight': {'route': "
                         "'servers', 'partitions': 4}}" % (tables,))
    return StorePlan({label: _table(label, table) for label, table in tables.items()})


def _table(label: str, value: Any) -> TablePlan:
    if not isinstance(value, Mapping) or set(value) - set(TablePlan._fields):
        raise InputError("plan: tables: %s is %r: give its route, and for servers partitions, as {'route': 'servers', "
                         "'partitions': 4}" % (label, value))
    route, partitions = value.get('route'), value.get('partitions')
    if route not in ROUTES:
        raise InputError('plan: tables: %s has route=%r: give one of %s, or leave the table out, so that it is '
                         'measured while training' % (label, route, ', '.join(ROUTES)))
    if partitions is not None:
        if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
            raise InputError('plan: tables: %s has partitions=%r: give a whole number of at least 1'
                             % (label, partitions))
        if route != 'servers':
            raise InputError('plan: tables: %s has partitions=%d, but by %s there are none: leave them out'
                             % (label, partitions, route))
    return TablePlan(route, partitions)
