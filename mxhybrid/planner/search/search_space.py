"""How each operator of a network may be split, and rows of each table travel, for a search.

Operators with weights, and others that take long, decide; those between them, as activations and additions, follow what
they read, so that nothing moves.
"""
import collections
import itertools
from typing import Dict, Iterator, List, Mapping, MutableMapping, Optional, Sequence, Set, Tuple

from ...base.settings import TablePlan
from ...parallel.ops.graph import Operator
from ...parallel.ops.registry import rule_of
from ...parallel.plans.plan import Plan, spread
from ...parallel.sharding.split import Split, whole_on
from ..task_graph.dataflow import Dataflow

#: They decide.
DECIDING = ('Convolution', 'FullyConnected', 'Embedding', 'RNN', 'Deconvolution')

#: Dimensions that are cut at once, addends included.
_MOST_CUT = 3

#: Ranks beyond which a choice takes all of them, those of each host, or one.
_MANY = 32


class SearchSpace:
    """Of a network on so many ranks, `per_host` of them on each host, which has a server; `sums` are what may sum dense
    weights, none for what does it anyway.
    """

    def __init__(self, dataflow: Dataflow, ranks: int, per_host: int, sums: Sequence[str] = ()):
        self.sums = sums
        self.dataflow, self._graph, self._ranks = dataflow, dataflow.graph, ranks
        self._per_host, self._hosts = per_host, -(-ranks // per_host)
        #: Trained weights with row_sparse gradients.
        self.tables = [name for name in dataflow.trained if name in dataflow.tables]
        self.deciding = [number for number in dataflow.computing
                         if self._graph.operators[number].op in DECIDING]
        if not self.deciding:
            self.deciding = list(dataflow.computing)
        decides = set(self.deciding)
        #: Who follows an operator, in the order in which they compute.
        self.followers: Dict[int, List[int]] = {}
        for number in dataflow.computing:
            if number in decides:
                continue
            for source, _ in self._graph.operators[number].inputs:
                if source not in self._graph.fixed:
                    self.followers.setdefault(source, []).append(number)
        self._known: Dict[int, List[Split]] = {}
        self._followed: Dict[Tuple[int, Split], Optional[Split]] = {}

    def of(self, number: int) -> Sequence[Split]:
        """What an operator may choose."""
        if number not in self._known:
            self._known[number] = list(dict.fromkeys(self._splits(self._graph.operators[number])))
        return self._known[number]

    def _splits(self, one: Operator) -> Iterator[Split]:
        rule, count = rule_of(one), len(self._graph.shape(one))
        limits = list(rule.limits(self._graph, one)) + [rule.addends(self._graph, one)]
        for parts in self._counts():
            for degrees in _products(parts, limits):
                for ranks in self._places(parts):
                    if len(ranks) < self._ranks and self._graph.has_table(one):
                        continue  # all have to sum its rows
                    yield Split(degrees[:-1], ranks, degrees[-1])
        if not rule.alone:
            yield whole_on(count, range(self._ranks))

    def of_table(self, name: str) -> Sequence[TablePlan]:
        """How rows of a table may travel."""
        rows, servers = self.dataflow.parameters[name][0], self._hosts
        counts = sorted({min(count, rows) for count in (1, max(1, servers // 2), servers, 2 * servers, 4 * servers)})
        return [TablePlan('servers', count) for count in counts] + [TablePlan('allreduce')]

    def _counts(self) -> List[int]:
        counts = [count for count in range(1, self._ranks + 1) if self._ranks % count == 0]
        if self._ranks > _MANY:
            counts = sorted({1, self._per_host, self._ranks // self._per_host, self._ranks} & set(counts))
        return counts

    def _places(self, parts: int) -> Iterator[List[int]]:
        """Neighbouring ranks, or some of each host."""
        if self._ranks > _MANY and parts < self._ranks:
            yield spread(parts, self._ranks)
            return
        for first in range(0, self._ranks, parts):
            yield list(range(first, first + parts))
        if 1 < parts < self._ranks:
            yield spread(parts, self._ranks)

    def follow(self, splits: MutableMapping[int, Split], decided: Mapping[int, Split]) -> Dict[int, Split]:
        """What changes where some operators are split otherwise: these, and those that follow them."""
        found = dict(decided)
        for number in self._reached(decided):
            split = self._following(self._graph.operators[number], collections.ChainMap(found, splits))
            if split != splits.get(number):
                found[number] = split
        return found

    def complete(self, decided: Mapping[int, Split]) -> Dict[int, Split]:
        """The whole plan of what the deciding ones decide, with those that follow none of them, as what is computed of
        data before the first layer.
        """
        found = dict(decided)
        for number in self.dataflow.computing:
            if number not in found:
                found[number] = self._following(self._graph.operators[number], found)
        return found

    def _reached(self, decided: Mapping[int, Split]) -> List[int]:
        reached: Set[int] = set()
        stack = list(decided)
        while stack:
            for number in self.followers.get(stack.pop(), ()):
                if number not in reached and number not in decided:
                    reached.add(number)
                    stack.append(number)
        return sorted(reached)

    def _following(self, one: Operator, splits: Mapping[int, Split]) -> Split:
        for source, _ in one.inputs:
            if source in self._graph.fixed or self._graph.operators[source].op == 'null':
                continue
            key = one.number, splits[source]
            if key not in self._followed:
                self._followed[key] = self._after(one, splits[source])
            found = self._followed[key]
            if found is not None:
                return found
        return Plan().default_split(self._graph, self.dataflow.dimensions, one, self._ranks, {})[0]

    def _after(self, one: Operator, producer: Split) -> Optional[Split]:
        """As an operator follows what it reads; None where it cannot."""
        graph, rule, shape = self._graph, rule_of(one), self._graph.shape(one)
        if producer.copies > 1 or producer.addends > 1:
            return None
        followed = rule.following(graph, one, producer.degrees) if len(producer.degrees) == len(shape) else None
        if followed is not None:
            return Split(followed[0], producer.ranks, followed[1])
        if one.op == 'pick' and producer.degrees[-1] == len(producer.ranks) <= rule.addends(graph, one):
            # Each looks for those that are in its part, and nobody has all of them.
            return Split((1,) * len(shape), producer.ranks, producer.degrees[-1])
        return None


def _products(parts: int, limits: Sequence[int]) -> Iterator[Tuple[int, ...]]:
    """Degrees that multiply to a number, within limits, few of them more than one."""
    if parts == 1:
        yield (1,) * len(limits)
        return
    places = [at for at, limit in enumerate(limits) if limit > 1]
    for count in range(1, _MOST_CUT + 1):
        for chosen in itertools.combinations(places, count):
            for factors in _factors(parts, count):
                degrees = [1] * len(limits)
                for at, factor in zip(chosen, factors):
                    degrees[at] = factor
                if all(degree <= limit for degree, limit in zip(degrees, limits)):
                    yield tuple(degrees)


def _factors(number: int, count: int) -> Iterator[Tuple[int, ...]]:
    """Ordered factors above one."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for factor in range(2, number):
        if number % factor == 0:
            for rest in _factors(number // factor, count - 1):
                yield (factor,) + rest
