"""Files that a server wrote on its own disk, and worker 0 fetches in pieces, through the server's mailbox."""
import os
import shutil
import tempfile
from typing import Any, Callable, Dict

from ..base.errors import CheckpointError, JobError
from ..base.file_digest import digest_for
from ..base.files import sync_directory
from .protocol import MAILBOX_ELEMENTS

#: Bytes of a piece.
PIECE_BYTES = MAILBOX_ELEMENTS * 4


class ScratchFiles:
    """Open files of a server without names: nothing of them is left when the process ends, however it ends."""

    def __init__(self) -> None:
        self._descriptors: Dict[str, int] = {}

    def write(self, directory: str, save: Callable[[str], Any]) -> Any:
        """Return the result of `save`, called with a new folder in `directory`, and keep the files that it writes."""
        self.close()
        folder = tempfile.mkdtemp(prefix='mxhybrid-', dir=directory or None)
        try:
            result = save(folder)
            for path, _, names in os.walk(folder):
                for name in names:
                    file = os.path.join(path, name)
                    self._descriptors[os.path.relpath(file, folder)] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            return result
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def read(self, file: str, start: int) -> bytes:
        """Return a piece of a file, by its path in the folder."""
        return os.pread(self._descriptors[file], PIECE_BYTES, start)

    def close(self) -> None:
        """Free the files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def fetch(read: Callable[[str, int, int], bytes], files: Dict[str, Dict[str, Any]], source: str, path: str) -> None:
    """Write copies of a server's files, flushed to the disk, into a new folder.

    Parameters
    ----------
    read : callable
        Returns a piece, given the path of a file in the folder of the server, its start and its number of bytes.
    files : dict
        By name without '.npy': the record, with the digest, see :mod:`mxhybrid.base.file_digest`.
    source : str
        The folder of the files in that of the server.
    path : str

    Raises
    ------
    CheckpointError
        A file cannot be written.
    JobError
        A file does not have the digest that the server has found.
    """
    try:
        os.makedirs(path)
        for name, record in files.items():
            file = name + '.npy'
            with open(os.path.join(path, file), 'wb', 0) as copy:
                digest = digest_for(record)
                for start in range(0, record['bytes'], PIECE_BYTES):
                    piece = read(os.path.join(source, file), start, min(PIECE_BYTES, record['bytes'] - start))
                    digest.update(piece)
                    _write(copy, piece)
                os.fsync(copy.fileno())
            if digest.record() != record:
                raise JobError('%s does not have the content that its server has written: report this as a bug of '
                               'mxhybrid' % os.path.join(path, file))
        sync_directory(path)
    except OSError as error:
        raise CheckpointError('cannot write rows of a dynamic table into %s: %s. Free space there, or save into '
                              'another directory' % (path, error.strerror or error)) from error


def _write(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view):]
