"""horovodrun's notice board for the workers of its job, which needs neither Horovod's native code nor MXNet.

It is the HTTP store through which Horovod's workers find each other (``horovod/runner/http/http_server.py``).
"""
import http.client
import json
import time
from typing import Any, Dict, Iterable, Optional, Tuple

_LOOK_S, _REQUEST_S = 0.1, 5.0


class UnknownAnswerError(OSError):
    """Whatever listens at the address of the notice board is none."""


class NoticeBoard:
    """JSON values that all workers of the job may put up and read.

    Every call raises OSError where the board cannot be reached, and UnknownAnswerError, one of them, where somebody
    else answers.  `scope` keeps the names of one purpose apart from those of others.
    """

    def __init__(self, address: Tuple[str, int], scope: str):
        self.address = address
        self._scope = scope

    def put(self, name: str, value: Any) -> None:
        """Put up a value."""
        self._request('PUT', name, json.dumps(value).encode())

    def get(self, name: str) -> Optional[Any]:
        """Read a value, None where there is none."""
        body = self._request('GET', name)
        try:
            return None if body is None else json.loads(body.decode())
        except ValueError as error:
            raise UnknownAnswerError('what %s says is no JSON' % name) from error

    def wait(self, names: Iterable[str], deadline: float) -> Dict[str, Any]:
        """Read values as they come, until all are there or `deadline`, of ``time.monotonic``, has passed."""
        wanted = list(names)
        found: Dict[str, Any] = {}
        while True:
            for name in wanted:
                if name not in found:
                    value = self.get(name)
                    if value is not None:
                        found[name] = value
            if len(found) == len(wanted) or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK_S)

    def _request(self, method: str, name: str, body: Optional[bytes] = None) -> Optional[bytes]:
        # Straight there: no proxy knows the way into the job.
        connection = http.client.HTTPConnection(*self.address, timeout=_REQUEST_S)
        try:
            connection.request(method, '/%s/%s' % (self._scope, name), body)
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            if isinstance(error, OSError):  # it has closed the connection
                raise
            raise UnknownAnswerError('%s: %s' % (type(error).__name__, error)) from error
        finally:
            connection.close()
        if answer.status not in (200, 404):
            raise UnknownAnswerError("horovodrun's store answers %d" % answer.status)
        return content if answer.status == 200 else None
