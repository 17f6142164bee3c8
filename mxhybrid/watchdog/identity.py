"""The identity of a process, by which other processes of its machine sample it, or kill it if it hangs."""
import contextlib
import gc
import os
import signal
import socket
import sys
import sysconfig
import threading
from typing import Any, Dict, Optional

from ..base import proc
from . import activity

#: Causes of the silence of a process, by its state letter.
CAUSES = {'T': 'it is stopped, by a signal or a debugger', 't': 'a debugger holds it', 'D': 'it hangs in the kernel',
          'S': 'it hangs', 'R': 'it hangs'}
#: Folders of libraries, which hold no script of a user.
_LIBRARIES = tuple(os.path.join(path, '') for path in sorted({
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), sysconfig.get_paths()['stdlib'],
    sysconfig.get_paths()['purelib'], sysconfig.get_paths()['platlib']}))


def this_process() -> Dict[str, Any]:
    """Return the ids by which other processes of this machine can sample and kill this process."""
    return {'pid': os.getpid(), 'host': socket.gethostname(), 'pid_space': pid_space(),
            'started': proc.state_and_start(os.getpid())[1]}


def pid_space() -> str:
    """Return a name for the space in which process ids have the same meaning as here."""
    return '%s %s %s' % (socket.gethostname(), proc.boot_id(), os.readlink('/proc/self/ns/pid'))


def state_of(process: Optional[Dict[str, Any]]) -> str:
    """Return the state letter of a process; empty if it has gone, or this process cannot see it."""
    if process is None or process['pid_space'] != pid_space():
        return ''
    state, started = proc.state_and_start(int(process['pid']))
    return state if started == process['started'] else ''


def sample_process(process: Optional[Dict[str, Any]]) -> Optional[activity.ThreadSample]:
    """Sample the threads and the state of a process; None if it has gone, or this process cannot see it."""
    state = state_of(process)
    sample = activity.sample_threads(int(process['pid'])) if process is not None and state else None
    return None if sample is None else dict(sample, state=state)


def kill_processes(processes: Any) -> None:
    """Kill the silent processes that run on this machine: they cannot end by themselves."""
    for process in processes:
        with contextlib.suppress(KeyError, OSError, TypeError, ValueError):
            if process['pid'] != os.getpid() and state_of(process) not in ('', 'Z'):
                os.kill(int(process['pid']), signal.SIGKILL)


def script_location() -> str:
    """Return the innermost line of the main thread outside of libraries, for example ``'train.py:81 in main'``."""
    # f_back of CPython 3.11 makes an object, which may start a garbage collection.  If that frees an array of MXNet,
    # the main thread runs meanwhile, and the frames that are being read may end.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _innermost_line(sys._current_frames().get(threading.main_thread().ident or 0))
    finally:
        if was_enabled:
            gc.enable()


def _innermost_line(frame: Any) -> str:
    innermost = ''
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        # The line is None in code without a line in the source, such as the clean-up at the end of a `with` block.
        line = '?' if frame.f_lineno is None else frame.f_lineno
        text = '%s:%s%s' % (os.path.basename(file), line, '' if name == '<module>' else ' in ' + name)
        if not file.startswith(_LIBRARIES) and not file.startswith('<frozen'):
            return text
        innermost, frame = innermost or text, frame.f_back
    return innermost
