"""Fetches files from a server's own disk to worker 0, in pieces, through the server's mailbox."""
import os
import tempfile
from typing import IO, Any, Callable, Dict

from ..base.errors import CheckpointError, JobError
from ..base.file_digest import FileDigest
from ..base.files import sync_directory
from ..row_store.row_files import Folder
from .protocol import MAILBOX_ELEMENTS

#: Bytes of a piece.
PIECE_BYTES = MAILBOX_ELEMENTS * 4


class ScratchFiles:
    """Open files of a server without names: nothing of them is left when the process ends, however it ends."""

    def __init__(self) -> None:
        self._files: Dict[str, IO[bytes]] = {}

    def folder(self, directory: str, name: str) -> Folder:
        """Return a folder for files that are in `directory`, or in that of TMPDIR for '', and are read by its name."""
        return _ScratchFolder(directory, name, self._files)

    def read(self, file: str, start: int) -> bytes:
        """Return a piece of a file, by its path: the name of its folder, '/', and its own name."""
        return os.pread(self._files[file].fileno(), PIECE_BYTES, start)

    def close(self) -> None:
        """Free the files."""
        while self._files:
            self._files.popitem()[1].close()


class _ScratchFolder(Folder):
    """A folder that exists in name only."""

    remedy = 'Free space there, or let TMPDIR name a directory with room for the rows'

    def __init__(self, directory: str, name: str, files: Dict[str, IO[bytes]]):
        super().__init__(directory or tempfile.gettempdir())
        self._name, self._files = name, files

    def make(self) -> None:
        """Do nothing: its files are in a directory that exists."""

    def new_file(self, name: str) -> Any:
        file = tempfile.TemporaryFile(buffering=0, dir=self.path)
        self._files[os.path.join(self._name, name)] = file
        return os.fdopen(os.dup(file.fileno()), 'wb', 0)

    def sync(self) -> None:
        """Do nothing: the files have no names."""


def fetch(read: Callable[[str, int, int], bytes], files: Dict[str, Dict[str, Any]], source: str, path: str) -> None:
    """Write copies of a server's files, flushed to the disk, into a new folder.

    - `read`: returns a piece, given the path of a file in the folder of the server, its start and its number of bytes.
    - `files`: by name without '.npy': the record, with the digest, see :mod:`mxhybrid.base.file_digest`.
    - `source`: the folder of the files in that of the server.

    Raises CheckpointError if a file cannot be written.  JobError if a file does not have the digest that the server has
    found.
    """
    try:
        os.makedirs(path)
        for name, record in files.items():
            file = name + '.npy'
            with open(os.path.join(path, file), 'wb') as copy:
                digest = FileDigest()
                for start in range(0, record['bytes'], PIECE_BYTES):
                    piece = read(os.path.join(source, file), start, min(PIECE_BYTES, record['bytes'] - start))
                    digest.update(piece)
                    copy.write(piece)
                copy.flush()
                os.fsync(copy.fileno())
            if digest.record() != record:
                raise JobError('%s does not have the content that its server has written: report this as a bug of '
                               'mxhybrid' % os.path.join(path, file))
        sync_directory(path)
    except OSError as error:
        raise CheckpointError('cannot write rows of a dynamic table into %s: %s. Free space there, or save into '
                              'another directory' % (path, error.strerror or error)) from error
