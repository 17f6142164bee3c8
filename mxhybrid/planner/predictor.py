"""Predictions of steps of a network on a cluster, by any plan."""
import math
import numbers
from typing import Any, Dict, Mapping, Optional, Tuple

from ..base.errors import InputError
from ..base.settings import TablePlan
from ..native.trainers import frozen_names
from ..parallel.ops.graph import Graph, Operator
from ..parallel.ops.registry import collectives, rule_of
from ..parallel.ops.rule import OperatorShard
from ..parallel.ops.tracing import TracedNetwork, traced
from ..parallel.plans.plan import Plan, ResolvedPlan
from ..parallel.plans.stages import Stages
from ..parallel.plans.store_plan import StorePlan
from ..parallel.plans.strategies import Explicit, data_parallel
from ..parallel.rules.batch_norm import with_own_statistics
from ..parallel.runtime.input_shards import InputShards
from ..parallel.runtime.micro_batches import output_boxes
from ..parallel.runtime.network_shards import NetworkShards
from ..parallel.sharding.box import shape_of
from ..parallel.sharding.split import OutputShard, Split
from .cluster.cluster_spec import Cluster
from .cluster.machine_model import Machine
from .plain_network import plain_network
from .profiling.core_benchmark import KernelTimes
from .profiling.operator_profiler import OperatorProfiler
from .profiling.profile_key import ProfileKeys
from .profiling.roofline import arithmetic_share, work_of
from .search.search_space import SearchSpace
from .task_graph.array_layouts import Conversions
from .task_graph.dataflow import Dataflow
from .task_graph.dynamic_tables import dynamic_tables
from .task_graph.micro_batch_model import MICRO_BATCH_ARRAYS, MicroBatchModel
from .task_graph.operator_tasks import OperatorTasks, OperatorTimes
from .task_graph.prediction import Prediction, ProgramScale
from .task_graph.weight_tasks import WeightArrays

#: The most seconds that the operators of a program take, the most bytes of their outputs and of all weights, and the
#: most shards of a plan: larger programs are not timed as a whole, and those of many ranks take long to build.
_MOST_PROGRAM_S, _MOST_PROGRAM_BYTES, _MOST_SHARDS = 0.5, 1 << 30, 2000


class Predictor:
    """Predicts training steps of a network on a cluster.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialised; it is not changed.
    data : tuple of int, or list of them
        Shape of the joint batch of all ranks, of each input.
    cluster : Cluster
    profiles : OperatorProfiler
        Times of shards of operators.
    batch_axis, dtype
        As for :func:`mxhybrid.parallelize`.
    states : int, optional
        Number of arrays that the optimizer keeps for each weight; they count as memory.
    shard_updates : bool, optional
        Whether training divides updates and states of optimizers among the workers, the setting of that name.
    pipelines : bool, optional
        Whether a search may find pipelines.  With dynamic tables it finds none.
    tables : dict, optional
        The dynamic tables of the script, from whose rows the inputs of the network are computed: by Block, the number
        of ids that a sample looks up, on average.

    Raises
    ------
    InputError
        The network cannot be traced, or `tables` is of another kind.
    """

    def __init__(self, net: Any, data: Any, cluster: Cluster, profiles: OperatorProfiler,  # noqa: PLR0913
                 batch_axis: Any = 0, dtype: Any = 'float32', states: int = 0, shard_updates: bool = False,
                 pipelines: bool = True, tables: Optional[Mapping[Any, float]] = None):
        check_number('states', states, numbers.Integral, 0, optional=False)
        self.cluster, self.network = cluster, traced(net, data, batch_axis, dtype)
        self.graph, self._dimensions = self.network.graph, self.network.dimensions
        self._shares = InputShards(self.graph, self.network.axes, self._dimensions, cluster.ranks, 0, set())
        self._arrays = WeightArrays(int(states), shards_updates=shard_updates)
        frozen = frozen_names(net.collect_params())
        dataflow = Dataflow(self.graph, self._dimensions, self._shares, frozen)
        #: The dynamic tables of the script.
        self.dynamic_tables = dynamic_tables(tables or {}, self._shares.ranges)
        self._profiles, self._frozen = profiles, frozen
        # Times of operators are scaled to the cluster only if its file has the speed of its own cores.
        core_speed = 1.0 if cluster.reference is None else KernelTimes(*cluster.reference).speed_relative_to(
            profiles.kernel_times())
        machine = self._machine = Machine(cluster, core_speed)
        self._micro_batch_models: Dict[Tuple[int, bool], MicroBatchModel] = {}
        self._new_model = lambda measure: OperatorTasks(dataflow, machine, self._times(self.graph, measure),
                                                        self._arrays, self.dynamic_tables)
        self.model = self._new_model(True)
        #: The model that estimates all times that are not known.
        self._rough = self._new_model(False)
        self._pipelines = pipelines and not self.dynamic_tables
        self._space = SearchSpace(dataflow, cluster.ranks, max(host.ranks for host in cluster.hosts))
        self._base = self.splits(data_parallel())

    def _times(self, graph: Graph, measure: bool) -> OperatorTimes:
        """Return the times of a graph's operators; without `measure`, times that are not known are estimated."""
        keys = ProfileKeys(graph, collectives(), frozen=self._frozen)
        rates = KernelTimes(*self.cluster.reference).rates if self.cluster.reference else ()

        def shard_time(operator: Operator, output_shard: OutputShard, operator_shard: OperatorShard
                       ) -> Tuple[float, float]:
            return self._profiles.shard_seconds(graph, operator, output_shard, frozen=self._frozen, measure=measure,
                                                operator_shard=operator_shard)

        def share(operator: Operator, operator_shard: OperatorShard) -> float:
            return arithmetic_share(work_of(graph, operator, operator_shard), *rates)
        conversions = Conversions(keys.blocked_outputs(),
                                  lambda shape: self._profiles.conversion_seconds(shape, measure))
        return OperatorTimes(shard_time, keys.operator_key, conversions, share)

    def plain(self, measure: bool = True) -> Prediction:
        """Predict a step without a plan: each rank computes its own samples, and gradients are summed."""
        try:
            graph, dataflow, splits = plain_network(self.network, self._shares, self.cluster.ranks, self._frozen)
        except InputError:  # the network has the number of samples of the joint batch in it
            graph, splits = with_own_statistics(self.graph), self._base
            dataflow = Dataflow(graph, self._dimensions, self._shares, self._frozen)
        model = OperatorTasks(dataflow, self._machine, self._times(graph, measure), self._arrays, self.dynamic_tables)
        prediction = Prediction(model, splits, {}, self._program_scale(model, splits))
        self._profiles.save()
        return prediction

    def _measure(self) -> int:
        """Time the shards of operators that are split in one dimension over all ranks, and the shards of operators that
        follow them; return how many were not known yet.  Other shards are estimated from these.
        """
        needed = self._first_shards(self._base)
        shards = dict(needed)
        for number in self._space.deciding:
            for split in self._space.candidates(number):
                dimensions = sum(degree > 1 for degree in split.degrees + (split.partials,))
                if dimensions == 1 and len(split.ranks) == self.cluster.ranks or self.cluster.ranks == 1:
                    shards.update(self._first_shards(self._space.propagate(self._base, {number: split})))
        missing = self._profiles.measure(self.graph, [(operator, output_shard) for (_, output_shard), operator
                                                      in shards.items()], frozen=self._frozen, needed=needed)
        if self.cluster.ranks > 1:
            blocked = ProfileKeys(self.graph, collectives(), frozen=self._frozen).blocked_outputs()
            for number, output_shard in needed:
                if number in blocked:
                    self._profiles.conversion_seconds(shape_of(output_shard.box))
            self._profiles.save()
        return missing

    def _first_shards(self, splits: Mapping[int, Split]) -> Dict[Tuple[int, OutputShard], Operator]:
        """Return the shard that the first rank has of each operator."""
        shards = {}
        for number, split in splits.items():
            operator = self.graph.operators[number]
            output_shards = split.shards(self.graph.shape(operator), rule_of(operator).grains(self.graph, operator))
            shards[number, next(iter(output_shards.values()))] = operator
        return shards

    def splits(self, plan: Plan) -> Dict[int, Split]:
        """Return how a plan splits each operator, by its number; InputError if the plan does not fit the network."""
        return self._resolved(plan).splits

    def stages(self, plan: Plan) -> Optional[Stages]:
        """Return the pipeline of a plan; None if it has none."""
        return self._resolved(plan).stages

    def network_of(self, plan: Plan) -> TracedNetwork:
        """Return the network whose operators a plan splits: for a pipeline, that for a micro-batch."""
        return self.network if plan.micro_batches == 1 else self._micro_batch(plan.micro_batches, False).network

    def _resolved(self, plan: Plan) -> ResolvedPlan:
        if isinstance(plan, Explicit) and plan.cluster not in (None, self.cluster.digest()):
            raise InputError('plan: the planner found it for another cluster, with digest %s, not %s: search again, '
                             'or give the file of that cluster' % (plan.cluster, self.cluster.digest()))
        if plan.recompute:
            raise InputError('plan: recompute=%s: the planner predicts neither the time nor the memory of '
                             'recomputation: leave it out here, and give it to parallelize' % list(plan.recompute))
        network = self.network_of(plan)
        resolved = plan.resolve(network.graph, network.dimensions, self.cluster.ranks)
        if resolved.stages is not None and self.dynamic_tables:
            raise InputError('plan: a pipeline with dynamic tables is not predicted: leave the tables out')
        if resolved.stages is not None:  # raises an error for outputs that cannot be joined
            output_boxes(network.graph, self._dimensions, resolved.splits)
        return resolved

    def _micro_batch(self, micro_batches: int, measure: bool) -> MicroBatchModel:
        """Return the model of a micro-batch; InputError if the micro-batches do not divide the joint batch.

        Without `measure` it estimates all times that are not known.
        """
        if (micro_batches, measure) not in self._micro_batch_models:
            def make_model(dataflow: Dataflow) -> OperatorTasks:
                return OperatorTasks(dataflow, self._machine, self._times(dataflow.graph, measure),
                                     self._arrays._replace(others=MICRO_BATCH_ARRAYS))
            self._micro_batch_models[micro_batches, measure] = MicroBatchModel(
                self.network, self._shares, micro_batches, self._frozen, make_model)
        return self._micro_batch_models[micro_batches, measure]

    def tables(self, plan: Plan) -> Dict[str, TablePlan]:
        """Return the choices of a plan for tables, by the names of parameters; InputError for an unknown table."""
        return plan.store.by_name(self.graph)

    def predict(self, plan: Plan) -> Prediction:
        """Predict a step by a plan.

        Without a pipeline, the program of the rank that computes longest is timed as a whole, too, unless it is large:
        operators take another time together than each of them alone.
        """
        resolved = self._resolved(plan)
        if resolved.stages is None:
            prediction = Prediction(self.model, resolved.splits, self.tables(plan),
                                    self._program_scale(self.model, resolved.splits))
        else:
            prediction = self._predicted_pipeline(plan, True)
        self._profiles.save()
        return prediction

    def _program_scale(self, model: OperatorTasks, splits: Mapping[int, Split]) -> ProgramScale:
        """Return the times of the program of the rank that computes longest, divided by the sums of its operators'
        times; 1 if it is too large or cannot be timed.
        """
        if len(splits) * self.cluster.ranks > _MOST_SHARDS:
            return 1.0, 1.0
        seconds = model.rank_seconds(splits)
        rank = int(seconds.sum(axis=0).argmax())
        forward_s, backward_s = seconds[:, rank].tolist()
        size_bytes = sum(model.operator(number, split).output_bytes[rank] for number, split in splits.items())
        size_bytes += sum(4 * math.prod(shape) for shape in model.graph.parameters.values())
        if not 0 < forward_s + backward_s <= _MOST_PROGRAM_S or size_bytes > _MOST_PROGRAM_BYTES:
            return 1.0, 1.0
        blocked = {number for number, split in splits.items() if model.makes_blocked(number, split)}
        program = self._profiles.program_seconds(NetworkShards(model.graph, dict(splits)), rank, model.dataflow.shares,
                                                 self._frozen, blocked)
        if program is None or not program.forward:
            return 1.0, 1.0
        return program.forward / forward_s, program.backward / backward_s if backward_s else 1.0

    def explicit(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None,
                 stages: Optional[Stages] = None) -> Explicit:
        """Return a plan that is complete for this network and cluster; `tables` has names of parameters as keys.

        With a pipeline, `splits` are those for a micro-batch.
        """
        graph = self.graph if stages is None else self._micro_batch(stages.micro_batches, False).network.graph
        labels = {operator.name: graph.label(operator) for operator in graph.operators if operator.op == 'null'}
        return Explicit({graph.label(graph.operators[number]): split for number, split in sorted(splits.items())},
                        graph.digest(), self.cluster.ranks, self.cluster.digest(),
                        StorePlan({labels[name]: table for name, table in (tables or {}).items()}), stages)

    def _predicted_pipeline(self, plan: Plan, measure: bool) -> Prediction:
        resolved = self._resolved(plan)
        assert resolved.stages is not None
        return Prediction.of_pipeline(self._micro_batch(plan.micro_batches, measure), resolved.stages, resolved.splits)


def check_number(name: str, value: Any, kinds: Any, least: float, most: float = math.inf,
                 optional: bool = True) -> None:
    """Raise InputError if a value is not a number of the right kind and range."""
    if value is None and optional:
        return
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value <= most:
        raise InputError('%s=%r: give %s of at least %g%s%s' % (
            name, value, 'a whole number' if kinds is numbers.Integral else 'a number', least,
            '' if math.isinf(most) else ' and at most %g' % most, ', or None' if optional else ''))
