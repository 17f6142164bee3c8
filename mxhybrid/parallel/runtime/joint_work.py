"""Operators that one worker, or each of them, computes for the joint batch, and outputs that all workers return whole:
why they are not split, and what that costs.
"""
from typing import Dict, List, Mapping, Optional

from ...base.text import listed, size_text
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..ops.registry import has_rule, rule_of
from ..plans.stages import Stages
from ..sharding.box import full, size_of
from ..sharding.split import Split


def joint_operators(graph: Graph, dimensions: Dimensions, splits: Mapping[int, Split], ranks: int,
                    stages: Optional[Stages] = None) -> Dict[int, str]:
    """Return where, why and at what cost operators on samples are not split, by their numbers.

    In a stage of a pipeline with one rank, nothing is expected to be split.
    """
    notes = {}
    for operator in graph.computing if ranks > 1 else ():
        split = splits[operator.number]
        if stages is not None and len(stages.ranks[stages.of_rank(split.ranks[0])]) == 1:
            continue
        if len(split.ranks) == split.copies and _has_samples(dimensions, operator):
            notes[operator.number] = '%s: %s' % (_where(graph, operator, split, ranks), _why(dimensions, operator))
    return notes


def whole_outputs(graph: Graph, dimensions: Dimensions) -> List[str]:
    """Return a line for each output that all workers return whole, or some worker in several ranges of samples."""
    lines = []
    for at, entry in enumerate(graph.heads):
        name = 'output %d (%s)' % (at, graph.label(graph.operators[entry[0]]))
        axis, loser = dimensions.sample_axis(entry), dimensions.loser(entry)
        if loser is not None:
            lines.append('%s: whole on every worker: its samples are not known after %s'
                         % (name, _after(dimensions, loser)))
        elif axis is not None and axis.rounds > 1:
            lines.append('%s: all samples %d times in a row; each worker returns its own samples of each time'
                         % (name, axis.rounds))
    return lines


def joint_warning(graph: Graph, notes: Mapping[int, str], ranks: int) -> str:
    """Return a warning of operators without a rule that are computed for the joint batch; '' if there are none."""
    names = ['%s (%s)' % (graph.label(operator), operator.op)
             for operator in (graph.operators[number] for number in sorted(notes))
             if not has_rule(operator)]
    if not names:
        return ''
    return ('parallelize: operators without a rule are computed for the joint batch of %d workers, and so are the '
            'operators after them until samples are known again: %s; print(net) shows where, and the cost' % (
                ranks, listed(names, 5)))


def _has_samples(dimensions: Dimensions, operator: Operator) -> bool:
    """Return whether an operator reads samples, wherever they are."""
    entry = operator.number, 0
    return dimensions.sample_axis(entry) is not None or dimensions.loser(entry) is not None


def _why(dimensions: Dimensions, operator: Operator) -> str:
    if not has_rule(operator):
        return 'there is no rule for %s' % operator.op
    loser = dimensions.loser((operator.number, 0))
    if loser is None:
        samples = dimensions.samples((operator.number, 0))
        can_split = samples is not None and rule_of(operator).limits(dimensions.graph, operator)[samples] > 1
        return 'the plan has copies of it' if can_split else 'its samples cannot be split'
    return 'it mixes samples' if loser is operator else 'its samples are not known after ' + _after(dimensions, loser)


def _after(dimensions: Dimensions, loser: Operator) -> str:
    return '%s, %s' % (dimensions.graph.label(loser), 'which mixes them' if has_rule(loser) else
                       'as there is no rule for %s' % loser.op)


def _where(graph: Graph, operator: Operator, split: Split, ranks: int) -> str:
    reads = sum(size_of(full(graph.shapes[entry])) * graph.dtypes[entry].itemsize for entry in operator.inputs
                if entry[0] not in graph.fixed)
    if len(split.ranks) == 1:
        drawn = ', which draws for all' * operator.draws
        return 'for the joint batch on worker %d alone%s, from inputs of %s, while others may wait' % (
            split.ranks[0], drawn, size_text(reads))
    return 'whole on %s, %d times the work of a shard each, from inputs of %s' % (
        'every worker' if len(split.ranks) == ranks else 'workers ' + ', '.join(map(str, split.ranks)), ranks,
        size_text(reads))
