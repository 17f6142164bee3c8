"""Agents and workers of several hosts in one process: the compiled library as jobs use it, without a job."""
import ctypes
import functools
import itertools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from mxhybrid.lane import library
from mxhybrid.lane.keyed_rows import KeyedRows, packed
from mxhybrid.row_store.row_store import FirstValues

FENCE, UNCACHED = 1, 2
LIMIT_MS = 20000

#: The numbers of workers and agents of each host: one host, several servers on it, several hosts, one of them without a
#: worker.
JOBS = [([1], [1]), ([3], [2]), ([1, 1], [1, 1]), ([2, 3], [1, 2]), ([2, 1, 2], [1, 1, 1]), ([2, 0], [1, 1])]
#: Keys on both sides of limits of integer and float types.
KEYS = np.unique(np.array([-2 ** 63, -2 ** 63 + 1, -2 ** 53 - 1, -2 ** 31 - 1, -2 ** 31, -3, -1, 0, 1, 2, 2 ** 24 + 1,
                           2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, 2 ** 32, 2 ** 53, 2 ** 53 + 1, 2 ** 62, 2 ** 63 - 2,
                           2 ** 63 - 1] + list(range(100, 160)), np.int64))

lib = library.load()
ASSIGN, SGD = lib.rules['assign'], lib.rules['sgd']


def pointer(array):
    return array.ctypes.data


def partitions_of(keys, count):
    """Return the partition of each key of a dynamic table."""
    keys, parts = np.ascontiguousarray(keys, np.int64), np.empty(len(keys), np.uint32)
    lib.partitions_of(pointer(keys), len(keys), count, pointer(parts))
    return parts


class OnComplete(ctypes.Structure):
    """The callback that MXNet's engine passes to asynchronous operations."""

    _fields_ = [('callback', ctypes.c_void_p), ('engine', ctypes.c_void_p), ('parameter', ctypes.c_void_p)]


class Completion:
    """A callback `complete`, and the event `done`, which the callback sets."""

    #: All callbacks: the compiled library may not have returned from one when `done` is set.
    _callbacks = []

    def __init__(self):
        self.done = threading.Event()
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
            lambda *_: self.done.set())
        self._callbacks.append(self._callback)
        self.complete = OnComplete(ctypes.cast(self._callback, ctypes.c_void_p), None, None)

    def wait(self):
        assert self.done.wait(LIMIT_MS / 1000)


def start(transfer, source, target):
    """Start a run of a transfer, as MXNet's engine does; return its completion."""
    completion = Completion()
    completion.arrays = source, target
    run = lib.transfer_run_new(transfer.pointer, None if source is None else pointer(source),
                               None if target is None else pointer(target))
    lib.transfer_start(None, ctypes.addressof(completion.complete), run)
    lib.transfer_run_close(run)
    return completion


def sum_in_rank_order(arrays, workers):
    """Return the sum of the arrays of all workers, with the bits of an allreduce: each host adds up its own first."""
    arrays = iter(arrays)
    host_sums = [functools.reduce(np.add, itertools.islice(arrays, count)) for count in workers]
    return functools.reduce(np.add, host_sums)


def wait_until(condition, pause_s=0.001):
    """Wait until `condition()` is true; return its value."""
    end = time.monotonic() + LIMIT_MS / 1000
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, 'not in time: %s' % condition.__qualname__
        time.sleep(pause_s)


def wait_for(completions):
    """Start all operations that an iterable yields, then wait until they are complete."""
    for completion in list(completions):
        completion.wait()


class WorkerBuffer:
    """The buffer of an allreduce in one worker."""

    def __init__(self, pointer, dtype, count):
        self.pointer = pointer
        memory = ctypes.c_char * (count * dtype.itemsize)
        self.input, self.output = [np.frombuffer(memory.from_address(address), dtype)
                                   for address in (lib.allreduce_input(pointer), lib.allreduce_output(pointer))]
        self._completion = Completion()
        self.done, self.wait = self._completion.done, self._completion.wait

    def start(self, priority=0, kind='start'):
        """Start a run; `input` is complete.  `kind` is 'start' for a sum, 'scatter' or 'gather'."""
        self.done.clear()
        lib.allreduce_set_priority(self.pointer, priority)
        getattr(lib, 'allreduce_' + kind)(None, ctypes.addressof(self._completion.complete), self.pointer)

    def run(self, values, kind='start'):
        """Run with the input `values`, None for those that are there; return the output."""
        if values is not None:
            self.input[:] = values
        self.start(kind=kind)
        self.wait()
        return self.output.copy()


class Hosts:
    """Hosts with the given numbers of workers and agents; `failures` has the errors of agents.

    If they are not `started`, call `start` later.
    """

    def __init__(self, workers, agents, started=True):
        self.failures = []
        self.agent_hosts = [host for host, count in enumerate(agents) for _ in range(count)]
        self.workers_on = workers
        membership = (len(self.agent_hosts), library.numbers(self.agent_hosts), len(workers), library.numbers(workers))
        self._call = library.Callback(lambda *_: None)
        self._failed = library.Failed(lambda why: self.failures.append(why.decode()))
        self.agents = [lib.agent_new(number, *membership, self._call, self._failed)
                      for number in range(len(self.agent_hosts))]
        self.workers = [(host, local, lib.worker_new(host, local, *membership))
                        for host, count in enumerate(workers) for local in range(count)]
        for number, agent in enumerate(self.agents):
            for other in range(number):
                if self.agent_hosts[other] != self.agent_hosts[number]:
                    self.join(number, other)
            for host, local, worker in self.workers:
                if host == self.agent_hosts[number]:
                    lib.agent_add_worker(agent, local, lib.worker_block(worker))
                    doorbell = os.dup(lib.agent_doorbell(agent))
                    lib.worker_add_agent(worker, number, doorbell, lib.agent_block(agent))
        if started:
            self.start()
        #: Width, type and owners of each table.
        self.tables = {}
        #: Descriptors of the memory that workers share for each table.
        self.memories = {}
        #: Descriptor of the memory that an agent shares for a table, by table and agent.
        self.agent_memories = {}

    def start(self):
        """Start the agents."""
        for agent in self.agents:
            lib.agent_start(agent)

    def join(self, first, second):
        for agent, peer, sock in zip((first, second), (second, first), socket.socketpair()):
            self.give(agent, peer, sock)

    def give(self, agent, peer, sock):
        """Hand an agent its connection with another one."""
        lib.agent_connect(self.agents[agent], peer, sock.detach())

    def owners(self, parts):
        """Return the owners of partitions that the agents own in turn."""
        return [part % len(self.agents) for part in range(parts)]

    def table(self, number, rows, width, owners, dtype=np.float32, row_format=0, staleness=0, dynamic=False,
              first=('zero', 0.0), seed=0):
        """Add a table whose rows pushes overwrite, until `rule` is called.

        A `dynamic` one has `rows` keys at most in a batch; `first` has the kind and value of its first values.
        """
        shape = (number, 0 if dynamic else rows, width, lib.dtypes[np.dtype(dtype).name], row_format,
                 rows if dynamic else 0, len(owners), library.numbers(owners), staleness)
        self.tables[number] = (width, np.dtype(dtype), owners)
        for agent in self.agents:
            if dynamic:
                lib.agent_add_dynamic_table(agent, number, b'items', *shape[1:],
                                            *FirstValues(*first, seed).for_library(), 1, 0, 0, 0, b'', 0, 0)
            else:
                lib.agent_add_table(agent, *shape)
        self.memories[number] = []
        for host, local, worker in self.workers:
            worker_memory = lib.worker_add_table(worker, *shape)
            self.memories[number].append(os.dup(worker_memory))
            for agent, pointer_of_agent in enumerate(self.agents):
                if self.agent_hosts[agent] == host:
                    lib.agent_attach(pointer_of_agent, number, local, worker_memory)
                    agent_memory = lib.agent_table(pointer_of_agent, number)
                    lib.worker_attach(worker, number, agent, agent_memory)
                    if (number, agent) in self.agent_memories:
                        os.close(agent_memory)
                    else:
                        self.agent_memories[number, agent] = agent_memory
        self.rule(number, ASSIGN)

    def dynamic_table(self, number, width, owners, max_batch_rows=1000, **options):
        """Add a dynamic table."""
        self.table(number, max_batch_rows, width, owners, dynamic=True, **options)

    def with_store(self, number, part, use):
        """Call `use` with the address of the row store of a partition; return its result."""
        results = []
        callback = library.StoreFunction(lambda store: results.append(use(store)))
        lib.agent_with_store(self.agents[self.tables[number][2][part]], number, part, callback)
        return results[0]

    def rule(self, number, kind, slot=0, **settings):
        array = lib.rule_settings({'rescale': 1.0, **settings})
        for part, owner in enumerate(self.tables[number][2]):
            lib.agent_set_rule(self.agents[owner], number, part, kind, slot, array)

    def push(self, worker, number, ids, rows, exact=False, limit=LIMIT_MS):
        ids = np.ascontiguousarray(ids, np.int64)
        rows = np.ascontiguousarray(rows, self.tables[number][1])
        return lib.worker_push(self.workers[worker][2], number, pointer(ids), len(ids), pointer(rows),
                               limit, int(exact)) == 0

    def push_alone(self, worker, number, ids, rows, exact=False):
        """Push rows from one worker, after pushes without rows from all others."""
        others = [other for other in range(len(self.workers)) if other != worker]
        assert all(self.push(other, number, [], [], exact) for other in others)
        assert self.push(worker, number, ids, rows, exact)

    def push_tables(self, worker, numbers, rows, limit=LIMIT_MS):
        """Push rows to several tables; return the number of tables that were pushed to in time."""
        pushes = packed(numbers, rows)
        return lib.worker_push_tables(self.workers[worker][2], pointer(pushes), len(numbers), limit)

    def post(self, worker, number, ids, flags=0, staleness=0, ahead=0):
        ids = np.ascontiguousarray(ids, np.int64)
        return lib.worker_post(self.workers[worker][2], number, pointer(ids), len(ids), flags, staleness, ahead)

    def lags(self, worker, number):
        """Return the number of rows that the workers of a worker's host pulled, by their lag."""
        lags = (ctypes.c_uint64 * 17)()
        lib.worker_lags(self.workers[worker][2], number, lags)
        return list(lags)

    def deliver(self, worker, number, ids):
        """Request rows as MXNet's engine does; return the array that they are written to, and the completion."""
        out = np.full((len(ids), self.tables[number][0]), np.nan, self.tables[number][1])
        return out, self.deliver_tables(worker, [number], [KeyedRows(np.ascontiguousarray(ids, np.int64), None, out)])

    def deliver_tables(self, worker, numbers, rows):
        """Request rows of several tables as MXNet's engine does; return the completion."""
        handle, requests, handles = self.workers[worker][2], packed(numbers, rows), np.full(len(numbers), -1, np.int32)
        stalenesses = library.numbers([0] * len(numbers))
        assert lib.worker_post_tables(handle, pointer(requests), stalenesses, len(numbers), pointer(handles)) == 0
        completion = Completion()
        lib.worker_deliver_tables(None, ctypes.addressof(completion.complete),
                                  lib.deliveries_new(handle, pointer(requests), len(numbers), pointer(handles)))
        return completion

    def overflows(self, worker, number):
        return lib.worker_overflows(self.workers[worker][2], number)

    def wait_for_deliveries(self, worker, number, limit=LIMIT_MS):
        return lib.worker_wait_for_deliveries(self.workers[worker][2], number, limit) == 0

    def wait(self, worker, number, request, count, limit=LIMIT_MS):
        out = np.full((count, self.tables[number][0]), np.nan, self.tables[number][1])
        status = lib.worker_wait(self.workers[worker][2], number, request, pointer(out), limit)
        return None if status else out

    def pull(self, worker, number, ids, flags=0, limit=LIMIT_MS):
        return self.wait(worker, number, self.post(worker, number, ids, flags), len(ids), limit)

    def open_allreduce(self, worker, number, dtype, count, ends=(), quantized=False):
        """Open an allreduce in one worker; return its buffer.  `ends` has the ends of the ranges of all workers."""
        _, local, handle = self.workers[worker]
        shape = lib.dtypes[np.dtype(dtype).name], count
        worker_memory = lib.worker_open_allreduce(handle, number, *shape)
        agent = self.agents[lib.worker_allreduce_agent(handle, number)]
        agent_memory = lib.agent_open_allreduce(
            agent, number, local, *shape, len(ends), library.counts(ends), int(quantized), worker_memory)
        buffer = WorkerBuffer(lib.worker_attach_allreduce(handle, number, agent_memory), np.dtype(dtype), count)
        os.close(agent_memory)
        return buffer

    def allreduce(self, *shape, **options):
        """Open an allreduce in all workers; return their buffers."""
        return [self.open_allreduce(worker, *shape, **options) for worker in range(len(self.workers))]

    def drop_allreduce(self, number):
        for _, _, worker in self.workers:
            agent = self.agents[lib.worker_allreduce_agent(worker, number)]
            lib.agent_drop_allreduce(agent, number)
            lib.worker_drop_allreduce(worker, number)

    def traffic(self, worker):
        """Return the bytes that a worker's host has sent and received, by kind of message, once all counts are made.

        A host counts bytes after the socket took them: the other host may have received them before.
        """
        def settled_counts():
            counts = self._present_traffic()
            sent, received = (np.sum([of_host[way] for of_host in counts.values()], axis=0) for way in (0, 1))
            time.sleep(0.02)
            return counts if (sent == received).all() and counts == self._present_traffic() else None
        return wait_until(settled_counts)[self.workers[worker][0]]

    def _present_traffic(self):
        """Return the bytes that each host has sent and received, by kind of message."""
        counts = {}
        for host, _, worker in self.workers:
            of_host = (ctypes.c_uint64 * 18)()
            lib.worker_traffic(worker, of_host)
            counts[host] = list(of_host[:9]), list(of_host[9:])
        return counts

    def link(self, room=1 << 26):
        """Open the channels between all workers; the rings of each channel have `room` bytes."""
        channels = {}  # from a worker of the same host, by sender and receiver
        pairs = list(itertools.permutations(range(len(self.workers)), 2))
        for rank, other in pairs:
            (host, local, worker), other_host = self.workers[rank], self.workers[other][0]
            incoming = lib.worker_open_channel(worker, other, 0, room)
            if other_host == host:
                channels[other, rank] = os.dup(incoming)
                continue
            agent = self.agents[lib.worker_channel_agent(worker, rank, other)]
            lib.agent_open_channel(agent, local, 0, other, rank, other_host, incoming)
            outgoing = lib.worker_open_channel(worker, other, 1, room)
            lib.agent_open_channel(agent, local, 1, rank, other, other_host, outgoing)
        for rank, other in pairs:
            (host, _, worker), (other_host, _, other_worker) = self.workers[rank], self.workers[other]
            if other_host == host:
                incoming = channels.pop((rank, other))
                lib.worker_link(worker, other, incoming, lib.worker_block(other_worker))
                os.close(incoming)
            else:
                lib.worker_link_by_agents(worker, other, lib.worker_channel_agent(worker, rank, other))

    def everywhere(self, function):
        """Call `function(number)` for every worker, each in its own thread; return the results."""
        with ThreadPoolExecutor(len(self.workers)) as threads:
            return list(threads.map(function, range(len(self.workers))))

    def close(self):
        for _, _, worker in self.workers:
            lib.worker_close(worker)
        for agent in self.agents:
            assert lib.agent_close(agent, LIMIT_MS) == 0, lib.error()
            lib.agent_free(agent)
        for descriptor in itertools.chain(self.agent_memories.values(), *self.memories.values()):
            os.close(descriptor)


@contextmanager
def hosts(*shape, kind=Hosts, may_fail=False, **options):
    """Create several hosts; in the end no agent has failed, unless it may."""
    job = kind(*shape, **options)
    try:
        yield job
        assert may_fail or job.failures == []
    finally:
        job.close()
