"""The data flow of a network before any split: which operators read an output, a weight, or a gradient."""
from typing import AbstractSet, Any, Dict, List, Mapping, NamedTuple, Set, Tuple, Union

from ...parallel.ops.dimension_names import Dimensions
from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.learning import entries_with_gradients, leads_to, learning_operators
from ...parallel.ops.registry import is_elementwise
from ...parallel.runtime.input_shards import InputShards
from ...parallel.sharding.box import Box

#: The number of the script as a reader: it gives the data and takes the outputs of the network.
SCRIPT = -1


class WeightReader(NamedTuple):
    """An operator that reads a weight."""

    #: The number of the operator.
    number: int
    input_index: int
    #: Whether the box of the weight that a shard reads equals the box of its input: the input is the weight itself, or
    #: computed from it elementwise.
    is_direct: bool


class ArrayBoxes(NamedTuple):
    """The boxes of inputs and outputs by rank, as :class:`InputShards` has them; by default there are none."""

    inputs: Mapping[Entry, Dict[int, Box]] = {}
    outputs: Mapping[Entry, List[Dict[int, Box]]] = {}


class Dataflow:
    """The data flow of a network that is trained.

    - `shares`: the boxes of data and outputs that ranks give and return.
    - `parameters`: whole shapes, by name.
    - `computing`: the operators that compute, in order.
    - `consumers`: by output of an operator, or data: the numbers of its readers, each with the index of its input;
      :data:`SCRIPT` for outputs of the network, with their index.
    - `learning`: operators through which backward passes.
    - `deepest`: the operators of `learning` at which backward ends.
    - `flowing`: operators through which gradients may flow.
    - `with_gradients`: outputs to which a gradient may come back that is not known to be zero.
    - `trained`: parameters that have gradients, in order.
    - `readers`: by parameter or auxiliary state.
    - `weights_of`: trained parameters that an operator reads.
    - `kept_of`: trained parameters that an operator reads, and others that do not change: frozen ones and constants.
    - `tables`: parameters with row_sparse gradients.
    - `own_outputs`: whether each rank computes all outputs for itself, as without a plan, so that equal outputs are not
      one output.
    - `keys`: by kind and object of a block of tasks: its number within a step.
    """

    def __init__(self, graph: Graph, dimensions: Dimensions, shares: Union[InputShards, ArrayBoxes],
                 frozen: AbstractSet[str], own_outputs: bool = False):
        self.graph, self.dimensions, self.shares, self.own_outputs = graph, dimensions, shares, own_outputs
        self.parameters = graph.parameters
        self.computing = [operator.number for operator in graph.computing]
        self.consumers: Dict[Entry, List[Tuple[int, int]]] = {}
        for operator in graph.computing:
            for input_index, entry in enumerate(operator.inputs):
                if entry[0] not in graph.fixed:
                    self.consumers.setdefault(entry, []).append((operator.number, input_index))
        for output_index, entry in enumerate(graph.heads):
            if entry[0] not in graph.fixed:
                self.consumers.setdefault(entry, []).append((SCRIPT, output_index))
        self.entries = sorted(self.consumers)
        self.readers: Dict[str, List[WeightReader]] = {name: [] for name in self.parameters}
        for operator in graph.computing:
            for input_index, (source, _) in enumerate(operator.inputs):
                if source in graph.fixed:
                    for name, is_direct in self._parameters_below(graph.operators[source], True).items():
                        self.readers[name].append(WeightReader(operator.number, input_index, is_direct))
        self._trace_gradients(frozen)
        self.tables = {graph.operators[number].name for number in graph.tables}
        self.keys = self._number_blocks()

    def _parameters_below(self, operator: Operator, is_direct: bool) -> Dict[str, bool]:
        """Return the parameters that a value is computed from, if it depends on parameters only, and whether boxes of
        them are the same as those of the value.
        """
        if operator.op == 'null':
            return {operator.name: is_direct}
        below: Dict[str, bool] = {}
        for source, _ in operator.inputs:
            below.update(self._parameters_below(self.graph.operators[source], is_direct and is_elementwise(operator)))
        return below

    def _trace_gradients(self, frozen: AbstractSet[str]) -> None:
        graph = self.graph
        self.with_gradients = entries_with_gradients(graph)
        self.learning = learning_operators(graph, frozen, ())
        self.flowing: Set[int] = set()
        for operator in graph.operators:
            if graph.is_parameter(operator.number) or leads_to(operator, self.flowing):
                self.flowing.add(operator.number)
        trained = {graph.operators[number].name for number in self.learning if graph.is_parameter(number)}
        self.deepest = [number for number in self.computing if number in self.learning and not any(
            source in self.learning and graph.operators[source].op != 'null' and source not in graph.fixed
            for source, _ in graph.operators[number].inputs)]
        self.trained = [name for name in self.parameters if name in trained and self.readers[name]]
        self.weights_of: Dict[int, List[str]] = {}
        self.kept_of: Dict[int, List[str]] = {}
        for name, readers in self.readers.items():
            for reader in readers:
                if name in trained:
                    self.weights_of.setdefault(reader.number, []).append(name)
                if name not in graph.auxiliary:
                    self.kept_of.setdefault(reader.number, []).append(name)

    def _number_blocks(self) -> Dict[Tuple[str, Any], int]:
        """Number the blocks of a step in the order in which the script asks for them."""
        data = [entry for entry in self.entries if self.graph.operators[entry[0]].op == 'null']
        outputs_of: Dict[int, List[Entry]] = {}
        for entry in self.entries:
            outputs_of.setdefault(entry[0], []).append(entry)
        blocks: List[Tuple[str, Any]] = [('step', None)]
        blocks += [('redistribution', entry) for entry in data]
        for number in self.computing:
            blocks += [('forward', number)] + [('redistribution', entry) for entry in outputs_of.get(number, [])]
        for number in reversed(self.computing):
            blocks += [('redistribution_back', entry) for entry in outputs_of.get(number, [])] + [('backward', number)]
        blocks += [('redistribution_back', entry) for entry in data]
        blocks += [('weight', name) for name in self.trained]
        return {block: number for number, block in enumerate(blocks)}
