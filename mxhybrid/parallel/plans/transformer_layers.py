"""Finds the layers of Transformers that a plan splits: projections of attention, feed-forward layers, vocabularies."""
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import rule_of

#: Operators that read the logits of a vocabulary.
_READ_LOGITS = ('softmax', 'log_softmax', 'pick')


class Heads(NamedTuple):
    """The heads in a dimension of an array."""

    axis: int
    #: The number of heads.
    total: int
    #: Features of a head; 1 if the dimension is heads and nothing else.
    features: int


def heads_in(graph: Graph, entry: Entry) -> Optional[Heads]:
    """Return the heads of an array: in a dimension of their own if there is one, else in its channels."""
    all_heads = [Heads(axis, graph.shapes[entry][axis] // features, features)
                 for axis, features in graph.heads_of.get(entry, {}).items()]
    alone = [heads for heads in all_heads if heads.features == 1]
    return next(iter(alone or [heads for heads in all_heads if heads.axis == len(graph.shapes[entry]) - 1]), None)


def is_dense(operator: Operator) -> bool:
    """Return whether an operator is a dense layer."""
    return rule_of(operator).layer_kind == 'dense'


def reads_heads(graph: Graph, operator: Operator) -> Optional[Heads]:
    """Return the heads in the channels that a dense layer sums over; None if there are none."""
    if not is_dense(operator):
        return None
    heads = heads_in(graph, operator.inputs[0])
    return heads if heads is not None and heads.axis == _summed_dimension(graph, operator) else None


def _summed_dimension(graph: Graph, operator: Operator) -> Optional[int]:
    """Return the only dimension of the input that a dense layer sums over; None if there are several."""
    last = len(graph.shapes[operator.inputs[0]]) - 1
    return last if last <= 1 or not operator.get('flatten', True) else None


def divisors(count: int) -> List[int]:
    """Return the divisors of a number."""
    return [degree for degree in range(1, count + 1) if count % degree == 0]


class TransformerLayers:
    """The layers of a network that a plan splits in a way of their own.

    Attributes
    ----------
    first, second : set of int
        The numbers of the dense layers of pairs (Shoeybi et al. 2019, section 3), by the number of the operator: from
        C to H features, and back to C.  Elementwise operators alone are between them.
    vocabularies : set of int
        Dense layers whose outputs are words: with more outputs than inputs, read by a softmax or returned.
    embeddings : set of int
        Embeddings with more rows than columns and a dense gradient.
    projections : set of int
        Dense layers without heads that attention reads, and the operators between, which do not keep the features of a
        head together, such as the `split` and `concat` of Sockeye.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self._readers: Dict[Entry, List[Operator]] = {}
        for operator in graph.computing:
            for entry in operator.inputs:
                self._readers.setdefault(entry, []).append(operator)
        self.first: Set[int] = set()
        self.second: Set[int] = set()
        for operator in graph.computing:
            sources = self._paired(operator) if is_dense(operator) else None
            if sources:
                self.first.update(sources)
                self.second.add(operator.number)
        self.vocabularies = {operator.number for operator in graph.computing if is_dense(operator)
                             and operator.number not in self.first | self.second and self._returns_words(operator)}
        self.embeddings = {operator.number for operator in graph.computing
                           if operator.op == 'Embedding' and not graph.has_table(operator)
                           and graph.inputs(operator)[1][0] > graph.inputs(operator)[1][1]}
        self.projections = self._projections()

    def _weight(self, operator: Operator) -> Tuple[int, ...]:
        return self._graph.array_shapes[operator.inputs[1]]

    def _paired(self, second: Operator) -> Optional[Set[int]]:
        """Return the dense layers whose outputs reach a dense layer through elementwise operators alone; None if they
        also reach another operator, if another operator reads an array between, or if numbers of features differ.
        """
        graph = self._graph
        if _summed_dimension(graph, second) is None or reads_heads(graph, second) is not None:
            return None
        firsts: Set[int] = set()
        between: Set[int] = set()
        waiting = [second.inputs[0]]
        while waiting:
            operator = graph.operators[waiting.pop()[0]]
            if operator.number in firsts or operator.number in between or operator.number in graph.fixed:
                continue
            if is_dense(operator) and self._weight(operator) == self._weight(second)[::-1] and \
                    heads_in(graph, (operator.number, 0)) is None:
                firsts.add(operator.number)
            elif operator.op != 'null' and rule_of(operator).is_elementwise:
                between.add(operator.number)
                waiting += operator.inputs
            else:
                return None
        inside = firsts | between
        for entry, readers in self._readers.items():
            if entry[0] in inside and any(reader is not second and reader.number not in between for reader in readers):
                return None
        return None if any(source in inside for source, _ in graph.heads) else firsts

    def _projections(self) -> Set[int]:
        """Return the dense layers without heads whose outputs reach operators with heads through operators without
        heads and weights, and the operators between.
        """
        graph = self._graph
        reached: Set[int] = set()
        projections: Set[int] = set()
        for operator in graph.computing:
            if heads_in(graph, (operator.number, 0)) is None and (is_dense(operator) or self._is_between(
                    operator) and any(source in reached for source, _ in operator.inputs)):
                reached.add(operator.number)
        for operator in reversed(graph.computing):
            has_heads = heads_in(graph, (operator.number, 0)) is not None
            if not is_dense(operator) and (has_heads or operator.number in projections):
                projections.update(source for source, _ in operator.inputs if source in reached)
        return projections

    def _is_between(self, operator: Operator) -> bool:
        """Return whether an operator has no weights, and as many dimensions as its inputs."""
        graph, count = self._graph, len(self._graph.shape(operator))
        return all(entry[0] not in graph.fixed and len(graph.shapes[entry]) == count for entry in operator.inputs)

    def _returns_words(self, operator: Operator) -> bool:
        outputs, inputs = self._weight(operator)
        if outputs <= inputs or heads_in(self._graph, (operator.number, 0)) is not None:
            return False
        return any(entry in self._graph.heads or any(reader.op in _READ_LOGITS
                                                     for reader in self._readers.get(entry, ()))
                   for entry in self._elementwise_from(operator))

    def _elementwise_from(self, operator: Operator) -> Iterator[Entry]:
        """Yield the output of an operator, and those of elementwise operators after it."""
        waiting, seen = [operator], {operator.number}
        while waiting:
            current = waiting.pop()
            yield current.number, 0
            for reader in self._readers.get((current.number, 0), ()):
                if rule_of(reader).is_elementwise and reader.number not in seen:
                    seen.add(reader.number)
                    waiting.append(reader)
