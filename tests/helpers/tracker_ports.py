"""A lock between all test runs of this machine whose jobs take a port from the range of MXNet's tracker."""
import contextlib
import fcntl
import getpass
import tempfile
from pathlib import Path


@contextlib.contextmanager
def tracker_ports():
    """Hold the lock: MXNet's own launcher leaves the port that it has chosen free until its scheduler listens on it."""
    with open(Path(tempfile.gettempdir()) / f'mxhybrid-tracker-ports-{getpass.getuser()}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
