"""Memory layouts of arrays: operators of oneDNN compute in blocked ones, redistributions and joint BatchNorms in the
default one.
"""
from typing import Callable, Dict, NamedTuple, Optional, Set, Tuple

import numpy as np

from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.rules.pooling import halves_images
from ...parallel.sharding.split import Split
from .dataflow import Dataflow
from .redistribution import RankBoxes


class Conversions(NamedTuple):
    """The conversions of arrays between the default layout and a blocked layout of oneDNN."""

    #: The operators whose outputs are in a blocked layout if all operators around them are of MXNet.
    blocked: Set[int]
    #: Returns the time of a conversion of an array of float32 with a shape, on the core that operators were timed on.
    seconds: Callable[[Tuple[int, ...]], float]


class _NormConversions(NamedTuple):
    """The arrays around a joint BatchNorm that are converted."""

    #: Whether the input is made in a blocked layout.
    is_made_blocked: bool
    #: Whether the output is read in a blocked layout.
    is_read_blocked: bool
    #: The same if a pooling is part of the BatchNorm; None if there is no such pooling.
    pooled_is_read_blocked: Optional[bool]


class ArrayLayouts:
    """The layouts of the arrays of a network around its redistributions and joint BatchNorms.

    A BatchNorm of float32 over several ranks is one operator, which computes in the default layout, and also a relu
    that alone reads it, and a pooling that alone reads these (see
    :meth:`mxhybrid.parallel.runtime.rank_program.Program.rectifier_of` and `pooling_of`).

    """

    def __init__(self, dataflow: Dataflow, conversions: Conversions):
        self._graph, self._conversions = dataflow.graph, conversions
        #: By number of a relu or a pooling: the BatchNorm that it alone reads.
        self._norm_of: Dict[int, Operator] = {}
        #: By number of a BatchNorm: its conversions.
        self._around: Dict[int, _NormConversions] = {}
        self._blocked = blocked = conversions.blocked
        for norm in self._graph.computing:
            if norm.op != 'BatchNorm' or norm.number not in dataflow.learning or \
                    self._graph.dtypes[norm.number, 0] != np.float32:
                continue
            last = _rectifier_of(dataflow, norm) or norm
            pooling = _pooling_of(dataflow, last)
            for part in (last, pooling):
                if part is not None and part is not norm:
                    self._norm_of[part.number] = norm
            self._around[norm.number] = _NormConversions(
                norm.inputs[0][0] in blocked, _is_read_by(dataflow, last, blocked),
                None if pooling is None else _is_read_by(dataflow, pooling, blocked))

    def key(self, number: int) -> Tuple[bool, Optional[_NormConversions]]:
        """Return a key of the conversions around an operator: with equal keys and shards they take the same time."""
        return number in self._norm_of, self._around.get(number)

    def is_part_of_norm(self, number: int, split: Split) -> bool:
        """Return whether an operator with this split is computed by the joint BatchNorm that it reads."""
        if number not in self._norm_of or not _is_joint(self._graph, self._norm_of[number], split):
            return False
        operator = self._graph.operators[number]
        if operator.op != 'Pooling':
            return True
        images = self._graph.inputs(operator)[0][2:]
        return not any(length % (2 * degree) for length, degree in zip(images, split.degrees[2:]))

    def is_converted(self, entry: Entry, split: Optional[Split], reader: int) -> bool:
        """Return whether an output is converted before and after its redistribution to a reader.

        - `split`: that of its operator; None for data.
        - `reader`: if its own time is that of the default layout, the time of one conversion is a part of it.
        """
        number, output = entry
        if split is None or output or number not in self._blocked or reader not in self._blocked:
            return False
        is_norm = number in self._around and _is_joint(self._graph, self._graph.operators[number], split)
        return not is_norm and not self.is_part_of_norm(number, split)

    def array_seconds(self, boxes: RankBoxes, speed: np.ndarray) -> np.ndarray:
        """Return the seconds of a conversion of each rank's array, by rank, on cores of some speeds."""
        seconds = np.zeros(len(speed))
        shapes = (boxes.boxes[:, :, 1] - boxes.boxes[:, :, 0]).tolist()
        seconds[boxes.ranks] = [self._conversions.seconds(tuple(shape)) for shape in shapes]
        return seconds / speed

    def conversion_seconds(self, number: int, shape: Tuple[int, ...]) -> Tuple[float, float]:
        """Return the seconds of conversions around a shard of a joint BatchNorm, forward and backward; 0 for others."""
        around = self._around.get(number)
        if around is None:
            return 0.0, 0.0
        is_pooled = around.pooled_is_read_blocked is not None and not any(length % 2 for length in shape[2:])
        output_shape = shape[:2] + tuple(length // 2 for length in shape[2:]) if is_pooled else shape
        is_read_blocked = around.pooled_is_read_blocked if is_pooled else around.is_read_blocked
        # Its time contains the conversion of its input.  The output is converted for its reader, the gradient of the
        # output for the BatchNorm, and that of the input for the operator that made the input.
        output = self._conversions.seconds(output_shape) if is_read_blocked else 0.0
        return output, output + (self._conversions.seconds(shape) if around.is_made_blocked else 0.0)


def _is_read_by(dataflow: Dataflow, operator: Operator, numbers: Set[int]) -> bool:
    """Return whether one of several operators reads an operator."""
    return any(reader in numbers for reader, _ in dataflow.consumers.get((operator.number, 0), ()))


def _only_reader(dataflow: Dataflow, operator: Operator) -> Optional[Operator]:
    """Return the operator that alone reads an operator; None if there is none."""
    readers = dataflow.consumers.get((operator.number, 0), [])
    return dataflow.graph.operators[readers[0][0]] if len(readers) == 1 and readers[0][0] >= 0 else None


def _rectifier_of(dataflow: Dataflow, operator: Operator) -> Optional[Operator]:
    """Return the relu that alone reads an operator; None if there is none."""
    reader = _only_reader(dataflow, operator)
    is_relu = reader is not None and (reader.op == 'relu' or reader.op == 'Activation' and
                                      reader.get('act_type') == 'relu')
    return reader if is_relu else None


def _pooling_of(dataflow: Dataflow, operator: Operator) -> Optional[Operator]:
    """Return the pooling of windows of two rows and two columns that alone reads an operator; None if there is none."""
    reader = _only_reader(dataflow, operator)
    return reader if reader is not None and halves_images(dataflow.graph, reader) else None


def _is_joint(graph: Graph, norm: Operator, split: Split) -> bool:
    collective = rule_of(norm).collective
    return collective is not None and bool(collective.applies(graph, norm, split))
