"""Tables of the newest checkpoint of a directory, for a program that serves them while a job saves further ones."""
import os
import threading
import time
from typing import Any, Iterator, Mapping

from . import folder
from .read_only import OpenCheckpoint, open_checkpoint


class OpenTables(Mapping[str, Any]):
    """The tables of the newest checkpoint that :meth:`reload` has found, by name, as in :class:`OpenCheckpoint`.

    Threads may look up rows while another one reloads.  A table stays that of its checkpoint, whose files stay as long
    as it is in use; so lookups of several tables that belong together take them from one :attr:`current`.

    Attributes
    ----------
    current : OpenCheckpoint
        The checkpoint that is read now.
    """

    def __init__(self, directory: Any, verify: bool = False):
        self._directory, self._verify = os.path.abspath(os.fspath(directory)), verify
        self._lock = threading.Lock()
        self.current: OpenCheckpoint = open_checkpoint(self._directory, verify=verify)

    def reload(self) -> bool:
        """Change to the newest whole checkpoint or delta of the directory; return False if there is no newer one.

        It does not wait for a save or a compaction.  If it raises CheckpointError, because no checkpoint is whole, the
        tables stay as they are.
        """
        with self._lock:
            names, name = folder.names(self._directory), os.path.basename(self.current.path)
            if names[:1] == [name]:
                return False
            newest = open_checkpoint(self._directory, verify=self._verify)
            if newest.path == self.current.path or name in names and (
                    folder.number_of(name) > folder.number_of(os.path.basename(newest.path))):  # newer ones are damaged
                newest.close()
                return False
            self.current = newest  # the one before is closed when its last lookup ends
            return True

    @property
    def step(self) -> int:
        """The step of the current checkpoint."""
        return self.current.step

    @property
    def age_s(self) -> float:
        """The seconds since the current checkpoint was written."""
        return max(0.0, time.time() - self.current.saved_at)

    def __getitem__(self, name: str) -> Any:
        return self.current[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.current)

    def __len__(self) -> int:
        return len(self.current)


def open_tables(directory: Any, *, verify: bool = False) -> OpenTables:
    """Open the newest checkpoint of a directory to serve its tables, and later ones by :meth:`OpenTables.reload`.

    ::

        tables = mxhybrid.checkpoint.open_tables('checkpoints')
        rows = tables['users'].rows(keys)
        tables.reload()                     # from time to time, in a thread
        print(tables.step, tables.age_s)

    Parameters
    ----------
    directory : str or path
        The directory that :func:`save` writes to.
    verify : bool
        Whether to read all files and compare their digests before a checkpoint is used.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or none that is whole.
    """
    return OpenTables(directory, verify)
