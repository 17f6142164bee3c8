"""Rows on their way from the servers, written into MXNet's arrays as they arrive, while the script goes on."""
import queue
import threading
from typing import Any, Callable, List, Optional, Tuple

from .engine import Deferred
from .forks import fork_guard

_Item = Optional[Tuple[Callable[[], None], Callable[[], None]]]


class Deliveries:
    """A thread that waits for rows, so that scripts need not: they wait where they read what came.

    `on_failure` is called with an exception that ends the thread: without it the engine would wait for ever.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]):
        self._on_failure = on_failure
        self._begun: 'queue.SimpleQueue[_Item]' = queue.SimpleQueue()
        self._deferred = Deferred(lambda deliver, complete: self._begun.put((deliver, complete)))
        self._thread = threading.Thread(target=self._run, name='mxhybrid-deliveries', daemon=True)
        self._thread.start()

    def put(self, arrays: List[Any], deliver: Callable[[], None], priority: int = 0) -> None:
        """Have `deliver` called, which waits for rows and writes them to the memory of `arrays`.

        Whatever reads the arrays is held back by the engine until it has returned.  They are on the host, each given
        once, and nobody else writes to them.
        """
        self._deferred.push(arrays, deliver, priority)

    def close(self) -> None:
        """End the thread; nothing may be under way."""
        self._begun.put(None)
        self._thread.join()

    def _run(self) -> None:
        fork_guard.serve()
        try:
            while self._next():
                pass
        except BaseException as error:
            self._on_failure(error)

    def _next(self) -> bool:
        item = self._begun.get()
        if item is None:
            return False
        deliver, complete = item
        deliver()
        complete()
        return True
