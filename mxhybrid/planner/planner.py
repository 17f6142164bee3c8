"""Plans of a network on a cluster: what they take, and which takes least."""
import contextlib
import gc
import math
import numbers
import os
import sys
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.settings import TablePlan
from ..parallel.ops.collective_ops import COMPOSED
from ..parallel.ops.graph import Operator
from ..parallel.ops.registry import rule_of
from ..parallel.ops.rule import OperatorPart
from ..parallel.ops.tracing import traced
from ..parallel.plans.plan import Plan
from ..parallel.plans.plan_json import as_plan
from ..parallel.plans.store_plan import StorePlan
from ..parallel.plans.strategies import Explicit, data_parallel, grid, one_weird_trick
from ..parallel.runtime.input_shards import Shares
from ..parallel.sharding.split import PartPlace, Split
from .analytic.communication_cost import alpha_beta_of, best_choices, split_plan
from .analytic.layer_sizes import sizes_of
from .cluster.cluster_spec import Cluster, load as load_cluster
from .profiling.operator_profiler import OperatorProfiler
from .profiling.profile_key import ProfileKeys
from .search.gc_control import no_collections
from .search.mcmc import Discovery, SearchLimits, Watcher, walk_randomly
from .search.pareto import Point
from .search.plan_evaluator import PlanProblem, random_decisions
from .search.search_space import Choices
from .task_graph.dataflow import StepGraph
from .task_graph.operator_tasks import PartTime, StepModel
from .task_graph.prediction import Prediction
from .task_graph.task_builder import Machine

#: Starts, the fastest, of which the steps are simulated as the found plan's are, one behind the other.
_FINALISTS = 3

#: Seconds of walking where nothing is said: with what comes before and behind it, and a command's imports, less than 10
#: for Inception-v3 on 16 ranks, once operators were timed.
SEARCH_SECONDS = 4.5


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """What `mx.random` draws behind this is given by its state before, whatever is timed and tried in between."""
    seed = int(mx.nd.random.randint(0, 2 ** 30, shape=(1,), ctx=mx.cpu()).asscalar())
    try:
        yield
    finally:
        mx.random.seed(seed)


def frozen_parameters(net: Any) -> Set[str]:
    """Parameters without gradients, by name."""
    return {name for name, param in net.collect_params().items() if param.grad_req == 'null'}


class FoundPlan(NamedTuple):
    """What a search has come to.

    Attributes
    ----------
    plan : Plan
        As :func:`mxhybrid.parallelize` takes it, with digests of network and cluster.
    name : str
        Where it comes from: ``'search'``, or the start that nothing was better than.
    prediction : Prediction
    others : dict of str to Prediction
        Of the plans that the search began with; always with ``'data parallel'``.
    plain : Prediction
        Of the network without a plan: data parallelism, each rank with its own statistics.
    front : list of Point
        Plans that were seen of which none is better in time and memory.
    discovery : Discovery
    """

    plan: Explicit
    name: str
    prediction: Prediction
    others: Dict[str, Prediction]
    plain: Prediction
    front: List[Point]
    discovery: Discovery


class Planner:
    """Simulates training steps of a network on a cluster.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialised; nothing in it changes.
    data : tuple of int, or list of them
        Shape of the joint batch of all ranks, of each input.
    cluster : Cluster
    profiles : OperatorProfiler
        Times of parts of operators.
    batch_axis, dtype
        As for :func:`mxhybrid.parallelize`.
    states : int, optional
        Arrays that the optimizer keeps beside each weight, for the memory.
    sums : str, optional
        What sums dense weights, where that cannot be chosen any more.

    Raises
    ------
    InputError
        A network that cannot be traced.
    """

    def __init__(self, net: Any, data: Any, cluster: Cluster, profiles: OperatorProfiler, batch_axis: Any = 0,
                 dtype: Any = 'float32', states: int = 0, sums: Optional[str] = None):
        _check('states', states, numbers.Integral, 0, optional=False)
        self.cluster, self.network = cluster, traced(net, data, batch_axis, dtype)
        self.graph, self._dimensions = self.network.graph, self.network.dimensions
        self._shares = Shares(self.graph, self.network.axes, self._dimensions, cluster.ranks, 0, set())
        self._states, frozen = states, frozen_parameters(net)
        step_graph = StepGraph(self.graph, self._dimensions, self._shares, frozen)
        self._profiles, self._frozen = profiles, frozen
        # How fast operators were timed counts where the cluster says how fast its own cores are.
        machine = Machine(cluster, None if cluster.reference is None else profiles.kernel_times())
        keys = ProfileKeys(self.graph, COMPOSED[True], frozen=frozen)
        self._new_model = lambda measure: StepModel(step_graph, machine, self._part_times(measure), states,
                                                    alike=keys.operator_key)
        self.model = self._new_model(True)
        #: Of what was not measured it has estimates.
        self._rough = self._new_model(False)
        self._sums = sums
        self._choices = Choices(step_graph, cluster.ranks, max(host.ranks for host in cluster.hosts),
                                (sums,) if sums and cluster.sums else cluster.sums)
        self._base = self.splits(data_parallel())

    def _part_times(self, measure: bool) -> PartTime:
        def part_time(one: Operator, place: PartPlace, part: OperatorPart) -> Tuple[float, float]:
            return self._profiles.shard_seconds(self.graph, one, place, frozen=self._frozen, measure=measure, part=part)
        return part_time

    def plain(self, measure: bool = True) -> Prediction:
        """What a step takes without a plan: data parallelism, each rank with its own statistics."""
        graph = self.graph.with_own_statistics()
        keys = ProfileKeys(graph, COMPOSED[True], frozen=self._frozen)

        def part_time(one: Operator, place: PartPlace, part: OperatorPart) -> Tuple[float, float]:
            return self._profiles.shard_seconds(graph, one, place, frozen=self._frozen, measure=measure, part=part)
        step_graph = StepGraph(graph, self._dimensions, self._shares, self._frozen)
        model = StepModel(step_graph, Machine(self.cluster), part_time, self._states, alike=keys.operator_key)
        found = Prediction(model, self._base, {}, self._sums)
        self._profiles.save()
        return found

    def _measure(self) -> int:
        """Time parts of operators that are cut in one dimension, in as many parts as there are ranks, and of those that
        follow them: the others are estimated from these.  How many were not known yet.
        """
        needed = self._first_parts(self._base)
        wanted = dict(needed)
        for number in self._choices.deciding:
            for split in self._choices.of(number):
                cut = sum(degree > 1 for degree in split.degrees + (split.addends,))
                if cut == 1 and len(split.ranks) == self.cluster.ranks or self.cluster.ranks == 1:
                    wanted.update(self._first_parts(self._choices.follow(self._base, {number: split})))
        return self._profiles.measure(self.graph, [(one, place) for (_, place), one in wanted.items()],
                                      frozen=self._frozen, needed=needed)

    def _first_parts(self, splits: Mapping[int, Split]) -> Dict[Tuple[int, PartPlace], Operator]:
        """Of each operator that is split, the part of the first rank."""
        found = {}
        for number, split in splits.items():
            one = self.graph.operators[number]
            places = split.places(self.graph.shape(one), rule_of(one).grains(self.graph, one))
            found[number, next(iter(places.values()))] = one
        return found

    def splits(self, plan: Plan) -> Dict[int, Split]:
        """How a plan splits the network; InputError where it cannot."""
        if isinstance(plan, Explicit) and plan.cluster not in (None, self.cluster.digest()):
            raise InputError('plan: it was found for another cluster (digest %s, not %s): search again, or take the '
                             'cluster file that it was found with' % (plan.cluster, self.cluster.digest()))
        return plan.settle(self.graph, self._dimensions, self.cluster.ranks).splits

    def tables(self, plan: Plan) -> Dict[str, TablePlan]:
        """What a plan says of tables, by the names of their parameters; InputError for one that is not there."""
        return plan.store.by_name(self.graph)

    def predict(self, plan: Plan) -> Prediction:
        """What a step takes by a plan."""
        found = Prediction(self.model, self.splits(plan), self.tables(plan), self._sums or plan.store.dense)
        self._profiles.save()
        return found

    def explicit(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None,
                 dense: Optional[str] = None) -> Explicit:
        """A plan that says it all; tables by the names of their parameters."""
        labels = {one.name: self.graph.label(one) for one in self.graph.operators if one.op == 'null'}
        return Explicit({self.graph.label(self.graph.operators[number]): split for number, split in
                         sorted(splits.items())}, self.graph.digest(), self.cluster.ranks, self.cluster.digest(),
                        StorePlan({labels[name]: one for name, one in (tables or {}).items()}, dense))

    def starts(self) -> Dict[str, Plan]:
        """Plans that a search begins with: data parallelism, the one weird trick, and all grids."""
        ranks = self.cluster.ranks
        found: Dict[str, Plan] = {'data parallel': data_parallel(), 'one weird trick': one_weird_trick()}
        batch = max((self.graph.data[name][axis] for name, axis in self.network.axes.items() if axis is not None),
                    default=0)
        if batch and ranks > 1 and self.graph.parameters.keys() - self._frozen - self.graph.auxiliary:
            layers = sizes_of(self.graph, batch, self._frozen)
            found['formula'] = split_plan(layers, best_choices(layers, batch, ranks, alpha_beta_of(self.cluster)))
        for model in range(2, ranks + 1):
            if ranks % model == 0:
                for plan in (grid(model=model, batch=ranks // model), grid(domain=(model,), batch=ranks // model)):
                    found[plan.name] = plan
        return found

    def search(self, seconds: Optional[float] = SEARCH_SECONDS, proposals: Optional[int] = None, seed: int = 0,
               memory_bytes: Optional[float] = None, start: Optional[Plan] = None,
               progress: Optional[Watcher] = None, stale: Optional[int] = None) -> FoundPlan:
        """Look for the plan with the shortest step (Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep
        Neural Networks", MLSys 2019, section 6).

        Parameters
        ----------
        seconds, proposals : optional
            What the search takes at most.
        seed : int, optional
            The same one finds the same plan, where `proposals` end the search.
        memory_bytes : float, optional
            That no rank may exceed; by default the least that one has of its host's memory, where the cluster says it.
        start : Plan, optional
            One more to begin with.
        progress : callable, optional
            Told of each proposal; ends the search if it returns something true.
        stale : int, optional
            Ends the walk from each start after so many proposals without gain.

        Raises
        ------
        InputError
            No plan within the memory, no end to the search, or values that are none.
        """
        _check('seconds', seconds, numbers.Real, 0, sys.float_info.max)
        _check('proposals', proposals, numbers.Integral, 0)
        _check('stale', stale, numbers.Integral, 1)
        _check('memory_bytes', memory_bytes, numbers.Real, 0)
        _check('seed', seed, numbers.Integral, 0, (1 << 32) - 1, False)
        if start is not None and not isinstance(start, Plan):
            raise InputError('start=%r: give a plan, as of mxhybrid.parallel' % (start,))
        if start is not None:
            self.splits(start)  # which says what is wrong with it, before operators are timed
        # What it has found is timed as it is, but where all was known before, nothing is: a search takes its time then.
        model = self.model if self._measure() else self._rough
        limits = SearchLimits(seconds, proposals, stale,
                              self.cluster.rank_memory if memory_bytes is None else memory_bytes)
        if model is self.model:  # programs that are timed are in cycles
            return self._search(model, limits, seed, start, progress)
        with no_collections():
            return self._search(model, limits, seed, start, progress)

    def _search(self, model: StepModel, limits: SearchLimits, seed: int, start: Optional[Plan],
                progress: Optional[Watcher]) -> FoundPlan:
        problem = PlanProblem(self._rough, self._choices)
        given = self.starts()
        if start is not None:
            given['imported'] = start
        plans = {name: (self.splits(plan), self.tables(plan), self._sums or plan.store.dense)
                 for name, plan in given.items()}
        starts = {name: problem.decisions(*plan) for name, plan in plans.items()}
        draw = np.random.RandomState(seed).uniform(size=problem.operators).tolist()
        starts['random'] = random_decisions(self._choices, draw)
        found = walk_randomly(problem, starts, limits, seed, progress)
        if model is self.model:
            # What models remember of very many ranks are gigabytes, in cycles, and this is the other one.
            self._rough = self._new_model(False)
            gc.collect()
        problem = PlanProblem(self._rough, self._choices)  # without what the other one has simulated
        splits = problem.splits(found.assignment)
        # What has come back to where it began is no other plan.
        last = next((name for name, plan in plans.items() if starts[name] == found.assignment and plan[0] == splits),
                    'search')
        plans.setdefault(last, (splits, problem.tables(found.assignment), problem.dense(found.assignment)))
        # A search simulates a step by itself; here they follow each other.
        quick = sorted(found.walks, key=lambda walk: walk.seconds)[:_FINALISTS]
        predictions: Dict[str, Prediction] = {}
        for name in dict.fromkeys([last, 'data parallel'] + [walk.start for walk in quick if walk.start in plans]):
            if name == 'data parallel' or all(plans[name] != plans[other] for other in predictions):
                predictions[name] = Prediction(model, *plans[name])
        fitting = [name for name, one in predictions.items()
                   if limits.memory is None or one.largest_memory() <= limits.memory]
        self._profiles.save()
        best = min(fitting, key=lambda name: predictions[name].seconds)
        plain = self.plain(model is self.model) if any(one.op == 'BatchNorm' for one in self.graph.computing) \
            else predictions['data parallel']
        if plain.seconds <= predictions[best].seconds and 'data parallel' in fitting:
            best = 'data parallel'  # which is nearest to what there was before
        splits = plans[best][0]
        decisions = problem.decisions(*plans[best])
        tables, dense = problem.tables(decisions), problem.dense(decisions)
        if dense is None and start is not None:
            dense = start.store.dense
        return FoundPlan(self.explicit(splits, tables, dense), best, predictions[best],
                         {name: one for name, one in predictions.items() if name != best or name == 'data parallel'},
                         plain, found.front, found)


def _check(name: str, value: Any, kinds: Any, least: float, most: float = math.inf, optional: bool = True) -> None:
    """InputError for what is no such number."""
    if value is None and optional:
        return
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value <= most:
        raise InputError('%s=%r: give %s of at least %g%s%s' % (
            name, value, 'a whole number' if kinds is numbers.Integral else 'a number', least,
            '' if math.isinf(most) else ' and at most %g' % most, ', or None' if optional else ''))


def search(net: Any, data: Any, cluster: Any, seconds: Optional[float] = SEARCH_SECONDS,
           proposals: Optional[int] = None, seed: int = 0, memory_bytes: Optional[float] = None, start: Any = None,
           batch_axis: Any = 0, dtype: Any = 'float32', states: int = 0, profiles: Any = None,
           progress: Optional[Watcher] = None, stale: Optional[int] = None) -> FoundPlan:
    """Find the plan with the shortest training step of a network on a cluster, in one process, without a job.

    The first search times operators on this machine, which may take minutes; later ones find the times in a file.
    What `mx.random` draws afterwards is given by its state before, whatever was timed.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialised; nothing in it changes.
    data : tuple of int, or list of them
        Shape of the joint batch of all workers, of each input.
    cluster : str, os.PathLike or Cluster
        The file that ``mxhybrid calibrate`` has measured, or that was written by hand.
    seconds, proposals, seed, memory_bytes, progress, stale : optional
        As for :meth:`Planner.search`.
    start : plan, dict or str, optional
        One more plan to begin with, as for :func:`mxhybrid.parallelize`.
    batch_axis, dtype : optional
        As for :func:`mxhybrid.parallelize`.
    states : int, optional
        Arrays that the optimizer keeps beside each weight, for the memory.
    profiles : str or os.PathLike, optional
        The file with times of operators; by default one in ``~/.cache/mxhybrid``.

    Returns
    -------
    FoundPlan
        Its `plan` is what :func:`mxhybrid.parallelize` takes, and :func:`mxhybrid.parallel.save` writes.

    Raises
    ------
    InputError
        A network that cannot be traced, a file that is no cluster or no plan, a plan for something else, no plan within
        the memory, or no end to the search.
    """
    if not isinstance(cluster, (str, os.PathLike, Cluster)):
        raise InputError('cluster=%r: give the name of a file, or a Cluster' % (cluster,))
    there = cluster if isinstance(cluster, Cluster) else load_cluster(os.fspath(cluster))
    with preserve_rng_state():
        planner = Planner(net, data, there, OperatorProfiler(profiles), batch_axis, dtype, states)
        return planner.search(seconds, proposals, seed, memory_bytes, None if start is None else as_plan(start),
                              progress, stale)
