"""The state of a training that continues after a change of hosts: net, Trainer, and values of the script."""
import time
from typing import Any, Callable, Optional

from ..base.errors import CheckpointError, InputError
from ..base.log import get_logger
from ..checkpoint import folder
from ..checkpoint.background import wait as wait_for_save
from ..checkpoint.save_load import Checkpoint, load, save
from ..checkpoint.workers import workers_of
from ..messaging.keeper_channel import generation, is_elastic
from ..native.trainers import store_of
from .channel import Channel
from .commit_folder import size_of

logger = get_logger(__name__)

#: Path that cannot be made, where worker 0 has no keeper: the save fails on all workers.
_NOWHERE = '/proc/self/no-keeper'


class State:
    """Net, Trainer and values of a script, which continue at the last commit (collective).

    ::

        state = mxhybrid.elastic.State(net, trainer, directory='checkpoints', epoch=0)
        while state.step < STEPS:
            train(state.step)
            state.step += 1
            state.commit(every=10)

    After a failure the launcher, ``mxhybrid run``, starts the script again from its top, and the constructor restores
    the last commit, on any number of workers: that of the keeper of worker 0's host, or else the newest checkpoint of
    `directory`.  Call it after ``net.initialize()`` and before the first step, on all workers.

    Without an elastic launcher there are no commits, and the newest checkpoint is restored.

    Parameters
    ----------
    net, trainer
        As for :func:`mxhybrid.checkpoint.save`.
    directory : str or path, optional
        Checkpoints on the disk, for the case that all keepers with the last commit are lost.
    step : int, optional
        First value of the attribute `step`, the number of steps done.
    **values : JSON values
        Further attributes, by name; worker 0's values are stored.

    Raises
    ------
    InputError
        A value has the name of another attribute.
    CheckpointError
        Neither a commit nor a checkpoint is whole, or they belong to another model (raised on all workers).
    JobError
        This process belongs to a generation that has ended.
    """

    def __init__(self, net: Any, trainer: Any, directory: Any = None, step: int = 0, **values: Any):
        taken = [name for name in values if name.startswith('_') or hasattr(State, name) or name in _ATTRIBUTES]
        if taken:
            raise InputError('State: %r is an attribute of every State: give the value another name' % taken[0])
        self._net, self._trainer, self._directory, self._names = net, trainer, directory, sorted(values)
        self.step = step
        self.__dict__.update(values)
        workers = workers_of(trainer)
        self._rank, self._channel = workers.rank, None
        #: The number of starts of the job before this one.
        self.generation = generation()
        self._whole_bytes = self._delta_bytes = 0
        self._is_saving, self._last_bytes = False, 0
        if is_elastic():
            self._channel = Channel(workers.rank)
        #: The commit or checkpoint that was restored; None at the first start.
        self.restored: Optional[Checkpoint] = self._restore(workers)
        if self.restored is not None:
            self.step = self.restored.step
            extra = self.restored.extra if isinstance(self.restored.extra, dict) else {}
            self.__dict__.update((name, extra[name]) for name in self._names if name in extra)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError('State has no value %r: give it to the constructor, %s=...' % (name, name))

    def _restore(self, workers: Any) -> Optional[Checkpoint]:
        path = '' if self._channel is None else self._channel.folder
        if workers.allgather_json(bool(path and folder.names(path)), 'elastic.restore')[0]:
            try:
                return load(path, self._net, self._trainer)
            except CheckpointError as error:
                restored = None if self._directory is None else load(self._directory, self._net, self._trainer)
                if restored is None:  # a part of the commit may have been restored
                    raise
                logger.warning('the commit could not be restored, so the newest checkpoint on disk was: %s', error)
                return restored
        return None if self._directory is None else load(self._directory, self._net, self._trainer)

    @property
    def _values(self) -> Any:
        return {name: self.__dict__[name] for name in self._names}

    def save(self, keep: int = 3, delta: bool = False, wait: bool = True) -> Optional[str]:
        """Write a checkpoint into the directory of the State (collective); see :func:`mxhybrid.checkpoint.save`."""
        if self._directory is None:
            raise InputError('State.save: the State has no directory: give it one, State(net, trainer, directory=...)')
        return save(self._directory, self._net, self._trainer, self.step, self._values, keep=keep, delta=delta,
                    wait=wait)

    def commit(self, every: int = 1) -> bool:
        """Keep the state in the memory of the keepers, if it is time for that (collective).

        All workers call it after each step, or after each k-th step.  If hosts come or go, the workers commit and leave
        in this call, by SystemExit.  A commit is written while training goes on; if that fails, it is reported, and the
        commit before counts.

        Parameters
        ----------
        every : int, optional
            Commit if `step` is a multiple of it.

        Returns
        -------
        bool
            Whether a commit has begun.

        Raises
        ------
        InputError
            A value is no JSON value, or a parameter has no values yet.
        SystemExit
            The workers leave; the launcher starts the script again.
        """
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError('State.commit: every=%r is not a count of steps: give an integer of at least 1'
                             % (every,))
        if self._channel is None:
            return False
        leaves = self._channel.leaves_after_call()
        if not leaves and self.step % every:
            return False
        has_saved = self._save_commit(wait=leaves)
        if leaves and has_saved:
            self._channel.tell('left', self._rank)
            raise SystemExit(0)
        return has_saved

    def _save_commit(self, wait: bool) -> bool:
        """Save a commit, with `wait` to its end; otherwise the next one learns how it ended."""
        assert self._channel is not None
        if self._is_saving:
            self._is_saving = False
            self._end_commit(wait_for_save)
        if self._rank == 0:
            self._channel.connect()
        path = self._channel.folder or _NOWHERE
        began = time.monotonic()
        if not self._end_commit(lambda: save(
                path, self._net, self._trainer, self.step, self._values, keep=2,
                delta=0 < self._delta_bytes < self._whole_bytes, wait=wait)):
            return False
        self._is_saving = not wait
        meter = getattr(store_of(self._trainer), 'meter', None)
        if meter is not None:
            meter.note(commit={'seconds': time.monotonic() - began, 'bytes': self._last_bytes,
                               'generation': self.generation})
        return True

    def _end_commit(self, work: Callable[[], Optional[str]]) -> bool:
        """Make a part of a commit (collective), which returns its path at the end; report an error."""
        assert self._channel is not None
        try:
            path = work()
        except CheckpointError as error:
            if self._rank == 0:
                logger.warning('a commit failed, and training continues: %s', error)
                self._channel.tell('not_committed', str(error))
            self._delta_bytes = 0
            return False
        if path is not None and self._rank == 0:
            size_bytes = self._last_bytes = size_of(path)
            # Deltas add up until they are as large as a whole commit, which then takes their place.
            if 0 < self._delta_bytes < self._whole_bytes:
                self._delta_bytes += size_bytes
            else:
                self._whole_bytes, self._delta_bytes = size_bytes, 1
        return True

    def on_reset(self, callback: Callable[[], None]) -> None:
        """Call a function if the job was started again, for example to scale the learning rate by its workers."""
        if self.generation > 0:
            callback()


_ATTRIBUTES = ('step', 'generation', 'restored', 'net', 'trainer', 'directory')
