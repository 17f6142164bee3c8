"""Guard forks of the user's script, which may happen at any time; forked processes are not members of the job.

MXNet stops its engine before a fork and waits for all operations (``pthread_atfork_prepare`` of
``src/initialize.cc``, ``Stop`` of ``src/engine/threaded_engine_perdevice.cc``), while CPython holds the GIL.  An
operation that needs Python to end, such as a sum or a pull of rows, would never end; nor would a thread of the engine
that calls Python.  Operations that another thread pushes to the engine during the fork are lost. Therefore the guard
first waits, without the GIL, until the engine has done all its operations, and keeps other threads from pushing more
until the fork is over.

A forked child has copies of the job's objects but none of its threads, so it must not wait for them.  CPython's
``multiprocessing`` ends children by ``os._exit``.  A child that ends like a script runs exit handlers, of Python and
native ones, that were meant for its parent.
"""
import ctypes
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Optional, Set, Tuple

import mxnet as mx

#: Seconds between two checks of other threads.
_PAUSE_S = 0.0005

#: Seconds to wait for threads of the script that call MXNet all the time, or were interrupted inside the guard; after
#: that the fork proceeds as with MXNet alone.
_PATIENCE_S = 2.0

#: Code that calls MXNet's library, by which threads push operations to the engine.
_CALLERS = (os.path.join(os.path.dirname(mx.__file__), ''), os.path.join('horovod', 'mxnet', ''),
            *(os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ('arrays.py', 'engine.py')))


class ForkGuard:
    """A guard that threads enter to push operations that need Python or other processes to end; forks close it.

    Enter it as a context manager.  Inside, a thread may wait for computations of this process only, not for other
    processes: a fork waits for all threads inside.
    """

    def __init__(self) -> None:
        # Reentrant, because a signal handler of the script may fork while its thread holds the lock.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        #: The number of nested entries of each thread.
        self._inside: Dict[int, int] = {}
        #: The thread that forks, and its nested calls: CPython's subprocess may call before_fork twice for one fork.
        self._closed_by: Optional[int] = None
        self._closed = 0
        #: Threads that complete operations that are under way: they may enter until these are done.
        self._completing: Set[int] = set()
        #: Whether these threads, too, must wait; and a count of entries and exits.
        self._is_shut = False
        self._passages = 0
        self._error: Optional[Exception] = None
        #: Code of functions that the engine calls.
        self._callbacks: Set[Any] = set()

    def called_by_engine(self, function: Callable) -> Callable:
        """Register a function that engine threads call."""
        self._callbacks.add(function.__code__)
        return function

    def serve(self) -> None:
        """Register the calling thread as one that completes operations, for which other threads wait."""
        self._completing.add(threading.get_ident())

    def _may_pass(self, thread: int) -> bool:
        return self._closed_by in (None, thread) or not self._is_shut and thread in self._completing

    def __enter__(self) -> 'ForkGuard':
        me = threading.get_ident()
        with self._lock:
            while not self._may_pass(me):
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1
            self._passages += 1
        return self

    def __exit__(self, *_: Any) -> None:
        me = threading.get_ident()
        with self._lock:
            self._inside[me] -= 1
            # Count the exit, too: the forking thread may have read the count between the entry and the push.
            self._passages += 1
            if not self._inside[me]:
                del self._inside[me]
            if self._closed_by is not None:
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until the engine has done all operations, and keep other threads from pushing more."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._closed_by in (None, me))
            self._closed_by, self._closed = me, self._closed + 1
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            passages = self._passages
            try:
                mx.nd.waitall()
            except mx.base.MXNetError as error:
                # Kept for check(): MXNet forgets the error now, and Python ignores exceptions before a fork.
                self._error = error
            with self._changed:
                self._is_shut = True
                self._changed.wait_for(lambda: self._inside.keys() <= {me}, max(0.0, deadline - time.monotonic()))
                if passages == self._passages and not self._others_in_mxnet(me, time.monotonic() < deadline):
                    return
                self._is_shut = False
                self._changed.notify_all()
            time.sleep(_PAUSE_S)

    def _others_in_mxnet(self, me: int, patient: bool) -> bool:
        """Return whether another thread may be about to push an operation, or an engine thread is in Python.

        Another thread may complete an operation while the engine's thread still returns from its start.
        """
        for thread, frame in sys._current_frames().items():
            if thread == me:
                continue
            if patient and any(part in frame.f_code.co_filename for part in _CALLERS):
                return True
            caller: Any = frame
            while caller is not None:
                if caller.f_code in self._callbacks:
                    return True
                caller = caller.f_back
        return False

    def after_fork_in_parent(self) -> None:
        """Open the guard after a fork, also if a signal handler raised an exception in :meth:`before_fork`."""
        with self._changed:
            if self._closed_by != threading.get_ident():
                return
            self._closed -= 1
            if not self._closed:
                self._closed_by, self._is_shut = None, False
                self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Reset the guard in a forked process, which has none of the other threads."""
        self._lock, self._inside, self._completing = threading.RLock(), {}, set()
        self._changed = threading.Condition(self._lock)
        self._closed_by, self._closed, self._is_shut = None, 0, False

    def check(self) -> None:
        """Raise the error of an operation that failed before a fork, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


#: The guard of this process, which has one engine.
fork_guard = ForkGuard()


def prepare(in_child: Callable[[], None]) -> None:
    """Install the guard, once, in a process that may fork; forked processes, and their children, call `in_child`."""
    libc = ctypes.CDLL(None)
    on_exit, leave = libc.on_exit, ctypes.cast(libc._exit, ctypes.c_void_p)

    def child() -> None:
        fork_guard.after_fork_in_child()
        in_child()
        # End the child without exit handlers of native libraries, which would wait for threads that it does not have:
        # on_exit(3) calls the function that was registered last first, with the exit status.
        on_exit(leave, None)

    os.register_at_fork(before=fork_guard.before_fork, after_in_parent=fork_guard.after_fork_in_parent,
                        after_in_child=child)
    _guard_fork_exec()


def _guard_fork_exec() -> None:
    """Guard the forks of ``subprocess`` and ``multiprocessing``, too.

    They do not call the functions of :func:`os.register_at_fork` unless Python code runs in the child.  CPython 3.10
    and later use vfork(2) if they can, before which no handlers of libraries are called.
    """
    import _posixsubprocess
    import subprocess

    original = _posixsubprocess.fork_exec

    def fork_exec(*args: Any) -> int:
        if _is_vfork(args):
            return original(*args)
        try:
            fork_guard.before_fork()
            return original(*args)
        finally:
            fork_guard.after_fork_in_parent()

    _posixsubprocess.fork_exec = fork_exec
    if getattr(subprocess, '_fork_exec', None) is original:
        subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]


def _is_vfork(args: Tuple[Any, ...]) -> bool:
    """Return whether ``fork_exec(*args)`` uses vfork(2), which it does not for other users and groups."""
    if sys.version_info < (3, 10):
        return False
    if sys.version_info >= (3, 11):
        if not args[-1]:  # subprocess._USE_VFORK
            return False
        args = args[:-1]
    gid, groups, uid, _, preexec_fn = args[-5:]
    return (gid, groups, uid, preexec_fn) == (None, None, None, None)
