"""Processes beside the job monitor's that tell those of other hosts what it does.

Worker 0 may be the one that is silent, and all messages go through it: whoever misses it asks a witness of its host.
"""
import contextlib
import os
import socket
import threading
import time
from typing import Callable, Optional, Tuple

from .activity import ThreadSample, checked_sample
from .messages import receive, send

#: Seconds for a witness to answer.
PROBE_S = 0.5
#: Bytes that are read of its answer: those of some ten thousand threads.
MAX_ANSWER_BYTES = 1 << 20


class ProbeServer:
    """Tells whoever connects to an address of `host` what `see` gives."""

    def __init__(self, host: str, see: Callable[[], Optional[ThreadSample]]):
        self._listener = socket.create_server((host, 0))
        self._see = see
        self.address: Tuple[str, int] = self._listener.getsockname()[:2]
        os.register_at_fork(after_in_child=self._listener.close)
        threading.Thread(target=self._serve, name='mxhybrid-probe', daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # it has gone again, or this process has no descriptor left for it
                time.sleep(PROBE_S)
                continue
            with contextlib.suppress(OSError), peer:
                peer.settimeout(PROBE_S)
                send(peer, self._see())


def query_probe(address: Tuple[str, int]) -> Optional[ThreadSample]:
    """What a witness sees; None if that is nothing, or it does not answer."""
    try:
        with socket.create_connection(address, timeout=PROBE_S) as connection:
            return checked_sample(receive(connection, MAX_ANSWER_BYTES, PROBE_S))
    except (OSError, ValueError):
        return None
