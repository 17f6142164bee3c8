"""Networks that are split by a plan that is given, or by one that is searched for."""
import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.text import seconds_text
from ..job.join import member
from ..kvstore.hybrid import Hybrid
from ..parallel.ops.graph import Graph
from ..parallel.ops.tracing import TracedNetwork, traced
from ..parallel.plans.plan import Plan
from ..parallel.plans.plan_json import from_json
from ..parallel.plans.strategies import data_parallel
from ..parallel.redistribution.worker_group import Team, team_of
from ..parallel.runtime.input_shards import Shares
from ..parallel.runtime.network_outline import outline_of
from ..parallel.runtime.parallel_block import Parallel, split_network
from ..parallel.sharding.box import shape_of
from .cluster.cluster_spec import Cluster, load
from .planner import SEARCH_SECONDS, Planner, preserve_rng_state
from .profiling.operator_profiler import OperatorProfiler

logger = get_logger(__name__)

#: What :func:`parallelize` is given as a plan to search for one.
AUTOMATIC = 'auto'

#: Steps by each plan before one is chosen, and those before them that do not count.
_STEPS, _WARM = 5, 2


def parallelize(net: Any, plan: Any, data: Any, batch_axis: Any = 0, dtype: Any = 'float32', input_grad: bool = False,
                batch_norm: str = 'joint', cluster: Any = None, search_seconds: float = SEARCH_SECONDS) -> Parallel:
    """Split a network over all workers of the job.

    Parameters
    ----------
    net : gluon.HybridBlock
        Initialised.  Nothing in it changes, but weights that are split leave it; worker 0's values count.
    plan : plan, dict or str
        One of :mod:`mxhybrid.parallel`, a dict as for :func:`mxhybrid.parallel.layers`, the name of a JSON file, or
        ``'auto'``: worker 0 searches for one, which is taken if its steps are faster than those of data parallelism
        and of the network without a plan; copies of the network are timed, with data of zeros.
    data : tuple of int, or list of them
        Shape of the joint batch of all workers, of each input.
    batch_axis : int or list of int, optional
        Which dimension of the inputs has the samples; None for an input that has none, which all workers give whole.
    dtype : dtype or list of them, optional
        Of the inputs.
    input_grad : bool, optional
        Whether gradients go back to inputs, as where these are computed.
    batch_norm : str, optional
        ``'joint'``: statistics are those of the joint batch, as in one process.  ``'local'``: each worker's are those
        of its own samples, and so are its running averages, as in data parallelism without a plan; where nothing but
        samples and channels is split.
    cluster : str or Cluster, optional
        For ``plan='auto'``: the file that ``mxhybrid calibrate`` has written, on worker 0's host.
    search_seconds : float, optional
        For ``plan='auto'``: how long to search, once operators have been timed.

    Returns
    -------
    Parallel
        A Block in the network's place.

    Raises
    ------
    InputError
        A network that is no HybridBlock or was not initialised, shapes that it does not take, a plan that it cannot
        follow, a cluster file of other hosts, no plan within their memory, or another plan on some worker; on all
        workers.
    """
    if isinstance(plan, str) and plan == AUTOMATIC:
        job = member()
        team = team_of(job)
        try:
            network = _checked(net, data, batch_axis, dtype, batch_norm, cluster, search_seconds)
        except InputError as error:
            team.agree('parallelize', None, str(error))
            raise
        team.agree('parallelize', outline_of("parallelize(plan='auto')", network, net.collect_params()))
        with preserve_rng_state():
            plan = _Automatic(net, network, team, job.topology.memory_domains, job.sums if job.distributed else None).choose(
                data, batch_axis, dtype, cluster, search_seconds)
    elif cluster is not None:
        raise InputError("parallelize: cluster is given, but plan=%r needs none: leave it out, or give plan='auto'"
                         % (plan,))
    return split_network(net, plan, data, batch_axis, dtype, input_grad, batch_norm)


def _checked(net: Any, data: Any, batch_axis: Any, dtype: Any, batch_norm: str, cluster: Any, search_seconds: Any
             ) -> TracedNetwork:
    if batch_norm != 'joint':
        raise InputError("parallelize: batch_norm=%r with plan='auto', which may split more than samples: leave it "
                         'out, or give a plan' % (batch_norm,))
    if not isinstance(search_seconds, (int, float)) or not search_seconds > 0:
        raise InputError('parallelize: search_seconds=%r: give more than 0' % (search_seconds,))
    if not isinstance(cluster, (str, os.PathLike, Cluster, type(None))):
        raise InputError('parallelize: cluster=%r: give the name of a file, or a Cluster' % (cluster,))
    return traced(net, data, batch_axis, dtype)


class _Automatic:
    """A search, and a trial of what it has found (collective)."""

    def __init__(self, net: Any, network: TracedNetwork, team: Team, places: Any, sums: Optional[str]):
        self._net, self._network, self._team, self._places = net, network, team, places
        #: What sums dense weights, which nobody can choose any more in a job.
        self._sums = sums

    def choose(self, data: Any, batch_axis: Any, dtype: Any, cluster: Any, seconds: float) -> Plan:
        """The plan that is faster than data parallelism, and than the network without a plan; or data parallelism."""
        began = time.monotonic()
        found: Optional[Dict[str, Any]] = None
        problem = ''
        if self._team.rank == 0:
            try:
                with self._team.busy():
                    found = self._search(data, batch_axis, dtype, cluster, seconds)
            except InputError as error:
                problem = str(error)
        problem, found = self._team.exchange([problem, found], 'auto')[0]
        if problem or found is None:
            raise InputError(problem)
        searched = time.monotonic() - began
        if found['name'] == 'data parallel':
            self._tell('no plan is predicted to be faster than data parallelism, which is taken', searched, 0.0)
            return data_parallel()
        plan = from_json(with_own_labels(found['plan'], found['labels'], self._network.graph))
        times = {name: self._try(one, data, batch_axis, dtype)
                 for name, one in (('found', plan), ('data parallel', data_parallel()))}
        times['plain'] = self._step_seconds(*self._plain())
        is_faster = min(times, key=lambda name: times[name]) == 'found'
        self._tell('a step takes %s by the plan that was found, predicted were %s, %s by data parallelism, and %s '
                   'without a plan: %s is taken' % (
                       seconds_text(times['found']), seconds_text(found['seconds']),
                       seconds_text(times['data parallel']), seconds_text(times['plain']),
                       'the plan that was found' if is_faster else 'data parallelism'),
                   searched, time.monotonic() - began - searched)
        return plan if is_faster else data_parallel()

    def _tell(self, what: str, searched: float, tried: float) -> None:
        if self._team.rank == 0:
            logger.info("plan='auto': %s; the search took %s, trying it %s", what, seconds_text(searched),
                        seconds_text(tried))

    def _search(self, data: Any, batch_axis: Any, dtype: Any, cluster: Any, seconds: float) -> Dict[str, Any]:
        if cluster is None:
            raise InputError("parallelize: plan='auto' without a cluster: give the file that mxhybrid calibrate has "
                             "written, cluster='cluster.json'")
        there = cluster if isinstance(cluster, Cluster) else load(cluster)
        hosts = [self._places.count(place) for place in dict.fromkeys(self._places)]
        if [host.ranks for host in there.hosts] != hosts:
            raise InputError('parallelize: the cluster file has hosts of %s workers, but the job has hosts of %s: '
                             'calibrate on these' % ([host.ranks for host in there.hosts], hosts))
        found = Planner(self._net, data, there, OperatorProfiler(), batch_axis, dtype, sums=self._sums).search(seconds)
        return {'name': found.name, 'plan': found.plan.as_json(), 'seconds': found.prediction.seconds,
                'labels': _labels(self._network.graph)}

    def _try(self, plan: Plan, data: Any, batch_axis: Any, dtype: Any) -> float:
        """Seconds of a step by a plan, of the slowest worker, with a copy of the network."""
        net = split_network(_Copy(self._network, self._net), plan, data, batch_axis, dtype, False, 'joint')
        seconds = self._step_seconds(net, net.given)
        net.forget()
        return seconds

    def _plain(self) -> Tuple[Any, List[Tuple[Tuple[int, ...], Any]]]:
        """A copy of the network as the user had it, each worker with its own statistics, and what a worker gives."""
        net, graph = _Copy(self._network, self._net), self._network.graph
        net.hybridize(static_alloc=True, static_shape=True)
        shares = Shares(graph, self._network.axes, self._network.dimensions, self._team.size, self._team.rank, set())
        types = {one.name: graph.dtypes[one.number, 0] for one in graph.operators if one.op == 'null'}
        return net, [(shape_of(shares.box(name)), types[name]) for name in self._network.axes]

    def _step_seconds(self, net: Any, shapes: Sequence[Tuple[Tuple[int, ...], Any]]) -> float:
        """Seconds of a step of a network, of the slowest worker, with data of zeros."""
        given = [mx.nd.zeros(shape, ctx=mx.cpu(), dtype=kind) for shape, kind in shapes]
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.0}, kvstore=Hybrid())
        times: List[float] = []
        for _ in range(_WARM + _STEPS):
            began = time.monotonic()
            with autograd.record():
                found = net(*given)
            autograd.backward(found)
            trainer.step(1)
            mx.nd.waitall()
            times.append(time.monotonic() - began)
        mine = sorted(times[_WARM:])[_STEPS // 2]
        return max(self._team.exchange(mine, 'tried'))


def _labels(graph: Graph) -> List[str]:
    return [graph.label(one) for one in graph.operators]


def with_own_labels(plan: Dict[str, Any], labels: List[str], graph: Graph) -> Dict[str, Any]:
    """Return worker 0's plan as JSON, with the labels of this worker in the place of worker 0's `labels`."""
    own = dict(zip(labels, _labels(graph)))
    found = dict(plan)
    for part in ('operators', 'tables'):
        if part in found:
            found[part] = {own[label]: value for label, value in found[part].items()}
    if 'operators' in found:
        found['model'] = graph.digest()
    return found


class _Copy(gluon.SymbolBlock):
    """The same network with parameters of its own, which are zeros."""

    def __init__(self, network: TracedNetwork, net: Any):
        graph: Graph = network.graph
        types = {one.name: graph.dtypes[one.number, 0] for one in graph.operators if one.op == 'null'}
        tables = gluon.ParameterDict()
        for number in graph.tables:  # a SymbolBlock makes parameters with dense gradients
            name = graph.operators[number].name
            tables.get(name, allow_deferred_init=True, grad_stype='row_sparse', dtype=types[name])
        super().__init__(network.symbol, [mx.sym.var(name) for name in network.axes], tables)
        # What plans call operators is without the names of the network around them.
        self._prefix = net.prefix
        own = net.collect_params()
        for name, param in self.collect_params().items():
            param.shape, param.grad_req = graph.parameters[name], own[name].grad_req
            param.cast(types[name])
        self.initialize(mx.init.Zero(), ctx=mx.cpu())
