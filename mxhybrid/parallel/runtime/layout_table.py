"""The table of a plan: the layout of every operator, its memory and its communication."""
from typing import Any, Dict, List, Mapping, Sequence

from ...base.text import aligned, size_text
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..redistribution.redistribution import Redistribution
from ..sharding.box import size_of
from ..sharding.split import Split
from .joint_work import joint_operators, whole_outputs
from .network_shards import NetworkShards


def layout_table(name: str, graph: Graph, dimensions: Dimensions, shards: NetworkShards,
                 redistributions: Sequence[Redistribution], ranks: int, notes: Dict[int, str]) -> str:
    """Return a table with a line for each operator: sizes on the rank that has most, and bytes sent between all ranks
    in both passes.
    """
    sent: Dict[int, int] = {}
    for redistribution in redistributions:
        sent[redistribution.operator] = sent.get(redistribution.operator, 0) + sum(redistribution.bytes)
    rows = []
    for operator in graph.computing:
        split = shards.splits[operator.number]
        rows.append([graph.label(operator), operator.op, layout_words(dimensions, operator, split),
                     rank_words(split.ranks), size_text(_weights(graph, shards, operator)),
                     size_text(_activations(graph, shards, operator)),
                     size_text(sent.get(operator.number, 0))])
    held = [sum(size_of(boxes[rank]) * graph.dtypes[number, 0].itemsize for number, boxes in _held(graph, shards)
                if rank in boxes) for rank in range(ranks)]
    whole = sum(size_of(tuple((0, count) for count in graph.shapes[number, 0])) * graph.dtypes[number, 0].itemsize
                for number, _ in _held(graph, shards))
    title = ('mxhybrid: %s on %d workers; weights of at most %s of %s on a worker; %d redistributions, %s per step '
             'between all workers' % (name, ranks, size_text(max(held)), size_text(whole), len(redistributions),
                                      size_text(sum(sent.values()))))
    head = ['layer', 'operator', 'layout', 'ranks', 'weights', 'activations', 'sent/step']
    ends = note_lines(graph, dimensions, shards.splits, ranks, notes)
    # Texts to the left, sizes to the right.
    widths = [max(len(row[column]) for row in [head] + rows) for column in range(4)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths)] + row[4:] for row in [head] + rows]
    return '\n'.join([title, aligned(lines[0], lines[1:])] + ends)


def note_lines(graph: Graph, dimensions: Dimensions, splits: Mapping[int, Split], ranks: int,
               notes: Mapping[int, str]) -> List[str]:
    """Return the lines below a table: differences from the plan, operators that are computed for the joint batch, and
    outputs of which a worker returns more than its samples.
    """
    joint = joint_operators(graph, dimensions, splits, ranks)
    return ['%s: %s' % (graph.label(graph.operators[number]), '; '.join(
        some[number] for some in (notes, joint) if number in some)) for number in sorted({**notes, **joint})
            ] + whole_outputs(graph, dimensions)


def layout_words(dimensions: Dimensions, operator: Operator, split: Split) -> str:
    """Return a split in words, as 'samples 2 x height 2'."""
    words = ['%s %d' % (name, degree) for name, degree in zip(dimensions.names(operator), split.degrees) if degree > 1]
    words += ['addends %d' % split.addends] * (split.addends > 1) + ['copies %d' % split.copies] * (split.copies > 1)
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


def _held(graph: Graph, shards: NetworkShards) -> List[Any]:
    return [(operator.number, shards.weights.boxes(operator.name))
            for operator in graph.operators if graph.is_parameter(operator.number)]
