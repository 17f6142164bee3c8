"""The table of a plan: the layout of every operator, its memory and its communication."""
from typing import Dict, List, Mapping, Optional, Sequence

from ...base.text import aligned, size_text
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..plans.recompute import Segment
from ..plans.stages import Stages, cost_of
from ..redistribution.redistribution import Redistribution
from ..sharding.box import full, size_of
from ..sharding.split import Split
from .joint_work import joint_operators, whole_outputs
from .network_shards import NetworkShards
from .report_lines import line_notes, report_lines
from .schedule import most_alive


def layout_table(name: str, dimensions: Dimensions, shards: NetworkShards, redistributions: Sequence[Redistribution],
                 ranks: int, notes: Dict[int, str], stages: Optional[Stages] = None) -> str:
    """Return a table with a line for each operator, or norm of several operators: sizes on the rank that has most, and
    bytes sent between all ranks in both passes.
    """
    graph, micro_batches = shards.graph, 1 if stages is None else stages.micro_batches
    sent: Dict[int, int] = {}
    for redistribution in redistributions:
        sent[redistribution.operator] = sent.get(redistribution.operator, 0) + sum(redistribution.bytes) * micro_batches
    rows = []
    for line in report_lines(graph, dimensions, shards.splits):
        last = line.operators[-1]
        sizes = [(_weights(graph, shards, operator), _activations(graph, shards, operator),
                  sent.get(operator.number, 0)) for operator in line.operators]
        rows.append([line.label, line.kind, layout_words(dimensions, last, shards.splits[last.number]),
                     rank_words(shards.splits[last.number].ranks), *(size_text(sum(column)) for column in zip(*sizes))])
    weights = [(shards.weights.boxes(operator.name), full(graph.shape(operator)),
                graph.dtypes[operator.number, 0].itemsize)
               for operator in graph.operators if graph.is_parameter(operator.number)]
    held = [sum(size_of(boxes[rank]) * itemsize for boxes, _, itemsize in weights if rank in boxes)
            for rank in range(ranks)]
    whole = sum(size_of(box) * itemsize for _, box, itemsize in weights)
    title = ('mxhybrid: %s on %d workers; weights of at most %s of %s on a worker; %d redistributions, %s per step '
             'between all workers' % (name if stages is None else stages.words(), ranks, size_text(max(held)),
                                      size_text(whole), len(redistributions) * micro_batches,
                                      size_text(sum(sent.values()))))
    head = ['layer', 'operator', 'layout', 'ranks', 'weights', 'activations', 'sent/step']
    ends = note_lines(graph, dimensions, shards.splits, ranks, notes, stages)
    if stages is not None:
        ends = stage_lines(graph, shards.splits, stages) + ends
    # Texts to the left, sizes to the right.
    widths = [max(len(row[column]) for row in [head] + rows) for column in range(4)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths)] + row[4:] for row in [head] + rows]
    return '\n'.join([title, aligned(lines[0], lines[1:])] + ends)


def note_lines(graph: Graph, dimensions: Dimensions, splits: Mapping[int, Split], ranks: int,
               notes: Mapping[int, str], stages: Optional[Stages] = None) -> List[str]:
    """Return the lines below a table: differences from the plan, operators that are computed for the joint batch, and
    outputs of which a worker returns more than its samples.
    """
    lines = report_lines(graph, dimensions, splits)
    labels = {line.operators[-1].number: line.label for line in lines}
    joint = line_notes(lines, joint_operators(graph, dimensions, splits, ranks, stages))
    return ['%s: %s' % (labels.get(number) or graph.label(graph.operators[number]), '; '.join(
        some[number] for some in (notes, joint) if number in some)) for number in sorted({**notes, **joint})
            ] + whole_outputs(graph, dimensions)


def stage_lines(graph: Graph, splits: Mapping[int, Split], stages: Stages) -> List[str]:
    """Return a line for each stage of a pipeline: its ranks, its operators and its share of the computation."""
    by_stage: List[List[Operator]] = [[] for _ in stages.ranks]
    for operator in graph.computing:
        by_stage[stages.of_rank(splits[operator.number].ranks[0])].append(operator)
    costs = [sum(cost_of(graph, operator) for operator in operators) for operators in by_stage]
    lines = ['stage %d on ranks %s: %d operator%s, %s to %s, %.0f %% of the computation' % (
        stage, rank_words(ranks), len(operators), 's' * (len(operators) != 1), graph.label(operators[0]),
        graph.label(operators[-1]), 100 * cost / sum(costs))
        for stage, (ranks, operators, cost) in enumerate(zip(stages.ranks, by_stage, costs))]
    return lines + ['activations above are those of a micro-batch; a stage holds those of at most %s micro-batches' % (
        ' or '.join(str(count) for count in sorted({most_alive(stages.schedule, stage, len(stages.ranks),
                                                              stages.micro_batches)
                                                   for stage in range(len(stages.ranks))})))]


def recompute_lines(graph: Graph, segments: Sequence[Segment]) -> List[str]:
    """Return a line for each segment whose activations are computed again in the backward pass."""
    return ['%s: computed again in the backward pass: %d operator%s, %s to %s' % (
        segment.name, len(segment.operators), 's' * (len(segment.operators) != 1),
        graph.label(graph.operators[segment.operators[0]]), graph.label(graph.operators[segment.operators[-1]]))
        for segment in segments]


def layout_words(dimensions: Dimensions, operator: Operator, split: Split) -> str:
    """Return a split in words, as 'samples 2 x height 2'."""
    words = ['%s %d' % (name, degree) for name, degree in zip(dimensions.names(operator), split.degrees) if degree > 1]
    words += ['partials %d' % split.partials] * (split.partials > 1) + ['copies %d' % split.copies] * (split.copies > 1)
    return ' x '.join(words) or 'whole'


def rank_words(ranks: Sequence[int]) -> str:
    """Return ranks in words, as '0-3'."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return '%d-%d' % (ranks[0], ranks[-1])
    return ','.join(map(str, ranks))


def _weights(graph: Graph, shards: NetworkShards, operator: Operator) -> int:
    """Return the bytes of parameters that a shard of an operator reads, at most."""
    return max(sum(size_of(box) * graph.dtypes[entry].itemsize for entry, box in
                   zip(operator.inputs,
                       shards.shard(operator, rank).inputs) if box is not None and entry[0] in graph.fixed)
               for rank in shards.output_shards[operator.number])


def _activations(graph: Graph, shards: NetworkShards, operator: Operator) -> int:
    """Return the bytes of outputs that a shard of an operator computes, at most."""
    return max(sum(size_of(box) * graph.dtypes[operator.number, output].itemsize
                   for output, box in enumerate(shards.shard(operator, rank).outputs))
               for rank in shards.output_shards[operator.number])
