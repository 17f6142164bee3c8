"""Recomputation: blocks whose activations are computed again in the backward pass (Chen et al., "Training Deep Nets
with Sublinear Memory Cost", 2016; ``torch.utils.checkpoint``; Korthikanti et al., MLSys 2023).

A segment is a group of operators that are computed again together: the operators of one call of a block.
"""
import fnmatch
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...base.errors import InputError
from ...base.text import listed
from ..ops.graph import Graph, Operator
from ..ops.learning import learning_operators
from ..ops.registry import rule_of


class Segment(NamedTuple):
    """Operators whose activations are not kept for the backward pass, but computed again in it."""

    #: The name of the block, with the suffix #2 for its second segment.
    name: str
    #: Numbers, in ascending order.
    operators: Tuple[int, ...]


def recompute_patterns(value: Any) -> Tuple[str, ...]:
    """Return the patterns that a user gave: one pattern, a list of patterns, or None."""
    if value is None:
        return ()
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InputError("recompute=%r: give a pattern of names of blocks, for example 'layer*', or a list of them"
                         % (value,))
    return tuple(patterns)


def recomputed_segments(graph: Graph, prefixes: Sequence[str], patterns: Sequence[str], stage_of: Dict[int, int],
                        gradient_inputs: AbstractSet[str], joint_statistics: bool) -> List[Segment]:
    """Return the segments of the outermost blocks whose names match a pattern, also those that nothing trains.

    - `prefixes`: the prefixes of the network's blocks, without that of the network.
    - `stage_of`: the stage of each operator of a pipeline: a segment is in one stage.
    - `gradient_inputs`: data with gradients.
    - `joint_statistics`: whether the statistics of BatchNorm are those of the joint batch.

    Raises InputError for a pattern that matches no block, or only blocks without operators or without gradients; and
    for an operator that cannot be computed again.
    """
    learning = learning_operators(graph, (), gradient_inputs)  # a frozen parameter may be trained later
    matched: Dict[str, None] = {}
    for pattern in patterns:
        blocks = [prefix for prefix in prefixes if fnmatch.fnmatchcase(_name(prefix), pattern)]
        if not blocks:
            names = sorted(map(_name, prefixes), key=lambda name: name.count('_'))
            raise InputError('recompute: %r matches no block: give the name or a pattern of one; there are %s'
                             % (pattern, listed(names, 10) or 'none'))
        if not any(operator.number in learning for operator in graph.computing
                   if _block_of(graph, operator, blocks) is not None):
            raise InputError('recompute: %r matches %s, which no backward pass reaches, so that nothing is kept of it: '
                             'give blocks with weights, or leave the pattern out'
                             % (pattern, listed(map(_name, blocks), 10)))
        matched.update(dict.fromkeys(blocks))
    outermost = sorted(matched, key=len)
    block_of = {operator.number: block for operator in graph.computing
                for block in [_block_of(graph, operator, outermost)] if block is not None}
    for number in block_of:
        _check(graph, graph.operators[number], joint_statistics)
    segments = _Segments(graph)
    for operator in graph.computing:
        segments.add(operator, (block_of[operator.number], stage_of.get(operator.number, 0))
                     if operator.number in block_of else None)
    counts: Dict[str, int] = {}
    named = []
    for (block, _), members in segments.members:
        counts[block] = counts.get(block, 0) + 1
        named.append(Segment(_name(block) + ('' if counts[block] == 1 else '#%d' % counts[block]), tuple(members)))
    return named


def _name(prefix: str) -> str:
    return prefix[:-1] if prefix.endswith('_') else prefix


def _block_of(graph: Graph, operator: Operator, prefixes: Sequence[str]) -> Any:
    """Return the first prefix that an operator's name has; None if it has none of them."""
    return next((prefix for prefix in prefixes if graph.short_name(operator).startswith(prefix)), None)


def _check(graph: Graph, operator: Operator, joint_statistics: bool) -> None:
    """Raise InputError for an operator that would not compute the same again."""
    label = graph.label(operator)
    draws_the_same = operator.op == 'Dropout' or operator.op == 'RNN' and not float(operator.get('p', 0))
    if operator.draws and not draws_the_same:
        raise InputError('recompute: %s (%s) draws random numbers, and would draw others when it is computed again: '
                         'give a pattern that does not match its block' % (label, operator.op))
    if graph.has_table(operator):
        raise InputError('recompute: %s reads a table, whose gradient is row_sparse: give a pattern that does not '
                         'match its block' % label)
    if not any(graph.operators[number].name in graph.auxiliary for number, _ in operator.inputs):
        return
    if operator.op != 'BatchNorm' or rule_of(operator).averages(operator) and (
            not joint_statistics or operator.outputs > 1):
        raise InputError("recompute: %s (%s) updates running averages in each pass, and would do so twice: give a "
                         "pattern that does not match its block%s" % (
                             label, operator.op, ", or batch_norm='joint'" * (operator.op == 'BatchNorm')))


class _Segments:
    """Groups operators of a block into segments that can be computed as a whole.

    No path leaves a segment and comes back to it, not even through other segments.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self.members: List[Tuple[Any, List[int]]] = []
        self._names: List[Set[str]] = []
        self._segment_of: Dict[int, int] = {}
        self._current: Dict[Any, int] = {}
        #: The segments that an operator, and a segment, depends on, as bits.
        self._before: Dict[int, int] = {}
        self._before_segment: List[int] = []

    def add(self, operator: Operator, block: Any) -> None:
        """Add an operator, whose inputs have been added, to a segment of a block, or to none."""
        sources = [number for number, _ in operator.inputs]
        segment = self._current.get(block) if block is not None else None
        if segment is not None and (operator.name in self._names[segment] or self._returns(sources, segment)):
            segment = None  # another call of the block, or a path that left the segment comes back
        if block is not None and segment is None:
            segment = self._current[block] = len(self.members)
            self.members.append((block, []))
            self._names.append(set())
            self._before_segment.append(0)
        bits = self._behind(sources, segment)
        if segment is not None:
            self.members[segment][1].append(operator.number)
            self._names[segment].add(operator.name)
            self._segment_of[operator.number] = segment
            self._before_segment[segment] |= bits
            bits = 1 << segment
        self._before[operator.number] = bits

    def _behind(self, sources: Sequence[int], segment: Optional[int]) -> int:
        """Return the segments that the sources outside of a segment depend on, as bits."""
        bits = 0
        for source in sources:
            if segment is None or self._segment_of.get(source) != segment:
                bits |= self._before.get(source, 0)
        return bits

    def _returns(self, sources: Sequence[int], segment: int) -> bool:
        """Return whether a path leads from a segment, through anything else, to one of the sources."""
        bits = self._behind(sources, segment)
        seen = 0
        while bits & ~seen:
            lowest = bits & ~seen
            number = (lowest & -lowest).bit_length() - 1
            seen |= 1 << number
            bits |= self._before_segment[number]
        return bool(bits >> segment & 1)
