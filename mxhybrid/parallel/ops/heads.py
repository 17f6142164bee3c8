"""Finds the heads of attention: dimensions of arrays that have several meanings, of which one is heads.

Networks merge samples and heads to one dimension, since ``batch_dot`` takes one: (samples, heads, times, features)
becomes (samples x heads, times, features).  A range of such a dimension has all heads of some samples.  To split heads,
too, the graph has its *factors*, samples and heads, as dimensions of their own; see :meth:`.graph.Graph.factor`.
"""
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .dimension_names import Dimensions
from .factored_rule import factors_of
from .graph import Alignment, Entry, Graph, Operator
from .registry import rule_of

#: A dimension of an array.
Dimension = Tuple[Entry, int]


class Interval(NamedTuple):
    """The part of a dimension that is heads: coordinate c has head ``c // inner % heads``."""

    inner: int
    heads: int


def factor_heads(graph: Graph, dimensions: Dimensions) -> bool:
    """Give the graph the factors of dimensions that contain heads; return whether there are any.

    Parameters
    ----------
    graph : Graph
        Without factors yet.
    dimensions : Dimensions
        Names and samples of the graph.
    """
    finder = _Finder(graph, dimensions)
    intervals = finder.find()
    if not intervals:
        return False
    factors: Dict[Entry, List[Tuple[int, ...]]] = {}
    features: Dict[Dimension, int] = {}
    fixed = finder.classes_of_inputs() | finder.whole_classes()
    for (entry, axis), root in finder.members():
        interval = intervals.get(root)
        if interval is None:
            continue
        outer = graph.shapes[entry][axis] // (interval.inner * interval.heads)
        if outer == 1:
            features[entry, axis] = interval.inner
        elif root not in fixed:
            parts = factors.setdefault(entry, [(count,) for count in graph.shapes[entry]])
            parts[axis] = (outer, interval.heads) + ((interval.inner,) if interval.inner > 1 else ())
    graph.factor({entry: tuple(parts) for entry, parts in factors.items()}, finder.alignments)
    for entry in {entry for entry, _ in features} | set(factors):
        heads, position = {}, 0
        for axis, part in enumerate(factors_of(graph, entry)):
            if len(part) > 1:
                heads[position + 1] = 1
            elif (entry, axis) in features:
                heads[position] = features[entry, axis]
            position += len(part)
        graph.heads_of[entry] = heads
    return True


class _Finder:
    """Dimensions that are the same in neighbouring operators, and the heads in them."""

    def __init__(self, graph: Graph, dimensions: Dimensions):
        self._graph, self._dimensions = graph, dimensions
        self._parents: Dict[Dimension, Dimension] = {}
        self.alignments: Dict[int, List[Optional[Alignment]]] = {}
        #: Neighbouring dimensions with the same elements, of the input and of the output of a reshape.
        self._groups: List[Tuple[List[Dimension], List[Dimension]]] = []
        for operator in graph.operators:
            if operator.op != 'null':
                self._align(operator)

    # -- classes of dimensions -------------------------------------------------------------------------------------

    def _root(self, dimension: Dimension) -> Dimension:
        parent = self._parents.setdefault(dimension, dimension)
        while parent != dimension:
            self._parents[dimension] = self._parents[parent]
            dimension, parent = parent, self._parents[parent]
        return dimension

    def members(self) -> List[Tuple[Dimension, Dimension]]:
        """Return each dimension with the representative of its class."""
        return [(dimension, self._root(dimension)) for dimension in list(self._parents)]

    def classes_of_inputs(self) -> Set[Dimension]:
        """Return the classes with dimensions of data, auxiliary states or tables, whose arrays keep their shapes."""
        graph = self._graph
        return {root for ((number, _), _), root in self.members() if graph.operators[number].op == 'null' and (
            not graph.is_parameter(number) or graph.operators[number].name in graph.auxiliary
            or number in graph.tables)}

    def whole_classes(self) -> Set[Dimension]:
        """Return the classes with dimensions that a rule needs without factors."""
        return {self._root(dimension) for operator in self._graph.computing
                for dimension in rule_of(operator).whole_axes(self._graph, operator)}

    def _align(self, operator: Operator) -> None:
        """Note which dimensions of an operator's inputs and outputs are the same."""
        rule, graph = rule_of(operator), self._graph
        self.alignments[operator.number] = alignments = rule.alignments(graph, operator)
        for axis, alignment in enumerate(alignments):
            if alignment is not None:
                first = (operator.number, 0), axis
                for position, input_axis in alignment.inputs.items():
                    self._join(first, (operator.inputs[position], input_axis))
                for output, output_axis in alignment.outputs.items():
                    self._join(first, ((operator.number, output), output_axis))
        for old, new in rule.reshaped(graph, operator):
            source, target = operator.inputs[0], (operator.number, 0)
            self._groups.append(([(source, axis) for axis in old], [(target, axis) for axis in new]))

    def _join(self, first: Dimension, second: Dimension) -> None:
        self._parents[self._root(first)] = self._root(second)

    # -- heads -----------------------------------------------------------------------------------------------------

    def find(self) -> Dict[Dimension, Interval]:
        """Return the heads in each class of dimensions that has some, for attention alone: such heads lead to a product
        of many matrices.
        """
        intervals: Dict[Dimension, Interval] = {}
        components = _Components()
        batched: Set[Dimension] = set()
        conflicting: Set[Dimension] = set()
        for operator in self._graph.computing:
            rule = rule_of(operator)
            for entry, axis, inner, heads in rule.heads(self._graph, operator):
                root = self._root((entry, axis))
                if intervals.setdefault(root, Interval(inner, heads)) != (inner, heads):
                    conflicting.add(root)
                batched.add(root)
            batched.update(self._root(((operator.number, 0), axis)) for axis in rule.batch_axes(self._graph, operator))
        for old, new in self._groups:
            seed = self._split_off(old, new)
            if seed is not None:
                intervals.setdefault(self._root(seed), Interval(1, self._length(seed)))
        changed = True
        while changed:
            changed = False
            for old, new in self._groups:
                for sources, targets in ((old, new), (new, old)):
                    for target, interval, source in self._passed_on(sources, targets, intervals):
                        components.join(self._root(source), self._root(target))
                        former = intervals.get(self._root(target))
                        if former is None:
                            intervals[self._root(target)], changed = interval, True
                        elif former != interval:
                            conflicting.add(self._root(target))
        with_products = {components.root(root) for root in batched}
        return {root: interval for root, interval in intervals.items()
                if root not in conflicting and components.root(root) in with_products}

    def _length(self, dimension: Dimension) -> int:
        return self._graph.shapes[dimension[0]][dimension[1]]

    def _split_off(self, old: Sequence[Dimension], new: Sequence[Dimension]) -> Optional[Dimension]:
        """Return the dimension that is heads where a reshape splits features: the one before the last."""
        parts = [dimension for dimension in new if self._length(dimension) > 1]
        whole = [dimension for dimension in old if self._length(dimension) > 1]
        if len(whole) != 1 or len(parts) < 2 or whole[0][1] == self._dimensions.samples(whole[0][0]):
            return None
        return parts[-2]

    def _passed_on(self, sources: Sequence[Dimension], targets: Sequence[Dimension],
                   intervals: Dict[Dimension, Interval]) -> List[Tuple[Dimension, Interval, Dimension]]:
        """Return the dimensions of a reshaped array that contain the heads of the other one, and their intervals."""
        located, behind = [], 1
        for source in reversed(sources):
            interval = intervals.get(self._root(source))
            if interval is not None:
                located += [(target, there, source) for target, there in
                          self._located(targets, behind * interval.inner, interval.heads)]
            behind *= self._length(source)
        return located

    def _located(self, targets: Sequence[Dimension], low: int, heads: int) -> List[Tuple[Dimension, Interval]]:
        """Return the dimension of a reshaped array that contains heads of `low` elements each; none if it cuts them."""
        behind = 1
        for target in reversed(targets):
            length = self._length(target)
            if behind <= low < behind * length:
                inner, rest = divmod(low, behind)
                return [(target, Interval(inner, heads))] if not rest and length % (inner * heads) == 0 else []
            behind *= length
        return []


class _Components:
    """Sets of classes that reshapes connect."""

    def __init__(self) -> None:
        self._parents: Dict[Dimension, Dimension] = {}

    def root(self, member: Dimension) -> Dimension:
        """Return the representative of a set."""
        while self._parents.setdefault(member, member) != member:
            member = self._parents[member]
        return member

    def join(self, first: Dimension, second: Dimension) -> None:
        """Unite the sets of two members."""
        self._parents[self.root(first)] = self.root(second)
