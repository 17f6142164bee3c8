"""Memory layouts of arrays: operators of oneDNN compute in blocked ones, redistributions and joint BatchNorms in the
default one.
"""
from typing import Callable, Dict, NamedTuple, Optional, Set, Tuple

import numpy as np

from ...parallel.ops.graph import Entry, Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.sharding.split import Split
from .dataflow import Dataflow
from .redistribution import RankBoxes


class Conversions(NamedTuple):
    """The conversions of arrays between the default layout and a blocked layout of oneDNN.

    Attributes
    ----------
    blocked : set of int
        The operators whose outputs are in a blocked layout if all operators around them are of MXNet.
    seconds : callable
        Returns the time of a conversion of an array of float32 with a shape, on the core that operators were timed on.
    """

    blocked: Set[int]
    seconds: Callable[[Tuple[int, ...]], float]


class ArrayLayouts:
    """The layouts of the arrays of a network around its redistributions and joint BatchNorms.

    A BatchNorm of float32 over several ranks is one operator, which computes in the default layout, and also a relu
    that alone reads it (see :meth:`mxhybrid.parallel.runtime.rank_program.Program.rectifier_of`).

    Parameters
    ----------
    dataflow : Dataflow
    conversions : Conversions, optional
        By default no array is in a blocked layout.
    """

    def __init__(self, dataflow: Dataflow, conversions: Optional[Conversions] = None):
        self._graph, self._conversions = dataflow.graph, conversions
        #: By number of a relu: the BatchNorm that it alone reads.
        self._norm_of: Dict[int, Operator] = {}
        #: By number of a BatchNorm: the number of conversions that are not part of its own time, forward and backward.
        self._conversion_counts: Dict[int, Tuple[int, int]] = {}
        self._blocked = blocked = set() if conversions is None else conversions.blocked
        for norm in self._graph.computing:
            if norm.op != 'BatchNorm' or norm.number not in dataflow.learning or \
                    self._graph.dtypes[norm.number, 0] != np.float32:
                continue
            last = _rectifier_of(dataflow, norm) or norm
            if last is not norm:
                self._norm_of[last.number] = norm
            is_read_blocked = any(reader in blocked for reader, _ in dataflow.consumers.get((last.number, 0), ()))
            is_made_blocked = norm.inputs[0][0] in blocked
            # Its time contains the conversion of its input.  The output is converted for its reader, the gradient of
            # the output for the BatchNorm, and that of the input for the operator that made the input.
            self._conversion_counts[norm.number] = int(is_read_blocked), int(is_read_blocked) + int(is_made_blocked)

    def key(self, number: int) -> Tuple[bool, Tuple[int, int]]:
        """Return a key of the conversions around an operator: operators with equal keys and equal shards take the same
        time.
        """
        return number in self._norm_of, self._conversion_counts.get(number, (0, 0))

    def is_part_of_norm(self, number: int, split: Split) -> bool:
        """Return whether an operator with this split is computed by the joint BatchNorm that it reads."""
        return number in self._norm_of and _is_joint(self._graph, self._norm_of[number], split)

    def is_converted(self, entry: Entry, split: Optional[Split], reader: int) -> bool:
        """Return whether an output is converted before and after its redistribution to a reader.

        Parameters
        ----------
        entry : Entry
        split : Split or None
            That of its operator; None for data.
        reader : int
            If its own time is that of the default layout, the time of one conversion is a part of it.
        """
        number, output = entry
        if split is None or output or number not in self._blocked or reader not in self._blocked:
            return False
        is_norm = number in self._conversion_counts and _is_joint(self._graph, self._graph.operators[number], split)
        return not is_norm and not self.is_part_of_norm(number, split)

    def array_seconds(self, boxes: RankBoxes, speed: np.ndarray) -> np.ndarray:
        """Return the seconds of a conversion of each rank's array, by rank, on cores of some speeds."""
        seconds = np.zeros(len(speed))
        if self._conversions is not None:
            shapes = (boxes.boxes[:, :, 1] - boxes.boxes[:, :, 0]).tolist()
            seconds[boxes.ranks] = [self._conversions.seconds(tuple(shape)) for shape in shapes]
        return seconds / speed

    def conversion_seconds(self, number: int, shape: Tuple[int, ...]) -> Tuple[float, float]:
        """Return the seconds of conversions around a shard of a joint BatchNorm, forward and backward; 0 for any other
        operator.
        """
        forward, backward = self._conversion_counts.get(number, (0, 0))
        if self._conversions is None or not forward + backward:
            return 0.0, 0.0
        seconds = self._conversions.seconds(shape)
        return forward * seconds, backward * seconds


def _rectifier_of(dataflow: Dataflow, operator: Operator) -> Optional[Operator]:
    """Return the relu that alone reads an operator; None if there is none."""
    readers = dataflow.consumers.get((operator.number, 0), [])
    if len(readers) != 1 or readers[0][0] < 0:
        return None
    reader = dataflow.graph.operators[readers[0][0]]
    is_relu = reader.op == 'relu' or reader.op == 'Activation' and reader.get('act_type') == 'relu'
    return reader if is_relu else None


def _is_joint(graph: Graph, norm: Operator, split: Split) -> bool:
    collective = rule_of(norm).collective
    return collective is not None and bool(collective.applies(graph, norm, split))
