"""Pulls answered from rows that were asked for earlier."""
import queue
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.servers.row_prefetcher import MAX_PENDING_PULLS, RowPrefetcher

pytestmark = pytest.mark.both_pythons

ROWS = 12


class Server:
    """A table whose rows change with every push; it counts its calls."""

    def __init__(self):
        self.deliveries = []
        self.rows = np.arange(ROWS, dtype=np.float64)[:, None] * [1, 100]
        self.asked = []
        self.open = 0
        self.prefetcher = RowPrefetcher(self.request, 2, np.dtype(np.float64))

    def request(self, ids, priority):
        self.asked.append(list(ids))
        self.open += 1
        found = self.rows[ids]

        def write(result):
            self.open -= 1
            result[:] = found
        return write

    def push(self):
        self.prefetcher.before_push()
        assert not self.open, 'rows under way would be read after they changed'
        self.rows = self.rows + 1
        self.prefetcher.after_push()

    def check_pull(self, ids):
        ids = np.array(ids, np.int64)
        result = np.full((len(ids), 2), np.nan)
        self.prefetcher.pull(ids, result, 0)
        np.testing.assert_array_equal(result, self.rows[ids])

    def pull_later(self, ids):
        """Have another thread write the rows, some time."""
        ids = np.array(ids, np.int64)
        result = np.full((len(ids), 2), np.nan)
        deliver = self.prefetcher.pull_later(ids, result, 0)
        thread = threading.Thread(target=lambda: (time.sleep(0.001), deliver()))
        thread.start()
        self.deliveries.append((thread, result, self.rows[ids]))

    def call(self, kind, ids):
        if kind == 'want':
            self.prefetcher.prefetch(np.array(ids, np.int64), 0)
        elif kind == 'pull':
            self.check_pull(ids)
        elif kind == 'pull later':
            self.pull_later(ids)
        else:
            self.push()

    def check_deliveries(self):
        """All rows were written, and are those of the moment of the call."""
        for thread, result, expected in self.deliveries:
            thread.join()
            np.testing.assert_array_equal(result, expected)


@pytest.fixture
def server():
    return Server()


#: Calls with row ids, and the requests that each call sends, by what they show.
CALLS = {
    'without a wish every pull is a request': [('pull', [1, 3], [[1, 3]]), ('pull', [1, 3], [[1, 3]])],
    'a wish before the pull is used': [('want', [2, 5], [[2, 5]]), ('pull', [2, 5], [])],
    'a wish amid a step awaits the push': [
        ('pull', [0], [[0]]), ('want', [2, 5], []), ('push', [], [[2, 5]]), ('pull', [2, 5], [])],
    'unwished rows are asked for alone': [
        ('want', [2, 5, 7], [[2, 5, 7]]), ('pull', [2, 6, 7, 9], [[6, 9]]), ('pull', [5], [])],
    'a push makes prefetched rows stale': [('want', [2, 5], [[2, 5]]), ('push', [], []), ('pull', [2, 5], [[2, 5]])],
    'a wish for nothing sends nothing': [('want', [], []), ('pull', [1], [[1]])],
}


@pytest.mark.parametrize('calls', CALLS.values(), ids=list(CALLS))
def test_requests_of_calls(server, calls):
    for kind, ids, requests in calls:
        server.asked.clear()
        server.call(kind, ids)
        assert server.asked == requests


def test_a_push_waits_for_rows_that_another_thread_writes(server):
    result = np.zeros((2, 2))
    deliver = server.prefetcher.pull_later(np.array([2, 5]), result, 0)
    pushing = threading.Thread(target=server.push)
    pushing.start()
    time.sleep(0.05)
    assert pushing.is_alive() and not result.any()
    before = server.rows
    deliver()
    pushing.join(10)
    assert not pushing.is_alive()
    np.testing.assert_array_equal(result, before[[2, 5]])
    assert server.asked == [[2, 5]]


def test_a_pull_waits_for_no_other_thread(server):
    deliver = server.prefetcher.pull_later(np.array([2, 5]), np.zeros((2, 2)), 0)
    server.check_pull([3])
    deliver()
    server.push()


def test_only_so_many_pulls_are_under_way(server):
    results = [np.zeros((1, 2)) for _ in range(3 * MAX_PENDING_PULLS)]
    waiting = queue.Queue()

    def pull():
        for result in results:
            waiting.put(server.prefetcher.pull_later(np.array([1]), result, 0))

    pulling = threading.Thread(target=pull)
    pulling.start()
    deliveries = [waiting.get(timeout=10) for _ in range(MAX_PENDING_PULLS)]
    time.sleep(0.05)
    assert server.open == MAX_PENDING_PULLS and pulling.is_alive()
    for number in range(len(results)):
        deliveries.pop(0)()
        if number < len(results) - MAX_PENDING_PULLS:
            deliveries.append(waiting.get(timeout=10))
    pulling.join(10)
    assert all((result == server.rows[[1]]).all() for result in results)


ids_lists = st.lists(st.integers(0, ROWS - 1), max_size=6, unique=True).map(sorted)


@given(st.lists(st.tuples(st.sampled_from(['want', 'pull', 'pull later', 'push']), ids_lists), max_size=25))
@settings(deadline=None)
def test_any_order_of_calls_gives_the_rows_of_now(calls):
    server = Server()
    for kind, ids in calls:
        server.call(kind, ids)
    server.check_deliveries()


class StaleServer:
    """A table with staleness 1 whose other worker adds 1 to all rows in each push, and this worker 100 to its own.

    An answer lacks the last push of the other worker, as far as the request allows.
    """

    def __init__(self):
        self.own_pushes, self.other_pushes, self.fresh, self.asked, self.open = np.zeros(ROWS), 0, False, [], 0
        self.prefetcher = RowPrefetcher(self.request, 1, np.dtype(np.float64), lambda: 0 if self.fresh else 1)

    def request(self, ids, priority, ahead=0):
        self.asked.append((list(ids), ahead))
        self.open += 1
        lacking = 0 if self.fresh or ahead else min(1, self.other_pushes)
        found = (100 * self.own_pushes[ids] + self.other_pushes - lacking)[:, None]

        def write(result):
            self.open -= 1
            result[:] = found
        return write

    def push(self, ids, anew=False):
        """Push; `anew` stands for a push that may change all rows."""
        self.prefetcher.before_push(None if anew else np.array(ids, np.int64))
        self.own_pushes[ids] += 1
        self.other_pushes += 1
        self.prefetcher.after_push()

    def check_pull(self, ids):
        result = np.full((len(ids), 1), np.nan)
        self.prefetcher.pull(np.array(ids, np.int64), result, 0)
        own, others = np.divmod(result[:, 0], 100)
        np.testing.assert_array_equal(own, self.own_pushes[ids])
        assert (others >= self.other_pushes - (not self.fresh)).all() and (others <= self.other_pushes).all()

    def call(self, kind, ids):
        if kind in ('want', 'want next'):
            self.prefetcher.prefetch(np.array(ids, np.int64), 0, after_push=kind == 'want next')
        elif kind == 'pull':
            self.check_pull(ids)
        elif kind == 'evaluate':
            self.fresh = True
            self.check_pull(ids)
            self.fresh = False
        elif kind == 'collect':
            self.prefetcher.collect()
        else:
            self.push(ids, kind == 'anew')


def test_stale_rows_are_requested_ahead_without_on_demand_rows():
    server = StaleServer()
    for kind, ids, requests in [('pull', [0, 7], [([0, 7], 0)]), ('want next', [2, 5, 7], [([2, 5], 1)]),
                                ('push', [1, 5, 9], [([5, 7], 0)]), ('pull', [2, 5, 7], [])]:
        server.asked.clear()
        server.call(kind, ids)
        assert server.asked == requests
    assert not server.open


def test_push_does_not_wait_for_stale_rows():
    server = StaleServer()
    server.push([1])
    result = np.zeros((2, 1))
    deliver = server.prefetcher.pull_later(np.array([2, 5]), result, 0)
    server.push([2])
    deliver()
    assert (result == 0).all()  # before the push


def test_fresh_pull_uses_no_stale_rows():
    server = StaleServer()
    for kind, ids in [('push', [1]), ('pull', [0]), ('want next', [2, 5]), ('push', [1]), ('evaluate', [2, 5]),
                      ('pull', [2, 5])]:
        server.call(kind, ids)
    assert server.asked[-1] == ([2, 5], 0) and not server.open


@given(st.lists(st.tuples(st.sampled_from(['want', 'want next', 'pull', 'push', 'anew', 'collect', 'evaluate']),
                          ids_lists), max_size=25))
@settings(deadline=None)
def test_any_order_of_calls_gives_rows_of_the_staleness(calls):
    server = StaleServer()
    for kind, ids in calls:
        server.call(kind, ids)
    server.prefetcher.before_push()
    assert not server.open
