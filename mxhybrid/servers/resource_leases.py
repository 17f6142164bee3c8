"""What stores hold on servers and in shared memory, and how it is given back once they are gone.

A store may be dropped at any moment, and every worker's garbage collector finds that at a moment of its own.  What a
store holds can go on all workers together only: servers must not have a push to a table under way, and workers must
not disagree about what there is.  So a store that is gone is noted, no more.  When all workers meet anyway, because
they make a store or attach a Trainer to one, they compare their notes, and what is gone on all of them goes.

Names of all that a store has begin with its prefix.
"""
import gc
import itertools
import weakref
from typing import Any, List, Set

from ..comm.collective import Collective
from .cluster import ParameterServers
from .lifecycle import retire_tables


class Lease:
    """A store's claim to what it holds, which lasts as long as this object; by a number, equal on all workers."""

    def __init__(self, number: int):
        self.prefix = _prefix(number)


class ResourceLeases:
    """The claims of all stores of a job."""

    def __init__(self, collective: Collective, servers: ParameterServers):
        self._collective, self._servers = collective, servers
        self._numbers = itertools.count()
        #: Stores whose holdings were not given back; equal on all workers.
        self._held: Set[int] = set()
        #: Of these, the ones that are gone in this worker.  Garbage collectors, in any thread, append only.
        self._gone: List[int] = []

    def new(self) -> Lease:
        """The claim of a new store (on all workers alike)."""
        number = next(self._numbers)
        lease = Lease(number)
        self._held.add(number)
        weakref.finalize(lease, self._gone.append, number).atexit = False
        return lease

    def meet(self, value: Any, name: str) -> List[Any]:
        """Exchange the JSON `value` of every worker, in rank order, and give back what is gone (collective)."""
        if self._held:
            # A Trainer is part of cycles, which Python may leave alone for as long as memory grows.
            gc.collect()
        everyone = self._collective.exchange([value, self._gone[:]], name)
        gone = set.intersection(*[set(numbers) for _, numbers in everyone]) & self._held
        if gone:
            self._held -= gone
            for number in gone:
                self._gone.remove(number)
            prefixes = tuple(_prefix(number) + '.' for number in sorted(gone))
            retire_tables(self._servers, prefixes)
            self._collective.forget(prefixes)
            # Others may use the room as soon as all have made it.
            self._servers.barrier()
        return [theirs for theirs, _ in everyone]


def _prefix(number: int) -> str:
    return 'hybrid%d' % number
