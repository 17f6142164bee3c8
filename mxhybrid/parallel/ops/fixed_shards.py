"""Shards of operators that read parameters and constants alone, such as the concatenation of a layer's weights."""
from typing import Any, Iterator, List, Optional, Tuple

from ..sharding.box import Box, full
from ..sharding.split import OutputShard
from .graph import Entry, Graph, Operator, geometry_of
from .registry import is_elementwise, rule_of
from .rule import OperatorShard


def shard_of_fixed(graph: Graph, operator: Operator, box: Box) -> Optional[OperatorShard]:
    """Return the shard that computes a box of an operator's only output; None if the operator has to be computed whole.
    """
    rule, shape = rule_of(operator), graph.shape(operator)
    if operator.outputs > 1 or rule.collective is not None or rule.not_replicable or not operator.inputs:
        return None
    cuts = [(low, high) != (0, count) for (low, high), count in zip(box, shape)]
    if not any(cuts):
        return None
    limits = zip(cuts, box, shape, rule.splittable(graph, operator), rule.grains(graph, operator))
    if any(is_cut and not (can_split and low % grain == 0 and (high % grain == 0 or high == count))
           for is_cut, (low, high), count, can_split, grain in limits):
        return None
    return rule.shard(graph, operator, OutputShard(box))


def weight_boxes(graph: Graph, entry: Entry, box: Box) -> Iterator[Tuple[str, Box]]:
    """Yield the names and boxes of the parameters from which a box is computed: a box of a parameter, or of an operator
    on weights alone.
    """
    operator = graph.operators[entry[0]]
    if operator.op == 'null':
        yield operator.name, box
        return
    shard = None if is_elementwise(operator) else shard_of_fixed(graph, operator, box)
    for position, source in enumerate(operator.inputs):
        if is_elementwise(operator):
            read: Optional[Box] = box
        else:
            read = full(graph.shapes[source]) if shard is None else shard.inputs[position]
        if read is not None:
            yield from weight_boxes(graph, source, read)


def structure_of(graph: Graph, entry: Entry) -> Tuple[Any, List[str]]:
    """Return a key of the operators that compute an output of weights alone, and the names of these weights.

    Outputs with equal keys are computed in the same way: :func:`weight_boxes` yields the same boxes of the weights at
    the same positions of the names.
    """
    names: List[str] = []

    def key_of(source: Entry) -> Any:
        operator = graph.operators[source[0]]
        if operator.op != 'null':
            return source[1], geometry_of(graph, operator), tuple(map(key_of, operator.inputs))
        if operator.name not in names:
            names.append(operator.name)
        return names.index(operator.name)
    return key_of(entry), names
