"""Scaled shards: a shard that is too large to be timed here is shrunk, and its time scaled up by the work."""
from typing import NamedTuple, Optional

from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.ops.rule import with_range
from ...parallel.sharding.split import OutputShard
from .roofline import Work, work_of

#: The largest share of its bytes that half of a shard may move: half of the channels, for example, is computed from all
#: of the input.
_HALVED = 0.75


class ScaledShard(NamedTuple):
    """The box that is timed in place of a shard, and its work."""

    output_shard: OutputShard
    work: Work


def scaled_shard(graph: Graph, operator: Operator, output_shard: OutputShard, most_bytes: float
                 ) -> Optional[ScaledShard]:
    """Halve a shard until it reads and writes no more than `most_bytes`.

    It is halved along its samples, or the first other dimension that makes it smaller.  Returns None if it cannot be
    made small enough.
    """
    shard: Optional[ScaledShard] = _shard(graph, operator, output_shard)
    while shard is not None and shard.work.bytes > most_bytes:
        shard = _half(graph, operator, shard)
    return shard


def _half(graph: Graph, operator: Operator, whole: ScaledShard) -> Optional[ScaledShard]:
    rule = rule_of(operator)
    for dimension, (can_split, grain) in enumerate(zip(rule.splittable(graph, operator),
                                                       rule.grains(graph, operator))):
        low, high = whole.output_shard.box[dimension]
        middle = low + (high - low) // 2 // grain * grain
        if can_split and middle > low:
            half = _shard(graph, operator, whole.output_shard._replace(
                box=with_range(whole.output_shard.box, dimension, (low, middle))))
            if half.work.bytes <= _HALVED * whole.work.bytes:
                return half
    return None


def _shard(graph: Graph, operator: Operator, output_shard: OutputShard) -> ScaledShard:
    return ScaledShard(output_shard, work_of(graph, operator, rule_of(operator).shard(graph, operator, output_shard)))
