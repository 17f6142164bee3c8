"""What follows from a network alone: who reads what, through what gradients flow, which weights an operator needs."""
from typing import Any, Dict, Iterable, List, NamedTuple, Set, Tuple

from ...parallel.ops.dimension_names import Dimensions
from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.registry import indices, is_elementwise
from ...parallel.runtime.input_shards import Shares

#: Stands for the script, which gives data and takes outputs.
SCRIPT = -1


class WeightReader(NamedTuple):
    """An operator that reads a weight."""

    number: int
    #: Which input.
    place: int
    #: Whether it needs the whole weight, whatever part it is.
    whole: bool


class Dataflow:
    """Of a network that is trained.

    Attributes
    ----------
    parameters : dict of str to tuple
        Whole shapes, by name.
    consumers : dict of Entry to list of (int, int)
        Who reads an output or data, and as which input; :data:`SCRIPT` for outputs of the network, with their place.
    learning : set of int
        Operators that backward comes to.
    deepest : list of int
        Those of them with which backward ends.
    flowing : set of int
        Operators through which gradients may go back.
    trained : list of str
        Parameters that have gradients, in order.
    readers : dict of str to list of WeightReader
        By parameter or auxiliary state.
    weights_of : dict of int to list of str
        Trained parameters that an operator reads.
    kept_of : dict of int to list of str
        Those, and others that it reads and that are not changed: frozen ones and constants.
    tables : set of str
        Those of which gradients are row_sparse.
    """

    def __init__(self, graph: Graph, dimensions: Dimensions, shares: Shares, frozen: Iterable[str] = ()):
        self.graph, self.dimensions, self.shares = graph, dimensions, shares
        self.parameters = graph.parameters
        self.computing = [one.number for one in graph.computing]
        self.consumers: Dict[Entry, List[Tuple[int, int]]] = {}
        for one in graph.computing:
            for place, entry in enumerate(one.inputs):
                if entry[0] not in graph.fixed:
                    self.consumers.setdefault(entry, []).append((one.number, place))
        for place, entry in enumerate(graph.heads):
            if entry[0] not in graph.fixed:
                self.consumers.setdefault(entry, []).append((SCRIPT, place))
        self.entries = sorted(self.consumers)
        self.readers: Dict[str, List[WeightReader]] = {name: [] for name in self.parameters}
        for one in graph.computing:
            for place, (source, _) in enumerate(one.inputs):
                if source in graph.fixed:
                    for name, whole in self._below(graph.operators[source], False):
                        self.readers[name].append(WeightReader(one.number, place, whole))
        self._trace(set(frozen))
        self.tables = {graph.operators[number].name for number in graph.tables}
        self.keys = self._number()

    def _below(self, one: Operator, whole: bool) -> List[Tuple[str, bool]]:
        """Parameters that a value comes of which depends on nothing else."""
        if one.op == 'null':
            return [(one.name, whole)]
        return [found for source, _ in one.inputs
                for found in self._below(self.graph.operators[source], whole or not is_elementwise(one))]

    def _trace(self, frozen: Set[str]) -> None:
        graph = self.graph
        self.flowing: Set[int] = set()
        self.learning: Set[int] = set()
        trained: Set[str] = set()
        for one in graph.operators:
            if one.op == 'null':
                if graph.is_parameter(one.number):
                    self.flowing.add(one.number)
                    if one.name not in frozen and one.name not in graph.auxiliary:
                        self.learning.add(one.number)
                        trained.add(one.name)
                elif one.name in self.shares.flows:
                    self.flowing.add(one.number)
                    self.learning.add(one.number)
                continue
            used = indices(one)
            for known in (self.flowing, self.learning):
                if any(source in known for at, (source, _) in enumerate(one.inputs) if at != used):
                    known.add(one.number)
        self.deepest = [number for number in self.computing if number in self.learning and not any(
            source in self.learning and graph.operators[source].op != 'null' and source not in graph.fixed
            for source, _ in graph.operators[number].inputs)]
        self.trained = [name for name in self.parameters if name in trained and self.readers[name]]
        self.weights_of: Dict[int, List[str]] = {}
        self.kept_of: Dict[int, List[str]] = {}
        for name, readers in self.readers.items():
            for reader in readers:
                for found, holds in ((self.weights_of, name in trained), (self.kept_of, name not in graph.auxiliary)):
                    if holds:
                        found.setdefault(reader.number, []).append(name)

    def _number(self) -> Dict[Tuple[str, Any], int]:
        """A number for each block of a step, in the order in which the script asks for them."""
        order: List[Tuple[str, Any]] = [('step', None)]
        data = [entry for entry in self.entries if self.graph.operators[entry[0]].op == 'null']
        order += [('there', entry) for entry in data]
        of: Dict[int, List[Entry]] = {}
        for entry in self.entries:
            of.setdefault(entry[0], []).append(entry)
        for number in self.computing:
            order += [('forward', number)] + [('there', entry) for entry in of.get(number, [])]
        for number in reversed(self.computing):
            order += [('back', entry) for entry in of.get(number, [])] + [('backward', number)]
        order += [('back', entry) for entry in data]
        order += [('weight', name) for name in self.trained]
        return {what: number for number, what in enumerate(order)}
