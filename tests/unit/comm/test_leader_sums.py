"""Sums over leaders, all in this process, over real sockets."""
import itertools
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.base.errors import JobError
from mxhybrid.comm.connections import connect_leaders
from mxhybrid.comm.leader_sums import BLOCK, WHOLE_BYTES, Mesh, add_up, cut

TIMEOUT_S = 30


class Meshes:
    """Connected places; failures of any are kept."""

    def __init__(self, places):
        sockets = [{} for _ in range(places)]
        for one, other in itertools.combinations(range(places), 2):
            with socket.create_server(('127.0.0.1', 0)) as listener:
                left = socket.create_connection(listener.getsockname())
                right, _ = listener.accept()
            sockets[one][other], sockets[other][one] = left, right
        self.failures = []
        self.failed = threading.Event()
        self.meshes = [Mesh(place, sockets[place], self._fail) for place in range(places)]

    def _fail(self, error):
        self.failures.append(error)
        self.failed.set()

    def sum(self, inputs, orders):
        """Sum ``inputs[name][place]``, begun at each place in its order; the results, in the same form."""
        arrays = {name: [value.copy() for value in values] for name, values in inputs.items()}
        left = threading.Semaphore(0)
        for place, mesh in enumerate(self.meshes):
            for name in orders[place]:
                mesh.allreduce_(name, arrays[name][place], left.release)
        for _ in range(len(inputs) * len(self.meshes)):
            assert left.acquire(timeout=TIMEOUT_S), self.failures
        return arrays

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for mesh in self.meshes:
            mesh.close()


@pytest.mark.parametrize('places', [2, 3, 5])
def test_sums_of_all_sizes_in_any_order(places):
    sizes = [1, 2, 7, WHOLE_BYTES // 4 - 1, WHOLE_BYTES // 4, 300007]
    draw = np.random.RandomState(places)
    before = threading.active_count()
    with Meshes(places) as meshes:
        for _ in range(3):
            inputs = {'%d %s' % (size, dtype): [draw.randint(-99, 100, size).astype(dtype) for _ in range(places)]
                      for size in sizes for dtype in ('float32', 'float64', 'int32', 'int64')}
            orders = [draw.permutation(sorted(inputs)) for _ in range(places)]
            results = meshes.sum(inputs, orders)
            for name, values in inputs.items():
                for found in results[name]:
                    np.testing.assert_array_equal(found, sum(values), name)
    assert not meshes.failures
    assert threading.active_count() == before


def test_all_places_get_the_same_bits_each_time():
    draw = np.random.RandomState(1)
    inputs = {'small': [draw.normal(size=100) for _ in range(4)], 'large': [draw.normal(size=50000) for _ in range(4)]}
    with Meshes(4) as meshes:
        first = meshes.sum(inputs, [['small', 'large']] * 4)
        second = meshes.sum(inputs, [['large', 'small'], ['small', 'large']] * 2)
    for name in inputs:
        for found in first[name] + second[name]:
            assert found.tobytes() == first[name][0].tobytes()


def test_a_place_that_is_ahead_disturbs_nobody():
    """One place begins its next sum while another has not yet seen the end of the last one."""
    with Meshes(3) as meshes:
        rounds = 30
        arrays = [np.zeros(20000) for _ in range(3)]
        left = threading.Semaphore(0)

        def again(place, number):
            if number:
                np.testing.assert_array_equal(arrays[place], 3 * (rounds - number))
            if number == rounds:
                left.release()
                return
            arrays[place][:] = rounds - number - 1
            meshes.meshes[place].allreduce_('x', arrays[place], lambda: again(place, number + 1))
        for place in range(3):
            again(place, 0)
        for _ in range(3):
            assert left.acquire(timeout=TIMEOUT_S), meshes.failures
    assert not meshes.failures


def test_other_sizes_of_one_name_are_an_error():
    with Meshes(2) as meshes:
        for place, mesh in enumerate(meshes.meshes):
            mesh.allreduce_('net_bias', np.zeros(30000 + place), lambda: None)
        assert meshes.failed.wait(TIMEOUT_S)
        assert isinstance(meshes.failures[0], JobError)
        assert 'net_bias' in str(meshes.failures[0])


@given(st.text(max_size=20), st.integers(0, 30000), st.sampled_from([4, 8]), st.integers(1, 48))
def test_each_element_has_one_owner(name, size, itemsize, places):
    chunks = cut(name, size, itemsize, places)
    assert len(chunks) == places
    assert sorted(chunk.stop - chunk.start for chunk in chunks)[-1] * places < size + places \
        or size * itemsize < WHOLE_BYTES
    owners = np.zeros(size, int)
    for chunk in chunks:
        owners[chunk] += 1
    assert (owners == 1).all()


@settings(deadline=None)
@given(st.integers(1, 5), st.sampled_from([1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]), st.booleans())
def test_adding_up(count, size, in_place):
    sources = [np.random.RandomState(i).normal(size=size) for i in range(count)]
    expected = sources[0].copy()
    for source in sources[1:]:
        expected += source
    result = sources[0] if in_place else np.empty(size)
    add_up(sources, result)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('size', [1, BLOCK + 1])
def test_float16_is_rounded_once(size, in_place):
    sources = [np.full(size, value, 'f2') for value in (2048, 1, 1, 1)]  # float16 sums one by one stay at 2048
    result = sources[0] if in_place else np.empty(size, 'f2')
    add_up(sources, result)
    np.testing.assert_array_equal(result, np.full(size, 2052, 'f2'))
    add_up([np.full(size, 65504, 'f2')] * 2, result)
    assert result.dtype == np.float16 and np.isposinf(result).all()


class Exchange:
    """Gives each of several threads the values of all, as Horovod does."""

    def __init__(self, workers):
        self._values = [None] * workers
        self._barrier = threading.Barrier(workers, timeout=TIMEOUT_S)

    def of(self, worker):
        """What worker `worker` calls."""
        def exchange(value):
            self._values[worker] = value
            self._barrier.wait()
            return list(self._values)
        return exchange


def in_threads(bodies):
    """Call functions at the same time; their results or exceptions."""
    found = [None] * len(bodies)

    def call(i):
        try:
            found[i] = bodies[i]()
        except Exception as error:
            found[i] = error
    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return found


def test_leaders_meet_and_strangers_are_sent_away():
    exchange, places = Exchange(5), [0, None, 1, None, 2]

    def body(worker):
        def join():
            def exchanged(value):
                everybody = exchange.of(worker)(value)
                if worker == 4:
                    stranger = socket.create_connection(tuple(everybody[0][1]))
                    stranger.sendall(b'GET / HTTP/1.0\r\n\r\n' * 5)
                    stranger.close()
                return everybody
            return connect_leaders(places[worker], '127.0.0.1', exchanged, TIMEOUT_S)
        return join
    found = in_threads([body(worker) for worker in range(5)])
    assert [sorted(sockets) for sockets in found] == [[1, 2], [], [0, 2], [], [0, 1]]
    for one, other in itertools.combinations([0, 2, 4], 2):
        left, right = found[one][places[other]], found[other][places[one]]
        assert left.getsockname() == right.getpeername()
    for sockets in found:
        for sock in sockets.values():
            sock.close()


def test_a_leader_that_does_not_come_is_an_error():
    def exchange(value):
        return [value, [1, ['127.0.0.1', 1], '00']]
    with pytest.raises(JobError, match=r'127\.0\.0\.1.*MXHYBRID_LOCAL_AGGREGATION=0'):
        connect_leaders(0, '127.0.0.1', exchange, 0.2)


def test_sums_that_are_forgotten_may_come_again_in_other_sizes():
    draw = np.random.RandomState(3)
    with Meshes(3) as meshes:
        for turn in range(4):
            inputs = {name: [draw.normal(size=5 + 40000 * turn) for _ in range(3)]
                      for name in ('gone.a', 'gone.b', 'kept')}
            if turn:
                inputs['kept'] = [values[:5] for values in inputs['kept']]
            found = meshes.sum(inputs, [list(draw.permutation(list(inputs))) for _ in range(3)])
            for name, values in inputs.items():
                for result in found[name]:
                    np.testing.assert_allclose(result, sum(values), atol=1e-12)
            for mesh in meshes.meshes:
                mesh.forget(('gone.',))
                assert list(mesh._sums) == ['kept']
                assert all(len(peer.sums) <= 1 for peer in mesh._peers.values())
    assert not meshes.failures
