"""Stages of a pipeline: the operators of each stage, and the ranks that compute it."""
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from ..ops.graph import Graph, Operator
from ..ops.registry import rule_of
from ..sharding.box import full, split_range
from ..sharding.split import OutputShard, Split

#: The order of the forward and backward passes of micro-batches: one forward, one backward (PipeDream-Flush of
#: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021), the same with more forward passes
#: first (Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023), and all forward passes
#: before all backward passes (Huang et al., "GPipe", NeurIPS 2019).
SCHEDULES = ('1f1b', 'eager-1f1b', 'gpipe')

#: Floating-point operations in the time in which an element is read or written, roughly that of a CPU core.
_FLOP_PER_ELEMENT = 16

#: How much longer than necessary the longest stage may take, so that less is sent between stages.
_SLACK = 1.05


class Stages(NamedTuple):
    """The pipeline of a network: the ranks of each stage, and how micro-batches flow through."""

    ranks: Tuple[Tuple[int, ...], ...]
    micro_batches: int
    schedule: str

    def of_rank(self, rank: int) -> int:
        return next(stage for stage, ranks in enumerate(self.ranks) if rank in ranks)

    def as_json(self) -> Dict[str, Any]:
        """Return the stages as JSON, which :func:`stages_from_json` reads."""
        return {'stages': [list(ranks) for ranks in self.ranks], 'micro_batches': self.micro_batches,
                'schedule': self.schedule}

    def words(self) -> str:
        return 'pipeline of %d stage%s, %d micro-batch%s, %s' % (
            len(self.ranks), 's' * (len(self.ranks) != 1), self.micro_batches, 'es' * (self.micro_batches != 1),
            self.schedule)


def are_whole(values: Any) -> bool:
    """Return whether a value is a sequence of whole numbers."""
    return isinstance(values, Sequence) and not isinstance(values, (str, bytes)) and all(
        isinstance(value, int) and not isinstance(value, bool) for value in values)


def check_flow(micro_batches: Any, schedule: Any) -> None:
    """Raise InputError for an impossible number of micro-batches or an unknown schedule."""
    if not isinstance(micro_batches, int) or isinstance(micro_batches, bool) or micro_batches < 1:
        raise InputError('pipeline: micro_batches=%r: give a whole number of at least 1' % (micro_batches,))
    if schedule not in SCHEDULES:
        raise InputError("pipeline: schedule=%r: give '1f1b', 'eager-1f1b' or 'gpipe'" % (schedule,))


def check_ranks(by_stage: Sequence[Sequence[int]], ranks: int) -> None:
    """Raise InputError unless each of some ranks is in exactly one stage."""
    stage_of: Dict[int, int] = {}
    for stage, members in enumerate(by_stage):
        if not members:
            raise InputError('plan: stage %d has no workers: give it at least one, or leave it out' % stage)
        for rank in members:
            if not 0 <= rank < ranks:
                raise InputError('plan: stage %d is on worker %d: give workers from 0 to %d' % (stage, rank, ranks - 1))
            if rank in stage_of:
                raise InputError('plan: worker %d is in stage %d and in stage %d: give each worker one stage'
                                 % (rank, stage_of[rank], stage))
            stage_of[rank] = stage
    idle = sorted(set(range(ranks)) - set(stage_of))
    if idle:
        raise InputError('plan: worker %d is in no stage: add it to one, or start %d workers'
                         % (idle[0], len(stage_of)))


def spread_ranks(stages: int, ranks: int) -> List[List[int]]:
    """Return the ranks of each stage, as evenly spread as possible."""
    if stages > ranks:
        raise InputError('plan: a pipeline of %d stages on %d worker%s: give at most %d stage%s, or start more workers'
                         % (stages, ranks, 's' * (ranks != 1), ranks, 's' * (ranks != 1)))
    return [list(range(*ends)) for ends in split_range(ranks, stages)]


def stages_from_json(value: Any, splits: Mapping[str, Split], ranks: int) -> Stages:
    """Return the pipeline of an explicit plan; InputError for any other value."""
    if not isinstance(value, Mapping) or set(value) != {'stages', 'micro_batches', 'schedule'} \
            or not isinstance(value['stages'], list) or not all(map(are_whole, value['stages'])):
        raise InputError("plan: pipeline=%r: give an object with 'stages', the ranks of each stage, 'micro_batches' "
                         "and 'schedule'" % (value,))
    check_flow(value['micro_batches'], value['schedule'])
    check_ranks(value['stages'], ranks)
    stages = Stages(tuple(map(tuple, value['stages'])), value['micro_batches'], value['schedule'])
    for label, split in splits.items():
        if not any(set(split.ranks) <= set(members) for members in stages.ranks):
            raise InputError('plan: %s is on ranks %s, which are not in one stage of %s'
                             % (label, list(split.ranks), value['stages']))
    return stages


def check_forward(graph: Graph, stage_of: Mapping[int, int]) -> None:
    """Raise InputError if an operator reads the output of one in a later stage."""
    for operator in graph.computing:
        for source, _ in operator.inputs:
            if stage_of.get(source, -1) > stage_of[operator.number]:
                raise InputError('plan: %s is in stage %d, but reads %s of stage %d: an operator may read outputs of '
                                 'its own and of earlier stages' % (graph.label(operator), stage_of[operator.number],
                                                                graph.label(graph.operators[source]), stage_of[source]))


def follow(graph: Graph, chosen: Mapping[int, int]) -> Dict[int, int]:
    """Return the stage of every operator, given those of some operators.

    Other operators are in the last stage of their inputs; those that read inputs of the network alone are in the
    first stage that reads them.
    """
    stage_of: Dict[int, int] = {}
    undecided = []
    readers: Dict[int, List[int]] = {}
    for operator in graph.computing:
        read = [stage_of[source] for source, _ in operator.inputs if source in stage_of]
        if operator.number in chosen:
            stage_of[operator.number] = chosen[operator.number]
        elif read:
            stage_of[operator.number] = max(read)
        else:
            undecided.append(operator.number)
        for source, _ in operator.inputs:
            readers.setdefault(source, []).append(operator.number)
    for number in reversed(undecided):
        stage_of[number] = min([stage_of[reader] for reader in readers.get(number, [])] or [0])
    return stage_of


def cost_of(graph: Graph, operator: Operator) -> float:
    """Return the cost of a whole operator: floating-point operations, and elements that are read and written."""
    rule = rule_of(operator)
    shard = rule.shard(graph, operator, OutputShard(full(graph.shape(operator))))
    return rule.flop(operator, shard) + _FLOP_PER_ELEMENT * rule.elements_moved(operator, shard)


def balanced(graph: Graph, weights: Sequence[int], seconds: Optional[Sequence[Mapping[int, float]]] = None
             ) -> Dict[int, int]:
    """Return the stage of every operator, for stages that take equally long on numbers of ranks `weights`.

    `seconds` are the times of operators in each stage, by number; by default they follow from the operations and the
    sizes of operators.

    The operators are cut in their order.  The longest stage may take 5 % longer than necessary; among such cuts, those
    with the fewest bytes between stages are chosen.
    """
    operators = graph.computing
    count, stages = len(operators), len(weights)
    if count < stages:
        raise InputError('plan: a pipeline of %d stages, but the network has %d operator%s: give at most %d stage%s'
                         % (stages, count, 's' * (count != 1), count, 's' * (count != 1)))
    if seconds is None:
        costs = np.array([cost_of(graph, operator) for operator in operators])
        by_stage = [costs / weight for weight in weights]
    else:
        by_stage = [np.array([of_stage[operator.number] for operator in operators]) for of_stage in seconds]
    sums = [np.concatenate([[0.0], np.cumsum(costs)]) for costs in by_stage]
    longest = _cut(sums, None, np.zeros(count + 1))[0]
    ends = _cut(sums, longest * _SLACK, _crossing(graph))[1]
    return {operator.number: stage for stage, (low, high) in enumerate(zip(ends, ends[1:]))
            for operator in operators[low:high]}


def _crossing(graph: Graph) -> Any:
    """Return, for each position of a cut, the bytes that operators after it read of operators before it."""
    operators = graph.computing
    position = {operator.number: index for index, operator in enumerate(operators)}
    last: Dict[Any, int] = {}
    for index, operator in enumerate(operators):
        for entry in operator.inputs:
            if entry[0] in position:
                last[entry] = index
    crossing = np.zeros(len(operators) + 1)
    for entry, reader in last.items():
        size = float(np.prod(graph.shapes[entry])) * graph.dtypes[entry].itemsize
        crossing[position[entry[0]] + 1:reader + 1] += size
    return crossing


def _cut(sums: Sequence[Any], limit: Optional[float], crossing: Any) -> Tuple[float, List[int]]:
    """Return the cost of the best cut, and its positions from 0 to the end: the lowest time of the longest stage, or,
    with a limit of this time, the lowest sum of `crossing`.

    `sums` are the times of all operators before each position, for each stage.
    """
    count = len(crossing) - 1
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    choices = []
    for stage, sums_of_stage in enumerate(sums):
        following, choice = np.full(count + 1, np.inf), np.zeros(count + 1, int)
        for end in range(stage + 1, count + 1):
            times = sums_of_stage[end] - sums_of_stage[stage:end]
            if limit is None:
                costs = np.maximum(best[stage:end], times)
            else:
                costs = np.where(times <= limit * (1 + 1e-9), best[stage:end], np.inf) + crossing[end]
            choice[end] = stage + int(np.argmin(costs))
            following[end] = costs[choice[end] - stage]
        best = following
        choices.append(choice)
    ends = [count]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    return float(best[count]), ends[::-1]
