"""The receive windows of agents, which let connections share a link evenly, and the thresholds of wake-ups."""
import ctypes
import socket
import threading
import time

import numpy as np
import pytest

from mxhybrid.lane import library

from .hosts import LIMIT_MS, Hosts, lib

pytestmark = pytest.mark.both_pythons

#: The smallest window in bytes, and the longest time in seconds of a link's bytes that all windows hold together.
SMALLEST, SPAN_S = 1 << 15, 0.04
NO_LIMIT = 0
#: The time in seconds of a link's bytes that are the sum of all thresholds, and the largest threshold in bytes.
THRESHOLD_SPAN_S, LARGEST_THRESHOLD = 0.01, 1 << 18
#: Linux's socket option, which the module socket lacks: the unsent bytes from which a socket takes no more.
TCP_NOTSENT_LOWAT = 25


def sizes(bytes_per_interval, interval_s, connections, min_rtt_s=0.0):
    """Return windows and thresholds after each of several intervals with given numbers of received bytes."""
    received = 12345 + np.cumsum([0] + list(bytes_per_interval)).astype(np.int64)
    times_ns = 10**9 + np.arange(len(received)) * round(interval_s * 1e9)
    results = [(ctypes.c_uint32 * len(received))() for _ in range(2)]
    lib.receive_windows(len(received), library.counts(received.tolist()), library.counts(times_ns.tolist()), min_rtt_s,
                        connections, *results)
    return [list(result[1:]) for result in results]


def windows(*args, **kwargs):
    """Return the windows of :func:`sizes`."""
    return sizes(*args, **kwargs)[0]


def thresholds(*args):
    """Return the thresholds of :func:`sizes`."""
    return sizes(*args)[1]


def test_windows_hold_40_ms_of_the_rate():
    rate = 125e6
    assert windows([rate * 0.1] * 3, 0.1, 7) == [pytest.approx(rate * SPAN_S / 7, abs=1)] * 3
    assert windows([rate * 0.1] * 3, 0.1, 2) == [pytest.approx(rate * SPAN_S / 2, abs=1)] * 3


def test_windows_hold_two_round_trips():
    assert windows([12.5e5], 0.1, 5, min_rtt_s=0.1) == [12.5e6 * 0.2 / 5]


def test_windows_are_not_too_small():
    assert windows([1000, 0, 0], 0.1, 7) == [SMALLEST] * 3


def test_large_windows_and_single_connections_are_not_limited():
    assert windows([125e6], 0.05, 2) == [NO_LIMIT]
    assert windows([1000], 0.1, 1) == [NO_LIMIT]


def test_rate_is_the_largest_over_50_ms():
    # The agent receives nothing for four intervals of 10 ms, then all bytes that have waited in its sockets.
    burst = windows([0, 0, 0, 0, 1.25e6, 0, 0, 0, 0, 1.25e6], 0.01, 5)
    assert burst[:4] == [SMALLEST] * 4
    assert burst[4:] == [25e6 * SPAN_S / 5] * 6
    declined = windows([1.25e6] + [0] * 100, 0.1, 2)
    assert declined[:3] == [pytest.approx(12.5e6 * 0.99 ** n * SPAN_S / 2, abs=1) for n in range(3)]
    assert declined[-1] == pytest.approx(12.5e6 * 0.99 ** 100 * SPAN_S / 2, abs=1)


def test_thresholds_are_10_ms_of_the_rate():
    assert thresholds([12.5e5] * 2, 0.1, 7) == [pytest.approx(12.5e6 * THRESHOLD_SPAN_S / 7, abs=1)] * 2
    assert thresholds([12.5e5] * 2, 0.1, 1) == [12.5e6 * THRESHOLD_SPAN_S] * 2


def test_thresholds_are_limited():
    assert thresholds([125e6], 0.1, 1) == [LARGEST_THRESHOLD]
    assert thresholds([0], 0.1, 7) == [0]


def test_thresholds_are_at_most_a_quarter_of_a_window():
    for bytes_per_interval in np.logspace(0, 10, 40):
        for connections in (2, 7, 100):
            [window], [threshold] = sizes([bytes_per_interval], 0.1, connections)
            assert window == NO_LIMIT or threshold <= window / 4 + 1


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


@pytest.fixture
def make_job():
    """Return a function that creates a job with connections of TCP; at the end no agent may have failed."""
    jobs = []

    def make(*shape):
        jobs.append(TcpHosts(*shape))
        return jobs[-1]
    yield make
    for job in jobs:
        job.close()
        assert job.failures == []


def sum_slowly(job, sums):
    """Sum a small array, at less than a megabyte a second."""
    time.sleep(0.005)
    assert all((total == len(sums)).all() for total in job.everywhere(lambda worker: sums[worker].run(np.ones(1000))))


@pytest.mark.timeout(60)
def test_agents_with_several_connections_limit_their_windows(make_job):
    job = make_job([1, 1, 1], [1, 1, 1])
    sums = job.allreduce(3, 'float32', 1000)
    deadline = time.monotonic() + LIMIT_MS / 1000
    while any(limit != SMALLEST for limit in job.limits()):
        assert time.monotonic() < deadline
        sum_slowly(job, sums)
    large = job.allreduce(4, 'float32', 10**6)  # many times the window
    assert all((total == 3).all() for total in job.everywhere(lambda worker: large[worker].run(np.ones(10**6))))


@pytest.mark.timeout(60)
def test_agents_with_one_connection_have_no_limit(make_job):
    job = make_job([1, 1], [1, 1])
    before = job.limits()
    sums = job.allreduce(3, 'float32', 1000)
    ends = time.monotonic() + 0.3  # several times the time of a measurement
    while time.monotonic() < ends:
        sum_slowly(job, sums)
    assert all(limit >= at_first for limit, at_first in zip(job.limits(), before))


@pytest.mark.timeout(60)
@pytest.mark.parametrize('hosts', [2, 3])
def test_agents_wake_at_a_threshold_or_the_end(make_job, hosts):
    count = 2 * 10**6
    job = make_job([1] * hosts, [1] * hosts)
    sums = job.allreduce(3, 'float32', count)
    low_waters, ended = set(), threading.Event()

    def sample():
        while not ended.wait(0.001):
            low_waters.update(job.low_waters())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        deadline = time.monotonic() + LIMIT_MS / 1000
        while max(low_waters, default=1) == 1:
            assert time.monotonic() < deadline
            totals = job.everywhere(lambda worker: sums[worker].run(np.ones(count)))
            assert all((total == hosts).all() for total in totals)
    finally:
        ended.set()
        sampler.join()
    assert max(low_waters) <= LARGEST_THRESHOLD
    assert any(sock.getsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT) > 1 << 15 for sock in job.sockets)
    while any(low_water != 1 for low_water in job.low_waters()):  # nothing is under way: any byte is news
        assert time.monotonic() < deadline
        time.sleep(0.001)
