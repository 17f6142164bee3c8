"""Who has come to Horovod's start, which waits for all workers and says nothing about those that are missing.

Each worker leaves a mark in the table of horovodrun's rendezvous server, over HTTP as Horovod itself does
(``horovod/runner/http/http_server.py``).  Under an MPI there is none, and nobody is named.

Until a worker has its lifeline, that server is also the sign that the job has not ended: horovodrun leaves workers on
other hosts behind, where ssh does not end what it started.
"""
import os
import socket
import threading
import urllib.error
import urllib.request
from typing import Optional

from .lifeline import leave

#: Seconds for one request.
_REQUEST_S = 3.0

#: Seconds between two looks whether the launcher is still there.
WATCH_S = 1.0

#: Of so many missing workers the first are named.
_NAMED = 8


class RollCall:
    """Marks of the workers that came.

    Parameters
    ----------
    address : str or None
        ``host:port`` of the rendezvous server, None if there is none.
    rank, size : int
    """

    def __init__(self, address: Optional[str], rank: int, size: int):
        self._address, self._rank, self._size = address, rank, size
        self._joined = threading.Event()

    @classmethod
    def of_horovodrun(cls) -> 'RollCall':
        """That of the job which horovodrun started."""
        host, port, rank, size = (os.environ.get('HOROVOD_' + name) for name in (
            'GLOO_RENDEZVOUS_ADDR', 'GLOO_RENDEZVOUS_PORT', 'RANK', 'SIZE'))
        if not (host and port and rank and size):
            return cls(None, 0, 0)
        return cls('%s:%s' % (host, port), int(rank), int(size))

    def _request(self, rank: int, data: Optional[bytes] = None) -> bytes:
        url = 'http://%s/mxhybrid/%d' % (self._address, rank)
        request = urllib.request.Request(url, data, method='GET' if data is None else 'PUT')
        # Straight there: no proxy knows the way into the job.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_REQUEST_S) as answer:
            return answer.read()

    def answer(self) -> None:
        """Say that this worker has come; without a server that hears it, nothing happens."""
        if self._address is not None:
            try:
                self._request(self._rank, socket.gethostname().encode())
            except (urllib.error.HTTPError, ValueError):
                self._address = None
            except OSError:
                pass  # who watches will see

    def watch(self) -> None:
        """From now until :meth:`joined`, end this process when the launcher has ended."""
        if self._address is not None:
            threading.Thread(target=self._watch, name='mxhybrid-launcher', daemon=True).start()

    def joined(self) -> None:
        """Others watch from now on."""
        self._joined.set()

    def _watch(self) -> None:
        while not self._joined.wait(WATCH_S):
            assert self._address is not None
            host, port = self._address.rsplit(':', 1)
            try:
                socket.create_connection((host, int(port)), timeout=_REQUEST_S).close()
            except ConnectionRefusedError:
                if not self._joined.is_set():
                    leave('worker %d ends, because the launcher at %s has ended' % (self._rank, self._address))
            except OSError:
                pass  # whoever waits has a deadline

    def missing(self) -> str:
        """Who has not come, in words; empty if nobody knows."""
        if self._address is None:
            return ''
        missing = []
        for rank in range(self._size):
            try:
                self._request(rank)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    return ''
                missing.append('worker %d' % rank)
            except (OSError, ValueError):
                return 'the launcher at %s does not answer' % self._address
        more = ' and %d more' % (len(missing) - _NAMED) if len(missing) > _NAMED else ''
        return ', '.join(missing[:_NAMED]) + more + ' did not come' if missing else ''
