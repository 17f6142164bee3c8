"""Builds a split network: from a network and a plan to the Block that runs on this worker.

The plan is read first; then the network is split by it, the workers agree on the split, and weights move.
"""
import atexit
import functools
from dataclasses import dataclass
from typing import Any, Tuple

import mxnet as mx

from ...base.errors import InputError
from ...base.log import get_logger
from ...job.join import member
from ...kvstore.trainer_tables import set_table_hint
from ...native import trainers
from ..ops.tracing import traced
from ..plans.plan_json import as_plan
from ..redistribution.recovery import recover
from ..redistribution.worker_group import worker_group_of
from .dropped_networks import collect_dropped, release_dropped
from .joint_work import joint_operators, joint_warning
from .model_files import ModelFiles
from .network_outline import outline_of_split
from .parallel_block import NUMBERS, ParallelBlock
from .sharded_parameters import shard_parameters
from .split_network import SplitNetwork, apply_plan

logger = get_logger(__name__)


@dataclass(frozen=True)
class SplitArguments:
    """A network to split: arguments of :func:`mxhybrid.parallelize`."""

    net: Any
    data: Any
    batch_axis: Any = 0
    dtype: Any = 'float32'
    input_grad: bool = False
    batch_norm: str = 'joint'
    init: Any = None
    recompute: Any = None


def split_network(request: SplitArguments, plan: Any, tell: bool = True) -> ParallelBlock:
    """Split a network by a given plan; errors are those of :func:`mxhybrid.parallelize`.

    Worker 0 logs the split, if `tell`.
    """
    network, seed = _agreed_split(request, plan)
    parallel = _build(request.net, network, seed)
    if tell:
        _warn_once(network.undivided and 'parallelize: %s: give another plan, or data_parallel()' % network.undivided)
    if network.workers.rank == 0 and tell:
        _log(parallel, network)
    return parallel


def _agreed_split(request: SplitArguments, plan: Any) -> Tuple[SplitNetwork, int]:
    """Return the split, once all workers have the same one, and a random seed that is the same on all (collective).

    If worker 0 has an `init`, the seed is -1: initial values are drawn first, as in one process.
    """
    workers = worker_group_of(member())
    recover(workers)
    try:
        read = as_plan(plan)
        if request.recompute is not None:
            read = read.with_recompute(request.recompute)
        network = traced(request.net, request.data, request.batch_axis, request.dtype, request.init)
        split = apply_plan(workers, network, read, request.input_grad, request.batch_norm,
                           trainers.frozen_names(request.net.collect_params()))
    except InputError as error:
        workers.agree('parallelize', None, str(error))
        raise
    return split, workers.agree('parallelize', outline_of_split('parallelize', split, request.net.collect_params()),
                                draws=request.init is None)


def _build(net: Any, network: SplitNetwork, seed: int) -> ParallelBlock:
    """Move the weights, and return the Block (collective)."""
    workers = network.workers
    collect_dropped()
    release_dropped(waits=True)
    first = workers.reserve_numbers(NUMBERS)
    draws_weights = any(trainers.awaits_shape(param) for param in net.collect_params().values())
    params = shard_parameters(net, network, first + NUMBERS // 2)
    if seed < 0:
        seed = workers.draw_number()
    for name, table in network.tables.items():
        set_table_hint(params.by_name[name], table)
    if any(operator.draws for operator in network.graph.computing):
        mx.random.seed((seed + workers.rank) % 2 ** 31)  # or all shards would drop the same elements
    elif draws_weights:
        mx.random.seed(seed)  # worker 0 alone has drawn initial values
    paths = {path: param.name for path, param in trainers.params_by_place(net).items()}
    has_custom_operators = network.segments or network.stages is not None or any(
        operator.op == 'Custom' for operator in network.graph.operators)
    if has_custom_operators and not member().distributed:
        _wait_at_exit()
    return ParallelBlock(network, params, ModelFiles(workers, params, paths, network.traced.symbol, net.prefix), first)


@functools.lru_cache(maxsize=None)
def _wait_at_exit() -> None:
    """Wait for all operations when the interpreter exits, as a job does at its end.

    MXNet ends the threads of custom operators first, and then waits for ever for those that have not begun
    (MXNotifyShutdown of c_api.cc).
    """
    atexit.register(mx.nd.waitall)


def _log(parallel: ParallelBlock, network: SplitNetwork) -> None:
    graph, ranks = network.graph, network.workers.size
    logger.info('%s', parallel.report())
    _warn_once(joint_warning(graph, joint_operators(graph, network.traced.dimensions, network.shards.splits, ranks,
                                                    network.stages),
                             ranks))
    _warn_once(network.untrainable)


@functools.lru_cache(maxsize=None)
def _warn_once(text: str) -> None:
    """Log a warning, once in a process."""
    if text:
        logger.warning('%s', text)
