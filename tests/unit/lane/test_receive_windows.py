"""The receive windows of agents, which let connections share a link evenly, and the thresholds of wake-ups, in jobs;
``network_parts.cc`` tests their sizes.
"""
import socket
import threading
import time

import numpy as np
import pytest

from .hosts import Hosts, hosts, wait_until

pytestmark = pytest.mark.both_pythons

#: The smallest window, and the largest threshold, in bytes.
SMALLEST, LARGEST_THRESHOLD = 1 << 15, 1 << 18
#: Linux's socket option, which the module socket lacks: the unsent bytes from which a socket takes no more.
TCP_NOTSENT_LOWAT = 25


class TcpHosts(Hosts):
    """Hosts with connections of TCP, whose sockets `sockets` has duplicates of."""

    def __init__(self, *shape):
        self.sockets = []
        super().__init__(*shape)

    def join(self, first, second):
        with socket.create_server(('127.0.0.1', 0)) as server:
            ends = socket.create_connection(server.getsockname()), server.accept()[0]
        for agent, peer, end in zip((first, second), (second, first), ends):
            self.sockets.append(end.dup())
            self.give(agent, peer, end)

    def limits(self):
        """Return the limits of the windows of all connections."""
        return [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP) for sock in self.sockets]

    def low_waters(self):
        """Return the number of received bytes from which each socket is readable."""
        return [sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) for sock in self.sockets]

    def close(self):
        super().close()
        for sock in self.sockets:
            sock.close()


def sum_slowly(job, sums):
    """Sum a small array, at less than a megabyte a second."""
    time.sleep(0.005)
    assert all((total == len(sums)).all() for total in job.everywhere(lambda worker: sums[worker].run(np.ones(1000))))


def test_agents_with_several_connections_limit_their_windows():
    with hosts([1, 1, 1], [1, 1, 1], kind=TcpHosts) as job:
        sums = job.allreduce(3, 'float32', 1000)

        def all_are_smallest():
            sum_slowly(job, sums)
            return set(job.limits()) == {SMALLEST}
        wait_until(all_are_smallest)
        large = job.allreduce(4, 'float32', 10**6)  # many times the window
        assert all((total == 3).all() for total in job.everywhere(lambda worker: large[worker].run(np.ones(10**6))))


def test_agents_with_one_connection_have_no_limit():
    with hosts([1, 1], [1, 1], kind=TcpHosts) as job:
        before = job.limits()
        sums = job.allreduce(3, 'float32', 1000)
        ends = time.monotonic() + 0.3  # several times the time of a measurement
        while time.monotonic() < ends:
            sum_slowly(job, sums)
        assert all(limit >= at_first for limit, at_first in zip(job.limits(), before))


@pytest.mark.parametrize('count', [2, 3])
def test_agents_wake_at_a_threshold_or_the_end(count):
    with hosts([1] * count, [1] * count, kind=TcpHosts) as job:
        sums = job.allreduce(3, 'float32', 2 * 10**6)
        low_waters, ended = set(), threading.Event()

        def sample():
            while not ended.wait(0.001):
                low_waters.update(job.low_waters())

        def has_a_threshold():
            totals = job.everywhere(lambda worker: sums[worker].run(np.ones(2 * 10**6)))
            assert all((total == count).all() for total in totals)
            return max(low_waters, default=1) > 1

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            wait_until(has_a_threshold)
        finally:
            ended.set()
            sampler.join()
        assert max(low_waters) <= LARGEST_THRESHOLD
        assert any(sock.getsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT) > 1 << 15 for sock in job.sockets)
        wait_until(lambda: set(job.low_waters()) == {1})  # nothing is under way: any byte is news
