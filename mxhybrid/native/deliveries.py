"""Deliver rows from the servers to MXNet's arrays as they arrive, while the script continues."""
import queue
import threading
from typing import Any, Callable, List, Optional, Tuple

from .engine import Deferred
from .forks import fork_guard

_Item = Optional[Tuple[Callable[[], None], Callable[[], None]]]


class Deliveries:
    """A thread that waits for rows, so that the script only waits when it reads them.

    `on_failure` is called with an exception that ends the thread: without the thread the engine would wait for ever.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]):
        self._on_failure = on_failure
        self._begun: 'queue.SimpleQueue[_Item]' = queue.SimpleQueue()
        self._deferred = Deferred(lambda deliver, complete: self._begun.put((deliver, complete)))
        self._thread = threading.Thread(target=self._run, name='mxhybrid-deliveries', daemon=True)
        self._thread.start()

    def put(self, arrays: List[Any], deliver: Callable[[], None], priority: int = 0) -> None:
        """Register `deliver`, which waits for rows and writes them to the memory of `arrays`.

        The engine delays all readers of the arrays until it has returned.  The arrays are on the host, each occurs
        once, and nothing else writes to them.
        """
        self._deferred.push(arrays, deliver, priority)

    def close(self) -> None:
        """End the thread; no delivery may be under way."""
        self._begun.put(None)
        self._thread.join()

    def _run(self) -> None:
        fork_guard.serve()
        try:
            for deliver, complete in iter(self._begun.get, None):
                deliver()
                complete()
                del deliver, complete  # they keep arrays
        except BaseException as error:
            self._on_failure(error)
