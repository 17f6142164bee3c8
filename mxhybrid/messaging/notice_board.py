"""A client of horovodrun's notice board, which needs neither Horovod's native code nor MXNet.

The board is the HTTP store through which Horovod's workers find each other (``horovod/runner/http/http_server.py``).
"""
import http.client
import json
import time
from typing import Any, Dict, Iterable, Optional, Tuple

from ..base import json_text

#: Seconds between two reads of missing values, and the time limit of a request.
_POLL_S, _REQUEST_S = 0.1, 5.0


class UnknownAnswerError(OSError):
    """The program at the address of the notice board is not a notice board."""


class NoticeBoard:
    """A board of JSON values that all workers of a job can put up and read.

    Every call raises OSError if the board cannot be reached, and its subclass UnknownAnswerError if another program
    answers.  `scope` separates the names of one purpose from those of others.
    """

    def __init__(self, address: Tuple[str, int], scope: str):
        self.address = address
        self._scope = scope

    def put(self, name: str, value: Any) -> None:
        """Put up a value."""
        self._request('PUT', name, json.dumps(value).encode())

    def get(self, name: str) -> Optional[Any]:
        """Return a value; None if there is none."""
        body = self._request('GET', name)
        try:
            return None if body is None else json_text.parse(body)
        except ValueError as error:
            raise UnknownAnswerError('the value of %s is not JSON' % name) from error

    def wait(self, names: Iterable[str], deadline: float) -> Dict[str, Any]:
        """Return values by name, once all are there or `deadline`, of ``time.monotonic``, has passed."""
        missing = list(names)
        values: Dict[str, Any] = {}
        while True:
            for name in list(missing):
                value = self.get(name)
                if value is not None:
                    values[name] = value
                    missing.remove(name)
            if not missing or time.monotonic() > deadline:
                return values
            time.sleep(_POLL_S)

    def _request(self, method: str, name: str, body: Optional[bytes] = None) -> Optional[bytes]:
        # Without a proxy, which would not reach the job.
        connection = http.client.HTTPConnection(*self.address, timeout=_REQUEST_S)
        try:
            connection.request(method, '/%s/%s' % (self._scope, name), body)
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            if isinstance(error, OSError):  # the board has closed the connection
                raise
            raise UnknownAnswerError('%s: %s' % (type(error).__name__, error)) from error
        finally:
            connection.close()
        if answer.status not in (200, 404):
            raise UnknownAnswerError("horovodrun's store answers with HTTP status %d" % answer.status)
        return content if answer.status == 200 else None
