"""Plans: how every operator of a network is split."""
import copy
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...base.errors import InputError
from ...base.settings import TablePlan
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..ops.registry import multiplies_weights, rule_of
from ..sharding.box import full
from ..sharding.split import Split, whole_on
from .recompute import recompute_patterns
from .stages import Stages
from .store_plan import StorePlan

#: The gradients of a table are summed over all workers.
ON_ALL = 'its gradient is row_sparse, so that it has to be on all workers'


class SplitRequest(NamedTuple):
    """The split that a plan requests for an operator: degrees by name of the dimension, partial sums, and ranks."""

    degrees: Mapping[str, int]
    partials: int = 1
    ranks: Optional[Sequence[int]] = None
    #: Whether an impossible request is an error; otherwise the split is as near to it as possible.
    strict: bool = False


class ResolvedPlan(NamedTuple):
    """A plan, resolved for a network and a number of ranks."""

    splits: Dict[int, Split]
    #: Differences from the plan, by the number of the operator, and of a table that the plan leaves out.
    notes: Dict[int, str]
    #: The routes of tables, by the name of the parameter.
    tables: Mapping[str, TablePlan] = {}
    #: The pipeline, if there is one.
    stages: Optional[Stages] = None
    #: The result of a plan that should divide weights, and divides none; '' for others.
    undivided: str = ''


class Plan:
    """A plan that splits operators.  This class is data parallelism; subclasses override :meth:`request`."""

    name = 'data parallel'
    #: The routes of tables.
    store = StorePlan()
    #: Patterns of the names of blocks whose activations are computed again in the backward pass.
    recompute: Tuple[str, ...] = ()
    #: Whether it lists all operators of one network, and is not a rule for any network.
    lists_all = False
    #: The number of parts of the joint batch that the network computes one after the other.
    micro_batches = 1
    #: Whether it should divide weights.
    divides_weights = False
    #: Whether operators without a request are split like their inputs; otherwise they are split over samples.
    follows_producers = False

    def with_store(self, store: StorePlan) -> 'Plan':
        """Return the same plan with other choices for the store."""
        return self._changed(store=store)

    def with_recompute(self, patterns: Any) -> 'Plan':
        """Return the same plan, with which the activations of some blocks are computed again in the backward pass.

        Parameters
        ----------
        patterns : str or list of str
            The names of blocks, or patterns of them, see :func:`mxhybrid.parallelize`.

        Raises
        ------
        InputError
            Other values.
        """
        return self._changed(recompute=recompute_patterns(patterns))

    def _changed(self, **attributes: Any) -> Any:
        plan = copy.copy(self)
        vars(plan).update(attributes)
        return plan

    def request(self, graph: Graph, dimensions: Dimensions, operator: Operator, ranks: int) -> Optional[SplitRequest]:
        """Return the requested split of an operator; None if it is split like its inputs, or over samples."""
        return None

    def check(self, ranks: int) -> None:
        """Raise InputError if the plan is for another number of ranks."""

    def for_graph(self, former: Graph, graph: Graph) -> 'Plan':
        """Return the plan for a network that is split as `former`, the graph of the network for other shapes."""
        return self

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        """Return the split of each operator; InputError if the plan does not fit the network."""
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
        undivided = ''
        if self.divides_weights and ranks > 1 and not reads_parts_of_weights(graph, splits):
            undivided = 'the plan, %s, divides no weight of this network: each worker holds all of them' % self.name
        return self._with_tables(ResolvedPlan(splits, notes, undivided=undivided), graph)

    def _with_tables(self, resolved: ResolvedPlan, graph: Graph) -> ResolvedPlan:
        tables = self.store.by_name(graph)
        left_out = self.store.left_out(graph) if self.lists_all or tables else []
        notes = dict.fromkeys(left_out, 'the plan does not name this table: settings decide its route, or it is '
                              'measured while training')
        return resolved._replace(notes={**resolved.notes, **notes}, tables=tables)

    def default_split(self, graph: Graph, dimensions: Dimensions, operator: Operator, ranks: int,
                      splits: Dict[int, Split]
                      ) -> Tuple[Split, str]:
        """Return the split of an operator without a request, given those of its inputs; and a note on it, or ''."""
        samples = dimensions.samples((operator.number, 0))
        shape, limits = graph.shape(operator), rule_of(operator).limits(graph, operator)
        candidates = []
        if self.follows_producers:
            producer = next((splits[source] for source, _ in operator.inputs if source in splits
                             and len(splits[source].degrees) == len(shape)), None)
            if producer is not None and producer.partials == producer.copies == 1:
                followed = rule_of(operator).propagate(graph, operator, producer.degrees)
                if followed is not None:
                    candidates.append(Split(followed[0], producer.ranks, followed[1]))
        if samples is not None and limits[samples] > 1:
            degree = min(ranks, limits[samples])
            candidates.append(Split([degree if at == samples else 1 for at in range(len(shape))],
                                    spread(degree, ranks)))
        if not candidates:
            return whole_on(len(shape), (0,) if rule_of(operator).not_replicable else range(ranks)), ''
        split = max(candidates, key=lambda candidate: len(candidate.ranks))
        if graph.has_table(operator) and len(split.ranks) < ranks:
            return whole_on(len(shape), range(ranks)), 'whole on every rank: ' + ON_ALL
        return split, ''

    def as_json(self) -> Dict[str, Any]:
        """Return the plan as JSON, which :func:`~.plan_json.from_json` reads."""
        recompute = {'recompute': list(self.recompute)} if self.recompute else {}
        return {**self._layers_as_json(), **self.store.as_json(), **recompute}

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'data_parallel'}

    def __repr__(self) -> str:
        return '<plan: %s>' % self.name


def reads_parts_of_weights(graph: Graph, splits: Mapping[int, Split]) -> bool:
    """Return whether an operator that multiplies by weights reads a part of them."""
    for operator in graph.computing:
        if multiplies_weights(graph, operator):
            rule = rule_of(operator)
            shards = splits[operator.number].shards(graph.shape(operator), rule.grains(graph, operator))
            read = rule.shard(graph, operator, next(iter(shards.values()))).inputs
            if any(entry[0] in graph.fixed and box not in (None, full(graph.shapes[entry]))
                   for entry, box in zip(operator.inputs, read)):
                return True
    return False


def spread(count: int, ranks: int) -> List[int]:
    """Return `count` of all ranks, as evenly spread as possible; where samples are few, these ranks have them, too."""
    return [-(-at * ranks // count) for at in range(count)]


def _of_heads(layer_kind: str, names: Tuple[str, ...], request: SplitRequest) -> SplitRequest:
    """Turn a request for the channels of a dense layer into a request for heads, or experts, if the channels are these:
    otherwise each range of channels would have a part of each head.
    """
    heads = next((name for name in ('heads', 'experts') if name in names), None)
    if layer_kind != 'dense' or heads is None or heads in request.degrees:
        return request
    return request._replace(degrees={heads if name == 'channels' else name: degree
                                     for name, degree in request.degrees.items()})


def _fit(graph: Graph, dimensions: Dimensions, operator: Operator, request: SplitRequest, ranks: int) -> Tuple[Split,
                                                                                                               str]:
    """Return the split nearest to a request, and a note on the difference; InputError if a strict one is impossible."""
    names, rule = dimensions.names(operator), rule_of(operator)
    limits, problems = rule.limits(graph, operator), []
    request = _of_heads(rule.layer_kind, names, request)
    for name in request.degrees:
        if name not in names:
            problems.append('%s has no dimension %s: it has %s' % (graph.label(operator), name, ', '.join(names)))
    degrees = []
    for name, limit in zip(names, limits):
        degree = int(request.degrees.get(name, 1))
        if degree < 1:
            raise InputError('plan: %s has %s=%r: give a whole number of at least 1'
                             % (graph.label(operator), name, degree))
        if degree > limit:
            problems.append('%s can be split into %d ranges, not %d' % (name, limit, degree))
        degrees.append(min(degree, limit))
    most = rule.partials(graph, operator)
    if request.partials > most:
        problems.append('it can have %d partials, not %d' % (most, request.partials))
    partials = min(request.partials, most)
    count = partials * math.prod(degrees)
    if request.ranks is None:
        if count > ranks:
            factors = [('%s %d' % (name, degree)) for name, degree in zip([*names, 'partials'], [*degrees, partials])
                       if degree > 1]
            problems.append('it has %d shards (%s), but there are %d ranks: give numbers whose product is at most %d'
                            % (count, ' x '.join(factors), ranks, ranks))
            degrees, partials, count = [1] * len(degrees), 1, 1
        chosen_ranks = spread(count, ranks)
    else:
        chosen_ranks = [int(rank) for rank in request.ranks]
        invalid = [rank for rank in chosen_ranks if not 0 <= rank < ranks]
        if invalid or len(set(chosen_ranks)) != len(chosen_ranks):
            raise InputError('plan: %s is on ranks %s: give distinct ranks from 0 to %d'
                             % (graph.label(operator), chosen_ranks, ranks - 1))
        if len(chosen_ranks) < count:
            problems.append('it has %d shards, but %d ranks' % (count, len(chosen_ranks)))
            degrees, partials, count = [1] * len(degrees), 1, 1
        elif len(chosen_ranks) > count:
            problems.append('it has %d shards for %d ranks' % (count, len(chosen_ranks)))
        chosen_ranks = chosen_ranks[:count]
    lacks_ranks = graph.has_table(operator) and len(chosen_ranks) < ranks
    if lacks_ranks:
        problems.append(ON_ALL)
    if problems and request.strict:
        raise InputError('plan: %s (%s of shape %s) cannot be split in this way: %s'
                         % (graph.label(operator), operator.op, graph.shape(operator), '; '.join(problems)))
    split = whole_on(len(degrees), range(ranks)) if lacks_ranks else Split(degrees, chosen_ranks, partials)
    return split, '; '.join(problems)
