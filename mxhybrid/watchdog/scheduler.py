"""Watch a scheduler that mxhybrid did not start, and that therefore has no lifeline.

ps-lite uses ZeroMQ, which sends a greeting to each client that connects (ZMTP, RFC 23).  For a process that is stopped
the kernel still accepts connections, but no greeting follows.
"""
import socket
import time
from typing import Callable, Tuple

from ..base import launcher
from .heartbeat import AwakeClock

#: Seconds between two checks.
POLL_S = 2.0
#: Seconds within which a greeting must come; a later one counts as silence until the next check.
_ANSWER_S = 2.0
#: Path of the Unix socket that ps-lite binds in place of a port with DMLC_LOCAL (``ZMQVan::Bind``).
_LOCAL_PATH = '/tmp/%d'


def _greets(address: Tuple[str, int]) -> bool:
    """Return whether a greeting comes in time; ConnectionRefusedError or FileNotFoundError if no process listens."""
    deadline = time.monotonic() + _ANSWER_S
    try:
        with socket.socket(socket.AF_UNIX if launcher.is_local() else socket.AF_INET) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(_LOCAL_PATH % address[1] if launcher.is_local() else address)
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            return connection.recv(1) != b''
    except (ConnectionRefusedError, FileNotFoundError):
        raise
    except OSError:
        return False


def watch_scheduler(address: Tuple[str, int], limit: float, on_failure: Callable[[str], None],
                    ended: Callable[[], bool]) -> None:
    """Check a scheduler until `ended` returns true.

    Call `on_failure` with a sentence, once, if the scheduler dies, or is silent for `limit` seconds during which this
    process runs.
    """
    clock = AwakeClock()
    last_heard = 0.0
    while not ended():
        try:
            greets = _greets(address)
        except (ConnectionRefusedError, FileNotFoundError):
            if not ended():
                on_failure('the scheduler at %s:%d died' % address)
            return
        now = clock.advance()
        if greets:
            last_heard = now
        elif now - last_heard > limit and not ended():
            on_failure('the scheduler at %s:%d has been silent for %.0f s: it is stopped, its host hangs, or the '
                       'network to it is cut' % (address[0], address[1], now - last_heard))
            return
        time.sleep(POLL_S)
        clock.advance()  # the clock counts little of the time between two readings, so read it after each wait
