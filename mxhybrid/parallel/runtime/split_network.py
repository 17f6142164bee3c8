"""A network and its split, before any of its weights move."""
from typing import AbstractSet, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...base.errors import InputError
from ...base.settings import TablePlan
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph
from ..ops.learning import learning_operators
from ..ops.registry import rule_of
from ..ops.tracing import TracedNetwork, reshaped
from ..plans.plan import Plan
from ..plans.recompute import Segment, recomputed_segments
from ..plans.stages import Stages
from ..redistribution.worker_group import WorkerGroup
from .input_shards import InputShards
from .micro_batches import micro_batch_of, output_boxes
from .network_shards import NetworkShards
from .untrainable import untrainable_reason


class SplitNetwork(NamedTuple):
    """A network and its split over the workers of a job."""

    workers: WorkerGroup
    traced: TracedNetwork
    plan: Plan
    shards: NetworkShards
    #: Differences from the plan, by the number of the operator.
    notes: Dict[int, str]
    #: The routes of tables, by name.
    tables: Mapping[str, TablePlan]
    input_shards: InputShards
    #: Whether statistics are those of the joint batch.
    joint_statistics: bool
    #: The network for the joint batch; `traced` is that for a micro-batch.
    joint: TracedNetwork
    #: The pipeline, if there is one.
    stages: Optional[Stages] = None
    #: The operators whose activations are computed again in the backward pass, if one comes to them; and all others
    #: that the plan names for that.
    segments: Sequence[Segment] = ()
    named_segments: Sequence[Segment] = ()
    #: The parameters that have no gradients.
    frozen: AbstractSet[str] = frozenset()
    #: The reason why MXNet cannot run its backward pass; empty if it can.
    untrainable: str = ''
    #: The result of a plan that should divide weights, and divides none; empty for others.
    undivided: str = ''

    def with_frozen(self, frozen: AbstractSet[str]) -> 'SplitNetwork':
        """Return the same split of the network for other parameters without gradients."""
        learning = learning_operators(self.graph, frozen, self.input_shards.gradient_inputs)
        return self._replace(
            frozen=frozen, untrainable=untrainable_reason(self.traced.symbol, self.shards, learning),
            segments=[segment for segment in self.named_segments if not learning.isdisjoint(segment.operators)])

    @property
    def graph(self) -> Graph:
        """The graph of the network."""
        return self.traced.graph

    @property
    def names(self) -> List[str]:
        """The names of the inputs, in their order."""
        return list(self.traced.axes)


def apply_plan(workers: WorkerGroup, network: TracedNetwork, plan: Plan, input_grad: bool, batch_norm: str,
               frozen: AbstractSet[str] = frozenset()) -> SplitNetwork:
    """Split a network by a plan; parameters and errors are those of :func:`mxhybrid.parallelize`.

    `frozen` are the parameters that have no gradients.
    """
    if batch_norm not in ('joint', 'local'):
        raise InputError("parallelize: batch_norm=%r: give 'joint' or 'local'" % (batch_norm,))
    joint = network
    network = micro_batch_of(network, plan.micro_batches)
    graph, dimensions = network.graph, network.dimensions
    resolved = plan.resolve(graph, dimensions, workers.size)
    if resolved.stages is not None and input_grad:
        raise InputError('parallelize: input_grad=True, but a pipeline returns no gradients of its inputs: split the '
                         'whole network, or take another plan')
    shards = NetworkShards(graph, resolved.splits)
    if resolved.stages is not None:
        output_boxes(graph, joint.dimensions, shards.splits)  # raises an error for outputs that cannot be joined
    if batch_norm == 'local':
        _check_local(graph, dimensions, shards)
    _check_averages(graph, shards)
    gradient_inputs = set(network.axes) if input_grad else set()
    input_shards = InputShards(joint.graph, network.axes, joint.dimensions, workers.size, workers.rank,
                               gradient_inputs)
    stage_of = {} if resolved.stages is None else {
        number: resolved.stages.of_rank(split.ranks[0]) for number, split in resolved.splits.items()}
    segments = recomputed_segments(graph, network.blocks, plan.recompute, stage_of, gradient_inputs,
                                   batch_norm == 'joint')
    return SplitNetwork(workers, network, plan, shards, resolved.notes, resolved.tables, input_shards,
                        batch_norm == 'joint', joint, resolved.stages, named_segments=segments,
                        undivided=resolved.undivided).with_frozen(frozen)


def reshape(network: SplitNetwork, data: Any) -> SplitNetwork:
    """Return the same network for joint batches of another shape, with the shards of weights that workers hold.

    Raises InputError for shapes that the network does not take, or for which weights would have other shapes or be on
    other workers.
    """
    retraced = reshaped(network.joint, data)
    for name, shape in retraced.graph.parameter_arrays.items():
        if shape != network.graph.parameter_arrays[name]:
            raise InputError('for_data: with data of shapes %s, %s would have shape %s instead of %s: change only '
                             'dimensions that no weight depends on'
                             % (retraced.graph.data, name, shape, network.graph.parameter_arrays[name]))
    micro_batch = micro_batch_of(retraced, network.plan.micro_batches)
    split = apply_plan(network.workers, retraced, network.plan.for_graph(network.graph, micro_batch.graph),
                       bool(network.input_shards.gradient_inputs), 'joint' if network.joint_statistics else 'local',
                       network.frozen)
    lacking = split.shards.weights.adopt(network.shards.weights)
    if lacking:
        raise InputError('for_data: with data of shapes %s, workers would need elements of %s that they do not hold: '
                         'give a joint batch with more samples, for example by repeating some'
                         % (retraced.graph.data, lacking))
    return split


def _check_averages(graph: Graph, shards: NetworkShards) -> None:
    """Raise InputError if calls of one BatchNorm split its channels differently: no call could update its averages, and
    MXNet's operator takes the whole array of an average.
    """
    for operator in graph.computing:
        averages = [at for at, (number, _) in enumerate(operator.inputs)
                    if graph.operators[number].name in graph.auxiliary]
        for at in averages[:1]:
            name = graph.operators[operator.inputs[at][0]].name
            held_boxes = shards.weights.boxes(name)
            for rank in shards.output_shards[operator.number]:
                box = shards.shard(operator, rank).inputs[at]
                if box is not None and box != held_boxes[rank]:
                    raise InputError('parallelize: worker %d computes channels %d to %d of %s, but holds channels %d '
                                     'to %d of %s for other calls of the layer: split the channels of all its calls '
                                     'alike'
                                     % (rank, box[0][0], box[0][1] - 1, graph.label(operator), held_boxes[rank][0][0],
                                        held_boxes[rank][0][1] - 1, name))


def _check_local(graph: Graph, dimensions: Dimensions, shards: NetworkShards) -> None:
    """Raise InputError if a worker's statistics would not be those of whole samples."""
    for operator in graph.computing:
        if rule_of(operator).has_statistics:
            for name, degree in zip(dimensions.names(operator), shards.splits[operator.number].degrees):
                if degree > 1 and name not in ('samples', 'channels'):
                    raise InputError("parallelize: batch_norm='local', but %s is split over %s: take 'joint', or "
                                     'another plan' % (graph.label(operator), name))
