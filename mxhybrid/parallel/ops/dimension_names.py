"""What the dimensions of an operator's output are: samples, channels, height and the like."""
from typing import Dict, List, Optional, Tuple

from ..sharding.box import full
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard
from .graph import Entry, Graph, Operator
from .registry import rule_of

#: Of what lies behind samples and channels, by how many there are.
_IMAGE = {1: ('width',), 2: ('height', 'width'), 3: ('depth', 'height', 'width')}


class Dimensions:
    """Of all operators of a graph; `samples` says which dimension of each input of the network has the samples.

    Samples are followed from operator to operator by rules.  Where a rule cannot tell where they are, or there is no
    rule, they are lost until an operator reads an input that has them.
    """

    def __init__(self, graph: Graph, samples: Dict[str, Optional[int]]):
        self.graph = graph
        self._samples: Dict[Entry, Optional[SampleAxis]] = {}
        #: Operators that have lost the samples, by the outputs that lack them since.
        self._losers: Dict[Entry, Operator] = {}
        self._image: Dict[int, bool] = {}
        for operator in graph.operators:
            if operator.number in graph.fixed:
                continue
            if operator.op == 'null':
                axis = samples[operator.name]
                # Of a single sample each worker has all.
                many = axis is not None and graph.data[operator.name][axis] > 1
                self._samples[operator.number, 0] = SampleAxis(int(axis)) if many and axis is not None else None
            else:
                self._trace(operator)

    def _trace(self, operator: Operator) -> None:
        known = [self._samples.get(entry) for entry in operator.inputs]
        unknown: List[Optional[SampleAxis]] = [None] * operator.outputs
        found = rule_of(operator).samples(self.graph, operator, known) if any(known) else unknown
        loser = self._who_lost(operator) if None in found else None
        for output in range(operator.outputs):
            self._samples[operator.number, output] = found[output]
            if found[output] is None and loser is not None:
                self._losers[operator.number, output] = loser
        producer = self.graph.operators[operator.inputs[0][0]]
        self._image[operator.number] = rule_of(operator).makes_images or (
            self._image.get(producer.number, False) and not rule_of(operator).moves_dimensions
            and len(self.graph.shape(operator)) == len(self.graph.inputs(operator)[0]))

    def _who_lost(self, operator: Operator) -> Optional[Operator]:
        """Return the operator that has lost the samples which `operator` does not have; None where it reads nothing
        that had any.
        """
        shard = rule_of(operator).shard(self.graph, operator, OutputShard(full(self.graph.shape(operator))))
        read = [entry for entry, box in zip(operator.inputs, shard.inputs) if box is not None]
        former = next((self._losers[entry] for entry in read if entry in self._losers), None)
        return former or (operator if any(self._samples.get(entry) for entry in read) else None)

    def samples(self, entry: Entry) -> Optional[int]:
        """Return the dimension of an output that has the samples; None if none has, or it is not known."""
        found = self._samples.get(entry)
        return None if found is None else found.axis

    def sample_axis(self, entry: Entry) -> Optional[SampleAxis]:
        """Return how an output has the samples; None if it has none, or it is not known."""
        return self._samples.get(entry)

    def loser(self, entry: Entry) -> Optional[Operator]:
        """The operator that has lost the samples of an output; None where they are known, or there never were any."""
        return self._losers.get(entry)

    def names(self, operator: Operator) -> Tuple[str, ...]:
        """What the dimensions of the first output are called."""
        count = len(self.graph.shape(operator))
        if self._image[operator.number] and count - 2 in _IMAGE and self.samples((operator.number, 0)) in (0, None):
            return ('samples', 'channels') + _IMAGE[count - 2]
        samples = self.samples((operator.number, 0))
        names = ['dimension%d' % at for at in range(count)]
        if count > 1 or count and samples is None:
            names[-1] = 'channels'
        if samples is not None:
            names[samples] = 'samples'
        others = [at for at, name in enumerate(names) if name not in ('samples', 'channels')]
        if count == 3 and len(others) == 1:
            names[others[0]] = 'length'
        return tuple(names)
