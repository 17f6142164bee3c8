"""The search space: the splits that each operator may have, and the routes that rows of each table may take.

Operators with weights, others that take long, and those that give experts their data, decide.  The operators between
them, as activations and additions, follow the operators that they read, so that no data moves.  Operators at the same
place of repeated blocks, such as the layers of a Transformer, are groups.
"""
import collections
import itertools
import math
from typing import Any, Dict, Hashable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ...base.settings import TablePlan
from ...parallel.ops.following import followed_split
from ...parallel.ops.graph import Entry, Operator, geometry_of
from ...parallel.ops.registry import indices, multiplies_weights, rule_of
from ...parallel.plans.plan import Plan, spread
from ...parallel.sharding.split import Split, whole_on
from ..task_graph.dataflow import Dataflow

#: The largest number of dimensions that are split at once; partial sums count as a dimension.
_MAX_SPLIT_DIMENSIONS = 3

#: The most ranks for which all numbers of shards are searched; with more ranks, an operator has one shard, or as many
#: as a host has ranks, as there are hosts, or as there are ranks.
_MANY_RANKS = 32


class SearchSpace:
    """The choices for a network on a cluster.

    - `ranks`, `per_host`: the number of ranks, in all and on each host; each host has a server.

    Attributes:

    - `deciding`: the numbers of the operators that decide.
    - `groups`: the positions in `deciding` of operators that are the same in repeated blocks; each position is in one
      group.
    - `followers`: by operator: the operators that follow it, in the order in which they compute.
    - `tables`: trained weights with row_sparse gradients.
    """

    def __init__(self, dataflow: Dataflow, ranks: int, per_host: int):
        self._dataflow, self._graph, self._ranks = dataflow, dataflow.graph, ranks
        self._per_host, self._hosts = per_host, -(-ranks // per_host)
        self.tables = [name for name in dataflow.trained if name in dataflow.tables]
        self.deciding = [number for number in dataflow.computing if self._decides(self._graph.operators[number])]
        if not self.deciding:
            self.deciding = list(dataflow.computing)
        self.groups = repeated_groups([geometry_of(self._graph, self._graph.operators[number])
                                       for number in self.deciding])
        deciding = set(self.deciding)
        self.followers: Dict[int, List[int]] = {}
        for number in dataflow.computing:
            if number in deciding:
                continue
            for source, _ in self._graph.operators[number].inputs:
                if source not in self._graph.fixed:
                    self.followers.setdefault(source, []).append(number)
        self._candidates: Dict[int, List[Split]] = {}
        self._propagated: Dict[Tuple[int, int, Split], Optional[Split]] = {}
        self._default_splits: Dict[Tuple[int, Tuple[int, ...]], Split] = {}
        self._followed: Dict[Any, Optional[Split]] = {}
        self._producers = {operator.number: self._producers_of(operator) for operator in self._graph.computing}
        self._geometries = {operator.number: geometry_of(self._graph, operator) for operator in self._graph.computing}

    def _decides(self, operator: Operator) -> bool:
        """Return whether an operator has weights, takes long, or gives experts their data."""
        def has_experts(entry: Entry) -> bool:
            return any(heads.kind == 'experts' for heads in self._graph.heads_of.get(entry, ()))
        return rule_of(operator).is_searched or multiplies_weights(self._graph, operator) or has_experts(
            (operator.number, 0)) and not any(map(has_experts, operator.inputs))

    def _producers_of(self, operator: Operator) -> List[Tuple[int, int]]:
        """Return the inputs that an operator may follow, and the operators that compute them.

        The one with the largest output comes first, and the last of several: so the sum at the end of a residual block
        follows the operators of the block and not the input of the block, and weighted experts follow the experts.
        """
        index_input = indices(operator)

        def order(producer: Tuple[int, int]) -> Tuple[bool, int, int]:
            size = math.prod(self._graph.shapes[operator.inputs[producer[0]]])
            return producer[0] == index_input, -size, -producer[1]
        producers = [(position, source) for position, (source, _) in enumerate(operator.inputs)
                     if source not in self._graph.fixed and self._graph.operators[source].op != 'null']
        return sorted(producers, key=order)

    def candidates(self, number: int) -> Sequence[Split]:
        """Return the splits that an operator may have."""
        if number not in self._candidates:
            self._candidates[number] = list(dict.fromkeys(self._splits(self._graph.operators[number])))
        return self._candidates[number]

    def _splits(self, operator: Operator) -> Iterator[Split]:
        rule, dimensions = rule_of(operator), len(self._graph.shape(operator))
        limits = list(rule.limits(self._graph, operator)) + [rule.partials(self._graph, operator)]
        for shards in self._shard_counts():
            for degrees in _degrees(shards, limits):
                for ranks in self._rank_sets(shards):
                    if len(ranks) < self._ranks and self._graph.has_table(operator):
                        continue  # all ranks have to sum its rows
                    yield Split(degrees[:-1], ranks, degrees[-1])
        if not rule.not_replicable:
            yield whole_on(dimensions, range(self._ranks))

    def table_candidates(self, name: str) -> Sequence[TablePlan]:
        """Return the routes that rows of a table may take."""
        rows, servers = self._dataflow.parameters[name][0], self._hosts
        partitions = sorted({min(count, rows)
                             for count in (1, max(1, servers // 2), servers, 2 * servers, 4 * servers)})
        return [TablePlan('servers', count) for count in partitions] + [TablePlan('allreduce')]

    def _shard_counts(self) -> List[int]:
        counts = [count for count in range(1, self._ranks + 1) if self._ranks % count == 0]
        if self._ranks > _MANY_RANKS:
            counts = sorted({1, self._per_host, self._ranks // self._per_host, self._ranks} & set(counts))
        return counts

    def _rank_sets(self, shards: int) -> Iterator[List[int]]:
        """Yield the ranks that may hold shards: neighbours, or the same number on each host."""
        if self._ranks > _MANY_RANKS and shards < self._ranks:
            yield spread(shards, self._ranks)
            return
        for first in range(0, self._ranks, shards):
            yield list(range(first, first + shards))
        if 1 < shards < self._ranks:
            yield spread(shards, self._ranks)

    def propagate(self, splits: Dict[int, Split], decided: Mapping[int, Split]) -> Dict[int, Split]:
        """Return the splits that change with new splits of some operators: these, and the splits of their followers."""
        changed = dict(decided)
        for number in self._reached(decided):
            split = self._propagated_split(self._graph.operators[number], collections.ChainMap(changed, splits))
            if split != splits.get(number):
                changed[number] = split
        return changed

    def complete(self, decided: Mapping[int, Split]) -> Dict[int, Split]:
        """Return the whole plan of the deciding operators' splits.

        It includes operators that follow none of them, such as operators that compute from data before the first layer.
        """
        splits = dict(decided)
        for number in self._dataflow.computing:
            if number not in splits:
                splits[number] = self._propagated_split(self._graph.operators[number], splits)
        return splits

    def _reached(self, decided: Mapping[int, Split]) -> List[int]:
        """Return the operators that follow some operators, directly or not, in order."""
        reached: Set[int] = set()
        stack = list(decided)
        while stack:
            for number in self.followers.get(stack.pop(), ()):
                if number not in reached and number not in decided:
                    reached.add(number)
                    stack.append(number)
        return sorted(reached)

    def _propagated_split(self, operator: Operator, splits: Mapping[int, Split]) -> Split:
        producers = self._producers[operator.number]
        for position, source in producers:
            producer = splits[source]
            key = operator.number, position, producer
            if key not in self._propagated:
                self._propagated[key] = self._split_after(operator, position, producer)
            split = self._propagated[key]
            if split is not None:
                return split
        default_key = operator.number, splits[producers[0][1]].ranks if producers else ()
        if default_key not in self._default_splits:
            self._default_splits[default_key] = self._default_split(operator, default_key[1] or range(self._ranks))
        return self._default_splits[default_key]

    def _default_split(self, operator: Operator, ranks: Sequence[int]) -> Split:
        """Return the split of an operator that cannot be split like its inputs: over samples, on the ranks
        that have its first input if these are not all.
        """
        split = Plan().default_split(self._graph, self._dataflow.dimensions, operator, min(len(ranks), self._ranks),
                                     {})[0]
        if len(ranks) >= self._ranks or split.copies > 1 or self._graph.has_table(operator):
            return Plan().default_split(self._graph, self._dataflow.dimensions, operator, self._ranks, {})[0]
        return Split(split.degrees, [ranks[place] for place in split.ranks], split.partials)

    def _split_after(self, operator: Operator, position: int, producer: Split) -> Optional[Split]:
        """Return the split with which an operator reads another one without a transfer; None where there is none."""
        graph, rule, shape = self._graph, rule_of(operator), self._graph.shape(operator)
        if producer.copies > 1 or producer.partials > 1:
            return None
        keeps_dimensions = len(producer.degrees) == len(shape) and not rule.moves_dimensions
        followed = rule.propagate(graph, operator, producer.degrees) if keeps_dimensions else None
        if followed is not None:
            return Split(followed[0], producer.ranks, followed[1])
        if rule.sums_last_dimension and producer.degrees[-1] == len(producer.ranks) <= rule.partials(graph, operator):
            # Each rank picks the elements that are in its part, and no rank has all of them.
            return Split((1,) * len(shape), producer.ranks, producer.degrees[-1])
        source, output = operator.inputs[position]
        key = self._geometries[operator.number], self._geometries[source], output, position, producer
        if key not in self._followed:
            self._followed[key] = followed_split(graph, operator, position, producer)
        return self._followed[key]


def _degrees(shards: int, limits: Sequence[int]) -> Iterator[Tuple[int, ...]]:
    """Yield the degrees within limits that multiply to a number of shards, few of them above one."""
    if shards == 1:
        yield (1,) * len(limits)
        return
    splittable = [dimension for dimension, limit in enumerate(limits) if limit > 1]
    for count in range(1, _MAX_SPLIT_DIMENSIONS + 1):
        for dimensions in itertools.combinations(splittable, count):
            for factors in _factors(shards, count):
                degrees = [1] * len(limits)
                for dimension, factor in zip(dimensions, factors):
                    degrees[dimension] = factor
                if all(degree <= limit for degree, limit in zip(degrees, limits)):
                    yield tuple(degrees)


def _factors(number: int, count: int) -> Iterator[Tuple[int, ...]]:
    """Return the tuples of factors above one, in every order, that multiply to a number."""
    divisors = [divisor for divisor in range(2, number + 1) if number % divisor == 0]
    return (factors for factors in itertools.product(divisors, repeat=count) if math.prod(factors) == number)


class _Repeat(NamedTuple):
    """Some blocks of `period` operators, which begin at `first`, follow each other and end before `end`."""

    first: int
    period: int
    end: int


def repeated_groups(keys: Sequence[Hashable]) -> List[List[int]]:
    """Return the groups of positions that are at the same place of repeated blocks; all others are groups of one.

    Every position is in one group; groups are in the order of their first position.

    - `keys`: a key of each operator, in order; operators with equal keys are the same.
    """
    # The repeat that covers most operators comes first: layers, before the equal projections inside a layer.
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    sequence = [numbers[key] for key in keys]
    groups: List[List[int]] = []
    pending: List[Tuple[int, int]] = [(0, len(keys))]
    while pending:
        low, high = pending.pop()
        repeat = max(_repeats(sequence, low, high), default=None,
                     key=lambda found: (found.end - found.first, -found.period, -found.first))
        if repeat is None:
            groups += [[position] for position in range(low, high)]
            continue
        groups += [list(range(repeat.first + place, repeat.end, repeat.period)) for place in range(repeat.period)]
        pending += [(low, repeat.first), (repeat.end, high)]
    return sorted(groups)


def _repeats(sequence: Sequence[int], low: int, high: int) -> Iterator[_Repeat]:
    """Yield the longest repeats of each period within a range of positions."""
    for period in range(1, (high - low) // 2 + 1):
        matching = 0  # the number of positions before this one that are the same a period later
        for position in range(low, high - period + 1):
            if position < high - period and sequence[position] == sequence[position + period]:
                matching += 1
                continue
            if matching >= period:
                first = position - matching
                yield _Repeat(first, period, first + period * (matching // period + 1))
            matching = 0
