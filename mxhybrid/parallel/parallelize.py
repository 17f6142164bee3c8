"""``mxhybrid.parallelize``: splits a network by a given plan, or by one that the planner finds."""
import importlib
from typing import Any

from ..base.errors import InputError
from .runtime.builder import SplitArguments, split_network
from .runtime.parallel_block import ParallelBlock

#: The value of `plan` that makes :func:`parallelize` search for a plan.
AUTOMATIC = 'auto'

#: Default seconds of a search.  ``mxhybrid plan`` then takes less than 10 s for Inception-v3 on 16 ranks, once
#: operators were timed.
SEARCH_SECONDS = 4.5


def parallelize(net: Any, plan: Any, data: Any, batch_axis: Any = 0, dtype: Any = 'float32',  # noqa: PLR0913
                input_grad: bool = False, batch_norm: str = 'joint', cluster: Any = None,
                search_seconds: float = SEARCH_SECONDS, init: Any = None, recompute: Any = None) -> ParallelBlock:
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
    request = SplitArguments(net, data, batch_axis, dtype, input_grad, batch_norm, init, recompute)
    if isinstance(plan, str) and plan == AUTOMATIC:
        # The planner is a higher folder, which is imported by its name and where it is needed.
        plan = importlib.import_module('mxhybrid.planner.automatic_plan').find(request, cluster, search_seconds)
    elif cluster is not None:
        raise InputError("parallelize: cluster is used only with plan='auto', not with plan=%r: leave it out, or give "
                         "plan='auto'" % (plan,))
    return split_network(request, plan)
