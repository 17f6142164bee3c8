"""Finds the layers of Transformers that a plan splits: projections of attention, feed-forward layers, vocabularies."""
from typing import Dict, Iterator, List, Optional, Set, Tuple

from ..ops.graph import Entry, Graph, Heads, Operator
from ..ops.registry import multiplies_weights, rule_of
from ..sharding.split import Split

#: Operators that read the logits of a vocabulary.
_READ_LOGITS = ('softmax', 'log_softmax', 'pick')


def heads_in(graph: Graph, entry: Entry) -> Optional[Heads]:
    """Return the heads of an array: in a dimension of their own if there is one, else in its features."""
    return min(graph.heads_of.get(entry, ()), key=lambda heads: (heads.above, heads.features > 1), default=None)


def is_dense(operator: Operator) -> bool:
    return rule_of(operator).layer_kind == 'dense'


def reads_heads(graph: Graph, operator: Operator) -> Optional[Heads]:
    """Return the heads in the channels that a dense layer sums over; None if there are none."""
    if not is_dense(operator):
        return None
    heads = heads_in(graph, operator.inputs[0])
    return heads if heads is not None and (0, heads.axis) in rule_of(operator).summed_axes(graph, operator) else None


def divisors(count: int) -> List[int]:
    return [degree for degree in range(1, count + 1) if count % degree == 0]


class TransformerLayers:
    """The layers of a network that a plan splits in a way of their own.

    - `first`, `second`: the numbers of the dense layers of pairs (Shoeybi et al. 2019, section 3), by the number of the
      operator: from C to H features, and back to C.  Elementwise operators alone are between them.
    - `vocabularies`: dense layers whose outputs are words: with more outputs than inputs, read by a softmax or
      returned.
    - `embeddings`: embeddings with more rows than columns and a dense gradient.
    - `projections`: dense layers without heads that attention reads, such as those of the only head of keys and values;
      and the operators after them that have the same dimensions and do not keep the features of a head together, such
      as the `split` and `concat` of Sockeye.
    - `routers`: operators that compute the gates of experts, of which some need those of all experts.
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
        self.routers = self._routers()

    def _weight(self, operator: Operator) -> Tuple[int, ...]:
        return self._graph.array_shapes[operator.inputs[1]]

    def _paired(self, second: Operator) -> Optional[Set[int]]:
        """Return the dense layers whose outputs reach a dense layer through elementwise operators alone; None if they
        also reach another operator, if another operator reads an array between, or if numbers of features differ.
        """
        graph = self._graph
        last = len(graph.shapes[second.inputs[0]]) - 1
        if (0, last) not in rule_of(second).summed_axes(graph, second) or reads_heads(graph, second) is not None:
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
        weights, and those of these operators that keep all dimensions.
        """
        graph = self._graph
        reached: Set[int] = set()  # dense layers, and operators whose dimensions are theirs
        moved: Set[int] = set()
        for operator in graph.computing:
            if heads_in(graph, (operator.number, 0)) is None:
                sources = {source for source, _ in operator.inputs}
                if is_dense(operator):
                    reached.add(operator.number)
                elif not sources & graph.fixed and sources & (reached | moved):
                    keeps = not rule_of(operator).moves_dimensions and not sources & moved and all(
                        len(graph.shapes[entry]) == len(graph.shape(operator)) for entry in operator.inputs)
                    (reached if keeps else moved).add(operator.number)
        leading: Set[int] = set()
        for operator in reversed(graph.computing):
            found = heads_in(graph, (operator.number, 0))
            if not is_dense(operator) and (operator.number in leading or found is not None and found.kind == 'heads'):
                leading.update(source for source, _ in operator.inputs if source in reached | moved)
        return leading & reached

    def _routers(self) -> Set[int]:
        """Return the operators that compute gates of experts before any expert, if gates of all experts are needed: for
        a softmax, the highest ones or a sum.
        """
        graph = self._graph
        after: Set[int] = set()
        before: List[Operator] = []
        for operator in graph.computing:
            multiplies = multiplies_weights(graph, operator) and all(map(self._experts, operator.inputs))
            follows = any(source in after for source, _ in operator.inputs)
            if self._experts((operator.number, 0)) and (multiplies or follows):
                after.add(operator.number)
            elif not follows:
                before.append(operator)
        routers: Set[int] = set()
        for operator in reversed(before):
            experts = self._experts((operator.number, 0))
            mixes = any(map(self._experts, operator.inputs)) if experts is None else self._is_joint(operator, experts)
            if mixes or experts and any(reader.number in routers
                                        for reader in self._readers.get((operator.number, 0), ())):
                routers.add(operator.number)
        for operator in before:
            if self._experts((operator.number, 0)) and not rule_of(operator).summed_axes(graph, operator) and any(
                    source in routers for source, _ in operator.inputs):
                routers.add(operator.number)
        return routers

    def _experts(self, entry: Entry) -> Optional[Heads]:
        heads = heads_in(self._graph, entry)
        return heads if heads is not None and heads.kind == 'experts' else None

    def _is_joint(self, operator: Operator, experts: Heads) -> bool:
        """Return whether ranks with some experts each would need each other."""
        degrees = [2 if at == experts.axis else 1 for at in range(len(self._graph.shape(operator)))]
        collective = rule_of(operator).collective
        return collective is not None and collective.applies(self._graph, operator, Split(degrees, (0, 1)))

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
