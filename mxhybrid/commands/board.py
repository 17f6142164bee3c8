"""A notice board for the workers of a ``horovodrun`` job that needs neither Horovod's native code nor MXNet.

horovodrun itself serves it: the HTTP store through which Horovod's workers find each other
(horovod/runner/http/http_server.py).
"""
import http.client
import json
import time
from typing import Any, Dict, Iterable, Optional, Tuple

_SCOPE = 'mxhybrid.doctor'
_LOOK_S, _REQUEST_S = 0.1, 5.0


class Board:
    """Values that all workers of the job may put up and read.

    Parameters
    ----------
    address : (str, int)
        Of horovodrun's HTTP store.
    """

    def __init__(self, address: Tuple[str, int]):
        self._address = address

    def put(self, name: str, value: Any) -> None:
        """Put up a JSON value.

        Raises
        ------
        OSError
            The board cannot be reached.
        """
        self._request('PUT', name, json.dumps(value).encode())

    def get(self, name: str) -> Optional[Any]:
        """Read a value, None where there is none.

        Raises
        ------
        OSError
            The board cannot be reached.
        """
        body = self._request('GET', name)
        return None if body is None else json.loads(body.decode())

    def wait(self, names: Iterable[str], deadline: float) -> Dict[str, Any]:
        """Read values as they come, until all are there or `deadline`, of ``time.monotonic``, has passed.

        Raises
        ------
        OSError
            The board cannot be reached.
        """
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
        connection = http.client.HTTPConnection(*self._address, timeout=_REQUEST_S)
        try:
            connection.request(method, '/%s/%s' % (_SCOPE, name), body)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise OSError('horovodrun\'s store answers %d' % answer.status)
            return content
        except http.client.HTTPException as error:
            raise OSError('horovodrun\'s store answers with %s' % type(error).__name__) from error
        finally:
            connection.close()
