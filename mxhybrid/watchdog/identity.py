"""Who a process is, for others of its machine: they look at it, and end it where it cannot leave by itself."""
import contextlib
import os
import signal
import socket
import sys
import sysconfig
import threading
from typing import Any, Dict, Optional

from ..base import proc
from . import activity

#: Where no script of a user lives.
_LIBRARIES = tuple(os.path.join(path, '') for path in sorted({
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), sysconfig.get_paths()['stdlib'],
    sysconfig.get_paths()['purelib'], sysconfig.get_paths()['platlib']}))


def this_process() -> Dict[str, Any]:
    """What others need to know of this process to look at it, and to end it, from the same machine."""
    return {'pid': os.getpid(), 'host': socket.gethostname(), 'pid_space': pid_space(),
            'started': proc.state_and_start(os.getpid())[1]}


def pid_space() -> str:
    """Where process ids have the same meaning."""
    return '%s %s %s' % (socket.gethostname(), proc.boot_id(), os.readlink('/proc/self/ns/pid'))


def state_of(process: Optional[Dict[str, Any]]) -> str:
    """State letter of a process that introduced itself; empty if it is gone, or runs where this one cannot see it."""
    if process is None or process['pid_space'] != pid_space():
        return ''
    state, started = proc.state_and_start(int(process['pid']))
    return state if started == process['started'] else ''


def sample_process(process: Optional[Dict[str, Any]]) -> Optional[activity.ThreadSample]:
    """What a process that introduced itself does; None if it is gone, or runs where this one cannot see it."""
    state = state_of(process)
    seen = activity.sample_threads(int(process['pid'])) if process is not None and state else None
    return None if seen is None else dict(seen, state=state)


def _end(process: Optional[Dict[str, Any]]) -> None:
    """Kill a silent process of this machine, which could not leave by itself."""
    if process is not None and process['pid'] != os.getpid() and state_of(process) not in ('', 'Z'):
        with contextlib.suppress(OSError):
            os.kill(int(process['pid']), signal.SIGKILL)


def kill_processes(processes: Any) -> None:
    """Kill those of the silent processes that run on this machine."""
    for process in processes:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            _end(process)


def script_location() -> str:
    """Where the main thread is: the innermost line outside of libraries, as ``'train.py:81 in main'``."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    innermost = ''
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        # Of code that no line of the source stands for, such as the clean-up behind a `with` block, the line is None.
        line = '?' if frame.f_lineno is None else frame.f_lineno
        text = '%s:%s%s' % (os.path.basename(file), line, '' if name == '<module>' else ' in ' + name)
        if not file.startswith(_LIBRARIES) and not file.startswith('<frozen'):
            return text
        innermost, frame = innermost or text, frame.f_back
    return innermost
