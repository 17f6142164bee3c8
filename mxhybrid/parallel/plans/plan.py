"""Plans: how every operator of a network is split."""
import copy
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...base.errors import InputError
from ...base.settings import TablePlan
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..ops.registry import rule_of
from ..sharding.split import Split, whole_on
from .store_plan import StorePlan

#: Rows of a table are summed over all workers.
ON_ALL = 'its gradient is row_sparse, for which it has to be on all workers'


class SplitRequest(NamedTuple):
    """What a plan wants of an operator: degrees by name of the dimension, addends, and who has its parts."""

    degrees: Mapping[str, int]
    addends: int = 1
    ranks: Optional[Sequence[int]] = None
    #: Whether what cannot be is an error, and not left out.
    strict: bool = False


class ResolvedPlan(NamedTuple):
    """A plan for a network and a number of ranks."""

    splits: Dict[int, Split]
    #: What is otherwise than asked, by operator, and by the table that a plan leaves out.
    notes: Dict[int, str]
    #: How rows travel, by the name of the parameter.
    tables: Mapping[str, TablePlan] = {}


class Plan:
    """How operators are split.  This one is pure data parallelism; others say more by :meth:`request`."""

    name = 'data parallel'
    #: How rows of tables travel, and what sums dense weights.
    store = StorePlan()
    #: Whether it is a list of all that there is in a network, and not a rule.
    lists_all = False

    def with_store(self, store: StorePlan) -> 'Plan':
        """The same, with other choices for the store."""
        found = copy.copy(self)
        found.store = store
        return found

    def request(self, graph: Graph, dimensions: Dimensions, operator: Operator, ranks: int) -> Optional[SplitRequest]:
        """What is wanted of an operator; None where it follows what it reads, or has its samples split."""
        return None

    def check(self, ranks: int) -> None:
        """InputError where it is for another number of ranks."""

    def for_graph(self, former: Graph, graph: Graph) -> 'Plan':
        """The plan by which a network is split in the same way as `former`, the same with data of other shapes."""
        return self

    def follows_producer(self, operator: Operator) -> bool:
        """Whether an operator without a wish is split as what it reads; else by samples."""
        return False

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        """The split of each operator."""
        self.check(ranks)
        splits: Dict[int, Split] = {}
        notes: Dict[int, str] = {}
        for operator in graph.computing:
            request = self.request(graph, dimensions, operator, ranks)
            if request is not None:
                split, note = _fit(graph, dimensions, operator, request, ranks)
            else:
                split, note = self.default_split(graph, dimensions, operator, ranks, splits)
            splits[operator.number] = split
            if note:
                notes[operator.number] = note
        return self._with_tables(ResolvedPlan(splits, notes), graph)

    def _with_tables(self, resolved: ResolvedPlan, graph: Graph) -> ResolvedPlan:
        tables = self.store.by_name(graph)
        left_out = self.store.left_out(graph) if self.lists_all or tables else []
        notes = dict.fromkeys(left_out, 'a table of which the plan says nothing: it goes as settings say, or is '
                                        'measured while training')
        return ResolvedPlan(resolved.splits, {**resolved.notes, **notes}, tables)

    def default_split(self, graph: Graph, dimensions: Dimensions, operator: Operator, ranks: int,
                      splits: Dict[int, Split]
                      ) -> Tuple[Split, str]:
        """The split of an operator without a wish, of those of what it reads; and what there is to say of it."""
        samples = dimensions.samples((operator.number, 0))
        shape, limits = graph.shape(operator), rule_of(operator).limits(graph, operator)
        candidates = []
        if self.follows_producer(operator):
            producer = next((splits[source] for source, _ in operator.inputs if source in splits
                             and len(splits[source].degrees) == len(shape)), None)
            if producer is not None and producer.addends == producer.copies == 1:
                followed = rule_of(operator).propagate(graph, operator, producer.degrees)
                if followed is not None:
                    candidates.append(Split(followed[0], producer.ranks, followed[1]))
        if samples is not None and limits[samples] > 1:
            degree = min(ranks, limits[samples])
            candidates.append(Split([degree if at == samples else 1 for at in range(len(shape))],
                                    spread(degree, ranks)))
        if not candidates:
            return whole_on(len(shape), (0,) if rule_of(operator).not_replicable else range(ranks)), ''
        found = max(candidates, key=lambda split: len(split.ranks))
        if graph.has_table(operator) and len(found.ranks) < ranks:
            return whole_on(len(shape), range(ranks)), 'whole on every rank: ' + ON_ALL
        return found, ''

    def as_json(self) -> Dict[str, Any]:
        """What :func:`~.plan_json.from_json` reads."""
        return {**self._layers_as_json(), **self.store.as_json()}

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'data_parallel'}

    def __repr__(self) -> str:
        return '<plan: %s>' % self.name


def spread(count: int, ranks: int) -> List[int]:
    """So many of all ranks, as evenly as can be; each sample of few is given to these, too."""
    return [-(-at * ranks // count) for at in range(count)]


def _fit(graph: Graph, dimensions: Dimensions, operator: Operator, request: SplitRequest, ranks: int) -> Tuple[Split,
                                                                                                               str]:
    """The split that comes nearest to a wish; InputError where the wish is strict."""
    names, rule = dimensions.names(operator), rule_of(operator)
    limits, problems = rule.limits(graph, operator), []
    for name in request.degrees:
        if name not in names:
            problems.append('%s has no %s, but %s' % (graph.label(operator), name, ', '.join(names)))
    degrees = []
    for name, limit in zip(names, limits):
        degree = int(request.degrees.get(name, 1))
        if degree < 1:
            raise InputError('plan: %s is to be split %s=%r: give a whole number of at least 1'
                             % (graph.label(operator), name, degree))
        if degree > limit:
            problems.append('%s can be cut in %d, not %d' % (name, limit, degree))
        degrees.append(min(degree, limit))
    most = rule.addends(graph, operator)
    if request.addends > most:
        problems.append('it sums over %d, not %d, that can be cut' % (most, request.addends))
    addends = min(request.addends, most)
    count = addends
    for degree in degrees:
        count *= degree
    if request.ranks is None:
        if count > ranks:
            problems.append('it has %d parts, but there are %d ranks' % (count, ranks))
            degrees, addends, count = [1] * len(degrees), 1, 1
        chosen = spread(count, ranks)
    else:
        chosen = [int(rank) for rank in request.ranks]
        wrong = [rank for rank in chosen if not 0 <= rank < ranks]
        if wrong or len(set(chosen)) != len(chosen):
            raise InputError('plan: %s is on ranks %s: give different ones of 0 to %d'
                             % (graph.label(operator), chosen, ranks - 1))
        if len(chosen) < count:
            problems.append('it has %d parts, but %d ranks' % (count, len(chosen)))
            degrees, addends, count = [1] * len(degrees), 1, 1
        elif len(chosen) > count:
            problems.append('it has %d parts for %d ranks' % (count, len(chosen)))
        chosen = chosen[:count]
    lacks_ranks = graph.has_table(operator) and len(chosen) < ranks
    if lacks_ranks:
        problems.append(ON_ALL)
    if problems and request.strict:
        raise InputError('plan: %s (%s of shape %s) cannot be split so: %s'
                         % (graph.label(operator), operator.op, graph.shape(operator), '; '.join(problems)))
    found = whole_on(len(degrees), range(ranks)) if lacks_ranks else Split(degrees, chosen, addends)
    return found, '; '.join(problems)
