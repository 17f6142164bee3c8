"""Tensor parallelism of Transformers, as Megatron-LM has it.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019; for the
parts between attention and feed-forward layers also Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2022.
"""
import functools
import itertools
import math
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ...base.errors import InputError
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..ops.registry import has_rule, rule_of
from ..sharding.split import Split, whole_on
from .plan import ON_ALL, Plan, ResolvedPlan, spread
from .transformer_layers import TransformerLayers, divisors, heads_in, is_dense, reads_heads

_NOT_DIVIDED = 'whole on all workers of a group, since it cannot be split into %d'


class Cut(NamedTuple):
    """The cut of an operator over the ranks of a group: a dimension, or partial sums if `axis` is None."""

    axis: Optional[int]


#: The operator has a part of the dimension that it sums over on each rank.
PARTIALS = Cut(None)


class Megatron(Plan):
    """The plan of :func:`megatron`.

    Rank ``b * model + m`` is number m of the group b.  Each group has the whole network for its samples.
    """

    def __init__(self, model: int, batch: int, sequence: bool):
        self.model, self.batch, self.sequence = model, batch, sequence
        self.name = 'megatron of model %d%s%s' % (model, ' x batch %d' % batch if batch > 1 else '',
                                                  ', sequence' * sequence)

    def check(self, ranks: int) -> None:
        """Raise InputError for another number of ranks, see :meth:`Plan.check`."""
        if self.model * self.batch != ranks:
            raise InputError('plan: %s is for %d workers, but the job has %d: choose model and batch whose product is '
                             '%d' % (self.name, self.model * self.batch, ranks, ranks))

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        """Return the splits, see :meth:`Plan.resolve`; InputError for heads that the degree does not divide, and for a
        network without attention and feed-forward layers.
        """
        self.check(ranks)
        layers = TransformerLayers(graph)
        if self.model > 1:
            self._check_network(graph, layers)
        splits: Dict[int, Split] = {}
        notes: Dict[int, str] = {}
        cuts: Dict[int, Cut] = {}
        learned = _learned(graph)
        for operator in graph.computing:
            cut = self._cut(graph, operator, layers, cuts)
            split = None if cut is None else self._place(graph, dimensions, operator, cut)
            if split is not None and cut is not None:
                cuts[operator.number] = cut
            else:
                if cut is not None and operator.number in learned:
                    notes[operator.number] = _NOT_DIVIDED % self.model
                split, note = self._between(graph, dimensions, operator, operator.number in learned, splits)
                if note:
                    notes[operator.number] = note
            splits[operator.number] = split
        return self._with_tables(ResolvedPlan(splits, notes), graph)

    # -- attention, feed-forward layers and vocabularies -----------------------------------------------------------

    def _check_network(self, graph: Graph, layers: TransformerLayers) -> None:
        heads_of = [(operator, heads) for operator in sorted(graph.computing, key=lambda one: not is_dense(one))
                    for heads in [heads_in(graph, (operator.number, 0))] if heads is not None]
        for operator, heads in heads_of:
            if heads.total % self.model:
                common = functools.reduce(math.gcd, [heads.total for _, heads in heads_of])
                raise InputError('plan: %s cannot split the %d heads of %s: model=%d does not divide them: give model '
                                 'as one of %s' % (self.name, heads.total, graph.label(operator), self.model,
                                                   ', '.join(map(str, divisors(common)))))
        if not heads_of and not layers.second:
            raise InputError('plan: %s splits attention, and pairs of dense layers with elementwise operators between '
                             'them, but the network has neither: give another plan, such as grid(model=%d, batch=%d)'
                             % (self.name, self.model, self.batch))

    def _cut(self, graph: Graph, operator: Operator, layers: TransformerLayers, cuts: Dict[int, Cut]) -> Optional[Cut]:
        """Return how an operator is split over a group; None if attention, feed-forward layers and vocabularies do not
        decide it.
        """
        number, last = operator.number, len(graph.shape(operator)) - 1
        heads = heads_in(graph, (number, 0))
        if heads is not None:
            return Cut(heads.axis)
        if reads_heads(graph, operator) is not None or number in layers.second or number in layers.embeddings:
            return PARTIALS
        if number in layers.first or number in layers.vocabularies or number in layers.projections:
            return Cut(last)
        return self._followed(graph, operator, cuts)

    @staticmethod
    def _followed(graph: Graph, operator: Operator, cuts: Dict[int, Cut]) -> Optional[Cut]:
        """Return the cut with which an operator reads only elements that its rank has; None if there is no such cut."""
        rule = rule_of(operator)
        for source, _ in operator.inputs:
            axis = cuts[source].axis if source in cuts else None
            if axis is None or rule.moves_dimensions:
                continue
            count = len(graph.shapes[source, 0])
            if rule.sums_last_dimension:
                return PARTIALS if axis == count - 1 == int(operator.get('axis', -1)) % count else None
            if count == len(graph.shape(operator)) and rule.limits(graph, operator)[axis] > 1:
                return Cut(axis)
        return None

    def _place(self, graph: Graph, dimensions: Dimensions, operator: Operator, cut: Cut) -> Optional[Split]:
        """Return a split over the samples of each group and over its ranks; None if the rule does not allow it."""
        rule, shape = rule_of(operator), graph.shape(operator)
        limits, samples = rule.limits(graph, operator), dimensions.samples((operator.number, 0))
        if graph.has_table(operator) or (
                rule.partials(graph, operator) < self.model if cut.axis is None
                else limits[cut.axis] < self.model or cut.axis == samples):
            return None
        degrees = [1] * len(shape)
        if samples is not None:
            degrees[samples] = min(self.batch, limits[samples])
        groups = 1 if samples is None else degrees[samples]
        copies = self.batch if groups == 1 < self.batch and not rule.not_replicable and cut.axis is not None else 1
        if cut.axis is not None:
            degrees[cut.axis] = self.model
        group_numbers = list(range(copies)) if copies > 1 else spread(groups, self.batch)
        partials = self.model if cut.axis is None else 1
        ranks = []
        for position in itertools.product(*map(range, degrees + [partials, copies])):
            group = position[-1] if copies > 1 else 0 if samples is None else position[samples]
            member = position[-2] if cut.axis is None else position[cut.axis]
            ranks.append(group_numbers[group] * self.model + member)
        return Split(degrees, ranks, partials, copies)

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
                split = self._place(graph, dimensions, operator, Cut(axis))
                if split is not None:
                    return split
        sample_axis, ranks = dimensions.sample_axis((operator.number, 0)), self.model * self.batch
        if sample_axis is None or sample_axis.each == sample_axis.rounds == 1 or limits[sample_axis.axis] < ranks:
            return None
        return Split([ranks if at == sample_axis.axis else 1 for at in range(len(names))], range(ranks))

    def _layers_as_json(self) -> Dict[str, Any]:
        return {'plan': 'megatron', 'model': self.model, 'batch': self.batch, 'sequence': self.sequence}


def _learned(graph: Graph) -> Dict[int, None]:
    """Return the numbers of operators whose outputs depend on parameters: not masks and positions."""
    learned: Dict[int, None] = {}
    for operator in graph.operators:
        if operator.number not in graph.fixed and any(source in learned or source in graph.fixed and _has_parameters(
                graph, source) for source, _ in operator.inputs):
            learned[operator.number] = None
    return learned


def _has_parameters(graph: Graph, number: int) -> bool:
    """Return whether an operator on parameters and constants alone reads a parameter."""
    return graph.is_parameter(number) or any(_has_parameters(graph, source)
                                             for source, _ in graph.operators[number].inputs)


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
