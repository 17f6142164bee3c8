"""Saves that worker 0 completes in a thread while training goes on: copies of arrays, and the end of such a save."""
import contextlib
import tempfile
import threading
from typing import Any, Callable, Iterator, List, Optional, Tuple

import numpy as np

from ..base.errors import CheckpointError
from ..base.log import get_logger
from .collect import PIECE_BYTES, Array
from .workers import on_worker_0

logger = get_logger(__name__)

#: The most bytes of copies in memory.
MEMORY_BYTES = 1 << 30


class ArrayCopies:
    """Copies of arrays of a checkpoint, :data:`MEMORY_BYTES` in memory, the rest in a file without a name in its
    directory.
    """

    def __init__(self, directory: str):
        self._directory, self._left_bytes = directory, MEMORY_BYTES
        self._file: Any = None

    def add(self, array: Array) -> Array:
        """Return an array whose pieces are copies of what it has now."""
        size_bytes = int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize
        if size_bytes <= self._left_bytes:
            self._left_bytes -= size_bytes
            copies = [np.array(piece, array.dtype) for piece in array.pieces()]
            return array._replace(pieces=lambda: iter(copies))
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)
        first = self._file.tell()
        for piece in array.pieces():
            self._file.write(np.ascontiguousarray(piece, array.dtype).reshape(-1).view(np.uint8).data)
        return array._replace(pieces=lambda: self._read(first, size_bytes, array.dtype))

    def _read(self, start: int, size_bytes: int, dtype: np.dtype) -> Iterator[np.ndarray]:
        self._file.seek(start)
        while size_bytes:
            data = self._file.read(min(size_bytes, PIECE_BYTES))
            size_bytes -= len(data)
            yield np.frombuffer(data, dtype)


class SavesInBackground:
    """The save of this job that is under way, one at most."""

    def __init__(self) -> None:
        self._workers: Any = None
        self._thread: Optional[threading.Thread] = None
        #: The path of the checkpoint, and the error of the save.
        self._outcome: Tuple[str, Optional[Exception]] = '', None

    def start(self, workers: Any, step: int, finish: List[Callable[[], str]], opened: contextlib.ExitStack) -> None:
        """Complete the save of a step (collective): worker 0 calls what is in `finish`, and closes `opened`."""
        self._workers = workers

        def work() -> None:
            try:
                with opened:
                    self._outcome = finish[0](), None
            except Exception as error:
                logger.error('the checkpoint of step %d could not be saved in the background: %s', step, error)
                self._outcome = '', CheckpointError('the checkpoint of step %d, saved in the background: %s'
                                                    % (step, error))
        if workers.rank == 0:
            # Not a daemon: the interpreter waits for it before it ends.
            self._thread = threading.Thread(target=work, name='mxhybrid-save')
            self._thread.start()

    def settle(self) -> Optional[str]:
        """Wait for the save that is under way, see :func:`wait`."""
        if self._workers is None:
            return None
        workers, self._workers = self._workers, None

        def outcome() -> str:
            assert self._thread is not None
            self._thread.join()
            (path, error), self._thread, self._outcome = self._outcome, None, ('', None)
            if error is not None:
                raise error
            return path
        result: str = on_worker_0(workers, 'wait', outcome)
        return result


#: The saves of this process's job.
saves_in_background = SavesInBackground()


def wait() -> Optional[str]:
    """Wait until the last save with ``wait=False`` has ended (collective).

    Returns
    -------
    str or None
        Path of its checkpoint; None if there was no such save since the last call of `wait`, `save` or `load`.

    Raises
    ------
    CheckpointError
        The save has failed; raised once, on all workers.  No new checkpoint is left then.
    """
    return saves_in_background.settle()
