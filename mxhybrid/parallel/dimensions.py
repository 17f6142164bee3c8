"""What the dimensions of an operator's output are: samples, channels, height and the like."""
from typing import Dict, List, Optional, Tuple

from .boxes import full
from .graph import Entry, Graph, Operator
from .rule import with_range
from .rule_table import has_rule, rule_of
from .split import PartPlace

#: Of what lies behind samples and channels, by how many there are.
_IMAGE = {1: ('width',), 2: ('height', 'width'), 3: ('depth', 'height', 'width')}

#: Operators on images, whose channels are in front.
_ON_IMAGES = ('Convolution', 'Deconvolution', 'Pooling')


class Dimensions:
    """Of all operators of a graph; `samples` says which dimension of each input of the network has the samples."""

    def __init__(self, graph: Graph, samples: Dict[str, Optional[int]]):
        self._graph = graph
        self._samples: Dict[Entry, Optional[int]] = {}
        self._image: Dict[int, bool] = {}
        for one in graph.operators:
            if one.number in graph.fixed:
                continue
            if one.op == 'null':
                self._samples[one.number, 0] = samples[one.name]
            else:
                self._trace(one)

    def _trace(self, one: Operator) -> None:
        found = self._found(one)
        for output in range(one.outputs):
            self._samples[one.number, output] = found[output] if found is not None else None
        producer = self._graph.operators[one.inputs[0][0]]
        self._image[one.number] = one.op in _ON_IMAGES or (
            self._image.get(producer.number, False) and len(self._graph.shape(one)) == len(self._graph.inputs(one)[0]))

    def _found(self, one: Operator) -> Optional[List[Optional[int]]]:
        """The dimension that, if it is cut, cuts the samples of an input; for each output."""
        rule, shape = rule_of(one), self._graph.shape(one)
        if not has_rule(one):
            return [self._alike(one, self._graph.shape(one, output)) for output in range(one.outputs)]
        for dimension, limit in enumerate(rule.limits(self._graph, one)):
            grain = rule.grains(self._graph, one)[dimension]
            if limit < 2:
                continue
            part = rule.part(self._graph, one, PartPlace(with_range(full(shape), dimension, (0, grain))))
            for entry, box in zip(one.inputs, part.inputs):
                at = self._samples.get(entry)
                if box is not None and at is not None and box[at] != (0, self._graph.shapes[entry][at]):
                    return [next((place for place, one_range in enumerate(out) if one_range !=
                                  (0, self._graph.shape(one, output)[place])), None)
                            for output, out in enumerate(part.outputs)]
        return None

    def _alike(self, one: Operator, shape: Tuple[int, ...]) -> Optional[int]:
        """Of an operator without a rule: where an input has the samples, and an output is as long."""
        for entry in one.inputs:
            at = self._samples.get(entry)
            if at is not None and at < len(shape) and shape[at] == self._graph.shapes[entry][at]:
                return at
        return None

    def samples(self, entry: Entry) -> Optional[int]:
        """Which dimension of an output has the samples; None if none has."""
        return self._samples.get(entry)

    def names(self, one: Operator) -> Tuple[str, ...]:
        """What the dimensions of the first output are called."""
        count = len(self._graph.shape(one))
        if self._image[one.number] and count - 2 in _IMAGE:
            return ('samples', 'channels') + _IMAGE[count - 2]
        samples = self._samples[one.number, 0]
        names = ['length' if count == 3 else 'dimension%d' % at for at in range(count)]
        if count > 1 or samples is None:
            names[-1] = 'channels'
        if samples is not None:
            names[samples] = 'samples'
        return tuple(names)
