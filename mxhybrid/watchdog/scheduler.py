"""Whether a scheduler that mxhybrid did not start, so that it has no lifeline, still lives.

ps-lite talks by ZeroMQ, which greets everybody who connects (ZMTP, RFC 23): a process that is stopped accepts a
connection, the kernel does so for it, but greets nobody.
"""
import socket
import threading
import time
from typing import Callable, Tuple

from ..base import launcher
from .heartbeat import AwakeClock

#: Seconds between two looks.
POLL_S = 2.0
#: Seconds for an answer; one that comes later counts as silence until the next look.
_ANSWER_S = 2.0
#: Where ps-lite listens at a port if it talks by Unix sockets (``ZMQVan::Bind``).
_LOCAL_PATH = '/tmp/%d'


def _greets(address: Tuple[str, int]) -> bool:
    """Whether it greets in time; ConnectionRefusedError or FileNotFoundError if nobody listens there any more."""
    deadline = time.monotonic() + _ANSWER_S
    try:
        with _connected(address) as connection:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            return connection.recv(1) != b''
    except (ConnectionRefusedError, FileNotFoundError):
        raise
    except OSError:
        return False


def _connected(address: Tuple[str, int]) -> socket.socket:
    if not launcher.is_local():
        return socket.create_connection(address, timeout=_ANSWER_S)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(_LOCAL_PATH % address[1])
    except BaseException:
        connection.close()
        raise
    return connection


def watch_scheduler(address: Tuple[str, int], limit: float, on_failure: Callable[[str], None],
                    ended: Callable[[], bool]) -> None:
    """ThreadSample at a scheduler from a thread, until `ended` says that it may go; after `limit` seconds of silence, while
    this process runs, `on_failure` is called with a sentence, once.
    """
    threading.Thread(target=_watch, args=(address, limit, on_failure, ended), name='mxhybrid-scheduler',
                     daemon=True).start()


def _watch(address: Tuple[str, int], limit: float, on_failure: Callable[[str], None],
           ended: Callable[[], bool]) -> None:
    clock = AwakeClock()
    heard = 0.0
    while not ended():
        try:
            greets = _greets(address)
        except (ConnectionRefusedError, FileNotFoundError):
            if not ended():
                on_failure('the scheduler at %s:%d died' % address)
            return
        now = clock.advance()
        if greets:
            heard = now
        elif now - heard > limit and not ended():
            on_failure('the scheduler at %s:%d has said nothing for %.0f s: it is stopped, its host hangs, or the '
                       'network to it is cut' % (address[0], address[1], now - heard))
            return
        time.sleep(POLL_S)
        clock.advance()  # it counts little more of the time between two looks than either wait here takes
