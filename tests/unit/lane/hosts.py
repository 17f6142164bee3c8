"""Agents and workers of several hosts in one process: the compiled library as jobs use it, without a job."""
import ctypes
import itertools
import os
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np

from mxhybrid.kernels.library import INT
from mxhybrid.lane import library
from mxhybrid.lane.keyed_rows import KeyedRows, packed
from mxhybrid.row_store.row_store import FirstValues

FENCE, UNCACHED = 1, 2
LIMIT_MS = 20000

lib = library.load()
ASSIGN, SGD, ADAM = [lib.rules[name] for name in ('assign', 'sgd', 'adam')]
#: The types of arrays that can be summed.
SUM_DTYPES = [np.dtype(name) for name in lib.dtypes]


def pointer(array):
    return array.ctypes.data


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


def start(transfer, source, target):
    """Start a run of a transfer, as MXNet's engine does; return its completion."""
    completion = Completion()
    completion.arrays = source, target
    run = lib.transfer_run_new(transfer.pointer, None if source is None else pointer(source),
                               None if target is None else pointer(target))
    lib.transfer_start(None, ctypes.addressof(completion.complete), run)
    lib.transfer_run_close(run)
    return completion


class WorkerBuffer:
    """The buffer of an allreduce in one worker."""

    def __init__(self, pointer, dtype, count):
        self.pointer = pointer
        memory = ctypes.c_char * (count * dtype.itemsize)
        self.input, self.output = [np.frombuffer(memory.from_address(address), dtype)
                                   for address in (lib.allreduce_input(pointer), lib.allreduce_output(pointer))]
        self._completion = Completion()
        self.done = self._completion.done

    def start(self, priority=0, kind='start'):
        """Start a run; `input` is complete.  `kind` is 'start' for a sum, 'scatter' or 'gather'."""
        self.done.clear()
        lib.allreduce_set_priority(self.pointer, priority)
        getattr(lib, 'allreduce_' + kind)(None, ctypes.addressof(self._completion.complete), self.pointer)

    def run(self, values, kind='start'):
        """Run with the input `values`, None for those that are there; return the output, for a sum that of all workers.
        """
        if values is not None:
            self.input[:] = values
        self.start(kind=kind)
        assert self.done.wait(LIMIT_MS / 1000)
        return self.output.copy()


class Hosts:
    """Hosts with the given numbers of workers and agents; `failures` has the errors of agents."""

    def __init__(self, workers, agents, call=None):
        self.failures = []
        self.agent_hosts = [host for host, count in enumerate(agents) for _ in range(count)]
        self.workers_on = workers
        membership = (len(self.agent_hosts), library.numbers(self.agent_hosts), len(workers), library.numbers(workers))
        self._call = library.Callback(call or (lambda *_: None))
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
        self.start()
        self.tables = {}
        #: Descriptors of the memory that workers share for each table.
        self.memories = {}
        #: Descriptor of the memory that an agent shares for a table, by table and agent.
        self.agent_memories = {}
        self._channels = {}

    def start(self):
        """Start the agents."""
        for number in range(len(self.agents)):
            self.start_agent(number)

    def start_agent(self, number):
        lib.agent_start(self.agents[number])

    def join(self, first, second):
        for agent, peer, sock in zip((first, second), (second, first), socket.socketpair()):
            self.give(agent, peer, sock)

    def give(self, agent, peer, sock):
        """Hand an agent its connection with another one."""
        lib.agent_connect(self.agents[agent], peer, sock.detach())

    def table(self, number, rows, width, owners, dtype=np.float32, row_format=0, staleness=0):
        """Add a table of zeros."""
        shape = (number, rows, width, lib.dtypes[np.dtype(dtype).name], row_format, 0, len(owners),
                 library.numbers(owners), staleness)
        self.tables[number] = (rows, width, np.dtype(dtype), owners)
        for agent in self.agents:
            lib.agent_add_table(agent, *shape)
        self._share(number, shape)

    def _share(self, number, shape):
        """Share the memory of a table between workers and agents."""
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

    def dynamic_table(self, number, width, owners, dtype=np.float32, row_format=0, max_batch_rows=1000,
                      first=('zero', 0.0), seed=0, admit=1, capacity=0, expire_after=0, staleness=0):
        """Add a dynamic table; `first` has the kind and value of its first values."""
        shape = (number, 0, width, lib.dtypes[np.dtype(dtype).name], row_format, max_batch_rows, len(owners),
                 library.numbers(owners), staleness)
        self.tables[number] = (0, width, np.dtype(dtype), owners)
        for agent in self.agents:
            lib.agent_add_dynamic_table(
                agent, number, b'items', *shape[1:], *FirstValues(*first, seed).for_library(), admit, capacity,
                expire_after, 0, b'', 0, 0)
        self._share(number, shape)

    def with_store(self, number, part, use):
        """Call `use` with the address of the row store of a partition; return its result."""
        results = []
        callback = library.StoreFunction(lambda store: results.append(use(store)))
        lib.agent_with_store(self.agents[self.tables[number][3][part]], number, part, callback)
        return results[0]

    def state_widths(self, number, *widths):
        """Set the elements of each array of optimizer state of a row of a dynamic table."""
        sizes = [width * self.tables[number][2].itemsize for width in widths] + [0, 0]
        for part in range(len(self.tables[number][3])):
            self.with_store(number, part, lambda store: lib.row_store_set_state_bytes(store, sizes[0], sizes[1]))

    def rule(self, number, kind, slot=0, **settings):
        array = lib.rule_settings({'rescale': 1.0, **settings})
        for part, owner in enumerate(self.tables[number][3]):
            lib.agent_set_rule(self.agents[owner], number, part, kind, slot, array)

    def states(self, number, width, count=1):
        """Add zeros as optimizer state of a table; return the arrays by slot and partition."""
        rows, _, dtype, owners = self.tables[number]
        states = [[np.zeros((-(-(rows - part) // len(owners)), width), dtype) for part in range(len(owners))]
                  for _ in range(count)]
        for slot, parts in enumerate(states):
            for part, array in enumerate(parts):
                lib.agent_set_state(self.agents[owners[part]], number, part, slot, pointer(array),
                                   width * dtype.itemsize)
        return states

    def push(self, worker, number, ids, rows, exact=False):
        ids = np.ascontiguousarray(ids, np.int64)
        rows = np.ascontiguousarray(rows, self.tables[number][2])
        return lib.worker_push(self.workers[worker][2], number, pointer(ids), len(ids), pointer(rows),
                               LIMIT_MS, int(exact)) == 0

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
        ids = np.ascontiguousarray(ids, np.int64)
        out = np.full((len(ids), self.tables[number][1]), np.nan, self.tables[number][2])
        handle, requests = self.workers[worker][2], packed([number], [KeyedRows(ids, None, out)])
        handles = (INT * 1)(-1)
        assert lib.worker_post_tables(handle, pointer(requests), library.numbers([0]), 1, handles) == 0
        completion = Completion()
        lib.worker_deliver_tables(None, ctypes.addressof(completion.complete),
                                  lib.deliveries_new(handle, pointer(requests), 1, handles))
        return out, completion

    def overflows(self, worker, number):
        return lib.worker_overflows(self.workers[worker][2], number)

    def wait_for_deliveries(self, worker, number, limit=LIMIT_MS):
        return lib.worker_wait_for_deliveries(self.workers[worker][2], number, limit) == 0

    def wait(self, worker, number, request, count, limit=LIMIT_MS):
        out = np.full((count, self.tables[number][1]), np.nan, self.tables[number][2])
        status = lib.worker_wait(self.workers[worker][2], number, request, pointer(out), limit)
        return None if status else out

    def pull(self, worker, number, ids, flags=0, limit=LIMIT_MS):
        return self.wait(worker, number, self.post(worker, number, ids, flags), len(ids), limit)

    def allreduce(self, number, dtype, count, ends=(), quantized=False):
        """Open an allreduce; return the buffer of each worker.  `ends` has the ends of the ranges of all workers."""
        opened = []
        for _, local, worker in self.workers:
            shape = lib.dtypes[np.dtype(dtype).name], count
            worker_memory = lib.worker_open_allreduce(worker, number, *shape)
            agent = self.agents[lib.worker_allreduce_agent(worker, number)]
            agent_memory = lib.agent_open_allreduce(
                agent, number, local, *shape, len(ends), library.counts(ends), int(quantized), worker_memory)
            opened.append(lib.worker_attach_allreduce(worker, number, agent_memory))
            os.close(agent_memory)
        return [WorkerBuffer(pointer, np.dtype(dtype), count) for pointer in opened]

    def drop_allreduce(self, number):
        for _, _, worker in self.workers:
            agent = self.agents[lib.worker_allreduce_agent(worker, number)]
            lib.agent_drop_allreduce(agent, number)
            lib.worker_drop_allreduce(worker, number)

    def traffic(self, worker):
        """Return the bytes that a worker's host has sent and received, by kind of message, once all counts are made.

        A host counts bytes after the socket took them: the other host may have received them before.
        """
        end, before = time.monotonic() + LIMIT_MS / 1000, None
        while time.monotonic() < end:
            counts = {host: self._present_traffic(number) for number, (host, _, _) in enumerate(self.workers)}
            sent, received = (np.sum([of_host[way] for of_host in counts.values()], axis=0) for way in (0, 1))
            if counts == before and (sent == received).all():
                return counts[self.workers[worker][0]]
            before = counts
            time.sleep(0.02)
        raise AssertionError('sent and received bytes differ: %s' % counts)

    def _present_traffic(self, worker):
        counts = (ctypes.c_uint64 * 18)()
        lib.worker_traffic(self.workers[worker][2], counts)
        return list(counts[:9]), list(counts[9:])

    def link(self, room=1 << 26):
        """Open the channels between all workers; the rings of each channel have `room` bytes."""
        for rank, (host, local, worker) in enumerate(self.workers):
            for other, (other_host, _, _) in enumerate(self.workers):
                if other == rank:
                    continue
                incoming = lib.worker_open_channel(worker, other, 0, room)
                if other_host == host:
                    self._channels[other, rank] = os.dup(incoming)
                    continue
                agent = self.agents[lib.worker_channel_agent(worker, rank, other)]
                lib.agent_open_channel(agent, local, 0, other, rank, other_host, incoming)
                outgoing = lib.worker_open_channel(worker, other, 1, room)
                lib.agent_open_channel(agent, local, 1, rank, other, other_host, outgoing)
        for rank, (host, _, worker) in enumerate(self.workers):
            for other, (other_host, _, other_worker) in enumerate(self.workers):
                if other == rank:
                    continue
                if other_host != host:
                    lib.worker_link_by_agents(worker, other, lib.worker_channel_agent(worker, rank, other))
                    continue
                incoming = self._channels.pop((rank, other))
                lib.worker_link(worker, other, incoming, lib.worker_block(other_worker))
                os.close(incoming)

    def everywhere(self, function):
        """Call `function(number)` for every worker, each in its own thread; return the results."""
        results = [None] * len(self.workers)

        def run(worker):
            results[worker] = function(worker)
        threads = [threading.Thread(target=run, args=(worker,)) for worker in range(len(self.workers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self):
        for _, _, worker in self.workers:
            lib.worker_close(worker)
        for agent in self.agents:
            assert lib.agent_close(agent, LIMIT_MS) == 0, lib.error()
            lib.agent_free(agent)
        for descriptor in itertools.chain(self.agent_memories.values(), *self.memories.values()):
            os.close(descriptor)


@contextmanager
def hosts(workers, agents, call=None):
    """Create several hosts; in the end no agent may have failed."""
    job = Hosts(workers, agents, call)
    try:
        yield job
        assert job.failures == []
    finally:
        job.close()
