"""A thread that serves other processes over sockets, and this one's calls."""
import selectors
import threading
from typing import Any, Callable, Optional

from ..native.forks import gate
from .shared_memory import Bell


class Service:
    """Waits for whoever has something to say, then does what can be done, again and again.

    `on_failure` is called with an exception that ends it: without that everybody would wait.  With `look_s` it looks
    after so many seconds what can be done though nobody said anything; a `patient` one first hears out everybody who
    has something to say.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], None], look_s: Optional[float] = None,
                 patient: bool = False):
        self._on_failure = on_failure
        self._look_s, self._patient = look_s, patient
        self._closing = False
        self._bell = Bell()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread = self._new_thread(name, self._serve)

    def _new_thread(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """A thread, not started yet, whose failure ends the service."""
        def guarded() -> None:
            gate.serve()
            try:
                body()
            except BaseException as error:
                self._on_failure(error)
        return threading.Thread(target=guarded, name='mxhybrid-' + name, daemon=True)

    def _listen(self, source: Any, who: Any) -> None:
        """Have what `source` says handed to :meth:`_hear`; to be called before the thread starts."""
        self._selector.register(source, selectors.EVENT_READ, who)

    def _serve(self) -> None:
        while not self._closing:
            events = self._selector.select(self._look_s)
            while events:
                for key, ready in events:
                    if key.fileobj is self._bell:
                        self._bell.hear()
                    else:
                        self._hear(key.data, key.fileobj, ready)
                events = self._selector.select(0) if self._patient else []
            self._advance()

    def _hear(self, who: Any, source: Any, ready: int) -> None:
        """A source has something to say, or there is room for what it is told, by `ready`."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Do whatever can be done now."""
        raise NotImplementedError

    def close(self) -> None:
        """End the service; nothing may be under way."""
        self._closing = True
        self._bell.ring()
        self._thread.join()
        self._selector.close()
        self._bell.close()
