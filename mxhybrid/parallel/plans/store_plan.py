"""What a plan says of the store: how rows of tables travel, and what sums dense weights."""
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from ...base.errors import InputError
from ...base.settings import DENSE, TABLE_ROUTES, TablePlan
from ..ops.graph import Graph

#: What a plan may say; what settings may say besides, that it be found while training, is what a plan leaves out.
ROUTES, SUMS = [route for route in TABLE_ROUTES if route != 'auto'], [one for one in DENSE if one != 'auto']


class StorePlan(NamedTuple):
    """Choices of a plan beside how operators are split.

    Attributes
    ----------
    tables : dict of str to TablePlan
        By :meth:`Graph.label` of parameters with row_sparse gradients; of others the store finds the route by itself.
    dense : str or None
        ``'lane'`` or ``'horovod'``, which sums gradients of dense weights; None for the store's own choice.
    """

    tables: Mapping[str, TablePlan] = {}
    dense: Optional[str] = None

    def as_json(self) -> Dict[str, Any]:
        """What :func:`store_plan_from_json` reads: keys of a plan's JSON, none for what is left out."""
        found: Dict[str, Any] = {}
        if self.tables:
            found['tables'] = {label: {key: value for key, value in one._asdict().items() if value is not None}
                               for label, one in sorted(self.tables.items())}
        return found if self.dense is None else dict(found, dense=self.dense)

    def by_name(self, graph: Graph) -> Dict[str, TablePlan]:
        """Of tables, by the names of their parameters.

        Raises
        ------
        InputError
            For one that the network does not have.
        """
        names = {graph.label(graph.operators[number]): graph.operators[number].name for number in graph.tables}
        unknown = sorted(set(self.tables) - set(names))
        if unknown:
            raise InputError('plan: %s is no table of the network: give parameters with row_sparse gradients, of which '
                             'it has %s' % (unknown[0], ', '.join(sorted(names)) or 'none'))
        return {names[label]: one for label, one in self.tables.items()}

    def left_out(self, graph: Graph) -> List[int]:
        """Numbers of tables of which it says nothing."""
        return [number for number in graph.tables if graph.label(graph.operators[number]) not in self.tables]

    def words(self) -> List[str]:
        """A line for each choice."""
        found = []
        for label, one in sorted(self.tables.items()):
            count = '' if one.partitions is None else ', %d partition%s' % (one.partitions, 's' * (one.partitions != 1))
            found.append('%s: rows by %s%s' % (label, one.route, count))
        return found + ['dense weights: summed by %s' % self.dense] * (self.dense is not None)


def store_plan_from_json(value: Mapping[str, Any]) -> StorePlan:
    """Of a plan's JSON; InputError for values that are none."""
    tables, dense = value.get('tables', {}), value.get('dense')
    if not isinstance(tables, Mapping):
        raise InputError("plan: tables=%r: give an object by names of parameters, as {'embedding0_weight': {'route': "
                         "'servers', 'partitions': 4}}" % (tables,))
    if dense is not None and dense not in SUMS:
        raise InputError('plan: dense=%r: give one of %s, or leave it out' % (dense, ', '.join(SUMS)))
    return StorePlan({label: _table(label, one) for label, one in tables.items()}, dense)


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
