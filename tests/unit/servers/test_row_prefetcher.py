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
SIGNS = [1, -1]  # of the two columns


class Server:
    """A table to which this and another worker push; it counts requests.

    A row is a million times its id, plus 100 for each push of this worker that has the row, plus 1 for each push of the
    other worker.  With a staleness of 1, an answer lacks the last push of the other worker, as far as the request
    allows.
    """

    def __init__(self, staleness=0):
        self.staleness, self.fresh, self.asked, self.open, self.deliveries = staleness, False, [], 0, []
        self.own_pushes, self.other_pushes = np.zeros(ROWS), 0
        self.prefetcher = RowPrefetcher(self.request, 2, np.dtype(np.float64), self.lag)

    def lag(self):
        return 0 if self.fresh else self.staleness

    def rows(self, ids, lacking=0):
        ids = np.array(ids, np.int64)
        return (1e6 * ids + 100 * self.own_pushes[ids] + self.other_pushes - lacking)[:, None] * SIGNS

    def request(self, ids, priority, ahead=0):
        self.asked.append(list(ids) + ['ahead'] * ahead)
        self.open += 1
        found = self.rows(ids, 0 if ahead else min(self.lag(), self.other_pushes))

        def write(result):
            self.open -= 1
            result[:] = found
        return write

    def push(self, ids=(), anew=True):
        """Push; `anew` stands for a push that may change all rows."""
        ids = np.array(ids, np.int64)
        self.prefetcher.before_push(None if anew else ids)
        assert self.staleness or not self.open, 'rows under way would be read after they changed'
        self.own_pushes[ids] += 1
        self.other_pushes += 1
        self.prefetcher.after_push()

    def check_pull(self, ids):
        result = np.full((len(ids), 2), np.nan)
        self.prefetcher.pull(np.array(ids, np.int64), result, 0)
        lacking = (self.rows(ids) - result) * SIGNS
        assert ((0 <= lacking) & (lacking <= self.lag())).all()

    def pull_later(self, ids):
        """Have another thread write the rows, some time."""
        result = np.full((len(ids), 2), np.nan)
        deliver = self.prefetcher.pull_later(np.array(ids, np.int64), result, 0)
        thread = threading.Thread(target=lambda: (time.sleep(0.001), deliver()))
        thread.start()
        self.deliveries.append((thread, result, self.rows(ids)))

    def call(self, kind, ids):
        if kind in ('want', 'want next'):
            self.prefetcher.prefetch(np.array(ids, np.int64), 0, after_push=kind == 'want next')
        elif kind == 'pull':
            self.check_pull(ids)
        elif kind == 'pull later':
            self.pull_later(ids)
        elif kind == 'evaluate':
            self.fresh = True
            self.check_pull(ids)
            self.fresh = False
        elif kind == 'collect':
            self.prefetcher.collect()
        else:
            self.push(ids, anew=kind == 'push anew')


@pytest.fixture
def server():
    return Server()


#: The staleness, calls with row ids, and the requests that each call sends, by what they show.
CALLS = {
    'without a wish every pull is a request': (0, [('pull', [1, 3], [[1, 3]]), ('pull', [1, 3], [[1, 3]])]),
    'a wish before the pull is used': (0, [('want', [2, 5], [[2, 5]]), ('pull', [2, 5], [])]),
    'a wish amid a step awaits the push': (0, [
        ('pull', [0], [[0]]), ('want', [2, 5], []), ('push anew', [], [[2, 5]]), ('pull', [2, 5], [])]),
    'unwished rows are asked for alone': (0, [
        ('want', [2, 5, 7], [[2, 5, 7]]), ('pull', [2, 6, 7, 9], [[6, 9]]), ('pull', [5], [])]),
    'a push makes prefetched rows stale': (0, [
        ('want', [2, 5], [[2, 5]]), ('push anew', [], []), ('pull', [2, 5], [[2, 5]])]),
    'a wish for nothing sends nothing': (0, [('want', [], []), ('pull', [1], [[1]])]),
    'stale rows are requested ahead without on-demand rows': (1, [
        ('pull', [0, 7], [[0, 7]]), ('want next', [2, 5, 7], [[2, 5, 'ahead']]), ('push', [1, 5, 9], [[5, 7]]),
        ('pull', [2, 5, 7], [])]),
}


@pytest.mark.parametrize('staleness, calls', CALLS.values(), ids=list(CALLS))
def test_requests_of_calls(staleness, calls):
    server = Server(staleness)
    for kind, ids, requests in calls:
        server.asked.clear()
        server.call(kind, ids)
        assert server.asked == requests
    assert not server.open


def test_a_push_waits_for_rows_that_another_thread_writes(server):
    result, before = np.zeros((2, 2)), server.rows([2, 5])
    deliver = server.prefetcher.pull_later(np.array([2, 5]), result, 0)
    pushing = threading.Thread(target=server.push)
    pushing.start()
    time.sleep(0.05)
    assert pushing.is_alive() and not result.any()
    deliver()
    pushing.join(10)
    assert not pushing.is_alive()
    np.testing.assert_array_equal(result, before)
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
    assert all((result == server.rows([1])).all() for result in results)


def test_push_does_not_wait_for_stale_rows():
    server = Server(staleness=1)
    server.push([1], anew=False)
    result = np.zeros((2, 2))
    deliver = server.prefetcher.pull_later(np.array([2, 5]), result, 0)
    before = server.rows([2, 5], lacking=1)
    server.push([2], anew=False)
    deliver()
    np.testing.assert_array_equal(result, before)


def test_fresh_pull_uses_no_stale_rows():
    server = Server(staleness=1)
    for kind, ids in [('push', [1]), ('pull', [0]), ('want next', [2, 5]), ('push', [1]), ('evaluate', [2, 5]),
                      ('pull', [2, 5])]:
        server.call(kind, ids)
    assert server.asked[-1] == [2, 5] and not server.open


@pytest.mark.parametrize('staleness, kinds', [
    (0, ['want', 'pull', 'pull later', 'push anew']),
    (1, ['want', 'want next', 'pull', 'push', 'push anew', 'collect', 'evaluate'])])
@settings(deadline=None)
@given(st.data())
def test_any_order_of_calls_gives_rows_of_the_staleness(staleness, kinds, data):
    server, ids_lists = Server(staleness), st.lists(st.integers(0, ROWS - 1), max_size=6, unique=True).map(sorted)
    for kind, ids in data.draw(st.lists(st.tuples(st.sampled_from(kinds), ids_lists), max_size=25)):
        server.call(kind, ids)
    server.prefetcher.before_push()
    for thread, result, expected in server.deliveries:
        thread.join(10)
        np.testing.assert_array_equal(result, expected)
    assert not server.open
