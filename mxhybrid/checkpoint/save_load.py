"""Checkpoints of a whole training: save it, go on from the newest whole one, on any number of processes.

::

    at = mxhybrid.checkpoint.load('checkpoints', net, trainer)     # None the first time
    for step in range(at.step if at else 0, STEPS):
        ...                                                        # forward, backward
        trainer.step(batch_size)
        if (step + 1) % 1000 == 0:
            mxhybrid.checkpoint.save('checkpoints', net, trainer, step + 1, extra={'epoch': epoch})

All workers make both calls.  Worker 0 writes and reads; what goes wrong there is raised on all of them.  See
:mod:`mxhybrid.checkpoint.files` for the files and :mod:`mxhybrid.checkpoint.collect` for what is in them.

A checkpoint does not depend on the numbers of workers, servers, hosts and partitions, nor on routes.  It has none of
MXNet's random state, which cannot be read: seed by the step, or draw from a generator of your own and put its state
into `extra`.  Statistics that every worker keeps for itself, as of BatchNorm, are those of worker 0.
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
    """What :func:`load` found, besides what it put back."""

    #: As given to :func:`save`.
    step: int
    #: As given to :func:`save`, a JSON value.
    extra: Any
    #: Directory of the checkpoint, on worker 0's host.
    path: str


class _Alone:
    """A job of one process."""

    rank = 0
    together = False

    def allgather_json(self, value: Any, what: str) -> List[Any]:
        """The value of every worker."""
        return [value]

    def spread(self, array: Any, what: str) -> None:
        """Overwrite a dense array with worker 0's."""

    def busy(self) -> Any:
        """A context manager around what may take long while the others wait."""
        return contextlib.nullcontext()


class _Together:
    """A job of several workers."""

    together = True

    def __init__(self, store: Hybrid):
        backend: Any = store.backend
        self.rank, self.allgather_json = store.rank, backend.allgather_json
        self.spread, self.busy = backend.spread, backend.busy


def _workers_of(trainer: Any) -> Any:
    store = store_of(trainer) or wanted_store(trainer)
    if isinstance(store, str) and is_hybrid(store):
        # The workers have to talk before the Trainer makes its store, which needs all shapes.
        store = mx.kv.create(store)
        set_wanted_store(trainer, store)
    if isinstance(store, Hybrid):
        return _Together(store) if store.distributed else _Alone()
    name = store if isinstance(store, str) else getattr(store, 'type', None)
    tasks = launcher.several_tasks()
    workers = max(launcher.read().workers or 1, tasks.count if tasks is not None and tasks.certain else 1)
    if workers > 1 or name is not None and name.lower().startswith(('dist', 'horovod', 'byteps')):
        raise InputError("checkpoint: kvstore=%r does not say what the %d workers of this job have: use "
                         "kvstore='hybrid'" % (name, workers))
    return _Alone()


def _on_worker_0(workers: Any, what: str, work: Callable[[], Any], finish: Callable[[], None] = lambda: None) -> Any:
    """Have worker 0 do something; the JSON value that it returns, or the error that it raises, on all workers.

    All call ``finish()`` after it, the others at once.
    """
    outcome: Dict[str, Any] = {}
    if workers.rank == 0:
        try:
            with workers.busy():
                outcome['value'] = work()
        except InputError as error:
            outcome['refused'] = str(error)
        except Exception as error:  # a full disk, no permission, no memory: all workers have to know
            outcome['problem'] = str(error) if isinstance(error, CheckpointError) else '%s: %s' % (
                type(error).__name__, error)
            logger.debug('%s failed', what, exc_info=True)
    finish()
    outcome = workers.allgather_json(outcome, 'checkpoint.' + what)[0]
    if 'refused' in outcome:
        raise InputError('checkpoint.%s: %s' % (what, outcome['refused']))
    if 'problem' in outcome:
        raise CheckpointError('checkpoint.%s failed on worker 0: %s' % (what, outcome['problem']))
    return outcome['value']


def save(directory: Any, net: Any, trainer: Any, step: int, extra: Any = None, *, keep: int = 3) -> str:
    """Write a checkpoint (collective).

    Parameters
    ----------
    directory : str or path
        On worker 0's host; made if need be.  Give every job a directory of its own.
    net : gluon.Block or ParameterDict
        Holds all parameters of the Trainer; a Block's parameters are known by their place in it, as for
        ``save_parameters``.
    trainer : gluon.Trainer
        With a hybrid store, or in a job of one process with any.
    step : int
        Steps done, or any other count that says where in the data to go on.
    extra : JSON value, optional
        What the script needs besides; that of worker 0 is stored.
    keep : int, optional
        How many checkpoints to keep, the newest ones.  An old one that cannot be removed is left, with a warning.

    Returns
    -------
    str
        Path of the checkpoint.

    Raises
    ------
    CheckpointError
        On all workers, when worker 0 cannot write; nothing new is left then.
    InputError
        A parameter has no values yet, or `step`, `extra` or `keep` cannot be used.
    """
    if isinstance(step, bool) or not hasattr(step, '__index__') or step < 0:
        raise InputError('checkpoint.save: step=%r is not a count' % (step,))
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise InputError('checkpoint.save: keep=%r is not at least 1' % (keep,))
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
        more = manifest.plain(extra, 'extra')
        new = not os.path.isdir(directory)
        os.makedirs(directory, exist_ok=True)
        if new:
            folder.sync_directory(os.path.dirname(directory))
        with folder.locked(directory), files.Writer(directory) as writer:
            content = {'mxhybrid': sys.modules['mxhybrid'].__version__, 'extra': more,
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
    """Go on from the newest whole checkpoint (collective).

    Call it after ``net.initialize()``, best before the first step; later it takes back what was learned since.  A
    checkpoint that was damaged is passed over with a warning that names what is wrong with it.

    Parameters
    ----------
    directory : str or path
        On worker 0's host.
    net, trainer
        As for :func:`save`, the same model and optimizer.

    Returns
    -------
    Checkpoint or None
        None where there is no checkpoint; nothing was changed then.

    Raises
    ------
    CheckpointError
        On all workers: no checkpoint is whole, none can be read, or it is of another model.  Where it says that it
        failed on the way, weights are those of neither.
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
    """The JSON `value` of every worker of the job, in rank order, for `extra` (collective)."""
    return _workers_of(trainer).allgather_json(manifest.plain(value, 'value'), 'checkpoint.gather')
