"""The plan of a pipeline: stages of layers on ranks, through which micro-batches flow."""
import itertools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ...base.errors import InputError
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph
from ..sharding.split import Split
from .plan import ON_ALL, Plan, ResolvedPlan
from .stages import Stages, are_whole, balanced, check_flow, check_forward, check_ranks, follow, spread_ranks
from .strategies import Explicit, Layers, operators_matching


class Pipeline(Plan):
    """Stages of layers on ranks, through which micro-batches flow: see :func:`pipeline`."""

    def __init__(self, stages: Any, micro_batches: int, schedule: str, inside: Plan):
        self._stages, self._inside = stages, inside
        self.micro_batches, self.schedule = micro_batches, schedule
        self.name = 'pipeline'
        self.store, self.recompute = inside.store, inside.recompute
        #: The stages of operators by number, if they are those of the same network with data of another shape.
        self._former: Optional[Dict[int, int]] = None

    def resolve(self, graph: Graph, dimensions: Dimensions, ranks: int) -> ResolvedPlan:
        by_stage = self._ranks(ranks)
        stage_of = self._stage_of(graph, [len(members) for members in by_stage])
        check_forward(graph, stage_of)
        for stage in range(len(by_stage)):
            if stage not in stage_of.values():
                raise InputError('plan: stage %d of %d has nothing to do: all operators are in other stages: leave it '
                                 'out, or let its pattern match operators that earlier patterns do not match'
                                 % (stage, len(by_stage)))
        for operator in graph.computing:
            if graph.has_table(operator):
                raise InputError('plan: %s cannot be in a stage of a pipeline: %s: keep its layer outside of what is '
                                 'split, or make it with sparse_grad=False' % (graph.label(operator), ON_ALL))
        inside = {size: self._inside.resolve(graph, dimensions, size)
                  for size in sorted({len(members) for members in by_stage})}
        splits: Dict[int, Split] = {}
        notes: Dict[int, str] = {}
        for operator in graph.computing:
            members = by_stage[stage_of[operator.number]]
            resolved = inside[len(members)]
            split = resolved.splits[operator.number]
            splits[operator.number] = Split(split.degrees, [members[rank] for rank in split.ranks], split.partials,
                                            split.copies)
            if operator.number in resolved.notes:
                notes[operator.number] = resolved.notes[operator.number]
        stages = Stages(tuple(map(tuple, by_stage)), self.micro_batches, self.schedule)
        return self._with_tables(ResolvedPlan(splits, notes, stages=stages), graph)

    def with_stages(self, stage_of: Mapping[int, int]) -> 'Pipeline':
        """Return the pipeline with the stages of operators by their numbers."""
        return self._changed(_former=dict(stage_of))

    def with_schedule(self, schedule: str) -> 'Pipeline':
        return self._changed(schedule=schedule)

    def for_graph(self, former: Graph, graph: Graph) -> Plan:
        if not isinstance(self._stages, int) or self._former is not None:
            return self
        return self.with_stages(balanced(former, [1] * self._stages))

    def _ranks(self, ranks: int) -> List[List[int]]:
        if isinstance(self._stages, Mapping):
            by_stage = [members for members, _ in self._placed()]
            check_ranks(by_stage, ranks)
            return by_stage
        return spread_ranks(self._stages if isinstance(self._stages, int) else len(self._stages), ranks)

    def _placed(self) -> List[Tuple[List[int], List[str]]]:
        """Return the ranks and the patterns of each stage of a mapping: neighbouring patterns with the same ranks are
        one stage.
        """
        return [(members, [pattern for pattern, _ in group])
                for members, group in itertools.groupby(self._stages.items(), lambda item: list(item[1]))]

    def _patterns(self) -> List[Sequence[str]]:
        if isinstance(self._stages, Mapping):
            return [patterns for _, patterns in self._placed()]
        return [[stage] if isinstance(stage, str) else stage for stage in self._stages]

    def _stage_of(self, graph: Graph, sizes: List[int]) -> Dict[int, int]:
        if isinstance(self._stages, int):
            return self._former or balanced(graph, [1] * len(sizes))
        chosen: Dict[int, int] = {}
        for stage, patterns in enumerate(self._patterns()):
            for pattern in patterns:
                for operator in operators_matching(graph, pattern, ' of stage %d' % stage):
                    chosen.setdefault(operator.number, stage)
        return follow(graph, chosen)

    def _layers_as_json(self) -> Dict[str, Any]:
        stages = self._stages
        if isinstance(stages, Mapping):
            stages = {pattern: list(members) for pattern, members in stages.items()}
        elif not isinstance(stages, int):
            stages = [stage if isinstance(stage, str) else list(stage) for stage in stages]
        return {'plan': 'pipeline', 'stages': stages, 'micro_batches': self.micro_batches, 'schedule': self.schedule,
                'inside': self._inside._layers_as_json()}


def pipeline(stages: Union[int, Sequence[Any], Mapping[str, Sequence[int]]], micro_batches: int, schedule: str = '1f1b',
             inside: Any = None) -> Plan:
    """Cut the network into stages on different workers, through which micro-batches flow.

    Parameters
    ----------
    stages : int, or sequence of str, or dict of str to list of int
        The number of stages, which are cut so that they take equally long by the floating-point operations and sizes of
        their operators; or for each stage the pattern of the names of its operators, or a list of patterns (shell
        wildcards; the first match counts); or patterns with the ranks of their stage, where neighbouring patterns with
        the same ranks are one stage.  Operators that match no pattern are in the last stage of their inputs.  Without
        ranks, stages have equally many neighbouring workers.
    micro_batches : int
        The number of parts of the joint batch, which it has to divide.  Their gradients are added up.
    schedule : str, optional
        ``'1f1b'``: each stage alternates between the forward pass of one micro-batch and the backward pass of another
        one, and holds the activations of at most as many micro-batches as there are stages from it to the last one.
        The first output of the network has to be the loss.  ``'eager-1f1b'``: the same with almost twice as many
        micro-batches, so that stages compute while activations are sent.  ``'gpipe'``: all forward passes in the call
        of the network, all backward passes in ``loss.backward()``, with any loss; each stage holds the activations of
        all micro-batches.
    inside : Plan or dict, optional
        The plan of each stage, for the workers of a stage: `data_parallel`, a `grid`, or a dict as of :func:`by_name`
        with ranks that count from 0 in each stage.  Default: `data_parallel`.

    Raises
    ------
    InputError
        A value that is not valid; when the plan is used, more stages than workers or operators, a stage without
        operators, a pattern that matches nothing, an operator that reads a later stage, or a number of micro-batches
        that does not divide the joint batch.
    """
    check_flow(micro_batches, schedule)
    if isinstance(stages, bool) or not isinstance(stages, (int, Sequence, Mapping)) or isinstance(stages, str):
        raise InputError('pipeline: stages=%r: give a number of stages, a list with a pattern of names for each stage, '
                         'or a dict of patterns to ranks' % (stages,))
    if (stages < 1 if isinstance(stages, int) else not stages):
        raise InputError('pipeline: stages=%r: give at least one stage' % (stages,))
    if isinstance(stages, Mapping):
        for pattern, members in stages.items():
            if not isinstance(pattern, str) or not are_whole(members):
                raise InputError('pipeline: stages: %r has %r: give a list of ranks for each pattern of names'
                                 % (pattern, members))
    elif not isinstance(stages, int):
        for stage in stages:
            patterns = [stage] if isinstance(stage, str) else stage
            if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(name, str)
                                                                             for name in patterns):
                raise InputError('pipeline: stages: %r is not a stage: give a pattern of names, or a list of patterns'
                                 % (stage,))
    plan = Plan() if inside is None else Layers(inside) if isinstance(inside, Mapping) else inside
    if not isinstance(plan, Plan) or isinstance(plan, (Explicit, Pipeline)):
        raise InputError('pipeline: inside=%r: give data_parallel(), a grid, or a dict by names of layers'
                         % (inside,))
    return Pipeline(stages, micro_batches, schedule, plan)
