"""Saves a training to checkpoints, and resumes it from the newest whole one, on any number of processes.

Worker 0 writes and reads; its errors are raised on all workers.  See docs/checkpoints.md for an example and for what a
checkpoint has, :mod:`mxhybrid.checkpoint.files` for its files, and :mod:`mxhybrid.checkpoint.collect` for their
content.
"""
import contextlib
import os
import sys
import time
from typing import Any, Callable, List, NamedTuple, Optional

import mxnet as mx

from ..base.errors import CheckpointError, InputError
from ..base.files import sync_directory
from ..base.log import get_logger
from ..kvstore.on_demand_copy import uncounted_reads
from ..kvstore.trainer_step import hooks_of
from ..messaging.keeper_channel import tell_keeper
from ..native.trainers import has_values
from . import collect, files, folder, manifest, restore
from .background import ArrayCopies, saves_in_background
from .dynamic_tables import TableSave, misfit_of_tables, put_tables, split_off_tables, stored_tables, take_first_values
from .reader import Reader, newest
from .split_weights import Gathering
from .workers import on_worker_0, start_training, workers_of

logger = get_logger(__name__)


class Checkpoint(NamedTuple):
    """The checkpoint that :func:`load` has restored."""

    #: The step that :func:`save` got.
    step: int
    #: The JSON value that :func:`save` got.
    extra: Any
    #: Directory of the checkpoint, on worker 0's host.
    path: str


def save(directory: Any, net: Any, trainer: Any, step: int, extra: Any = None, *, keep: int = 3,  # noqa: PLR0913
         delta: bool = False, wait: bool = True) -> Optional[str]:
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
        The number of checkpoints to keep, the newest ones, with those on which they build.  An old checkpoint that
        cannot be removed is left, with a warning.
    delta : bool, optional
        Whether to write, for dynamic tables, only the rows that changed since this Trainer's last save into the same
        directory.  All rows are written if there was none, if it was removed, or if too much has changed.
    wait : bool, optional
        Whether to return when the checkpoint is on the disk.  With False, the call copies what the checkpoint shall
        have, and training goes on while the copies are written; see :func:`wait`.  Rows of dynamic tables in memory are
        not copied: a forked process writes them.  A save that follows first waits for this one.

    Returns
    -------
    str or None
        Path of the checkpoint; None with ``wait=False``.

    Raises
    ------
    CheckpointError
        Worker 0 cannot write, or an earlier save with ``wait=False`` has failed (raised on all workers); no new
        checkpoint is left then.
    InputError
        A parameter has no values yet, or `step`, `extra` or `keep` cannot be used.
    """
    if isinstance(step, bool) or not hasattr(step, '__index__') or step < 0:
        raise InputError('checkpoint.save: step=%r is not a count: give an integer of at least 0' % (step,))
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise InputError('checkpoint.save: keep=%r is not a count of checkpoints: give an integer of at least 1'
                         % (keep,))
    items, tables = split_off_tables(trainer, collect.items_of(net, trainer))
    for item in items:
        if not has_values(item.param):
            raise InputError('checkpoint.save: %s has no values yet: call net.initialize(), and make a forward pass if '
                             'the shape of its input is not given' % item.name)
    for item in tables:
        item.param.first_values  # noqa: B018 (an InputError before initialize)
    saves_in_background.settle()
    workers = workers_of(trainer)
    start_training(trainer)
    trainer_hooks = hooks_of(trainer)
    if trainer_hooks is not None:
        trainer_hooks.consistency.check_last_step()
    gathering = Gathering(trainer, items, workers)
    directory = os.path.abspath(os.fspath(directory))

    table_save, opened = TableSave(trainer, tables, directory), contextlib.ExitStack()
    writers: List[files.Writer] = []
    copies = ArrayCopies(directory)

    def open_writer() -> files.Writer:
        new = not os.path.isdir(directory)
        os.makedirs(directory, exist_ok=True)
        if new:
            sync_directory(os.path.dirname(directory))
        # Readers wait for the lock: a save in the background holds it only at its beginning and end.
        with contextlib.ExitStack() as beginning:
            (opened if wait else beginning).enter_context(folder.locked(directory))
            writers.append(opened.enter_context(files.Writer(directory)))
        return writers[0]

    later: List[Callable[[], str]] = []

    def write() -> Optional[str]:
        stored_extra = manifest.plain(extra, 'extra')
        table_save.raise_problem()
        writer = writers[0] if writers else open_writer()
        content = {'saved_at': time.time(), 'mxhybrid': sys.modules['mxhybrid'].__version__, 'extra': stored_extra,
                   'trainer': collect.describe(trainer, items, tables, gathering)}
        arrays = collect.arrays(trainer, items, gathering)
        if not wait:
            arrays = iter([copies.add(array) for array in arrays])

        def finish() -> str:
            for array in arrays:
                writer.add(array.name, array.shape, array.dtype, array.pieces())
            table_save.add(writer)
            with contextlib.nullcontext() if wait else folder.locked(directory):
                path = writer.commit(int(step), content, keep, table_save.bases)
            table_save.remember(writer.identity)
            logger.info('checkpoint of step %d: %s', step, path)
            tell_keeper(['checkpoint', step])
            return path

        if wait:
            return finish()
        later.append(finish)
        return None

    with opened, mx.autograd.pause(), uncounted_reads(trainer):
        if tables:
            table_save.write(workers, open_writer, delta, wait)
        path = on_worker_0(workers, 'save', write, gathering.finish)
        if not wait:
            saves_in_background.start(workers, int(step), later, opened.pop_all())
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
        No checkpoint is whole, none can be read, it belongs to another model, or an earlier save with ``wait=False``
        has failed (raised on all workers).  If the message says that the load failed after a part was restored, weights
        are partly restored.
    """
    items, tables = split_off_tables(trainer, collect.items_of(net, trainer))
    saves_in_background.settle()
    workers = workers_of(trainer)
    directory = os.path.abspath(os.fspath(directory))
    readers: List[Reader] = []  # worker 0 alone looks for the checkpoint and reads it
    source = restore.Source(None if workers.rank else lambda *piece: readers[0].read(*piece))

    def find() -> Any:
        reader = None
        if folder.names(directory):
            reader = newest(directory, locks.enter_context(folder.kept(directory)))
        if reader is None:
            return None
        readers.append(reader)
        content = reader.content
        described = content.get('trainer')
        stored = {name: {'shape': entry['shape'], 'dtype': entry['dtype']} for name, entry in content['arrays'].items()}
        found_tables = stored_tables(reader)
        problem = (restore.misfit(trainer, items, tables, described, stored)
                   or misfit_of_tables(trainer, tables, found_tables))
        if problem:
            raise CheckpointError('%s does not fit: %s' % (reader.path, problem))
        return [content['step'], content.get('extra'), reader.path, described, stored, found_tables]

    def end() -> None:
        if source.problem:
            raise CheckpointError('%s, after a part was restored: weights and state are partly those of the '
                                  'checkpoint. Load a checkpoint before training goes on' % source.problem)

    with contextlib.ExitStack() as locks, mx.autograd.pause(), uncounted_reads(trainer):
        outcome = on_worker_0(workers, 'load', find)
        if outcome is None:
            return None
        step, extra, path, described, stored, found_tables = outcome
        take_first_values(tables, found_tables)
        restore.put(trainer, items, tables, described, stored, source, workers)
        put_tables(trainer, tables, found_tables, workers, lambda: readers[0], source.fail)
        on_worker_0(workers, 'load', end)
    if workers.rank == 0:
        logger.info('resumed from step %d: %s', step, path)
    return Checkpoint(step, extra, path)


def allgather(trainer: Any, value: Any) -> List[Any]:
    """Return the JSON `value` of every worker of the job, in rank order, for `extra` (collective)."""
    return workers_of(trainer).allgather_json(manifest.plain(value, 'value'), 'checkpoint.allgather')
