"""The newest whole checkpoint of a directory: the search for it, and the locks that keep it."""
import contextlib
import os
from typing import Any, ContextManager, Optional, Sequence

from ..base.errors import CheckpointError
from ..base.log import get_logger
from . import folder
from .reader import Damaged, Reader

logger = get_logger(__name__)


def newest(directory: str, among: Optional[Sequence[str]] = None) -> Optional[Reader]:
    """Return the newest whole checkpoint of a directory, or `among` these names; None if there is no checkpoint.

    Raises CheckpointError if the directory cannot be read, or if all its checkpoints are damaged.
    """
    problems = []
    for name in folder.names(directory) if among is None else among:
        try:
            reader = Reader(os.path.join(directory, name))
            reader.verify()
            return reader
        except Damaged as problem:
            problems.append(str(problem))
            logger.warning('damaged checkpoint: %s; trying the one before', problem)
    if problems:
        raise CheckpointError('no checkpoint in %s is whole: %s. Remove the directory to start again'
                              % (directory, '; '.join(problems)))
    return None


class NewestCheckpoint(ContextManager['NewestCheckpoint']):
    """The newest whole checkpoint of a directory, which no writer removes until the object is closed.

    A context manager.  Nothing is opened before :meth:`find`.
    """

    def __init__(self, directory: str):
        self._directory = directory
        self._locks = contextlib.ExitStack()
        self._reader: Optional[Reader] = None

    def __exit__(self, *exception: Any) -> None:
        self._locks.close()

    def find(self) -> bool:
        """Lock the checkpoints of the directory and open the newest whole one; return whether there is one.

        Raises CheckpointError if the directory cannot be read, or if all its checkpoints are damaged.
        """
        if folder.names(self._directory):
            self._reader = newest(self._directory, self._locks.enter_context(folder.kept(self._directory)))
        return self._reader is not None

    @property
    def reader(self) -> Reader:
        """The reader of the checkpoint."""
        assert self._reader is not None
        return self._reader
