"""Names of the dimensions of an operator's output: samples, channels, height and the like."""
from typing import Dict, List, Optional, Tuple

from ..sharding.box import full
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard
from .graph import Entry, Graph, Operator
from .registry import rule_of

#: Names of the dimensions after samples and channels, by their number.
_IMAGE = {1: ('width',), 2: ('height', 'width'), 3: ('depth', 'height', 'width')}


class Dimensions:
    """Names of dimensions, and sample axes, of all operators of a graph.

    Rules follow the samples from operator to operator.  Where a rule cannot tell where samples are, or there is no
    rule, they are lost until an operator reads an input whose samples are known.

    - `samples`: the dimension of each input of the network that has the samples.
    """

    def __init__(self, graph: Graph, samples: Dict[str, Optional[int]]):
        self.graph = graph
        self._samples: Dict[Entry, Optional[SampleAxis]] = {}
        #: The operator that has lost the samples, by the outputs that lack them since.
        self._losers: Dict[Entry, Operator] = {}
        self._image: Dict[int, bool] = {}
        for operator in graph.operators:
            if operator.number in graph.fixed:
                continue
            if operator.op == 'null':
                axis = samples[operator.name]
                # Every worker has the whole input if there is a single sample.
                has_many = axis is not None and graph.data[operator.name][axis] > 1
                self._samples[operator.number, 0] = SampleAxis(int(axis)) if has_many and axis is not None else None
            else:
                self._trace(operator)

    def _trace(self, operator: Operator) -> None:
        known = [self._samples.get(entry) for entry in operator.inputs]
        unknown: List[Optional[SampleAxis]] = [None] * operator.outputs
        axes = rule_of(operator).samples(self.graph, operator, known) if any(known) else unknown
        loser = self._find_loser(operator) if None in axes else None
        for output in range(operator.outputs):
            self._samples[operator.number, output] = axes[output]
            if axes[output] is None and loser is not None:
                self._losers[operator.number, output] = loser
        producer = self.graph.operators[operator.inputs[0][0]]
        self._image[operator.number] = rule_of(operator).makes_images or (
            self._image.get(producer.number, False) and not rule_of(operator).moves_dimensions
            and len(self.graph.shape(operator)) == len(self.graph.inputs(operator)[0]))

    def _find_loser(self, operator: Operator) -> Optional[Operator]:
        """Return the operator that has lost the samples of an operator's output; None if no input ever had any."""
        shard = rule_of(operator).shard(self.graph, operator, OutputShard(full(self.graph.shape(operator))))
        read = [entry for entry, box in zip(operator.inputs, shard.inputs) if box is not None]
        former = next((self._losers[entry] for entry in read if entry in self._losers), None)
        return former or (operator if any(self._samples.get(entry) for entry in read) else None)

    def samples(self, entry: Entry) -> Optional[int]:
        """Return the dimension of an output that has the samples; None if there is none, or it is not known."""
        sample_axis = self._samples.get(entry)
        return None if sample_axis is None else sample_axis.axis

    def sample_axis(self, entry: Entry) -> Optional[SampleAxis]:
        """Return the sample axis of an output; None if there is none, or it is not known."""
        return self._samples.get(entry)

    def loser(self, entry: Entry) -> Optional[Operator]:
        """Return the operator that has lost the samples of an output; None if they are known, or never were."""
        return self._losers.get(entry)

    def names(self, operator: Operator) -> Tuple[str, ...]:
        """Return the names of the dimensions of the first output."""
        count = len(self.graph.shape(operator))
        if self._image[operator.number] and count - 2 in _IMAGE and self.samples((operator.number, 0)) in (0, None):
            return ('samples', 'channels') + _IMAGE[count - 2]
        samples = self.samples((operator.number, 0))
        names = ['dimension%d' % dimension for dimension in range(count)]
        heads = {found.axis: found.kind if found.above == 1 else 'queries'
                 for found in self.graph.heads_of.get((operator.number, 0), ()) if found.features == 1}
        if (count > 1 or count and samples is None) and count - 1 not in heads:
            names[-1] = 'channels'
        for axis, name in heads.items():
            names[axis] = name
        if samples is not None:
            names[samples] = 'samples'
        others = [dimension for dimension, name in enumerate(names)
                  if name not in ('samples', 'channels') and dimension not in heads]
        if count == 3 + sum(axis < count - 1 for axis in heads) and len(others) == 1:
            names[others[0]] = 'length'
        return tuple(names)
