"""Leases of the resources of stores on servers and in shared memory, which are released once a store is gone.

A store may be dropped at any time, and the garbage collector of every worker notices that at a time of its own.  But
all workers must release the resources of a store together: servers must not have a push to a table under way, and
workers must agree on the tables that exist.  So a worker only records that a store is gone.  When all workers exchange
messages anyway, because they make a store or attach a Trainer to one, they exchange these records, and release the
resources of stores that are gone on all of them.

The names of all resources of a store begin with its prefix.
"""
import gc
import itertools
import weakref
from typing import Any, List, Set

from ..comm.collective import Collective
from .cluster import ParameterServers
from .lifecycle import retire_tables


class Lease:
    """The lease of a store, which lasts as long as this object; its prefix is equal on all workers."""

    def __init__(self, prefix: str):
        self.prefix = prefix


class ResourceLeases:
    """The leases of all stores of a job."""

    def __init__(self, collective: Collective, servers: ParameterServers):
        self._collective, self._servers = collective, servers
        self._numbers = itertools.count()
        #: Prefixes of the leases that were not released; equal on all workers.
        self._active: Set[str] = set()
        #: Prefixes of the leases whose stores are gone in this worker.  Finalizers, in any thread, only append to it.
        self._gone: List[str] = []

    def new(self) -> Lease:
        """Make the lease of a new store (on all workers)."""
        lease = Lease('hybrid%d' % next(self._numbers))
        self._active.add(lease.prefix)
        weakref.finalize(lease, self._gone.append, lease.prefix).atexit = False
        return lease

    def meet(self, value: Any, name: str) -> List[Any]:
        """Exchange a JSON `value` of every worker, returned by rank, and release the leases that ended (collective)."""
        if self._active:
            # A Trainer is part of reference cycles, which Python may not collect while memory grows.
            gc.collect()
        everyone = self._collective.allgather_json([value, self._gone[:]], name)
        gone = set.intersection(*[set(prefixes) for _, prefixes in everyone]) & self._active
        if gone:
            self._active -= gone
            for prefix in gone:
                self._gone.remove(prefix)
            beginnings = tuple(prefix + '.' for prefix in sorted(gone))
            retire_tables(self._servers, [name for name in self._servers.tables if name.startswith(beginnings)])
            self._collective.forget(beginnings)
            # Other stores may use the memory as soon as all workers have released it.
            self._servers.barrier()
        return [their_value for their_value, _ in everyone]
