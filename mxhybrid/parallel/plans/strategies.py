"""Kinds of plans: grids, the one weird trick, patterns of layers, and lists of all operators."""
import fnmatch
import itertools
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ...base.errors import InputError
from ...base.text import listed
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..ops.registry import rule_of
from ..sharding.split import Split
from .plan import ON_ALL, Plan, ResolvedPlan, SplitRequest
from .stages import Stages, are_whole, check_forward
from .store_plan import StorePlan
from .transformer_layers import divisors, heads_in, reads_heads


class Grid(Plan):
    """A grid of ranks (Gholami et al., "Integrated Model, Batch, and Domain Parallelism in Training Neural Networks",
    SPAA 2018): see :func:`grid`.
    """

    follows_producers = True

    def __init__(self, model: int, batch: int, domain: Tuple[int, ...], sequence: int = 1):
        self.model, self.batch, self.domain, self.sequence = model, batch, domain, sequence
        self.divides_weights = model > 1
        self.name = 'grid of ' + (' x '.join('%s %s' % (what, value) for what, value in (
            ('batch', batch), ('model', model), ('domain', ' x '.join(map(str, domain))), ('sequence', sequence))
            if value not in (1, '')) or 'batch 1')

    def check(self, ranks: int) -> None:
        product = math.prod((self.model, self.batch, self.sequence, *self.domain))
        if product != ranks:
            raise InputError('plan: %s is for %d workers, but the job has %d: choose factors whose product is %d'
                             % (self.name, product, ranks, ranks))

    def request(self, graph: Graph, dimensions: Dimensions, operator: Operator, ranks: int) -> Optional[SplitRequest]:
        kind = rule_of(operator).layer_kind
        if self.sequence > 1 and kind != 'convolution':
            over_times = self._over_times(graph, dimensions, operator, kind == 'dense')
            if over_times is not None:
                return over_times
        if kind == 'dense':
            return SplitRequest({'samples': self.batch, 'channels': ranks // self.batch})
        if kind == 'convolution' and self.domain:
            names = [name for name in dimensions.names(operator) if name not in ('samples', 'channels')]
            channels = {'channels': self.model} if self.model > 1 else {}
            return SplitRequest({**dict(zip(names, self.domain)), 'samples': self.batch, **channels})
        return None

    def _over_times(self, graph: Graph, dimensions: Dimensions, operator: Operator, is_dense: bool
                    ) -> Optional[SplitRequest]:
        """Return the request of an operator that is split over times; None if it cannot be.

        Dense layers have `sequence` ranges of times and `model` ranges of outputs, others have both together of times.
        Rank ``(b * sequence + s) * model + m`` has the samples b, wherever samples and times are.
        """
        names = dimensions.names(operator)
        if 'samples' not in names or 'length' not in names:
            return None
        degrees = {'samples': self.batch, 'length': self.sequence if is_dense else self.sequence * self.model}
        if is_dense:
            degrees['channels'] = self.model
        limits = dict(zip(names, rule_of(operator).limits(graph, operator)))
        if any(name not in names or limits[name] < degree for name, degree in degrees.items()):
            return None
        ranks = []
        for position in itertools.product(*(range(degrees.get(name, 1)) for name in names)):
            rank = 0
            for name in ('samples', 'length', 'channels'):
                rank = rank * degrees.get(name, 1) + (position[names.index(name)] if name in degrees else 0)
            ranks.append(rank)
        return SplitRequest(degrees, 1, ranks)

    def _layers_as_json(self) -> Dict[str, Any]:
        value = {'plan': 'grid', 'model': self.model, 'batch': self.batch, 'domain': list(self.domain)}
        return {**value, 'sequence': self.sequence} if self.sequence > 1 else value


class OneWeirdTrick(Plan):
    """The plan of :func:`one_weird_trick`."""

    name = 'one weird trick'
    divides_weights = follows_producers = True

    def request(self, graph: Graph, dimensions: Dimensions, operator: Operator, ranks: int) -> Optional[SplitRequest]:
        return SplitRequest({'channels': ranks}) if rule_of(operator).layer_kind == 'dense' else None

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'one_weird_trick'}


class Layers(Plan):
    """Splits by patterns of operators' names; the first pattern that matches counts.  See :func:`by_name`."""

    follows_producers = True

    def __init__(self, by_pattern: Mapping[str, Mapping[str, Any]], strict: bool = True):
        self.name, self._strict = 'by layers', strict
        for pattern, value in by_pattern.items():
            if not isinstance(value, Mapping):
                raise InputError('plan: %r has the value %r: give degrees by name of the dimension, {"channels": 4}'
                                 % (pattern, value))
            for key, count in value.items():
                if key == 'ranks':
                    if not are_whole(count):
                        raise InputError('plan: %r has ranks=%r: give a list of ranks' % (pattern, count))
                elif not isinstance(count, int) or isinstance(count, bool) or count < 1:
                    raise InputError('plan: %r has %s=%r: give a whole number of at least 1' % (pattern, key, count))
            conflicting = sorted({'partials', 'channels'} & set(value)) if 'heads' in value else []
            if conflicting:
                raise InputError('plan: %r has heads and %s: give heads alone, which are channels of some operators '
                                 'and partials of others' % (pattern, conflicting[0]))
        self._by_pattern = dict(by_pattern)
        self.divides_weights = any(value.get(key, 1) != 1 for value in self._by_pattern.values()
                                   for key in ('channels', 'heads', 'experts', 'partials'))

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        """Return the splits, see :meth:`Plan.resolve`; InputError for a pattern that matches no operator, or none with
        heads if it splits these.
        """
        for pattern, value in self._by_pattern.items():
            matched = operators_matching(graph, pattern)
            if 'heads' in value and not any(
                    heads_in(graph, (operator.number, 0)) or reads_heads(graph, operator) for operator in matched):
                raise InputError('plan: %r has heads=%d, but none of the operators that it matches has heads of '
                                 'attention: it matches %s'
                                 % (pattern, value['heads'], listed(map(graph.label, matched), 10)))
        return super().resolve(graph, dimensions, ranks)

    def request(self, graph: Graph, dimensions: Dimensions, operator: Operator, ranks: int) -> Optional[SplitRequest]:
        for pattern, value in self._by_pattern.items():
            if _matches(graph, operator, pattern):
                if 'heads' in value:
                    return self._heads_request(graph, dimensions, operator, value)
                degrees = {key: degree for key, degree in value.items() if key not in ('ranks', 'partials')}
                return SplitRequest(degrees, value.get('partials', 1), value.get('ranks'), self._strict)
        return None

    def _heads_request(self, graph: Graph, dimensions: Dimensions, operator: Operator, value: Mapping[str, Any]
                       ) -> Optional[SplitRequest]:
        """Return the request of an operator whose heads are split: a dimension, channels, or the channels that a dense
        layer sums over; None if it has no heads, or cannot be split over them.
        """
        degree, rule = value['heads'], rule_of(operator)
        heads_of_output = heads_in(graph, (operator.number, 0))
        heads = heads_of_output or reads_heads(graph, operator)
        if heads is None:
            return None
        if heads.total % degree:
            raise InputError('plan: %s has %d heads, which heads=%d does not divide: give one of %s'
                             % (graph.label(operator), heads.total, degree,
                                ', '.join(map(str, divisors(heads.total)))))
        degrees, partials = {key: count for key, count in value.items() if key not in ('ranks', 'heads')}, 1
        if heads_of_output is None:
            limit, partials = rule.partials(graph, operator), degree
        else:
            limit = rule.limits(graph, operator)[heads_of_output.axis]
            degrees[dimensions.names(operator)[heads_of_output.axis]] = degree
        return SplitRequest(degrees, partials, value.get('ranks'), self._strict) if degree <= limit else None

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'layers', 'layers': self._by_pattern}


def _matches(graph: Graph, operator: Operator, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (graph.label(operator), graph.short_name(operator)))


def operators_matching(graph: Graph, pattern: str, owner: str = '') -> List[Operator]:
    """Return the operators whose names match the pattern of an owner, for messages; InputError if there are none."""
    matching = [operator for operator in graph.computing if _matches(graph, operator, pattern)]
    if not matching:
        raise InputError('plan: %r%s matches no operator: give the name or a pattern of one; there are %s'
                         % (pattern, owner, listed(map(graph.label, graph.computing), 10)))
    return matching


class Explicit(Plan):
    """The split of every operator of one network on a number of workers, as a file lists it.

    - `splits`: the splits by :meth:`mxhybrid.parallel.ops.graph.Graph.label`.
    - `model`: the digest of the network, for a micro-batch if there are `stages`.
    - `cluster`: the digest of the cluster that it was found for; training does not compare it.
    """

    name = 'explicit'
    lists_all = True

    def __init__(self, splits: Mapping[str, Split], model: str, workers: int, cluster: Optional[str] = None,
                 store: StorePlan = StorePlan(), stages: Optional[Stages] = None):  # noqa: B008
        self.splits, self.model, self.workers, self.cluster = dict(splits), model, workers, cluster
        self.store, self.stages = store, stages
        self.micro_batches = 1 if stages is None else stages.micro_batches

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        if ranks != self.workers:
            raise InputError('plan: its splits are for %d workers, but the job has %d: start as many workers, or find '
                             'another plan with mxhybrid plan' % (self.workers, ranks))
        labels = [graph.label(operator) for operator in graph.computing]
        others = [label for label in self.splits if label not in labels]
        lacking = [label for label in labels if label not in self.splits]
        if graph.digest() != self.model:
            what = ('it has a split of %s, which this network does not have' % others[0] if others else
                    'it has no split of %s' % lacking[0] if lacking else
                    'the operators have the same names, but other shapes or settings')
            raise InputError('plan: its splits are for another network, or other shapes of data (%s; digest %s, not '
                             '%s): find another plan with mxhybrid plan, or give one that fits any network, such as '
                             'data_parallel()' % (what, self.model, graph.digest()))
        if len(lacking) > len(others):
            raise InputError('plan: operator %s has no split: add a split, or make another plan' % lacking[0])
        if len(others) > len(lacking):
            raise InputError('plan: %s is not an operator of the network: remove it' % others[0])
        # The same network with other names has the same operators in the same order.
        in_order = self.splits.values() if others else map(self.splits.__getitem__, labels)
        splits = {operator.number: split for operator, split in zip(graph.computing, in_order)}
        for number, split in splits.items():
            self._check(graph, graph.operators[number], split, ranks)
        if self.stages is not None:
            check_forward(graph, {number: self.stages.of_rank(split.ranks[0]) for number, split in splits.items()})
        return self._with_tables(ResolvedPlan(splits, {}, stages=self.stages), graph)

    def for_graph(self, former: Graph, graph: Graph) -> Plan:
        return self._changed(model=graph.digest()) if self.model == former.digest() else self

    @staticmethod
    def _check(graph: Graph, operator: Operator, split: Split, ranks: int) -> None:
        rule = rule_of(operator)
        limits = rule.limits(graph, operator)
        is_replicable = split.copies == 1 or not rule.not_replicable and split.partials == 1
        if (len(split.degrees) != len(limits) or any(degree > limit for degree, limit in zip(split.degrees, limits))
                or split.partials > rule.partials(graph, operator) or not is_replicable
                or not all(0 <= rank < ranks for rank in split.ranks)):
            raise InputError('plan: %s cannot be split as %r: give at most degrees %s and %d partials, on ranks '
                             '0 to %d'
                             % (graph.label(operator), split, limits, rule.partials(graph, operator), ranks - 1))
        if graph.has_table(operator) and len(split.ranks) < ranks:
            raise InputError('plan: %s cannot be split as %r: %s' % (graph.label(operator), split, ON_ALL))

    def _layers_as_json(self) -> Dict[str, Any]:
        flow = {} if self.stages is None else {'pipeline': self.stages.as_json()}
        return {'plan': 'explicit', 'model': self.model, 'workers': self.workers, 'cluster': self.cluster,
                'operators': {label: split.as_json() for label, split in self.splits.items()}, **flow}


def data_parallel() -> Plan:
    """Split the samples of every operator over all workers, as without a plan."""
    return Plan()


def grid(model: int = 1, batch: int = 1, domain: Sequence[int] = (), sequence: int = 1) -> Plan:
    """Split over a grid of workers; the product of the factors is the number of workers (Gholami et al., SPAA 2018).

    Dense layers are split over ``batch`` ranges of samples, and over as many ranges of outputs as the product of all
    other factors (their "1.5D" product).  Convolutions are split over samples; with `domain`, over ``batch`` ranges of
    samples and over the height and width of images.  With `sequence`, dense layers are also split over the times of
    sequences, and all other operators over ``sequence`` x ``model`` ranges of times; attention gathers keys and values.

    Parameters
    ----------
    model : int, optional
        The number of ranges of outputs of dense layers; with `domain`, of output channels of convolutions, too.
    batch : int, optional
        The number of ranges of samples.
    domain : sequence of int, optional
        The number of ranges of the height of images, or of height and width.
    sequence : int, optional
        The number of ranges of the times of sequences; without `domain`.

    Raises
    ------
    InputError
        A factor that is not a whole number of at least 1, or `domain` and `sequence` together; when the plan is used,
        factors for another number of workers.
    """
    if not are_whole(domain):
        raise InputError('grid: domain=%r: give a list of whole numbers of at least 1' % (domain,))
    factors = [('model', model), ('batch', batch), ('sequence', sequence)] + [('domain', count) for count in domain]
    for what, value in factors:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError('grid: %s=%r: give whole numbers of at least 1' % (what, value))
    if sequence > 1 and domain:
        raise InputError('grid: domain=%s and sequence=%d: give domain for images, or sequence for sequences'
                         % (list(domain), sequence))
    return Grid(model, batch, tuple(domain), sequence)


def one_weird_trick() -> Plan:
    """Split dense layers over outputs, all other operators over samples (Krizhevsky, "One weird trick for parallelizing
    convolutional neural networks", 2014).
    """
    return OneWeirdTrick()


def by_name(by_pattern: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Split operators by patterns of their names; :func:`mxhybrid.parallelize` also takes the dict itself.

    Parameters
    ----------
    by_pattern : dict of str to dict
        The split of the operators whose names match a pattern (shell wildcards; the first match counts): degrees by
        name of the dimension (``samples``, ``channels``, ``height``, ``width``, ``length``), ``partials`` (the number
        of partial sums, one for each range of the dimension that a convolution, a dense layer or an embedding sums
        over), and ``ranks``, a list of workers.  ``heads`` splits the heads of attention where an operator has them:
        in a dimension of scores, in the outputs of the projections that make queries, keys and values, and in the
        inputs of the projection after attention.  Operators that match no pattern, and operators without heads if the
        pattern splits heads, are split like their inputs.

    Raises
    ------
    InputError
        A value that is not valid; when the plan is used, a split that an operator does not allow.
    """
    return Layers(by_pattern)
