"""Balanced pipelines, with which a search compares the plans that it finds.

The stages take equally long by the times of operators, as in PipeDream (Narayanan et al., SOSP 2019), and each stage is
split over its ranks by samples, or as in Megatron-LM.  The number of micro-batches is a choice, too: with more
micro-batches, stages are idle for a smaller part of a step, but each sample takes longer.
"""
from typing import Any, Dict, Iterator, List, NamedTuple

import numpy as np

from ...base.errors import InputError
from ...parallel.ops.dimension_names import Dimensions
from ...parallel.ops.graph import Graph
from ...parallel.ops.registry import rule_of
from ...parallel.ops.tracing import TracedNetwork
from ...parallel.plans.megatron import megatron
from ...parallel.plans.pipeline_plan import Pipeline
from ...parallel.plans.plan import Plan, ResolvedPlan
from ...parallel.plans.stages import balanced, spread_ranks
from ...parallel.plans.strategies import data_parallel, one_weird_trick
from ..task_graph.operator_tasks import OperatorTasks

#: The number of micro-batches for each stage.
_MICRO_BATCHES = (1, 2, 4, 8)
#: The most ranks for which stages of different numbers of ranks are searched.
_MANY_RANKS = 8


class PipelineStart(NamedTuple):
    """A pipeline to compare with others."""

    name: str
    plan: Pipeline
    #: The seconds of a step without transfers and sums of gradients.
    estimate_s: float


class _TensorParallel(Plan):
    """Tensor parallelism over groups of at most `model` ranks of a stage; data parallelism if `model` is 1."""

    def __init__(self, model: int):
        self._model = model

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        model = min(self._model, ranks)
        if model == 1:
            return data_parallel().resolve(graph, dimensions, ranks)
        return megatron(model, ranks // model).resolve(graph, dimensions, ranks)


def can_be_pipelined(network: TracedNetwork) -> bool:
    """Return whether a pipeline trains a network as other plans do, whatever the script is.

    The network has to return the loss of each sample, such as a mean over all other dimensions, and may have neither
    statistics of samples nor tables.
    """
    graph = network.graph
    if len(graph.heads) != 1 or graph.tables or any(rule_of(operator).has_statistics for operator in graph.computing):
        return False
    head = graph.operators[graph.heads[0][0]]
    axis = network.dimensions.sample_axis(graph.heads[0])
    is_mean_loss = head.op == 'mean' and str(head.attrs.get('exclude')) in ('True', '1')
    return (is_mean_loss or rule_of(head).is_loss) and axis is not None and axis.rounds == 1


def pipeline_starts(model: OperatorTasks, ranks: int, batch: int, pass_s: float = 0.0) -> List[PipelineStart]:
    """Return balanced pipelines, the fastest by its estimate first.

    - `model`: the model of the network for the joint batch: a micro-batch of m is taken to need an m-th of the time.
    - `batch`: the samples of the joint batch.
    - `pass_s`: the seconds that a pass of a micro-batch takes in addition.
    """
    starts = [start for stages in range(2, ranks + 1) if ranks <= _MANY_RANKS or ranks % stages == 0
              for start in _of_stages(model, stages, ranks, [
                  count for count in sorted({stages * each for each in _MICRO_BATCHES}) if batch % count == 0], pass_s)]
    return sorted(starts, key=lambda start: start.estimate_s)


def _inside(largest: int) -> Iterator[Any]:
    """Yield plans for the ranks of a stage, of which there are at most `largest`, with their names."""
    yield '', data_parallel()
    if largest > 1:
        yield ', one weird trick', one_weird_trick()
    for model in range(2, largest + 1):
        if largest % model == 0:
            yield ', megatron %d' % model, _TensorParallel(model)


def _of_stages(model: OperatorTasks, stages: int, ranks: int, counts: List[int], pass_s: float
               ) -> Iterator[PipelineStart]:
    """Yield the pipelines of a number of stages, for some numbers of micro-batches."""
    graph, dimensions = model.graph, model.dataflow.dimensions
    sizes = [len(members) for members in spread_ranks(stages, ranks)]
    for words, inside in _inside(max(sizes)):
        try:
            seconds = {size: _operator_seconds(model, inside.resolve(graph, dimensions, size)) for size in set(sizes)}
            stage_of = balanced(graph, sizes, [seconds[size] for size in sizes])
        except InputError:  # no such layers, heads that cannot be divided, or more stages than operators
            continue
        longest_s = max(sum(seconds[size][number] for number, of in stage_of.items() if of == stage)
                        for stage, size in enumerate(sizes))
        for count in counts:
            yield PipelineStart('pipeline of %d stages, %d micro-batches%s' % (stages, count, words),
                                Pipeline(stages, count, 'eager-1f1b', inside).with_stages(stage_of),
                                (longest_s / count + 2 * pass_s) * (count + stages - 1))


def _operator_seconds(model: OperatorTasks, resolved: ResolvedPlan) -> Dict[int, float]:
    """Return the seconds of the slowest shard of each operator, forward and backward."""
    return {number: float(np.max(model.seconds(number, split))) for number, split in resolved.splits.items()}
