"""The user's script may fork at any moment, and what it forks is no member of the job.

MXNet stops its engine before a fork and waits for all operations (``pthread_atfork_prepare`` of
``src/initialize.cc``, ``Stop`` of ``src/engine/threaded_engine_perdevice.cc``), while CPython holds the GIL.  An
operation that ends only with the help of Python, a sum or rows on their way, would never end; nor would a thread of
the engine's that calls Python.  What another thread hands the engine meanwhile is lost.  So this waits first, without
the GIL, until all is done that was handed to the engine, and keeps other threads from handing it more until the fork
is over.

A forked child has copies of the job's objects but none of its threads: whatever it does must not wait for them.
CPython's ``multiprocessing`` leaves by ``os._exit``; a child that ends like any script runs exit handlers,
Python's and native ones, that were meant for its parent.
"""
import ctypes
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, Optional, Set, Tuple

import mxnet as mx

#: Seconds between two looks at what other threads do.
_PAUSE_S = 0.0005

#: Seconds to wait for threads of the script that call MXNet all the time, or were interrupted inside of the fork_guard; then
#: it is as with MXNet alone.
_PATIENCE_S = 2.0

#: Code that calls MXNet's library, where threads hand the engine work.
_CALLERS = (os.path.join(os.path.dirname(mx.__file__), ''), os.path.join('horovod', 'mxnet', ''),
            *(os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ('arrays.py', 'engine.py')))


class ForkGuard:
    """Passed by whoever hands the engine what ends only with the help of Python or of other processes; closed by forks.

    As a context manager for the former.  Inside, wait for what this process computes at most, and for nobody else: a
    fork waits for whoever is inside.
    """

    def __init__(self) -> None:
        # It may be taken again: a signal handler of the script's forks wherever its thread is.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        #: How often each thread is inside.
        self._inside: Dict[int, int] = {}
        #: The thread that forks, and how often: CPython's subprocess may arrange two calls for one fork.
        self._closed_by: Optional[int] = None
        self._closed = 0
        #: Threads that serve what is under way: they pass until it is done.
        self._servants: Set[int] = set()
        self._shut = False
        self._handed = 0
        self._error: Optional[Exception] = None
        #: What the engine calls.
        self._callbacks: Set[Any] = set()

    def called_by_engine(self, function: Callable) -> Callable:
        """Declare a function that engine threads call."""
        self._callbacks.add(function.__code__)
        return function

    def serve(self) -> None:
        """Declare the calling thread one that others wait for."""
        self._servants.add(threading.get_ident())

    def _may_pass(self, thread: int) -> bool:
        return self._closed_by in (None, thread) or not self._shut and thread in self._servants

    def __enter__(self) -> 'ForkGuard':
        me = threading.get_ident()
        with self._lock:
            while not (self._closed_by is None or self._may_pass(me)):
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1
            self._handed += 1
        return self

    def __exit__(self, *_: Any) -> None:
        me = threading.get_ident()
        with self._lock:
            self._inside[me] -= 1
            # Again: whoever closes may have looked after this thread's entry, and before it handed anything.
            self._handed += 1
            if not self._inside[me]:
                del self._inside[me]
            if self._closed_by is not None:
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Before a fork: wait until the engine has done everything, and let nobody hand it more."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._closed_by in (None, me))
            self._closed_by, self._closed = me, self._closed + 1
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            handed = self._handed
            try:
                mx.nd.waitall()
            except mx.base.MXNetError as error:
                # MXNet forgets it now, and Python ignores what is raised before a fork.
                self._error = error
            with self._changed:
                self._shut = True
                self._changed.wait_for(lambda: self._inside.keys() <= {me}, max(0.0, deadline - time.monotonic()))
                if handed == self._handed and not self._others_in_mxnet(me, time.monotonic() < deadline):
                    return
                self._shut = False
                self._changed.notify_all()
            time.sleep(_PAUSE_S)

    def _others_in_mxnet(self, me: int, patient: bool) -> bool:
        """Whether another thread may be about to hand the engine something, or one of the engine's is in Python.

        Others may end an operation while the engine's thread still returns from its start.
        """
        for thread, frame in sys._current_frames().items():
            if thread == me:
                continue
            if patient and any(part in frame.f_code.co_filename for part in _CALLERS):
                return True
            at: Any = frame
            while at is not None:
                if at.f_code in self._callbacks:
                    return True
                at = at.f_back
        return False

    def after_fork_in_parent(self) -> None:
        """After a fork, also one for which :meth:`before_fork` was interrupted by what a signal's handler raised."""
        with self._changed:
            if self._closed_by != threading.get_ident():
                return
            self._closed -= 1
            if not self._closed:
                self._closed_by, self._shut = None, False
                self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """After a fork, in a process that has none of the other threads."""
        self._lock, self._inside, self._servants = threading.RLock(), {}, set()
        self._changed = threading.Condition(self._lock)
        self._closed_by, self._closed, self._shut = None, 0, False

    def check(self) -> None:
        """Raise the error of an operation that failed before a fork, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


#: The engine is one per process, and so are forks.
fork_guard = ForkGuard()


def prepare(in_child: Callable[[], None]) -> None:
    """From now on this process may fork; to be called once, `in_child` in whatever is forked, and in what that forks.
    """
    libc = ctypes.CDLL(None)
    on_exit, leave = libc.on_exit, ctypes.cast(libc._exit, ctypes.c_void_p)

    def child() -> None:
        fork_guard.after_fork_in_child()
        in_child()
        # It ends without the exit handlers of native libraries, which wait for threads that are not here: on_exit(3)
        # calls the function that was given last first, with the exit status.
        on_exit(leave, None)

    os.register_at_fork(before=fork_guard.before_fork, after_in_parent=fork_guard.after_fork_in_parent, after_in_child=child)
    _guard_fork_exec()


def _guard_fork_exec() -> None:
    """Have ``subprocess`` and ``multiprocessing`` wait, too, where they fork.

    They do so without the calls that :func:`os.register_at_fork` arranges, unless Python code runs in the child.
    CPython 3.10 and later use vfork(2) where they can, before which no handler of a library is called.
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
    """Whether ``fork_exec(*args)`` uses vfork(2): it does not for other users and groups."""
    if sys.version_info < (3, 10):
        return False
    if sys.version_info >= (3, 11):
        if not args[-1]:  # subprocess._USE_VFORK
            return False
        args = args[:-1]
    gid, groups, uid, _, preexec_fn = args[-5:]
    return (gid, groups, uid, preexec_fn) == (None, None, None, None)
