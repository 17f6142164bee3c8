"""The search for the newest whole checkpoint of a directory."""
import os
from typing import Optional, Sequence

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
