"""Finds the heads of attention, and the experts of mixtures: dimensions of arrays, or parts of their meaning.

Networks merge samples and heads to one dimension, since ``batch_dot`` takes one: (samples, heads, times, features)
becomes (samples x heads, times, features).  A range of such a dimension has all heads of some samples.  To split heads,
too, the graph has its *factors*, samples and heads, as dimensions of their own; see :meth:`.graph.Graph.factor`.

Heads are found where a reshape splits features that a layer computes, if a product of many matrices follows.  Experts
are the matrices of one weight in such a product.  If several heads of queries share one of keys, heads have two levels:
groups, which keys have, too, and the heads of a group.
"""
import collections
import math
from typing import Any, Counter, Dict, Generic, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from ..sharding.box import full, size_of
from .dimension_names import Dimensions
from .factored_rule import factors_of
from .fixed_shards import weight_boxes
from .graph import Alignment, Entry, Graph, Heads, Operator
from .registry import multiplies_weights, rule_of
from .rule import with_range

#: A dimension of an array.
Dimension = Tuple[Entry, int]


class Interval(NamedTuple):
    """A level of heads in a dimension: coordinate c has head ``c // inner % heads``."""

    inner: int
    heads: int


class _Run(NamedTuple):
    """The levels of heads that follow each other in a dimension, as one interval."""

    inner: int
    heads: int
    kind: str
    above: int
    queries: int


def factor_heads(graph: Graph, dimensions: Dimensions) -> bool:
    """Give a graph without factors those of dimensions that contain heads; return whether there are any."""
    finder = _Finder(graph, dimensions)
    runs = finder.find()
    if not runs:
        return False
    factors: Dict[Entry, List[Tuple[int, ...]]] = {}
    runs_of: Dict[Entry, Dict[int, _Run]] = {}
    fixed = finder.classes_of_inputs() | finder.whole_classes()
    for (entry, axis), root in finder.members():
        run = runs.get(root)
        if run is None:
            continue
        outer = graph.shapes[entry][axis] // (run.inner * run.heads)
        if outer == 1 or root not in fixed:
            runs_of.setdefault(entry, {})[axis] = run
        if outer > 1 and root not in fixed:
            parts = factors.setdefault(entry, [(count,) for count in graph.shapes[entry]])
            parts[axis] = (outer, run.heads) + ((run.inner,) if run.inner > 1 else ())
    graph.factor({entry: tuple(parts) for entry, parts in factors.items()}, finder.alignments)
    for entry, by_axis in runs_of.items():
        position = 0
        for axis, part in enumerate(factors_of(graph, entry)):
            if axis in by_axis:
                run, is_factor = by_axis[axis], len(part) > 1
                graph.heads_of.setdefault(entry, []).append(Heads(
                    position + is_factor, run.heads, 1 if is_factor else run.inner, run.kind, run.above,
                    run.queries))
            position += len(part)
    return True


class _Finder:
    """Dimensions that are the same in neighbouring operators, and the heads in them."""

    def __init__(self, graph: Graph, dimensions: Dimensions):
        self._graph, self._dimensions = graph, dimensions
        self._classes: _Sets[Dimension] = _Sets()
        self.alignments: Dict[int, List[Optional[Alignment]]] = {}
        #: Neighbouring dimensions with the same elements, of the input and of the output of an operator.
        self._groups: List[Tuple[List[Dimension], List[Dimension]]] = []
        #: The numbers of copies that stand for dimensions in groups.
        self._copies: Dict[Dimension, int] = {}
        #: The levels of heads by class.
        self._levels: Dict[Dimension, List[Interval]] = {}
        self._conflicting: Set[Dimension] = set()
        for operator in graph.operators:
            if operator.op != 'null':
                self._align(operator)

    # -- classes of dimensions -------------------------------------------------------------------------------------

    def members(self) -> List[Tuple[Dimension, Dimension]]:
        """Return each dimension with the representative of its class."""
        return [(dimension, root) for dimension, root in self._classes.members() if dimension not in self._copies]

    def classes_of_inputs(self) -> Set[Dimension]:
        """Return the classes with dimensions of data, auxiliary states or tables, whose arrays keep their shapes."""
        graph = self._graph
        return {root for ((number, _), _), root in self.members() if graph.operators[number].op == 'null' and (
            not graph.is_parameter(number) or graph.operators[number].name in graph.auxiliary
            or number in graph.tables)}

    def whole_classes(self) -> Set[Dimension]:
        """Return the classes with dimensions that a rule needs without factors."""
        return {self._classes.root(dimension) for operator in self._graph.computing
                for dimension in rule_of(operator).whole_axes(self._graph, operator)}

    def _align(self, operator: Operator) -> None:
        """Note which dimensions of an operator's inputs and outputs are the same."""
        rule, graph = rule_of(operator), self._graph
        self.alignments[operator.number] = alignments = rule.alignments(graph, operator)
        for axis, alignment in enumerate(alignments):
            if alignment is not None:
                first = (operator.number, 0), axis
                for position, input_axis in alignment.inputs.items():
                    self._classes.join(first, (operator.inputs[position], input_axis))
                for output, output_axis in alignment.outputs.items():
                    self._classes.join(first, ((operator.number, output), output_axis))
        target = operator.number, 0
        for old, new in rule.reshaped(graph, operator):
            self._groups.append(([(operator.inputs[0], axis) for axis in old], [(target, axis) for axis in new]))
        for axis, count in rule.repeated(graph, operator).items():
            copies: Dimension = (operator.number, -1), axis
            self._copies[copies] = count
            self._groups.append(([(operator.inputs[0], axis), copies], [(target, axis)]))

    def _length(self, dimension: Dimension) -> int:
        return self._copies.get(dimension) or self._graph.shapes[dimension[0]][dimension[1]]

    # -- heads -----------------------------------------------------------------------------------------------------

    def find(self) -> Dict[Dimension, _Run]:
        """Return the heads in each class of dimensions that has some: such heads lead to a product of many matrices, or
        are rows of two of them, such as the scores and the context of attention with a single head of keys.
        """
        graph, root_of = self._graph, self._classes.root
        demanded: List[Tuple[Dimension, Interval]] = []
        batched: Set[Dimension] = set()
        experts: Set[Dimension] = set()
        rows: List[Set[Dimension]] = []
        for operator in graph.computing:
            rule = rule_of(operator)
            demanded += [((entry, axis), Interval(inner, heads))
                         for entry, axis, inner, heads in rule.heads(graph, operator)]
            axes = rule.batch_axes(graph, operator)
            for axis in axes:
                matrices = self._experts(operator, axis)
                (experts if matrices else batched).add(root_of(((operator.number, 0), axis)))
                for dimension, interval in matrices:
                    self._add(dimension, interval)
            rows.append({root_of(((operator.number, 0), axis)) for axis in range(len(graph.shape(operator)))
                         if axes and axis not in axes})
        for dimension, interval in demanded:
            self._add(dimension, interval)
            batched.add(root_of(dimension))
        features = self._features()
        for old, new in self._groups:
            for dimension, interval in self._split_off(old, new, features):
                self._add(dimension, interval)
        is_new = True
        while is_new:
            is_new = False
            for old, new in self._groups:
                for dimension, interval in self._pieces(old, new) + self._pieces(new, old):
                    is_new |= self._add(dimension, interval)
        return self._runs(demanded, batched, experts, rows)

    def _experts(self, operator: Operator, axis: int) -> List[Tuple[Dimension, Interval]]:
        """Return the dimensions of weights of which a product of many matrices reads one matrix for each coordinate."""
        alignment = self.alignments[operator.number][axis]
        return [found for position, input_axis in ({} if alignment is None else alignment.inputs).items()
                for found in self._matrices(operator.inputs[position], input_axis)]

    def _matrices(self, entry: Entry, axis: int) -> List[Tuple[Dimension, Interval]]:
        """Return the dimensions of weights, or of arrays that are computed from weights alone, whose coordinates have
        other elements of the weights each: a dimension, or those that a reshape joins to it.
        """
        graph, shape = self._graph, self._graph.shapes[entry]
        if entry[0] not in graph.fixed:
            return []
        first = with_range(full(shape), axis, (0, 1))
        if any(name in graph.parameters and size_of(box) < size_of(full(graph.parameters[name]))
               for name, box in weight_boxes(graph, entry, first)):
            return [((entry, axis), Interval(1, shape[axis]))]
        operator = graph.operators[entry[0]]
        return [found for old, new in rule_of(operator).reshaped(graph, operator) if list(new) == [axis]
                for source_axis in old for found in self._matrices(operator.inputs[0], source_axis)]

    def _features(self) -> Set[Dimension]:
        """Return the classes of features: dimensions that products have from weights alone, and what other operators
        make of them that keep the order of dimensions.
        """
        graph, root_of = self._graph, self._classes.root
        features: Set[Dimension] = set()
        for operator in graph.computing:
            rule, count = rule_of(operator), len(graph.shape(operator))
            multiplies = multiplies_weights(graph, operator)
            for axis, alignment in enumerate(self.alignments[operator.number]):
                if alignment is None:
                    is_found = not rule.moves_dimensions and any(
                        len(graph.shapes[entry]) == count and root_of((entry, axis)) in features
                        for entry in operator.inputs)
                else:
                    is_found = multiplies and all(operator.inputs[position][0] in graph.fixed
                                                  for position in alignment.inputs)
                if is_found:
                    features.update(root_of(((operator.number, output), axis)) for output in range(operator.outputs))
        return features

    def _split_off(self, old: Sequence[Dimension], new: Sequence[Dimension], features: Set[Dimension]
                   ) -> List[Tuple[Dimension, Interval]]:
        """Return the dimensions that may be heads where a reshape splits features: all but the last."""
        parts = [dimension for dimension in new if self._length(dimension) > 1]
        whole = [dimension for dimension in old if self._length(dimension) > 1]
        if len(parts) < 2 or self._classes.root(whole[-1]) not in features or \
                whole[-1][1] == self._dimensions.samples(whole[-1][0]):
            return []
        if len(whole) == 1:
            return [(part, Interval(1, self._length(part))) for part in parts[:-1]]
        heads, rest = divmod(self._length(whole[-1]), self._length(parts[-1]))
        inner_is_heads = heads > 1 and not rest and self._length(parts[-2]) % heads == 0
        return [(parts[-2], Interval(1, heads))] if inner_is_heads else []

    def _pieces(self, sources: Sequence[Dimension], targets: Sequence[Dimension]) -> List[Tuple[Dimension, Interval]]:
        """Return the levels of one side of a group of dimensions as levels of the other side, each behind the part of
        the source that it is; none of a level that the other side cuts.
        """
        pieces: List[Tuple[Dimension, Interval]] = []
        behind = 1
        for source in reversed(sources):
            for interval in self._levels.get(self._classes.root(source), ()):
                low, high = behind * interval.inner, behind * interval.inner * interval.heads
                parts: List[Tuple[Dimension, Interval]] = []
                inner = 1
                for target in reversed(targets):
                    end = inner * self._length(target)
                    first, last = max(low, inner), min(high, end)
                    if first < last:
                        if first % low or high % last or first % inner or end % last or last % first:
                            break
                        parts += [(source, Interval(first // behind, last // first)),
                                  (target, Interval(first // inner, last // first))]
                    inner = end
                else:
                    pieces += parts
            behind *= self._length(source)
        return pieces

    def _add(self, dimension: Dimension, interval: Interval) -> bool:
        """Add a level to the class of a dimension, and cut levels that contain others; return whether any is new."""
        root = self._classes.root(dimension)
        former = self._levels.get(root, [])
        ends = sorted({end for level in [*former, interval] for end in (level.inner, level.inner * level.heads)})
        levels: Set[Interval] = set()
        for level in [*former, interval]:
            cuts = [end for end in ends if level.inner <= end <= level.inner * level.heads]
            if any(high % low for low, high in zip(cuts, cuts[1:])):
                self._conflicting.add(root)
                return False
            levels.update(Interval(low, high // low) for low, high in zip(cuts, cuts[1:]))
        self._levels[root] = sorted(levels)
        return self._levels[root] != former

    def _runs(self, demanded: List[Tuple[Dimension, Interval]], batched: Set[Dimension], experts: Set[Dimension],
              rows: List[Set[Dimension]]) -> Dict[Dimension, _Run]:
        """Return the heads of each class, given those of the classes that rules demand, the batches of products of data
        and of experts, and the classes of rows of each product.
        """
        same: _Sets[Any] = _Sets()
        for old, new in self._groups:
            nodes = [(self._classes.root(dimension), level) for dimension, level in self._pieces(old, new)]
            for source, target in zip(nodes[::2], nodes[1::2]):
                same.join(source, target)

        def levels_of(roots: Set[Dimension]) -> Set[Any]:
            return {same.root((root, level)) for root in roots for level in self._levels.get(root, ())}
        times_in_rows: Counter[Any] = collections.Counter(level for roots in rows for level in levels_of(roots))
        heads = levels_of(batched) | {level for level, times in times_in_rows.items() if times > 1}
        accepted = heads | levels_of(experts)
        above: Dict[Any, int] = {}
        below: Dict[Any, int] = {}
        by_root: Dict[Dimension, List[Interval]] = {}
        for root, levels in self._levels.items():
            by_root[root] = [level for level in levels if same.root((root, level)) in accepted]
            total, outer = math.prod(level.heads for level in by_root[root]), 1
            for level in reversed(by_root[root]):
                key = same.root((root, level))
                above[key] = max(above.get(key, 1), outer)
                outer *= level.heads
                below[key] = max(below.get(key, 1), total // outer)
        runs = {}
        for root, levels in by_root.items():
            are_neighbours = all(inner.inner * inner.heads == outer.inner for inner, outer in zip(levels, levels[1:]))
            if levels and are_neighbours and root not in self._conflicting:
                keys = [same.root((root, level)) for level in levels]
                count = math.prod(level.heads for level in levels)
                groups = above[keys[-1]]
                runs[root] = _Run(levels[0].inner, count, 'heads' if heads.intersection(keys) else 'experts', groups,
                                  groups * count * below[keys[0]])
        for dimension, interval in demanded:
            run = runs.get(self._classes.root(dimension))
            if run is not None and run[:2] != interval:
                del runs[self._classes.root(dimension)]
        return runs


_Member = TypeVar('_Member')


class _Sets(Generic[_Member]):
    """Disjoint sets of members."""

    def __init__(self) -> None:
        self._parents: Dict[_Member, _Member] = {}

    def root(self, member: _Member) -> _Member:
        """Return the representative of a set."""
        parent = self._parents.setdefault(member, member)
        while parent != member:
            self._parents[member] = self._parents[parent]
            member, parent = parent, self._parents[parent]
        return member

    def join(self, first: _Member, second: _Member) -> None:
        """Unite the sets of two members."""
        self._parents[self.root(first)] = self.root(second)

    def members(self) -> List[Tuple[_Member, _Member]]:
        """Return each member with the representative of its set."""
        return [(member, self.root(member)) for member in list(self._parents)]
