"""Work on a copy of this process's memory: a forked process does it while this one goes on.

The kernel copies a page of memory when either process writes to it, so the copy costs memory only for what changes.
"""
import ctypes
import json
import os
import signal
import threading
from contextlib import suppress
from typing import Any, Callable

#: prctl(2): the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
#: By how much the copy yields to processes that train, see nice(2).
_NICENESS = 10
#: Ending of the name of a result that is not complete.
_PART = '.part'
#: Loaded before a fork.
_LIBC = ctypes.CDLL(None)


def work_on_copy(work: Callable[[], Any], result: str) -> None:
    """Start ``work()`` in a forked process, which writes its JSON value into the file `result` and ends.

    If ``work`` raises an error, or the process is killed, the value is {'error': text}.  The file appears complete; it
    is empty if its disk has no room for the value.  OSError if not even an empty file can be made.
    The process is killed when this one ends, and goes on when something stops it: others wait for the file.  It has the
    calling thread alone, so `work` must not wait for others.
    """
    parent = os.getpid()
    with open(result + _PART, 'w'):
        pass  # renamed later, which needs no more room
    pid = os.fork()
    if not pid:
        status = 1
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                os.nice(_NICENESS)
                _close_sockets()
                try:
                    value = work()
                except Exception as error:
                    value = {'error': '%s: %s' % (type(error).__name__, error)}
                _write(result, value)
                status = 0
        finally:
            os._exit(status)
    threading.Thread(target=_watch, args=(pid, result), name='mxhybrid-copy', daemon=True).start()


def _watch(pid: int, result: str) -> None:
    status = os.waitpid(pid, os.WUNTRACED)[1]
    while os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGCONT)
        status = os.waitpid(pid, os.WUNTRACED)[1]
    if status:  # else the file was written, and a reader may have removed it since
        cause = 'signal %d' % os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'a full disk'
        with suppress(OSError):  # a reader of the file looks for its directory, too
            _write(result, {'error': 'the process that writes the rows (host %s, pid %d) was ended by %s'
                            % (os.uname().nodename, pid, cause)})


def _write(path: str, value: Any) -> None:
    part = path + _PART
    try:
        with open(part, 'w') as file:
            json.dump(value, file)
    except OSError:
        os.truncate(part, 0)
    os.rename(part, path)


def _close_sockets() -> None:
    """Close the connections that the copy shares: others must see when the process itself ends."""
    for name in os.listdir('/proc/self/fd'):
        with suppress(OSError):
            if os.readlink('/proc/self/fd/' + name).startswith('socket:'):
                os.close(int(name))
