"""Liveness probes: processes on the job monitor's host that sample it for processes of other hosts.

Worker 0 itself may be silent, and all other messages pass through it.  So a process that misses worker 0 queries a
probe on its host.
"""
import contextlib
import os
import socket
import threading
import time
from typing import Callable, Optional, Tuple

from .activity import ThreadSample, checked_sample
from .messages import receive, send

#: Seconds within which a probe must answer.
PROBE_S = 0.5
#: Most bytes of an answer: enough for some ten thousand threads.
MAX_ANSWER_BYTES = 1 << 20


def serve_samples(host: str, sample: Callable[[], Optional[ThreadSample]]) -> Tuple[str, int]:
    """Start a thread that sends the result of `sample` to each process that connects; return its address on `host`."""
    listener = socket.create_server((host, 0))
    os.register_at_fork(after_in_child=listener.close)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the client has gone, or this process has no file descriptor left
                time.sleep(PROBE_S)
                continue
            with contextlib.suppress(OSError), connection:
                connection.settimeout(PROBE_S)
                send(connection, sample())

    threading.Thread(target=serve, name='mxhybrid-probe', daemon=True).start()
    address: Tuple[str, int] = listener.getsockname()[:2]
    return address


def query_probe(address: Tuple[str, int]) -> Optional[ThreadSample]:
    """Return the sample of a probe; None if it has none, or does not answer."""
    try:
        with socket.create_connection(address, timeout=PROBE_S) as connection:
            return checked_sample(receive(connection, MAX_ANSWER_BYTES, PROBE_S))
    except (OSError, ValueError):
        return None
