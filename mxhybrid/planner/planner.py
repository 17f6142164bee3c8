"""Searches for the plan of a network on a cluster with the shortest step."""
import contextlib
import dataclasses
import gc
import math
import numbers
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from ..base import log
from ..base.errors import InputError
from ..parallel.parallelize import SEARCH_SECONDS
from ..parallel.plans.megatron import megatron
from ..parallel.plans.pipeline_plan import Pipeline
from ..parallel.plans.plan import Plan
from ..parallel.plans.plan_json import as_plan
from ..parallel.plans.strategies import Explicit, Layers, data_parallel, grid, one_weird_trick
from .analytic.communication_cost import best_choices, fit_alpha_beta, split_plan
from .analytic.layer_sizes import layer_sizes
from .cluster.cluster_spec import Cluster, load as load_cluster
from .plain_network import differs_from_data_parallelism
from .predictor import Predictor, check_number
from .profiling.operator_profiler import OperatorProfiler
from .search.gc_control import paused_gc
from .search.mcmc import SearchLimits, SearchResult, Watcher, run_chains
from .search.pareto_front import Point
from .search.pipeline_starts import can_be_pipelined, pipeline_starts
from .search.plan_evaluator import PlanEvaluator, random_decisions
from .task_graph.operator_tasks import OperatorTasks
from .task_graph.pipeline_tasks import single_step
from .task_graph.prediction import Prediction

logger = log.get_logger(__name__)

#: Number of the fastest starts whose steps are simulated like those of the plan that was found, one after the other.
_FINALISTS = 3

#: The largest number of pipelines that a search simulates, the share of its time that this may take, and the number of
#: the fastest ones that are predicted like other plans.
_MOST_PIPELINES, _PIPELINE_SHARE, _PIPELINE_FINALISTS = 12, 0.25, 2


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Make `mx.random` draw the same numbers after this block, whatever is timed and tried inside."""
    seed = int(mx.nd.random.randint(0, 2 ** 30, shape=(1,), ctx=mx.cpu()).asscalar())
    try:
        yield
    finally:
        mx.random.seed(seed)


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


class Planner(Predictor):
    """Searches for the fastest plan; see :class:`Predictor` for the parameters."""

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
            sizes = layer_sizes(self.graph, batch, self._frozen)
            plans['formula'] = split_plan(sizes, best_choices(sizes, batch, ranks, fit_alpha_beta(self.cluster)))
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
               progress: Optional[Watcher] = None, patience: Optional[int] = None) -> FoundPlan:
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
        patience : int, optional
            The chain from a start ends after this number of proposals without gain.

        Raises
        ------
        InputError
            No plan was found within the memory, the search would never end, or a value is out of its range.
        """
        check_number('seconds', seconds, numbers.Real, 0, sys.float_info.max)
        check_number('proposals', proposals, numbers.Integral, 0)
        check_number('patience', patience, numbers.Integral, 1)
        check_number('memory_bytes', memory_bytes, numbers.Real, 0)
        check_number('seed', seed, numbers.Integral, 0, (1 << 32) - 1, False)
        if start is not None and not isinstance(start, Plan):
            raise InputError('start=%r: give a plan of mxhybrid.parallel' % (start,))
        if start is not None:
            self.splits(start)  # raises what is wrong with it before operators are timed
        # If times were missing, the shards of the plan that is found are measured, too; if all were known, a search
        # takes no more than its own time.
        model = self.model if self._measure() else self._rough
        limits = SearchLimits(seconds, proposals, patience,
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
        plans = {name: (self.splits(plan), self.tables(plan))
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
        plans.setdefault(last, (splits, problem.tables(assignment)))
        # The search simulates a single step; a prediction simulates steps that follow each other.
        quick = sorted(chain_result.chains, key=lambda chain: chain.seconds)[:_FINALISTS]
        predictions: Dict[str, Prediction] = {}
        for name in dict.fromkeys([last, 'data parallel'] + [chain.start for chain in quick if chain.start in plans]):
            if name == 'data parallel' or all(plans[name] != plans[other] for other in predictions):
                predictions[name] = Prediction(model, *plans[name], self._program_scale(model, plans[name][0]))
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
            plan = self.explicit(resolved.splits, {}, resolved.stages)
        else:
            plan = self.explicit(plans[best][0], problem.tables(problem.decisions(*plans[best])))
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
        redistribution = self.cluster.costs['redistribution']
        candidates = pipeline_starts(self._rough, self.cluster.ranks, batch,
                                     redistribution.seconds(1, 0) + redistribution.latency_s
                                     + self.cluster.link_latency_s)
        simulated: List[Tuple[float, str, Pipeline]] = []
        for candidate in candidates[:_MOST_PIPELINES]:
            if simulated and time.monotonic() - began > most_s:
                break
            for plan in (candidate.plan, candidate.plan.with_schedule('1f1b')):
                resolved = self._resolved(plan)
                assert resolved.stages is not None
                seconds, size_bytes = single_step(self._micro_batch(plan.micro_batches, False), resolved.stages,
                                                  resolved.splits)
                if limits.memory is None or size_bytes <= limits.memory:
                    simulated.append((seconds, candidate.name, plan))
                    break
        for _, name, plan in sorted(simulated, key=lambda item: item[0])[:_PIPELINE_FINALISTS]:
            pipelines[name] = plan
        limits = dataclasses.replace(limits, is_memory_strict=not pipelines)
        if limits.seconds is not None:
            limits = dataclasses.replace(limits, seconds=max(0.0, limits.seconds - (time.monotonic() - began)))
        return pipelines, limits


def search(net: Any, data: Any, cluster: Any, seconds: Optional[float] = SEARCH_SECONDS,  # noqa: PLR0913
           proposals: Optional[int] = None, seed: int = 0, memory_bytes: Optional[float] = None, start: Any = None,
           batch_axis: Any = 0, dtype: Any = 'float32', states: int = 0, profiles: Any = None,
           progress: Optional[Watcher] = None, patience: Optional[int] = None, shard_updates: bool = False,
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
    seconds, proposals, seed, memory_bytes, progress, patience : optional
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
                              progress, patience)
