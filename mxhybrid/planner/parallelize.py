"""``mxhybrid.parallelize``: splits a network by a given plan, or by one that worker 0 searches for."""
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
from ..parallel.runtime.builder import split_network
from ..parallel.runtime.input_shards import InputShards
from ..parallel.runtime.network_outline import outline_of
from ..parallel.runtime.parallel_block import ParallelBlock
from ..parallel.sharding.box import shape_of
from .cluster.cluster_spec import Cluster, load
from .planner import SEARCH_SECONDS, Planner, preserve_rng_state
from .profiling.operator_profiler import OperatorProfiler

logger = get_logger(__name__)

#: The value of `plan` that makes :func:`parallelize` search for a plan.
AUTOMATIC = 'auto'

#: Number of timed steps by each plan before one is chosen, and of warm-up steps before them.
_STEPS, _WARM = 5, 2


def parallelize(net: Any, plan: Any, data: Any, batch_axis: Any = 0, dtype: Any = 'float32', input_grad: bool = False,
                batch_norm: str = 'joint', cluster: Any = None, search_seconds: float = SEARCH_SECONDS,
                init: Any = None, recompute: Any = None) -> ParallelBlock:
    """Split a network over all workers of the job.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialised, with worker 0's values, unless `init` is given.  It is not changed, except that weights that are
        split leave it.
    plan : plan, dict or str
        A plan of :mod:`mxhybrid.parallel`, a dict as for :func:`mxhybrid.parallel.by_name`, the name of a JSON file, or
        ``'auto'``: then worker 0 searches for a plan, and the workers try it with copies of the network and data of
        zeros.  It is used if its steps are faster than steps with data parallelism, and than steps without a plan.
    data : tuple of int, or list of them
        Shape of the joint batch of all workers, of each input.
    batch_axis : int or list of int, optional
        The dimension of each input that has the samples; None for an input without samples, which all workers pass
        whole.
    dtype : dtype or list of them, optional
        The types of the inputs.
    input_grad : bool, optional
        True if the inputs get gradients, for example because other layers compute the inputs.
    batch_norm : str, optional
        ``'joint'``: statistics are those of the joint batch, as in one process.  ``'local'``: each worker's statistics
        and running averages are those of its own samples, as in data parallelism without a plan; only samples and
        channels may be split then.
    cluster : str or Cluster, optional
        For ``plan='auto'``: the file that ``mxhybrid calibrate`` has written, on worker 0's host.
    search_seconds : float, optional
        For ``plan='auto'``: the time of the search, once operators have been timed.
    init : Initializer or str, optional
        Gives values to parameters that have none, as ``net.initialize(init)`` does.  Worker 0 draws the same values as
        one process, one parameter after the other, and sends each worker its shards; no worker has the whole network.
    recompute : str or list of str, optional
        The names of blocks, or patterns of names (shell wildcards): the backward pass computes the activations of
        these blocks again, instead of keeping them.  The argument takes precedence over the plan.

    Returns
    -------
    ParallelBlock
        A Block that replaces the network.

    Raises
    ------
    InputError
        The network is not a HybridBlock or was not initialised, it does not accept the shapes, the plan does not fit
        it, the cluster file has other hosts, no plan fits into their memory, or another worker has another plan.  All
        workers raise it.
    """
    if isinstance(plan, str) and plan == AUTOMATIC:
        job = member()
        workers = worker_group_of(job)
        recover(workers)
        try:
            network = _checked(net, data, batch_axis, dtype, batch_norm, cluster, search_seconds, init)
            check_recompute(network, recompute)
        except InputError as error:
            workers.agree('parallelize', None, str(error))
            raise
        workers.agree('parallelize', outline_of("parallelize(plan='auto')", network, net.collect_params()))
        with preserve_rng_state():
            plan = _Automatic(net, network, workers, job.topology.memory_domains, not input_grad).choose(
                data, batch_axis, dtype, cluster, search_seconds)
    elif cluster is not None:
        raise InputError("parallelize: cluster is used only with plan='auto', not with plan=%r: leave it out, or give "
                         "plan='auto'" % (plan,))
    return split_network(net, plan, data, batch_axis, dtype, input_grad, batch_norm, init=init, recompute=recompute)


def _checked(net: Any, data: Any, batch_axis: Any, dtype: Any, batch_norm: str, cluster: Any, search_seconds: Any,
             init: Any) -> TracedNetwork:
    if batch_norm != 'joint':
        raise InputError("parallelize: batch_norm=%r does not work with plan='auto', which may split more than "
                         'samples: leave it out, or give a plan' % (batch_norm,))
    if not isinstance(search_seconds, (int, float)) or not search_seconds > 0:
        raise InputError('parallelize: search_seconds=%r: give more than 0' % (search_seconds,))
    if not isinstance(cluster, (str, os.PathLike, Cluster, type(None))):
        raise InputError('parallelize: cluster=%r: give the name of a file, or a Cluster' % (cluster,))
    return traced(net, data, batch_axis, dtype, init)


def check_recompute(network: TracedNetwork, recompute: Any) -> None:
    """Raise InputError for patterns of blocks that cannot be computed again, before a search begins."""
    patterns = recompute_patterns(recompute)
    recomputed_segments(network.graph, network.blocks, patterns, {}, set(), True)


class _Automatic:
    """A search, and a trial of the plan that it finds (collective)."""

    def __init__(self, net: Any, network: TracedNetwork, workers: WorkerGroup, places: Any, pipelines: bool):
        self._net, self._network, self._workers, self._places = net, network, workers, places
        #: Whether the plan may be a pipeline.
        self._pipelines = pipelines

    def choose(self, data: Any, batch_axis: Any, dtype: Any, cluster: Any, seconds: float) -> Plan:
        """Return the plan that was found if it is faster than data parallelism and than the network without a plan;
        otherwise data parallelism.
        """
        began = time.monotonic()
        result: Optional[Dict[str, Any]] = None
        problem = ''
        if self._workers.rank == 0:
            try:
                with self._workers.busy():
                    result = self._search(data, batch_axis, dtype, cluster, seconds)
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
        times = {name: self._try(candidate, data, batch_axis, dtype)
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

    def _search(self, data: Any, batch_axis: Any, dtype: Any, cluster: Any, seconds: float) -> Dict[str, Any]:
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
        search_result = Planner(self._net, data, loaded, OperatorProfiler(), batch_axis, dtype,
                                shard_updates=resolve().shard_updates, pipelines=self._pipelines).search(seconds)
        return {'name': search_result.name, 'plan': search_result.plan.as_json(),
                'seconds': search_result.prediction.seconds,
                'labels': _labels(self._network.graph)}

    def _try(self, plan: Plan, data: Any, batch_axis: Any, dtype: Any) -> float:
        """Return the seconds of a step by a plan, on the slowest worker, with a copy of the network."""
        net = split_network(_Copy(self._network, self._net), plan, data, batch_axis, dtype, False, 'joint')
        seconds = self._step_seconds(net, net.local_inputs)
        net.release()
        return seconds

    def _plain(self) -> Tuple[Any, List[Tuple[Tuple[int, ...], Any]]]:
        """Return a copy of the network without a plan, each worker with its own statistics, and the shapes and types of
        a worker's inputs.
        """
        net, graph = _Copy(self._network, self._net), self._network.graph
        net.hybridize(static_alloc=True, static_shape=True)
        input_shards = InputShards(graph, self._network.axes, self._network.dimensions, self._workers.size,
                                   self._workers.rank, set())
        types = _input_types(graph)
        return net, [(shape_of(input_shards.box(name)), types[name]) for name in self._network.axes]

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


def _input_types(graph: Graph) -> Dict[str, Any]:
    """Return the types of data and parameters by name."""
    return {operator.name: graph.dtypes[operator.number, 0] for operator in graph.operators if operator.op == 'null'}


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
        types = _input_types(graph)
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
