"""Tensor parallelism of Transformers, as Megatron-LM has it.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019; for the
parts between attention and feed-forward layers also Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2022.
"""
import functools
import itertools
import math
from typing import Any, Dict, Optional, Set, Tuple

from ...base.errors import InputError
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Heads, Operator
from ..ops.registry import has_rule, multiplies_weights, rule_of
from ..sharding.split import Split, whole_on
from .plan import ON_ALL, Plan, ResolvedPlan, reads_parts_of_weights, spread
from .transformer_layers import TransformerLayers, divisors, heads_in, is_dense, reads_heads

_NOT_DIVIDED = 'whole on all workers of a group, since it cannot be split into %d'


#: The cut of an operator over the ranks of a group: dimensions and their degrees, those of groups of heads before those
#: of heads in a group.  If the product of degrees is smaller than the group, neighbouring ranks have copies.
Cut = Tuple[Tuple[int, int], ...]

#: The operator has a part of the dimension that it sums over on each rank.
PARTIALS: Cut = ()


class Megatron(Plan):
    """The plan of :func:`megatron`.

    Rank ``b * model + m`` is number m of the group b.  Each group has the whole network for its samples.
    """

    def __init__(self, model: int, batch: int, sequence: bool):
        self.model, self.batch, self.sequence = model, batch, sequence
        self.name = 'megatron of model %d%s%s' % (model, ' x batch %d' % batch if batch > 1 else '',
                                                  ', sequence' * sequence)

    def check(self, ranks: int) -> None:
        if self.model * self.batch != ranks:
            raise InputError('plan: %s is for %d workers, but the job has %d: choose model and batch whose product is '
                             '%d' % (self.name, self.model * self.batch, ranks, ranks))

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        """Return the splits, see :meth:`Plan.resolve`; InputError for heads that the degree does not divide, and for a
        network of which it divides no weight.
        """
        self.check(ranks)
        layers = TransformerLayers(graph)
        self._check_heads(graph)
        splits: Dict[int, Split] = {}
        notes: Dict[int, str] = {}
        cuts: Dict[int, Cut] = {}
        learned = _learned(graph)
        for operator in graph.computing:
            cut = self._cut(graph, operator, layers, cuts)
            split = None if cut is None else self._place(graph, dimensions, operator, cut)
            if split is not None and cut is not None:
                cuts[operator.number] = cut
                note = self._shared(graph, operator, layers, cut)
            else:
                split, note = self._between(graph, dimensions, operator, operator.number in learned, splits)
                if cut is not None and operator.number in learned:
                    note = note or _NOT_DIVIDED % self.model
            if note:
                notes[operator.number] = note
            splits[operator.number] = split
        if self.model > 1 and not reads_parts_of_weights(graph, splits):
            raise InputError('plan: %s divides no weight: it splits attention, experts, embeddings, output layers, and '
                             'pairs of dense layers with elementwise operators between them, but finds none of these '
                             'in the network: give another plan, such as grid(model=%d, batch=%d)'
                             % (self.name, self.model, self.batch))
        return self._with_tables(ResolvedPlan(splits, notes), graph)

    # -- attention, feed-forward layers and vocabularies -----------------------------------------------------------

    def _check_heads(self, graph: Graph) -> None:
        """Raise InputError if the degree does not divide heads, or is neither a multiple nor a divisor of the number of
        groups of heads that share keys and values.
        """
        all_heads = [(operator, heads) for operator in sorted(graph.computing, key=lambda one: not is_dense(one))
                     for heads in graph.heads_of.get((operator.number, 0), ()) if heads.kind == 'heads']

        def is_possible(model: int, heads: Heads) -> bool:
            groups = heads.above * heads.total
            return heads.queries % model == 0 and (model % groups == 0 or groups % model == 0)
        for operator, heads in all_heads:
            if not is_possible(self.model, heads):
                common = functools.reduce(math.gcd, [heads.queries for _, heads in all_heads])
                raise InputError('plan: %s cannot split the %d heads of %s: model=%d does not divide them: give model '
                                 'as one of %s' % (self.name, heads.queries, graph.label(operator), self.model,
                                                   ', '.join(str(model) for model in divisors(common) if all(
                                                       is_possible(model, heads) for _, heads in all_heads))))

    def _cut(self, graph: Graph, operator: Operator, layers: TransformerLayers, cuts: Dict[int, Cut]) -> Optional[Cut]:
        """Return how an operator is split over a group; None if attention, experts, feed-forward layers and
        vocabularies do not decide it.
        """
        number, last = operator.number, len(graph.shape(operator)) - 1
        if number in layers.routers:
            return None
        if graph.heads_of.get((number, 0)):
            return self._over_heads(graph, operator)
        if reads_heads(graph, operator) is not None or number in layers.second or number in layers.embeddings:
            return PARTIALS
        if number in layers.projections and is_dense(operator):
            channels = rule_of(operator).limits(graph, operator)[last]
            return ((last, max(degree for degree in divisors(self.model) if degree <= channels)),)
        if number in layers.first or number in layers.vocabularies or number in layers.projections:
            return ((last, self.model),)
        return self._followed(graph, operator, cuts)

    def _over_heads(self, graph: Graph, operator: Operator) -> Optional[Cut]:
        """Return the cut of an operator with heads or experts, outer levels first.  Copies share what is left of the
        group, but a projection divides the features of heads, too.
        """
        last, left, done = len(graph.shape(operator)) - 1, self.model, 1
        degrees: Dict[int, int] = {}
        for heads in sorted(graph.heads_of[operator.number, 0], key=lambda heads: (heads.above, heads.features > 1)):
            degree = left if left <= heads.total else heads.total
            if heads.above == done and left % degree == 0:
                degrees[heads.axis] = degree
                left, done = left // degree, done * heads.total
        limit = rule_of(operator).limits(graph, operator)[last]
        if left > 1 and is_dense(operator) and degrees.get(last, 1) * left <= limit:
            degrees[last] = degrees.get(last, 1) * left
        return tuple(degrees.items()) or None

    def _shared(self, graph: Graph, operator: Operator, layers: TransformerLayers, cut: Cut) -> str:
        """Return a note on a layer whose heads or experts are fewer than the workers of a group, or whose channels are
        no heads; '' for others.
        """
        heads, parts = heads_in(graph, (operator.number, 0)), math.prod(degree for _, degree in cut)
        if is_dense(operator) and operator.number in layers.projections:
            return 'its weight is in %d parts; no worker has whole heads of its output, which workers exchange' % parts
        if heads is None or heads.above * heads.total >= self.model or not multiplies_weights(graph, operator):
            return ''
        return 'its weight is in %d parts; %d %s are fewer than the %d workers of a group, so several workers have ' \
               'each' % (parts, heads.total, heads.kind, self.model)

    def _followed(self, graph: Graph, operator: Operator, cuts: Dict[int, Cut]) -> Optional[Cut]:
        """Return the cut with which an operator reads only elements that its rank has; None if there is no such cut."""
        rule = rule_of(operator)
        for position, (source, _) in enumerate(operator.inputs):
            if source not in cuts or len(cuts[source]) != 1:
                continue
            (axis, degree), = cuts[source]
            if (position, axis) in rule.summed_axes(graph, operator):
                return PARTIALS if degree == self.model else None
            count = len(graph.shapes[source, 0])
            if not rule.moves_dimensions and count == len(graph.shape(operator)) and \
                    rule.limits(graph, operator)[axis] > 1:
                return ((axis, degree),)
        return None

    def _place(self, graph: Graph, dimensions: Dimensions, operator: Operator, cut: Cut) -> Optional[Split]:
        """Return a split over the samples of each group and over its ranks; None if the rule does not allow it."""
        rule, shape = rule_of(operator), graph.shape(operator)
        limits, samples = rule.limits(graph, operator), dimensions.samples((operator.number, 0))
        partials = 1 if cut else self.model
        copies = self.model // math.prod(degree for _, degree in cut) // partials
        if graph.has_table(operator) or partials > rule.partials(graph, operator) or any(
                limits[axis] < degree or axis == samples for axis, degree in cut) or \
                copies > 1 and rule.not_replicable:
            return None
        degrees = [1] * len(shape)
        if samples is not None:
            degrees[samples] = min(self.batch, limits[samples])
        groups = 1 if samples is None else degrees[samples]
        group_copies = self.batch if groups == 1 < self.batch and not rule.not_replicable and partials == 1 else 1
        for axis, degree in cut:
            degrees[axis] = degree
        group_numbers = list(range(group_copies)) if group_copies > 1 else spread(groups, self.batch)
        ranks = []
        for *position, partial, group_copy, copy in itertools.product(
                *map(range, degrees + [partials, group_copies, copies])):
            group = group_copy if group_copies > 1 else 0 if samples is None else position[samples]
            member = partial
            for axis, degree in cut:
                member = member * degree + position[axis]
            ranks.append(group_numbers[group] * self.model + member * copies + copy)
        return Split(degrees, ranks, partials, group_copies * copies)

    # -- what lies between -----------------------------------------------------------------------------------------

    def _between(self, graph: Graph, dimensions: Dimensions, operator: Operator, is_learned: bool,
                 splits: Dict[int, Split]) -> Tuple[Split, str]:
        """Return the split of LayerNorm, residual sums, Dropout and all other operators, and a note on it, or ''."""
        rule, shape, ranks = rule_of(operator), graph.shape(operator), self.model * self.batch
        samples = dimensions.samples((operator.number, 0))
        if graph.has_table(operator):
            return whole_on(len(shape), range(ranks)), 'whole on every rank: ' + ON_ALL
        if rule.is_loss or not has_rule(operator):
            return self.default_split(graph, dimensions, operator, ranks, splits)
        if rule.not_replicable or self.sequence and is_learned:
            over_times = self._over_times(graph, dimensions, operator)
            if over_times is not None:
                return over_times, ''
        if samples is None or rule.not_replicable:
            return self.default_split(graph, dimensions, operator, ranks, splits)
        limit = rule.limits(graph, operator)[samples]
        if limit == 1:
            return whole_on(len(shape), range(ranks)), ''
        groups = min(self.batch, limit)
        degrees = [groups if at == samples else 1 for at in range(len(shape))]
        return Split(degrees, [group * self.model + member for group in spread(groups, self.batch)
                               for member in range(self.model)], copies=self.model), ''

    def _over_times(self, graph: Graph, dimensions: Dimensions, operator: Operator) -> Optional[Split]:
        """Return the split over times on the ranks of each group; where samples and times are one dimension, over all
        ranks.
        """
        names, limits = dimensions.names(operator), rule_of(operator).limits(graph, operator)
        for axis, name in enumerate(names):
            if name not in ('samples', 'channels', 'heads'):
                split = self._place(graph, dimensions, operator, ((axis, self.model),))
                if split is not None:
                    return split
        sample_axis, ranks = dimensions.sample_axis((operator.number, 0)), self.model * self.batch
        if sample_axis is None or sample_axis.each == sample_axis.rounds == 1 or limits[sample_axis.axis] < ranks:
            return None
        return Split([ranks if at == sample_axis.axis else 1 for at in range(len(names))], range(ranks))

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'megatron', 'model': self.model, 'batch': self.batch, 'sequence': self.sequence}


def _learned(graph: Graph) -> Set[int]:
    """Return the numbers of parameters, and of operators whose outputs depend on any: not masks and positions."""
    learned: Set[int] = set()
    for operator in graph.operators:
        if graph.is_parameter(operator.number) or any(source in learned for source, _ in operator.inputs):
            learned.add(operator.number)
    return learned


def megatron(model: int, batch: int = 1, sequence: bool = False) -> Plan:
    """Split the layers of Transformers over groups of `model` workers, samples over `batch` groups (Shoeybi et al.
    2019).

    Attention is split over heads: the projections that make queries, keys and values over their outputs, the projection
    after attention over its inputs.  If two dense layers have an activation between them, the first one is split over
    its outputs, the second one over its inputs.  Embeddings, the output layer and its softmax are split over the
    vocabulary.  Every worker of a group computes LayerNorm, residual sums and all other operators.  Dropout is split
    over times, since several workers that compute the same values would drop different ones.

    Parameters
    ----------
    model : int
        The number of workers of a group; it has to divide the number of heads.
    batch : int, optional
        The number of groups.
    sequence : bool, optional
        Split all other operators over times (Korthikanti et al. 2022): then a group exchanges shards by reduce-scatter
        and allgather in the place of an allreduce, and holds their activations once.

    Raises
    ------
    InputError
        A number that is not a whole number of at least 1; when the plan is used, another number of workers, heads that
        `model` does not divide, or a network without attention and pairs of dense layers.
    """
    for name, value in (('model', model), ('batch', batch)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError('megatron: %s=%r: give a whole number of at least 1' % (name, value))
    if not isinstance(sequence, bool):
        raise InputError('megatron: sequence=%r: give True or False' % (sequence,))
    return Megatron(model, batch, sequence)
