"""A cache of results by key, bounded: a long search would otherwise fill the memory."""
from typing import Any, Callable, Dict

#: The largest number of results in a cache, times the number of ranks.
MAX_RESULTS = 4_000_000


class Memo:
    """Results of functions by key, in two generations: the older one is dropped when there are too many.

    - `ranks`: the size of a result grows with the number of ranks.
    """

    def __init__(self, ranks: int):
        self._ranks = ranks
        self._results: Dict[Any, Any] = {}
        self._older: Dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a key; call a function to make it if it is missing."""
        result = self._results.get(key)
        if result is None:
            result = self._older.get(key)
            if result is None:
                result = make(*args)
            if 2 * len(self._results) * self._ranks >= MAX_RESULTS:
                self._older, self._results = self._results, {}
            self._results[key] = result
        return result
