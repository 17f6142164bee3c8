"""The store in a job of one process: it works as MXNet's own stores, with clear errors where they would crash."""
import functools
import inspect
import logging

import mxnet as mx
import numpy as np
import pytest

import mxhybrid
from mxhybrid.base.errors import SettingError

from ...helpers.keyed_values import TABLE, dense, problem, sparse

KEYS = [3, 'w']


def same_as(*names):
    """Make a test of a function that uses a store and returns arrays: it returns the same for ours and for MXNet's."""
    def test_of(use):
        @functools.wraps(use)
        def test(**parameters):
            arrays = [array.asnumpy() for array in use(mxhybrid.create(), **parameters)]
            for name in names:
                expected = [array.asnumpy() for array in use(mx.kv.create(name), **parameters)]
                assert any(array.any() for array in expected)
                assert [array.dtype for array in arrays] == [array.dtype for array in expected]
                np.testing.assert_equal(arrays, expected, name)

        _, *parameters = inspect.signature(use).parameters.values()  # pytest gives no store
        test.__signature__ = inspect.Signature(parameters)
        return test

    return test_of


# ------------------------------------------------------------------------------------------ identity


def test_identity_in_one_process():
    store = mx.kv.create('hybrid')
    assert type(store) is mxhybrid.Hybrid and isinstance(store, mx.kv.KVStore)
    assert (store.type, store.rank, store.num_workers, store.num_servers) == ('hybrid', 0, 1, 0)
    assert store.is_capable('optimizer') and type(store).is_capable('optimizer')
    with pytest.raises(ValueError, match='Unknown capability'):
        store.is_capable('telepathy')


def test_settings_are_checked_when_the_store_is_made(monkeypatch):
    with pytest.raises(SettingError, match="partitions='many'"):
        mxhybrid.create(partitions='many')
    with pytest.raises(SettingError, match="unknown setting 'partition'"):
        mxhybrid.Hybrid(partition=3)
    monkeypatch.setenv('MXHYBRID_SERVERS_PER_HOST', '0')
    with pytest.raises(SettingError, match='MXHYBRID_SERVERS_PER_HOST'):
        mx.kv.create('hybrid')


def test_a_later_store_may_set_the_log_level():
    logger = logging.getLogger('mxhybrid')
    mxhybrid.create()
    before = logger.level
    try:
        for given, level in (({'log_level': 'error'}, 'ERROR'), ({}, 'ERROR'), ({'log_level': 'info'}, 'INFO'),
                             ({'log_level': 'debug'}, 'DEBUG'), ({'log_level': 'INFO'}, 'INFO')):
            mxhybrid.create(**given)
            assert logger.level == getattr(logging, level)
    finally:
        logger.setLevel(before)


def test_stores_do_not_share_keys():
    first, second = mxhybrid.create(), mxhybrid.create()
    first.init('w', dense(1))
    assert "key 'w' was never initialised" in problem(second.pull, 'w', dense(0))
    second.init('w', dense(2))
    out = dense(0)
    first.pull('w', out)
    assert (out.asnumpy() == 1).all()


def test_the_barrier_and_deletion_wait_for_nobody():
    store = mxhybrid.create()
    store._barrier()
    mx.nd.waitall()
    del store


# ------------------------------------------------------------------------------------------ dense keys


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64', 'int32'])
@pytest.mark.parametrize('key', KEYS, ids=repr)
@same_as('device', 'local')
def test_init_push_pull(store, key, dtype):
    store.init(key, dense(2, dtype=dtype))
    first, second = dense(0, dtype=dtype), dense(0, dtype=dtype)
    store.pull(key, first)
    store.push(key, dense(5, dtype=dtype))
    store.pull(key, out=[second, first.copy()])
    return [first, second]


@pytest.mark.parametrize('key', KEYS, ids=repr)
@same_as('device', 'local')
def test_several_devices_are_summed_and_all_get_the_sum(store, key):
    store.init(key, dense(2))
    outs, pushpulled, others = [dense(0), dense(0)], [dense(10), dense(20)], [dense(0), dense(0)]
    store.push(key, [dense(1), dense(2), dense(4)])
    store.pull(key, out=outs)
    store.pushpull(key, pushpulled)
    store.pushpull(key, [dense(7), dense(8)], out=others)
    return outs + pushpulled + others


@pytest.mark.parametrize('keys', [[3, 5], ['w', 'v']], ids=repr)
@same_as('device', 'local')
def test_lists_of_keys(store, keys):
    store.init(keys, [dense(2), dense(3, (4,))])
    copies, single = [dense(0), dense(0)], dense(0, (4,))
    store.pull(keys, out=[copies, single])
    result = [array.copy() for array in copies + [single]]
    store.push(keys, [[dense(5), dense(6)], dense(7, (4,))])
    store.pull(keys, out=[copies, single])
    result += [array.copy() for array in copies + [single]]
    store.pushpull(keys, [dense(8), dense(9, (4,))], out=[copies, single])
    return result + copies + [single]


@same_as('device', 'local')
def test_a_repeated_key_sums_its_values(store):
    store.init([3, 5], [dense(0), dense(0)])
    store.push([3, 5, 3], [dense(1), dense(2), dense(4)])
    outs = [dense(0), dense(0)]
    store.pull([3, 5], out=outs)
    return outs


@same_as('device', 'local')
def test_keys_share_arrays(store):
    keys = ['a', 'b', 'c']
    values = [dense(2), dense(3), dense(4)]
    store.broadcast(keys, values, out=values[1:] + [dense(0)])
    shared = [[dense(2) for _ in range(4)]] * 3
    store.pushpull(keys, shared)
    chain = [dense(5), dense(6), dense(7), dense(8)]
    store.pushpull(keys, chain[:3], out=chain[1:])
    views = dense(1).as_np_ndarray()
    store.pushpull(keys[:2], [views[:], views[:]])
    return values + shared[0] + chain + [views]


@pytest.mark.parametrize('key', KEYS, ids=repr)
@same_as('device', 'local')
def test_broadcast_fills_all_outputs(store, key):
    outs, pulled, single = [dense(0), dense(0)], dense(0), dense(0)
    store.broadcast(key, dense(4), outs)
    store.pull(key, pulled)
    store.broadcast(key * 2, dense(6), single, priority=-3)
    return outs + [pulled, single]


@same_as('device', 'local')
def test_the_stored_value_is_a_copy(store):
    value, out, again = dense(2), dense(0), dense(0)
    store.init(3, value)
    value[:] = 9
    store.pull(3, out)
    out[:] += 5
    store.pull(3, again)
    return [again]


@same_as('local')  # MXNet's own for devices cannot cast rows
def test_outputs_of_another_dtype_get_the_value_cast(store):
    store.init([1, 2], [dense(2.6), sparse(range(6), 1.5, 'float16')])
    outs = [dense(0, dtype='float64'), dense(0, dtype='int32'), dense(0, dtype='float16')]
    store.pull(1, outs)
    pushed = dense(0, dtype='float16')
    store.pushpull(1, dense(1.7), out=pushed)
    some, every = (mx.nd.sparse.zeros('row_sparse', TABLE) for _ in range(2))
    store.row_sparse_pull(2, out=some, row_ids=mx.nd.array([4, 1]))
    store.pull(2, out=every, ignore_sparse=False)
    begun = dense(0, dtype='float64')
    store.broadcast(3, dense(0.1), begun)
    assert all(array.asnumpy().any() for array in (*outs, pushed, some, every, begun))
    return outs + [pushed, some, every, begun]


# ------------------------------------------------------------------------------------------ row_sparse keys


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('key', KEYS, ids=repr)
@same_as('device', 'local')
def test_rows_are_pulled_by_id(store, key, dtype):
    store.init(key, sparse(range(6), 2, dtype))
    out = mx.nd.sparse.zeros('row_sparse', TABLE, dtype=dtype)
    store.row_sparse_pull(key, out=out, row_ids=mx.nd.array([5, 1, 1, 3]))
    assert out.indices.asnumpy().tolist() == [1, 3, 5]
    store.push(key, sparse([1, 4], 7, dtype))
    after = mx.nd.sparse.zeros('row_sparse', TABLE, dtype=dtype)
    store.row_sparse_pull(key, out=after, row_ids=mx.nd.array([[1, 4]], dtype='int64'))
    return [out, after]


@same_as('device', 'local')
def test_rows_for_several_outputs_and_keys(store):
    store.init(['w', 'v'], [sparse(range(6), 2), sparse(range(6), 3)])
    store.push(['w', 'v'], [[sparse([0, 1], 10), sparse([1, 2], 20)], sparse([5], 30)])
    a, b, c = (mx.nd.sparse.zeros('row_sparse', TABLE) for _ in range(3))
    store.row_sparse_pull(['w', 'v'], out=[[a, b], c],
                          row_ids=[[mx.nd.array([0, 1]), mx.nd.array([2, 5])], mx.nd.array([5, 0])])
    d, e = (mx.nd.sparse.zeros('row_sparse', TABLE) for _ in range(2))
    store.row_sparse_pull('w', out=[d, e], row_ids=mx.nd.array([1, 2]))
    return [a, b, c, d, e]


@same_as('device', 'local')
def test_all_rows_are_pulled_only_on_demand(store):
    store.init('w', sparse(range(6), 2))
    ignored, pulled = sparse([0], 9), sparse([0], 9)
    store.pull('w', out=ignored)
    store.pull('w', out=pulled, ignore_sparse=False)
    return [ignored, pulled]


def test_broadcast_of_rows():
    # As with several workers; MXNet's own stores leave row_sparse outputs as they were.
    outs = [mx.nd.sparse.zeros('row_sparse', TABLE) for _ in range(2)]
    mxhybrid.create().broadcast('w', sparse([1, 3], 4), outs)
    for out in outs:
        assert out.asnumpy()[:, 0].tolist() == [0, 4, 0, 4, 0, 0]


def test_rows_of_zeros_that_mxnet_dropped_are_stored_again():
    store = mxhybrid.create()
    store.set_optimizer(mx.optimizer.create('sgd', learning_rate=1))
    store.init('w', mx.nd.array([[1, 1], [0, 0], [0, 0]]).tostype('row_sparse'))
    grad = mx.nd.sparse.row_sparse_array((mx.nd.ones((1, 2)), [2]), shape=(3, 2))
    store.push('w', grad)
    out = mx.nd.sparse.zeros('row_sparse', (3, 2))
    store.row_sparse_pull('w', out=out, row_ids=mx.nd.arange(3))
    assert out.asnumpy()[:, 0].tolist() == [1, 0, -1]


@same_as('device')
def test_dense_weights_with_row_sparse_gradients(store):
    store.init('w', dense(2, TABLE))
    store.push('w', [sparse([1, 3], 1), sparse([3, 5], 1)])
    out = mx.nd.sparse.zeros('row_sparse', TABLE)
    store.pull('w', out=out, ignore_sparse=False)
    assert out.asnumpy()[:, 0].tolist() == [0, 1, 0, 2, 0, 1]
    return [out]


# ------------------------------------------------------------------------------------------ optimizers


@pytest.mark.parametrize('name', ['sgd', 'adam', 'rmsprop', 'adagrad'])
@same_as('device', 'local')
def test_an_optimizer_on_the_store_updates_all_weights(store, name):
    store.init([0, 1], [dense(2), sparse(range(6), 2)] if name != 'rmsprop' else [dense(2), dense(3, TABLE)])
    store.set_optimizer(mx.optimizer.create(name, learning_rate=0.1, rescale_grad=0.5))
    second = sparse([1, 4], 3) if name != 'rmsprop' else dense(1, TABLE)
    for _ in range(3):
        store.push(0, [dense(1), dense(3)])
        store.push(1, second)
    out, rows = dense(0), sparse() if name != 'rmsprop' else dense(0, TABLE)
    store.pull(0, out)
    store.pull(1, rows, ignore_sparse=False)
    return [out, rows]


@same_as('device', 'local')
def test_pushpull_with_an_optimizer_gives_the_weights(store):
    store.init(0, dense(2))
    store.set_optimizer(mx.optimizer.create('sgd', learning_rate=0.125))
    out = dense(0)
    store.pushpull(0, [dense(1), dense(3)], out=out)
    return [out]


@same_as('device', 'local')
def test_an_updater_function_may_be_set_in_one_process(store):
    store.init(0, dense(2))
    store._set_updater(lambda key, grad, weight: weight.__iadd__(grad * 10))
    store.push(0, dense(3))
    out = dense(0)
    store.pull(0, out)
    return [out]


@pytest.mark.parametrize('dump_optimizer', [False, True])
def test_optimizer_states_move_between_our_store_and_mxnets(tmp_path, dump_optimizer):
    def fresh(name):
        store = mx.kv.create(name)
        store.init([0, 1], [dense(2), sparse(range(6), 2)])
        store.set_optimizer(mx.optimizer.create('adam', learning_rate=0.1))
        return store

    def step(store):
        store.push([0, 1], [dense(1), sparse([1, 4], 3)])
        outs = [dense(0), sparse()]
        store.pull([0, 1], outs, ignore_sparse=False)
        return [array.asnumpy() for array in outs]

    fname = str(tmp_path / 'states')
    for writer, reader in (('hybrid', 'device'), ('device', 'hybrid'), ('hybrid', 'hybrid')):
        old, new = fresh(writer), fresh(reader)
        weights = step(old)
        old.save_optimizer_states(fname, dump_optimizer)
        new.load_optimizer_states(fname)
        saved, loaded = [[array.asnumpy() for key in (0, 1) for array in store._updater.states[key]]
                         for store in (old, new)]
        assert len(saved) == 4 and all(array.any() for array in saved)
        np.testing.assert_equal(loaded, saved)
        assert not np.array_equal(step(old)[0], weights[0])


def test_states_without_an_optimizer_are_refused(tmp_path):
    store = mxhybrid.create()
    for call in (store.save_optimizer_states, store.load_optimizer_states):
        text = problem(call, str(tmp_path / 'states'))
        assert text.startswith(call.__name__) and 'set_optimizer' in text
    assert not list(tmp_path.iterdir())


def test_values_that_are_no_optimizers_are_refused():
    text = problem(mxhybrid.create().set_optimizer, 'sgd')
    assert text.startswith("set_optimizer: 'sgd' is not an optimizer: give an object of mxnet.optimizer.Optimizer")


def test_gradient_compression_is_refused_with_the_way_out():
    text = problem(mxhybrid.create().set_gradient_compression, {'type': '2bit'})
    assert "compression_params={'type': '2bit'}" in text and 'leave' in text


# ------------------------------------------------------------------------------------------ report, recording


def test_the_report_lists_the_keys(store):
    lines = store.report().split('\n')
    assert lines[0].startswith('mxhybrid: one process')
    assert [line.split()[:3] for line in lines[3:]] == [['0', '2x3', 'local'], ['1', '6x2', 'local']]


def test_calls_inside_record_leave_no_trace(store):
    value = dense(1)
    value.attach_grad()
    with mx.autograd.record():
        out = dense(0)
        store.pull(0, out)
        store.push(0, value)
        result = (value * 2 + out).sum()
        assert mx.autograd.is_recording()
    result.backward()
    assert (value.grad.asnumpy() == 2).all()
