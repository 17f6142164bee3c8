"""Gives all workers worker 0's values of a Trainer's parameters before the first gradients are computed from them.

==========================================  ==========================================================================
parameter                                   gets worker 0's values
==========================================  ==========================================================================
with values on all workers                  when the Trainer is made, :func:`share_first_values`
that waits for its shape on some worker     at the worker's first read in ``autograd.record()``, which all workers make,
                                            or in the first step
with a row_sparse weight                    from the servers, whenever rows are read in ``autograd.record()``
of a split network                          from ``parallelize``
==========================================  ==========================================================================

Worker 0 sends a copy and goes on, so that it may make forward passes that the other workers do not make.  The first
step compares the values again, since a worker may have changed its own after the Trainer was made.
"""
import hashlib
import threading
from typing import Any, Dict, List, Optional

import mxnet as mx
import numpy as np

from ..base.log import get_logger
from ..base.text import listed
from ..job.job import Job
from ..native.arrays import array_digest, host_view
from ..native.trainers import arrays_of, has_values, is_fresh, is_row_sparse, params_of
from .counted_names import without_counters
from .trainer_tables import TrainerTables
from .weight_shards import shard_of

logger = get_logger(__name__)


class FirstValues:
    """Parameters that do not have worker 0's values yet; `labels` has the names of their broadcasts, by parameter."""

    def __init__(self, job: Job, labels: Dict[str, str]):
        self._job, self._labels = job, labels
        # Threads that read a parameter at the same time all wait until it is shared.
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._labels)

    def share(self, param: Any) -> None:
        """Overwrite the values of a parameter, if it has any, with worker 0's, once; returns before they arrive."""
        with self._lock:
            label = self._labels.get(param.name)
            if label is not None and has_values(param):
                _broadcast(self._job, param, label)
                del self._labels[param.name]


def share_first_values(trainer: Any, job: Job, tables: TrainerTables) -> Optional[FirstValues]:
    """Give all workers worker 0's values of a Trainer that was just made, and of its dynamic `tables` (collective).

    Returns the parameters that have no values yet, None if there are none.  If workers have different parameters
    nothing happens: the first step raises the error.
    """
    assert job.collective is not None
    params = _shared_params(trainer)
    names = without_counters([param.name for param in params])
    entries = [[name, str(np.dtype(param.dtype)), [list(param.shape), digest_of(param)] if has_values(param) else None]
               for name, param in zip(names, params)]
    summary = hashlib.blake2b(repr(entries).encode(), digest_size=8).hexdigest()
    everyone = job.collective.allgather_json([summary, job.count_trainer(), len(tables.params)],
                                             'mxhybrid.first_values')
    if any(count for _, _, count in everyone):
        tables.agree(job.collective.allgather_json(tables.descriptions(), 'mxhybrid.dynamic_tables'))
    labels = ['mxhybrid.first_values.%d.%d' % (everyone[0][1], index) for index in range(len(params))]
    entries_by_rank = [entries]
    if any(summary != everyone[0][0] for summary, _, _ in everyone):
        entries_by_rank = job.collective.allgather_json(entries, 'mxhybrid.first_values.details')
    if any(_declared(worker_entries) != _declared(entries_by_rank[0]) for worker_entries in entries_by_rank):
        return None
    states_by_rank = [[state for _, _, state in worker_entries] for worker_entries in entries_by_rank]
    without_values = {}
    for param, label, *states in zip(params, labels, *states_by_rank):
        if None in states:
            without_values[param.name] = label
        elif any(shape != states[0][0] for shape, _ in states):
            return None
    for param, label, *states in zip(params, labels, *states_by_rank):
        if param.name not in without_values and any(state != states[0] for state in states):
            _broadcast(job, param, label)
    return FirstValues(job, without_values) if without_values else None


def compare_first_values(trainer: Any, job: Job) -> None:
    """Warn in the first step of a Trainer if gradients come from other values than worker 0's (collective)."""
    assert job.collective is not None
    params = [param for param in _shared_params(trainer) if param.grad_req != 'null' and has_values(param)]
    names = without_counters([param.name for param in params])
    digests = {name: digest_of(param) for name, param in zip(names, params)}
    fresh = [name for name, param in zip(names, params) if any(map(is_fresh, arrays_of(param)))]
    summary = hashlib.blake2b(repr(sorted(digests.items())).encode(), digest_size=8).hexdigest()
    if len(set(job.collective.allgather_json(summary, 'mxhybrid.first_step'))) == 1:
        return
    everyone = job.collective.allgather_json([digests, fresh], 'mxhybrid.first_step.details')
    used = {name for _, names in everyone for name in names}
    for rank, (worker_digests, _) in enumerate(everyone):
        differing = [name for name, digest in everyone[0][0].items()
                     if name in used and worker_digests.get(name, digest) != digest]
        if differing and job.rank == 0:
            logger.warning("worker %d has computed the gradients of its first step from other values of %s than "
                           "worker 0, because values were changed on some workers after the Trainer was made; from "
                           "this step on all workers have worker 0's. Load or set values before the Trainer is made, "
                           "or the same values on every worker", rank, listed(differing))
            return


def _shared_params(trainer: Any) -> List[Any]:
    return [param for param in params_of(trainer) if shard_of(param) is None and not is_row_sparse(param)]


def _declared(entries: List[List[Any]]) -> List[List[Any]]:
    return [entry[:2] for entry in entries]


def digest_of(param: Any) -> str:
    """Return a digest of the values of a parameter on this worker's first device, as text."""
    return array_digest(host_view(arrays_of(param)[0].as_nd_ndarray())).hex()


def _broadcast(job: Job, param: Any, label: str) -> None:
    assert job.collective is not None and job.guard.lifeline is not None
    job.guard.lifeline.count_call('first values of %s' % param.name)
    with mx.autograd.pause():
        first, *others = [array.as_nd_ndarray() for array in arrays_of(param)]
        if job.rank == 0:  # it does not wait for the others
            job.collective.broadcast_(first.copy(), label)
            return
        job.collective.broadcast_(first, label)
        for array in others:
            first.copyto(array)
