"""Plans of a network on a cluster: predicts their steps, and searches for the plan with the shortest one."""
import contextlib
import dataclasses
import gc
import math
import numbers
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.settings import TablePlan
from ..parallel.ops.graph import Graph, Operator
from ..parallel.ops.registry import collectives, rule_of
from ..parallel.ops.rule import OperatorShard
from ..parallel.ops.tracing import TracedNetwork, traced
from ..parallel.plans.megatron import megatron
from ..parallel.plans.pipeline_plan import Pipeline
from ..parallel.plans.plan import Plan, ResolvedPlan
from ..parallel.plans.plan_json import as_plan
from ..parallel.plans.stages import Stages
from ..parallel.plans.store_plan import StorePlan
from ..parallel.plans.strategies import Explicit, Layers, data_parallel, grid, one_weird_trick
from ..parallel.rules.batch_norm import with_own_statistics
from ..parallel.runtime.input_shards import InputShards
from ..parallel.runtime.micro_batches import output_boxes
from ..parallel.runtime.network_shards import NetworkShards
from ..parallel.sharding.split import OutputShard, Split
from .analytic.communication_cost import alpha_beta_of, best_choices, split_plan
from .analytic.layer_sizes import sizes_of
from .cluster.cluster_spec import Cluster, load as load_cluster
from .cluster.machine_model import Machine
from .plain_network import differs_from_data_parallelism, plain_network
from .profiling.core_benchmark import KernelTimes
from .profiling.operator_profiler import OperatorProfiler
from .profiling.profile_key import ProfileKeys
from .search.gc_control import paused_gc
from .search.mcmc import SearchLimits, SearchResult, Watcher, run_chains
from .search.pareto import Point
from .search.pipeline_starts import can_be_pipelined, pipeline_starts
from .search.plan_evaluator import PlanEvaluator, random_decisions
from .search.search_space import SearchSpace
from .task_graph.dataflow import Dataflow
from .task_graph.dynamic_tables import dynamic_tables
from .task_graph.micro_batch_model import MICRO_BATCH_ARRAYS, MicroBatchModel
from .task_graph.operator_tasks import OperatorTasks, ShardTime
from .task_graph.pipeline_tasks import single_step
from .task_graph.prediction import Prediction
from .task_graph.weight_tasks import WeightArrays

#: Number of the fastest starts whose steps are simulated like those of the plan that was found, one after the other.
_FINALISTS = 3

#: The largest number of pipelines that a search simulates, the share of its time that this may take, and the number of
#: the fastest ones that are predicted like other plans.
_MOST_PIPELINES, _PIPELINE_SHARE, _PIPELINE_FINALISTS = 12, 0.25, 2

#: Default seconds of a search.  The whole command then takes less than 10 s for Inception-v3 on 16 ranks, once
#: operators were timed.
SEARCH_SECONDS = 4.5


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Make `mx.random` draw the same numbers after this block, whatever is timed and tried inside."""
    seed = int(mx.nd.random.randint(0, 2 ** 30, shape=(1,), ctx=mx.cpu()).asscalar())
    try:
        yield
    finally:
        mx.random.seed(seed)


def frozen_parameters(net: Any) -> Set[str]:
    """Return the names of parameters that receive no gradients."""
    return {name for name, param in net.collect_params().items() if param.grad_req == 'null'}


class FoundPlan(NamedTuple):
    """The result of a search.

    Attributes
    ----------
    plan : Plan
        A plan for :func:`mxhybrid.parallelize`, with digests of network and cluster.
    name : str
        The origin of the plan: ``'search'``, or the name of the start that the search did not improve on.
    prediction : Prediction
        The predicted step of the plan.
    others : dict of str to Prediction
        The fastest starts of the search, always with ``'data parallel'``.
    plain : Prediction
        The network without a plan: each rank computes all of it for its own samples, and gradients are summed.
    front : list of Point
        The Pareto front of the plans that were evaluated: none is better in both time and memory.
    search_result : SearchResult
    """

    plan: Explicit
    name: str
    prediction: Prediction
    others: Dict[str, Prediction]
    plain: Prediction
    front: List[Point]
    search_result: SearchResult


class Planner:
    """Simulates training steps of a network on a cluster.

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
    sums : str, optional
        ``'lane'`` or ``'horovod'`` if it is settled which of them sums dense gradients.
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

    def __init__(self, net: Any, data: Any, cluster: Cluster, profiles: OperatorProfiler, batch_axis: Any = 0,
                 dtype: Any = 'float32', states: int = 0, sums: Optional[str] = None,
                 shard_updates: bool = False, pipelines: bool = True, tables: Optional[Mapping[Any, float]] = None):
        _check('states', states, numbers.Integral, 0, optional=False)
        self.cluster, self.network = cluster, traced(net, data, batch_axis, dtype)
        self.graph, self._dimensions = self.network.graph, self.network.dimensions
        self._shares = InputShards(self.graph, self.network.axes, self._dimensions, cluster.ranks, 0, set())
        self._arrays, frozen = WeightArrays(int(states), shards_updates=shard_updates), frozen_parameters(net)
        dataflow = Dataflow(self.graph, self._dimensions, self._shares, frozen)
        #: The dynamic tables of the script.
        self.dynamic_tables = dynamic_tables(tables or {}, self._shares.ranges)
        self._profiles, self._frozen = profiles, frozen
        # Times of operators are scaled to the cluster only if its file has the speed of its own cores.
        self._core_speed = 1.0 if cluster.reference is None else KernelTimes(*cluster.reference).speed_relative_to(
            profiles.kernel_times())
        machine = self._machine = Machine(cluster, self._core_speed)
        self._micro_batch_models: Dict[Tuple[int, bool], MicroBatchModel] = {}
        keys = ProfileKeys(self.graph, collectives(), frozen=frozen)
        self._new_model = lambda measure: OperatorTasks(dataflow, machine, self._shard_times(measure), self._arrays,
                                                    alike=keys.operator_key, tables=self.dynamic_tables)
        self.model = self._new_model(True)
        #: The model that estimates all times that are not known.
        self._rough = self._new_model(False)
        self._sums, self._pipelines = sums, pipelines and not self.dynamic_tables
        self._space = SearchSpace(dataflow, cluster.ranks, max(host.ranks for host in cluster.hosts),
                                (sums,) if sums and cluster.sums else cluster.sums)
        self._base = self.splits(data_parallel())

    def _shard_times(self, measure: bool, graph: Optional[Graph] = None) -> ShardTime:
        timed_graph = self.graph if graph is None else graph

        def shard_time(operator: Operator, output_shard: OutputShard, operator_shard: OperatorShard
                       ) -> Tuple[float, float]:
            return self._profiles.shard_seconds(timed_graph, operator, output_shard, frozen=self._frozen,
                                                measure=measure, operator_shard=operator_shard)
        return shard_time

    def plain(self, measure: bool = True) -> Prediction:
        """Predict a step of the network without a plan: each rank computes all of it for its own samples, and
        gradients are summed.
        """
        try:
            graph, dataflow, splits = plain_network(self.network, self._shares, self.cluster.ranks, self._frozen)
        except InputError:  # the network has the number of samples of the joint batch in it
            graph, splits = with_own_statistics(self.graph), self._base
            dataflow = Dataflow(graph, self._dimensions, self._shares, self._frozen)
        keys = ProfileKeys(graph, collectives(), frozen=self._frozen)

        def shard_time(operator: Operator, output_shard: OutputShard, operator_shard: OperatorShard
                       ) -> Tuple[float, float]:
            return self._profiles.shard_seconds(graph, operator, output_shard, frozen=self._frozen, measure=measure,
                                                operator_shard=operator_shard)
        machine = Machine(self.cluster, self._core_speed)
        model = OperatorTasks(dataflow, machine, shard_time, self._arrays, alike=keys.operator_key,
                              tables=self.dynamic_tables)
        prediction = Prediction(model, splits, {}, self._sums)
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
        return self._profiles.measure(self.graph, [(operator, output_shard) for (_, output_shard), operator
                                                   in shards.items()], frozen=self._frozen, needed=needed)

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
            raise InputError('plan: it was found for another cluster, with digest %s, not %s: search again, or give '
                             'the cluster file that it was found with' % (plan.cluster, self.cluster.digest()))
        if plan.recompute:
            raise InputError('plan: recompute=%s: the planner predicts neither the time nor the memory of '
                             'recomputation: leave it out here, and give it to parallelize' % list(plan.recompute))
        network = self.network_of(plan)
        resolved = plan.resolve(network.graph, network.dimensions, self.cluster.ranks)
        if resolved.stages is not None and self.dynamic_tables:
            raise InputError('plan: a pipeline beside dynamic tables is not predicted: leave the tables out')
        if resolved.stages is not None:  # raises an error for outputs that cannot be joined
            output_boxes(network.graph, self._dimensions, NetworkShards(network.graph, resolved.splits))
        return resolved

    def _micro_batch(self, micro_batches: int, measure: bool) -> MicroBatchModel:
        """Return the model of a micro-batch; InputError if the micro-batches do not divide the joint batch.

        Without `measure` it estimates all times that are not known.
        """
        if (micro_batches, measure) not in self._micro_batch_models:
            def make_model(dataflow: Dataflow) -> OperatorTasks:
                keys = ProfileKeys(dataflow.graph, collectives(), frozen=self._frozen)
                return OperatorTasks(dataflow, self._machine, self._shard_times(measure, dataflow.graph),
                                     self._arrays._replace(others=MICRO_BATCH_ARRAYS), alike=keys.operator_key)
            self._micro_batch_models[micro_batches, measure] = MicroBatchModel(
                self.network, self._shares, micro_batches, self._frozen, make_model)
        return self._micro_batch_models[micro_batches, measure]

    def tables(self, plan: Plan) -> Dict[str, TablePlan]:
        """Return what a plan says of tables, by the names of their parameters; InputError if a table does not exist."""
        return plan.store.by_name(self.graph)

    def predict(self, plan: Plan) -> Prediction:
        """Predict a step by a plan."""
        resolved, dense = self._resolved(plan), self._sums or plan.store.dense
        if resolved.stages is None:
            prediction = Prediction(self.model, resolved.splits, self.tables(plan), dense)
        else:
            prediction = Prediction.of_pipeline(self._micro_batch(plan.micro_batches, True), resolved.stages,
                                                resolved.splits, dense)
        self._profiles.save()
        return prediction

    def explicit(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None,
                 dense: Optional[str] = None, stages: Optional[Stages] = None) -> Explicit:
        """Return a plan that is complete for this network and cluster; `tables` has names of parameters as keys.

        With a pipeline, `splits` are those for a micro-batch.
        """
        graph = self.graph if stages is None else self._micro_batch(stages.micro_batches, False).network.graph
        labels = {operator.name: graph.label(operator) for operator in graph.operators if operator.op == 'null'}
        return Explicit({graph.label(graph.operators[number]): split for number, split in sorted(splits.items())},
                        graph.digest(), self.cluster.ranks, self.cluster.digest(),
                        StorePlan({labels[name]: table for name, table in (tables or {}).items()}, dense), stages)

    def starts(self) -> Dict[str, Plan]:
        """Return the plans that a search begins with: data parallelism, on all ranks and on those of one host alone,
        all operators on one rank, the one weird trick, the best choices by the formulas of :mod:`.analytic`, all grids,
        and for networks with attention or feed-forward layers tensor parallelism as in Megatron-LM.
        """
        ranks, first_host = self.cluster.ranks, self.cluster.hosts[0].ranks
        plans: Dict[str, Plan] = {'data parallel': data_parallel(), 'one weird trick': one_weird_trick()}
        batch = max((self.graph.data[name][axis] for name, axis in self.network.axes.items() if axis is not None),
                    default=0)
        if batch and ranks > 1 and self.graph.parameters.keys() - self._frozen - self.graph.auxiliary:
            sizes = sizes_of(self.graph, batch, self._frozen)
            plans['formula'] = split_plan(sizes, best_choices(sizes, batch, ranks, alpha_beta_of(self.cluster)))
        for model in range(2, ranks + 1):
            if ranks % model == 0:
                for plan in (grid(model=model, batch=ranks // model), grid(domain=(model,), batch=ranks // model)):
                    plans[plan.name] = plan
                tensor_parallel = megatron(model, ranks // model)
                with contextlib.suppress(InputError):  # without such layers, or with heads that cannot be divided
                    self.splits(tensor_parallel)
                    plans[tensor_parallel.name] = tensor_parallel
        if ranks > 1:
            # Where links are slow, it may be best to send samples, and no gradients or activations.
            plans['one worker'] = Layers({'*': {'ranks': [0]}}, strict=False)
        if 1 < first_host < ranks:
            plans['one host'] = Layers({'*': {'samples': first_host, 'ranks': list(range(first_host))}}, strict=False)
        return plans

    def search(self, seconds: Optional[float] = SEARCH_SECONDS, proposals: Optional[int] = None, seed: int = 0,
               memory_bytes: Optional[float] = None, start: Optional[Plan] = None,
               progress: Optional[Watcher] = None, stale: Optional[int] = None) -> FoundPlan:
        """Search for the plan with the shortest step (Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for
        Deep Neural Networks", MLSys 2019, section 6).

        Parameters
        ----------
        seconds, proposals : optional
            Limits of the search: its time, and the number of plans that it tries.
        seed : int, optional
            The same seed finds the same plan, if `proposals` end the search.
        memory_bytes : float, optional
            The memory that no rank may exceed; by default the smallest share that a rank has of its host's memory, if
            the cluster file has that.
        start : Plan, optional
            One more plan to begin with.
        progress : callable, optional
            Called at each proposal; the search ends if it returns a true value.
        stale : int, optional
            The patience of the search: the chain from a start ends after this number of proposals without gain.

        Raises
        ------
        InputError
            No plan was found within the memory, the search would never end, or a value is out of its range.
        """
        _check('seconds', seconds, numbers.Real, 0, sys.float_info.max)
        _check('proposals', proposals, numbers.Integral, 0)
        _check('stale', stale, numbers.Integral, 1)
        _check('memory_bytes', memory_bytes, numbers.Real, 0)
        _check('seed', seed, numbers.Integral, 0, (1 << 32) - 1, False)
        if start is not None and not isinstance(start, Plan):
            raise InputError('start=%r: give a plan of mxhybrid.parallel' % (start,))
        if start is not None:
            self.splits(start)  # raises what is wrong with it before operators are timed
        # If times were missing, the shards of the plan that is found are measured, too; if all were known, a search
        # takes no more than its own time.
        model = self.model if self._measure() else self._rough
        limits = SearchLimits(seconds, proposals, stale,
                              self.cluster.rank_memory if memory_bytes is None else memory_bytes)
        if model is self.model:  # timing leaves garbage in cycles
            return self._search(model, limits, seed, start, progress)
        with paused_gc():
            return self._search(model, limits, seed, start, progress)

    def _search(self, model: OperatorTasks, limits: SearchLimits, seed: int, start: Optional[Plan],
                progress: Optional[Watcher]) -> FoundPlan:
        problem = PlanEvaluator(self._rough, self._space)
        pipelines, limits = self._best_pipelines(limits)
        start_plans = self.starts()
        if start is not None and self.stages(start) is not None:
            pipelines['imported'] = start
        elif start is not None:
            start_plans['imported'] = start
        plans = {name: (self.splits(plan), self.tables(plan), self._sums or plan.store.dense)
                 for name, plan in start_plans.items()}
        starts = {name: problem.decisions(*plan) for name, plan in plans.items()}
        draw = np.random.RandomState(seed).uniform(size=problem.operators).tolist()
        starts['random'] = random_decisions(self._space, draw)
        chain_result = run_chains(problem, starts, limits, seed, progress)
        if model is self.model:
            # A model's caches take gigabytes for many ranks, in cycles: free them before the other model is used.
            self._rough = self._new_model(False)
            gc.collect()
        problem = PlanEvaluator(self._rough, self._space)  # without the caches of the search
        assignment = chain_result.assignment
        splits = problem.splits(assignment)
        # A chain may end where it began.
        last = next((name for name, plan in plans.items() if starts[name] == assignment and plan[0] == splits),
                    'search')
        plans.setdefault(last, (splits, problem.tables(assignment), problem.dense(assignment)))
        # The search simulates a single step; a prediction simulates steps that follow each other.
        quick = sorted(chain_result.chains, key=lambda chain: chain.seconds)[:_FINALISTS]
        predictions: Dict[str, Prediction] = {}
        for name in dict.fromkeys([last, 'data parallel'] + [chain.start for chain in quick if chain.start in plans]):
            if name == 'data parallel' or all(plans[name] != plans[other] for other in predictions):
                predictions[name] = Prediction(model, *plans[name])
        predictions.update({name: self._predicted_pipeline(plan, model is self.model)
                            for name, plan in pipelines.items()})
        fitting = [name for name, prediction in predictions.items()
                   if limits.memory is None or prediction.largest_memory() <= limits.memory]
        self._profiles.save()
        best = min(fitting, key=lambda name: predictions[name].seconds)
        plain = predictions['data parallel']
        if differs_from_data_parallelism(self.network, self._base, self.cluster.ranks):
            plain = self.plain(model is self.model)
        if plain.seconds <= predictions[best].seconds and 'data parallel' in fitting:
            best = 'data parallel'  # which changes least in a training
        if best in pipelines:
            resolved = self._resolved(pipelines[best])
            plan = self.explicit(resolved.splits, {}, self._sums, resolved.stages)
        else:
            decisions = problem.decisions(*plans[best])
            tables, dense = problem.tables(decisions), problem.dense(decisions)
            if dense is None and start is not None:
                dense = start.store.dense
            plan = self.explicit(plans[best][0], tables, dense)
        return FoundPlan(plan, best, predictions[best],
                         {name: prediction for name, prediction in predictions.items()
                          if name != best or name == 'data parallel'},
                         plain, chain_result.front, chain_result)


    def _best_pipelines(self, limits: SearchLimits) -> Tuple[Dict[str, Plan], SearchLimits]:
        """Return the fastest balanced pipelines by name, and the limits of the search that remain.

        Their times are simulated in the order of their estimates.
        """
        pipelines: Dict[str, Plan] = {}
        if not self._pipelines or self.cluster.ranks == 1 or not can_be_pipelined(self.network):
            return pipelines, limits
        began, batch = time.monotonic(), self._shares.ranges[-1][1]
        most_s = math.inf if limits.seconds is None else _PIPELINE_SHARE * limits.seconds
        exchange = self.cluster.costs['exchange']
        candidates = pipeline_starts(self._rough, self.cluster.ranks, batch,
                                     exchange.seconds(1, 0) + exchange.latency_s + self.cluster.link_latency_s)
        simulated: List[Tuple[float, str, Pipeline]] = []
        for candidate in candidates[:_MOST_PIPELINES]:
            if simulated and time.monotonic() - began > most_s:
                break
            for plan in (candidate.plan, candidate.plan.with_schedule('1f1b')):
                resolved = self._resolved(plan)
                assert resolved.stages is not None
                seconds, size_bytes = single_step(self._micro_batch(plan.micro_batches, False), resolved.stages,
                                                  resolved.splits, self._sums)
                if limits.memory is None or size_bytes <= limits.memory:
                    simulated.append((seconds, candidate.name, plan))
                    break
        for _, name, plan in sorted(simulated, key=lambda item: item[0])[:_PIPELINE_FINALISTS]:
            pipelines[name] = plan
        limits = dataclasses.replace(limits, is_memory_strict=not pipelines)
        if limits.seconds is not None:
            limits = dataclasses.replace(limits, seconds=max(0.0, limits.seconds - (time.monotonic() - began)))
        return pipelines, limits

    def _predicted_pipeline(self, plan: Plan, measure: bool) -> Prediction:
        resolved = self._resolved(plan)
        assert resolved.stages is not None
        return Prediction.of_pipeline(self._micro_batch(plan.micro_batches, measure), resolved.stages, resolved.splits,
                                      self._sums)


def _check(name: str, value: Any, kinds: Any, least: float, most: float = math.inf, optional: bool = True) -> None:
    """Raise InputError if a value is not a number of the right kind and range."""
    if value is None and optional:
        return
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value <= most:
        raise InputError('%s=%r: give %s of at least %g%s%s' % (
            name, value, 'a whole number' if kinds is numbers.Integral else 'a number', least,
            '' if math.isinf(most) else ' and at most %g' % most, ', or None' if optional else ''))


def search(net: Any, data: Any, cluster: Any, seconds: Optional[float] = SEARCH_SECONDS,
           proposals: Optional[int] = None, seed: int = 0, memory_bytes: Optional[float] = None, start: Any = None,
           batch_axis: Any = 0, dtype: Any = 'float32', states: int = 0, profiles: Any = None,
           progress: Optional[Watcher] = None, stale: Optional[int] = None, shard_updates: bool = False,
           pipelines: bool = True, tables: Optional[Mapping[Any, float]] = None) -> FoundPlan:
    """Find the plan with the shortest training step of a network on a cluster, in one process, without a job.

    The first search times operators on this machine, which may take minutes; later ones find the times in a file.
    The state of `mx.random` does not depend on measurements.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialised; it is not changed.
    data : tuple of int, or list of them
        Shape of the joint batch of all workers, of each input.
    cluster : str, os.PathLike or Cluster
        The file that ``mxhybrid calibrate`` has written, or that was written by hand.
    seconds, proposals, seed, memory_bytes, progress, stale : optional
        As for :meth:`Planner.search`.
    start : plan, dict or str, optional
        One more plan to begin with, in any form that :func:`mxhybrid.parallelize` accepts.
    batch_axis, dtype : optional
        As for :func:`mxhybrid.parallelize`.
    states : int, optional
        Number of arrays that the optimizer keeps for each weight; they count as memory.
    shard_updates : bool, optional
        Whether training divides updates and states of optimizers among the workers, the setting of that name.
    pipelines : bool, optional
        Whether the plan may be a pipeline.
    tables : dict, optional
        As for :class:`Planner`.
    profiles : str or os.PathLike, optional
        The file with times of operators; by default one in ``~/.cache/mxhybrid``.

    Returns
    -------
    FoundPlan
        Its `plan` is what :func:`mxhybrid.parallelize` takes, and :func:`mxhybrid.parallel.save` writes.

    Raises
    ------
    InputError
        The network cannot be traced, a file has no cluster or plan in it, a plan is for another network or cluster, no
        plan was found within the memory, or the search would never end.
    """
    if not isinstance(cluster, (str, os.PathLike, Cluster)):
        raise InputError('cluster=%r: give the name of a file, or a Cluster' % (cluster,))
    loaded = cluster if isinstance(cluster, Cluster) else load_cluster(os.fspath(cluster))
    with preserve_rng_state():
        planner = Planner(net, data, loaded, OperatorProfiler(profiles), batch_axis, dtype, states,
                          shard_updates=shard_updates, pipelines=pipelines, tables=tables)
        return planner.search(seconds, proposals, seed, memory_bytes, None if start is None else as_plan(start),
                              progress, stale)
