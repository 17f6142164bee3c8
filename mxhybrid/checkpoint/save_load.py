"""Saves a training to checkpoints, and resumes it from the newest whole one, on any number of processes.

::

    checkpoint = mxhybrid.checkpoint.load('checkpoints', net, trainer)     # None the first time
    for step in range(checkpoint.step if checkpoint else 0, STEPS):
        ...                                                        # forward, backward
        trainer.step(batch_size)
        if (step + 1) % 1000 == 0:
            mxhybrid.checkpoint.save('checkpoints', net, trainer, step + 1, extra={'epoch': epoch})

All workers make both calls.  Worker 0 writes and reads; its errors are raised on all workers.  See
:mod:`mxhybrid.checkpoint.files` for the files, and :mod:`mxhybrid.checkpoint.collect` for their content.

A checkpoint does not depend on the numbers of workers, servers, hosts and partitions, nor on routes.  It does not have
MXNet's random state, which cannot be read: seed by the step, or draw from a generator of your own and put its state
into `extra`.  Statistics that every worker keeps for itself, such as those of BatchNorm, are worker 0's.
"""
import contextlib
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import mxnet as mx

from ..base import launcher
from ..base.errors import CheckpointError, InputError
from ..base.log import get_logger
from ..kvstore.hybrid import Hybrid
from ..kvstore.on_demand_copy import uncounted_reads
from ..kvstore.trainer_step import hooks_of, is_hybrid
from ..native.trainers import has_values, set_wanted_store, start, store_of, wanted_store
from . import collect, files, folder, manifest, restore
from .newest import NewestCheckpoint
from .split_weights import Gathering

logger = get_logger(__name__)


class Checkpoint(NamedTuple):
    """The checkpoint that :func:`load` has restored."""

    #: The step that :func:`save` got.
    step: int
    #: The JSON value that :func:`save` got.
    extra: Any
    #: Directory of the checkpoint, on worker 0's host.
    path: str


class _Alone:
    """A job of one process."""

    rank = 0
    together = False

    def allgather_json(self, value: Any, operation: str) -> List[Any]:
        """Return the value of every worker."""
        return [value]

    def broadcast(self, array: Any, operation: str) -> None:
        """Overwrite a dense array with worker 0's."""

    def busy(self) -> Any:
        """Return a context manager around work that may take long while other workers wait."""
        return contextlib.nullcontext()


class _Together:
    """A job of several workers."""

    together = True

    def __init__(self, store: Hybrid):
        backend: Any = store.backend
        self.rank, self.allgather_json = store.rank, backend.allgather_json
        self.broadcast, self.busy = backend.broadcast, backend.busy


def _workers_of(trainer: Any) -> Any:
    store = store_of(trainer) or wanted_store(trainer)
    if isinstance(store, str) and is_hybrid(store):
        # The workers have to communicate before the Trainer makes its store, which needs all shapes.
        store = mx.kv.create(store)
        set_wanted_store(trainer, store)
    if isinstance(store, Hybrid):
        return _Together(store) if store.distributed else _Alone()
    name = store if isinstance(store, str) else getattr(store, 'type', None)
    tasks = launcher.several_tasks()
    workers = max(launcher.read().workers or 1, tasks.count if tasks is not None and tasks.certain else 1)
    if workers > 1 or name is not None and name.lower().startswith(('dist', 'horovod', 'byteps')):
        raise InputError("checkpoint: with kvstore=%r the values of the %d workers of this job cannot be collected: "
                         "use kvstore='hybrid'" % (name, workers))
    return _Alone()


def _on_worker_0(workers: Any, call: str, work: Callable[[], Any], finish: Callable[[], None] = lambda: None) -> Any:
    """Call ``work()`` on worker 0; return its JSON value, or raise its error, on all workers.

    Worker 0 calls ``finish()`` afterwards, the other workers call it at once.
    """
    outcome: Dict[str, Any] = {}
    if workers.rank == 0:
        try:
            with workers.busy():
                outcome['value'] = work()
        except InputError as error:
            outcome['refused'] = str(error)
        except Exception as error:  # a full disk, no permission, no memory: all workers have to raise it
            outcome['problem'] = str(error) if isinstance(error, CheckpointError) else '%s: %s' % (
                type(error).__name__, error)
            logger.debug('%s failed', call, exc_info=True)
    finish()
    outcome = workers.allgather_json(outcome, 'checkpoint.' + call)[0]
    if 'refused' in outcome:
        raise InputError('checkpoint.%s: %s' % (call, outcome['refused']))
    if 'problem' in outcome:
        raise CheckpointError('checkpoint.%s failed on worker 0: %s' % (call, outcome['problem']))
    return outcome['value']


def save(directory: Any, net: Any, trainer: Any, step: int, extra: Any = None, *, keep: int = 3) -> str:
    """Write a checkpoint (collective).

    Parameters
    ----------
    directory : str or path
        A directory on worker 0's host, made if need be.  Give every job a directory of its own.
    net : gluon.Block or ParameterDict
        A net with all parameters of the Trainer.  The parameters of a Block are stored under their names in its
        structure, as ``save_parameters`` does.
    trainer : gluon.Trainer
        A Trainer with a hybrid store, or with any store in a job of one process.
    step : int
        The number of steps done, or any other count that tells where to continue in the data.
    extra : JSON value, optional
        Further values that the script needs; worker 0's are stored.
    keep : int, optional
        The number of checkpoints to keep, the newest ones.  An old checkpoint that cannot be removed is left, with a
        warning.

    Returns
    -------
    str
        Path of the checkpoint.

    Raises
    ------
    CheckpointError
        Worker 0 cannot write (raised on all workers); no new checkpoint is left then.
    InputError
        A parameter has no values yet, or `step`, `extra` or `keep` cannot be used.
    """
    if isinstance(step, bool) or not hasattr(step, '__index__') or step < 0:
        raise InputError('checkpoint.save: step=%r is not a count: give an integer of at least 0' % (step,))
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise InputError('checkpoint.save: keep=%r is not a count of checkpoints: give an integer of at least 1'
                         % (keep,))
    items = collect.items_of(net, trainer)
    for item in items:
        if not has_values(item.param):
            raise InputError('checkpoint.save: %s has no values yet: call net.initialize(), and make a forward pass '
                             'where shapes are found by it' % item.name)
    workers = _workers_of(trainer)
    start(trainer)
    trainer_hooks = hooks_of(trainer)
    if trainer_hooks is not None:
        trainer_hooks.consistency.check_last_step()
    gathering = Gathering(trainer, items, workers.allgather_json)
    directory = os.path.abspath(os.fspath(directory))

    def write() -> str:
        stored_extra = manifest.plain(extra, 'extra')
        new = not os.path.isdir(directory)
        os.makedirs(directory, exist_ok=True)
        if new:
            folder.sync_directory(os.path.dirname(directory))
        with folder.locked(directory), files.Writer(directory) as writer:
            content = {'mxhybrid': sys.modules['mxhybrid'].__version__, 'extra': stored_extra,
                       'trainer': collect.describe(trainer, items, gathering)}
            for array in collect.arrays(trainer, items, gathering):
                writer.add(array.name, array.shape, array.dtype, array.pieces())
            return writer.commit(int(step), content, keep)

    with mx.autograd.pause(), uncounted_reads(trainer):
        path = _on_worker_0(workers, 'save', write, gathering.finish)
    if workers.rank == 0:
        logger.info('checkpoint of step %d: %s', step, path)
    return path


def load(directory: Any, net: Any, trainer: Any) -> Optional[Checkpoint]:
    """Restore the newest whole checkpoint (collective).

    Call it after ``net.initialize()``, normally before the first step; after a step it discards what was learned since.
    A damaged checkpoint is skipped, with a warning that names the damage.

    Parameters
    ----------
    directory : str or path
        A directory on worker 0's host.
    net, trainer
        As for :func:`save`, with the same model and optimizer.

    Returns
    -------
    Checkpoint or None
        None if there is no checkpoint; nothing was changed then.

    Raises
    ------
    CheckpointError
        No checkpoint is whole, none can be read, or it belongs to another model (raised on all workers).  If the
        message says that the load failed on the way, weights are partly restored.
    """
    items = collect.items_of(net, trainer)
    workers = _workers_of(trainer)
    directory = os.path.abspath(os.fspath(directory))
    checkpoint = NewestCheckpoint(directory)  # worker 0 alone looks for it and reads it
    source = restore.Source(None if workers.rank else checkpoint.read)

    def find() -> Any:
        if not checkpoint.find():
            return None
        content = checkpoint.content
        described = content.get('trainer')
        stored = {name: {'shape': entry['shape'], 'dtype': entry['dtype']} for name, entry in content['arrays'].items()}
        problem = restore.misfit(trainer, items, described, stored)
        if problem:
            raise CheckpointError('%s does not fit: %s' % (checkpoint.path, problem))
        return [content['step'], content.get('extra'), checkpoint.path, described, stored]

    def end() -> None:
        if source.problem:
            raise CheckpointError('%s on the way' % source.problem)

    with checkpoint, mx.autograd.pause(), uncounted_reads(trainer):
        outcome = _on_worker_0(workers, 'load', find)
        if outcome is None:
            return None
        step, extra, path, described, stored = outcome
        restore.put(trainer, items, described, stored, source, workers)
        _on_worker_0(workers, 'load', end)
    if workers.rank == 0:
        logger.info('resumed from step %d: %s', step, path)
    return Checkpoint(step, extra, path)


def gather(trainer: Any, value: Any) -> List[Any]:
    """Return the JSON `value` of every worker of the job, in rank order, for `extra` (collective)."""
    return _workers_of(trainer).allgather_json(manifest.plain(value, 'value'), 'checkpoint.gather')
