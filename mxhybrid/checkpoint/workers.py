"""The workers of a job, as the calls of this folder see them: worker 0 writes and reads, and all raise its errors."""
import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Tuple

import mxnet as mx
import numpy as np

from ..base import launcher
from ..base.errors import CheckpointError, InputError
from ..base.log import get_logger
from ..kvstore.hybrid import Hybrid
from ..kvstore.trainer_step import hooks_of, is_hybrid
from ..native.trainers import set_wanted_store, start, store_of, wanted_store

logger = get_logger(__name__)


class Workers(NamedTuple):
    """The workers of a job: the rank of this one, and the calls that all make together."""

    rank: int
    #: Whether there are several.
    together: bool
    #: Returns the JSON value of every worker: ``allgather_json(value, operation)``.
    allgather_json: Callable[[Any, str], List[Any]]
    #: Overwrites a dense array with worker 0's: ``broadcast(array, operation)``.
    broadcast: Callable[[Any, str], None]
    #: Makes a context manager around work that may take long while other workers wait.
    busy: Callable[[], ContextManager[Any]]


#: The workers of a job of one process.
ALONE = Workers(0, False, lambda value, operation: [value], lambda array, operation: None, contextlib.nullcontext)


def start_training(trainer: Any) -> None:
    """Make the Trainer's store, and dynamic tables that were initialised again, as the next step would (collective)."""
    start(trainer)
    trainer_hooks = hooks_of(trainer)
    if trainer_hooks is not None:
        trainer_hooks.tables.reopen_together(store_of(trainer))


def workers_of(trainer: Any) -> Workers:
    """Return the workers of the job of a Trainer; InputError if its store cannot collect their values."""
    store = store_of(trainer) or wanted_store(trainer)
    if isinstance(store, str) and is_hybrid(store):
        # The workers have to communicate before the Trainer makes its store, which needs all shapes.
        store = mx.kv.create(store)
        set_wanted_store(trainer, store)
    if isinstance(store, Hybrid):
        backend: Any = store.backend
        return Workers(store.rank, True, backend.allgather_json, backend.broadcast,
                       backend.busy) if store.distributed else ALONE
    name = store if isinstance(store, str) else getattr(store, 'type', None)
    tasks = launcher.several_tasks()
    workers = max(launcher.read().workers or 1, tasks.count if tasks is not None and tasks.certain else 1)
    if workers > 1 or name is not None and name.lower().startswith(('dist', 'horovod', 'byteps')):
        raise InputError("checkpoint: with kvstore=%r the values of the %d workers of this job cannot be collected: "
                         "use kvstore='hybrid'" % (name, workers))
    return ALONE


def on_worker_0(workers: Any, call: str, work: Callable[[], Any], finish: Callable[[], None] = lambda: None) -> Any:
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


def assign_rows(workers: Any, table: Any, pieces: Iterator[Tuple[np.ndarray, np.ndarray]], slot: int = -1) -> None:
    """Overwrite rows of a dynamic table, or optimizer state `slot`, by worker 0's pieces of keys and rows (collective).

    An error of worker 0 is a CheckpointError on all workers; the table has the rows before it then.
    """
    nothing, problem = (np.empty(0, np.int64), np.empty((0, table.width), table.dtype)), ''
    with table.assigning(slot):
        while True:
            piece = None
            try:
                piece = None if problem else next(pieces, None)
            except Exception as error:
                problem = str(error) or type(error).__name__
            has_piece, problem = workers.allgather_json([piece is not None, problem], 'checkpoint.rows')[0]
            if problem:
                raise CheckpointError(problem)
            if not has_piece:
                return
            try:
                table.push(*(piece or nothing))
            except Exception as error:
                problem = str(error) or type(error).__name__
                if workers.together:
                    table.push(*nothing)  # as often as the other workers; nothing of the piece was sent
