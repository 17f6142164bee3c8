"""Workers and servers of a job in one process, for dynamic tables: real agents and handlers, without ps-lite."""
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import mxnet as mx
import numpy as np

from mxhybrid.lane.agent import Agent
from mxhybrid.lane.membership import Endpoint, Membership
from mxhybrid.lane.worker import Lane
from mxhybrid.native.arrays import host_view
from mxhybrid.servers.cluster import ParameterServers
from mxhybrid.servers.handler import Handler
from mxhybrid.servers.protocol import MAILBOX_ELEMENTS
from mxhybrid.telemetry.recorder import OFF


class AgentOnHost(Agent):
    """An agent on a host of a given name, although all are in this process."""

    host = ''

    @property
    def endpoint(self):
        return Endpoint(self.host, *super().endpoint[1:])


class Server(Handler):
    """A server; an error is raised, or added to `failures` by the lane's thread, instead of ending the process."""

    def __init__(self, host):
        super().__init__()
        self.failures = []
        self._mailbox = mx.nd.zeros(MAILBOX_ELEMENTS)
        self._agent = AgentOnHost('127.0.0.1', 'secret', self._update_shard, self.failures.append,
                                  self._saw_update)
        self._agent.host = host

    def die(self, doing):
        raise  # noqa: PLE0704  (called while an exception is handled)


class Workers(ParameterServers):
    """The servers, for one of the workers: commands and mailboxes are calls, and rows travel by the lane."""

    def __init__(self, job, rank):
        self.job, self.rank, self.is_root, self.initialiser = job, rank, rank == 0, 0
        self.num_servers, self.num_workers = len(job.servers), job.num_workers
        self.barrier, self.trace, self.client, self.deliveries = job.barrier.wait, OFF, None, None
        self.keys, self.tables, self.table_numbers, self._lane_numbers = None, {}, itertools.count(), itertools.count()
        self._local = threading.local()
        self.link = Lane(job.membership, rank)

    def command(self, name, /, **arguments):
        if self.is_root:
            self.link.settle()
            for server in self.job.servers:
                server.carry_out(*json.loads(json.dumps([name, arguments])))

    def read_mailbox(self, server, dtype, count):
        data = host_view(self.job.servers[server]._mailbox).view(np.uint8)
        return np.array(data[:count * np.dtype(dtype).itemsize]).view(dtype)


class DynamicJob:
    """A job of several hosts with the given numbers of workers and servers."""

    def __init__(self, workers, servers):
        self.num_workers = sum(workers)
        #: The values that workers exchange, by rank.
        self.values = {}
        self.servers = [Server('host %d' % host) for host, count in enumerate(servers) for _ in range(count)]
        domains = ['host %d' % host for host, count in enumerate(workers) for _ in range(count)]
        self.membership = Membership([server._agent.endpoint for server in self.servers], domains)
        self.everywhere([lambda server=server: server._agent.connect(self.membership, 20) for server in self.servers])
        self.barrier = threading.Barrier(self.num_workers)
        self.workers = [Workers(self, rank) for rank in range(self.num_workers)]

    @staticmethod
    def everywhere(functions):
        """Call functions, each in a thread of its own; return their results, or raise the first error."""
        with ThreadPoolExecutor(len(functions)) as threads:
            futures = [threads.submit(function) for function in functions]
            for future in as_completed(futures):
                future.result()
        return [future.result() for future in futures]

    def run(self, program):
        """Call ``program(servers)`` for each worker, each in a thread; return the results by rank."""
        def on(servers):
            try:
                return program(servers)
            except BaseException:
                self.barrier.abort()
                raise
        return self.everywhere([lambda servers=servers: on(servers) for servers in self.workers])

    def end_lane(self):
        """End the agents, as at the end of a job; only :meth:`close` may follow."""
        for servers in self.workers:
            servers.link.close()
        self.everywhere([server.do_part for server in self.servers])

    def close(self):
        for servers in self.workers:
            servers.link.close()
            servers.link._library.worker_close(servers.link.pointer)
        self.everywhere([server._agent.close for server in self.servers])


@contextmanager
def dynamic_job(workers, servers):
    """Run a job; in the end no server may have failed."""
    job = DynamicJob(workers, servers)
    try:
        yield job
        assert [server.failures for server in job.servers] == [[] for _ in job.servers]
    finally:
        job.close()
