"""The search of ``mxhybrid.parallelize`` with ``plan='auto'``: worker 0 searches for a plan, and all workers try it."""
import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import resolve
from ..base.text import seconds_text
from ..job.join import member
from ..kvstore.hybrid import Hybrid
from ..parallel.ops.graph import Graph
from ..parallel.ops.tracing import TracedNetwork, traced
from ..parallel.plans.plan import Plan
from ..parallel.plans.plan_json import from_json
from ..parallel.plans.recompute import recompute_patterns, recomputed_segments
from ..parallel.plans.strategies import data_parallel
from ..parallel.redistribution.recovery import recover
from ..parallel.redistribution.worker_group import WorkerGroup, worker_group_of
from ..parallel.runtime.builder import SplitArguments, split_network
from ..parallel.runtime.input_shards import InputShards
from ..parallel.runtime.network_outline import outline_of
from .cluster.cluster_spec import Cluster, load
from .planner import Planner, preserve_rng_state
from .profiling.operator_profiler import OperatorProfiler

logger = get_logger(__name__)

#: Number of timed steps by each plan before one is chosen, and of warm-up steps before them.
_STEPS, _WARM = 5, 2


def find(request: SplitArguments, cluster: Any, search_seconds: Any) -> Plan:
    """Return the plan by which :func:`mxhybrid.parallelize` splits a network with ``plan='auto'`` (collective).

    All workers raise InputError if the arguments do not fit.
    """
    job = member()
    workers = worker_group_of(job)
    recover(workers)
    try:
        network = _checked(request, cluster, search_seconds)
    except InputError as error:
        workers.agree('parallelize', None, str(error))
        raise
    workers.agree('parallelize', outline_of("parallelize(plan='auto')", network, request.net.collect_params()))
    with preserve_rng_state():
        return _Automatic(request, network, workers, job.topology.memory_domains).choose(cluster, search_seconds)


def _checked(request: SplitArguments, cluster: Any, search_seconds: Any) -> TracedNetwork:
    if request.batch_norm != 'joint':
        raise InputError("parallelize: batch_norm=%r does not work with plan='auto', which may split more than "
                         'samples: leave it out, or give a plan' % (request.batch_norm,))
    if not isinstance(search_seconds, (int, float)) or not search_seconds > 0:
        raise InputError('parallelize: search_seconds=%r: give more than 0' % (search_seconds,))
    if not isinstance(cluster, (str, os.PathLike, Cluster, type(None))):
        raise InputError('parallelize: cluster=%r: give the name of a file, or a Cluster' % (cluster,))
    network = traced(request.net, request.data, request.batch_axis, request.dtype, request.init)
    # Patterns of blocks that cannot be computed again are refused before a search begins.
    recomputed_segments(network.graph, network.blocks, recompute_patterns(request.recompute), {}, set(), True)
    return network


class _Automatic:
    """A search, and a trial of the plan that it finds (collective)."""

    def __init__(self, request: SplitArguments, network: TracedNetwork, workers: WorkerGroup, places: Any):
        self._request, self._network, self._workers, self._places = request, network, workers, places

    def choose(self, cluster: Any, seconds: float) -> Plan:
        """Return the plan that was found if it is faster than data parallelism and than the network without a plan;
        otherwise data parallelism.
        """
        began = time.monotonic()
        result: Optional[Dict[str, Any]] = None
        problem = ''
        if self._workers.rank == 0:
            try:
                with self._workers.busy():
                    result = self._search(cluster, seconds)
            except InputError as error:
                problem = str(error)
        problem, result = self._workers.allgather([problem, result], 'auto')[0]
        if problem or result is None:
            raise InputError(problem)
        searched_s = time.monotonic() - began
        if result['name'] == 'data parallel':
            self._log('no plan is predicted to be faster than data parallelism, which is taken', searched_s, 0.0)
            return data_parallel()
        plan = from_json(with_own_labels(result['plan'], result['labels'], self._network.graph))
        times = {name: self._try(candidate)
                 for name, candidate in (('found', plan), ('data parallel', data_parallel()))}
        times['plain'] = self._step_seconds(*self._plain())
        is_faster = min(times, key=lambda name: times[name]) == 'found'
        self._log('a step takes %s by the plan that was found (predicted: %s), %s by data parallelism, and %s without '
                  'a plan: %s is taken' % (
                      seconds_text(times['found']), seconds_text(result['seconds']),
                      seconds_text(times['data parallel']), seconds_text(times['plain']),
                      'the plan that was found' if is_faster else 'data parallelism'),
                  searched_s, time.monotonic() - began - searched_s)
        return plan if is_faster else data_parallel()

    def _log(self, text: str, searched_s: float, tried_s: float) -> None:
        if self._workers.rank == 0:
            logger.info("plan='auto': %s; the search took %s, the trial %s", text, seconds_text(searched_s),
                        seconds_text(tried_s))

    def _search(self, cluster: Any, seconds: float) -> Dict[str, Any]:
        if cluster is None:
            raise InputError("parallelize: plan='auto' needs a cluster: give the file that mxhybrid calibrate has "
                             "written, cluster='cluster.json'")
        loaded = cluster if isinstance(cluster, Cluster) else load(cluster)
        workers = [self._places.count(place) for place in dict.fromkeys(self._places)]
        if [host.ranks for host in loaded.hosts] != workers:
            raise InputError('parallelize: the cluster file has hosts of %s workers, but the job has hosts of %s: '
                             'run mxhybrid calibrate on the hosts of the job'
                             % ([host.ranks for host in loaded.hosts], workers))
        if loaded.warning:
            logger.warning('%s', loaded.warning)
        request = self._request
        # A pipeline gives inputs no gradients.
        search_result = Planner(request.net, request.data, loaded, OperatorProfiler(), request.batch_axis,
                                request.dtype, shard_updates=resolve().shard_updates,
                                pipelines=not request.input_grad).search(seconds)
        return {'name': search_result.name, 'plan': search_result.plan.as_json(),
                'seconds': search_result.prediction.seconds,
                'labels': _labels(self._network.graph)}

    def _try(self, plan: Plan) -> float:
        """Return the seconds of a step by a plan, on the slowest worker, with a copy of the network."""
        request = self._request
        net = split_network(SplitArguments(_Copy(self._network, request.net), request.data, request.batch_axis,
                                         request.dtype), plan)
        seconds = self._step_seconds(net, net.local_inputs)
        net.release()
        return seconds

    def _plain(self) -> Tuple[Any, List[Tuple[Tuple[int, ...], Any]]]:
        """Return a copy of the network without a plan, each worker with its own statistics, and the shapes and types of
        a worker's inputs.
        """
        net, graph = _Copy(self._network, self._request.net), self._network.graph
        net.hybridize(static_alloc=True, static_shape=True)
        input_shards = InputShards(graph, self._network.axes, self._network.dimensions, self._workers.size,
                                   self._workers.rank, set())
        return net, input_shards.local_inputs

    def _step_seconds(self, net: Any, shapes: Sequence[Tuple[Tuple[int, ...], Any]]) -> float:
        """Return the seconds of a step of a network, on the slowest worker, with data of zeros."""
        inputs = [mx.nd.zeros(shape, ctx=mx.cpu(), dtype=dtype) for shape, dtype in shapes]
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.0}, kvstore=Hybrid())
        times: List[float] = []
        for _ in range(_WARM + _STEPS):
            began = time.monotonic()
            with autograd.record():
                outputs = net(*inputs)
            autograd.backward(outputs)
            trainer.step(1)
            mx.nd.waitall()
            times.append(time.monotonic() - began)
        median = sorted(times[_WARM:])[_STEPS // 2]
        return max(self._workers.allgather(median, 'tried'))


def _labels(graph: Graph) -> List[str]:
    return [graph.label(operator) for operator in graph.operators]


def with_own_labels(plan: Dict[str, Any], labels: List[str], graph: Graph) -> Dict[str, Any]:
    """Return worker 0's plan as JSON, with this worker's labels in place of worker 0's `labels`."""
    own_label = dict(zip(labels, _labels(graph)))
    own_plan = dict(plan)
    for section in ('operators', 'tables'):
        if section in own_plan:
            own_plan[section] = {own_label[label]: value for label, value in own_plan[section].items()}
    return own_plan


class _Copy(gluon.SymbolBlock):
    """A copy of a network with parameters of its own, which are zeros."""

    def __init__(self, network: TracedNetwork, net: Any):
        graph: Graph = network.graph
        types = graph.input_dtypes
        tables = gluon.ParameterDict()
        for number in graph.tables:  # a SymbolBlock makes parameters with dense gradients
            name = graph.operators[number].name
            tables.get(name, allow_deferred_init=True, grad_stype='row_sparse', dtype=types[name])
        super().__init__(network.symbol, [mx.sym.var(name) for name in network.axes], tables)
        # Labels of operators in plans do not contain the network's prefix.
        self._prefix = net.prefix
        own = net.collect_params()
        for name, param in self.collect_params().items():
            param.shape, param.grad_req = graph.parameter_arrays[name], own[name].grad_req
            param.cast(types[name])
        self.initialize(mx.init.Zero(), ctx=mx.cpu())
