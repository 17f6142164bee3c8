"""Wrong keys, values, shapes, types and row ids in calls of a store of one process: errors name them."""
import mxnet as mx
import numpy as np
import pytest

import mxhybrid

from ...helpers.keyed_values import TABLE, dense, problem, sparse


@pytest.mark.parametrize('call, args', [
    ('push', (7, dense(1))), ('pull', (7, dense(1))), ('pushpull', (7, dense(1))),
    ('push', ('0', dense(1))), ('push', ([0, 7], [dense(1), dense(1)])),
])
def test_unknown_keys_are_named_with_the_known_ones(store, call, args):
    text = problem(getattr(store, call), *args)
    assert text.startswith('%s: key ' % call) and 'was never initialised' in text and 'known keys are 0, 1' in text


def test_no_keys_yet():
    assert 'none yet' in problem(mxhybrid.create().push, 0, dense(1))


@pytest.mark.parametrize('call', ['init', 'broadcast'])
def test_a_second_initial_value_is_refused(store, call):
    outs = [dense(0)] if call == 'broadcast' else []
    assert 'key 0 (0) was initialised before' in problem(getattr(store, call), 0, dense(5), *outs)


@pytest.mark.parametrize('call', ['init', 'broadcast'])
@pytest.mark.parametrize('keys', [['new', 'new'], ['new', 'newer', 'new']], ids=repr)
def test_a_key_has_one_initial_value(call, keys):
    store = mxhybrid.create()
    outs = [[dense(0) for _ in keys]] if call == 'broadcast' else []
    text = problem(getattr(store, call), keys, [dense(5 + at) for at in range(len(keys))], *outs)
    assert text.startswith("%s: key 'new' gets 2 values" % call)
    two = [dense(1), dense(2)]
    assert "'new' gets 2 values" in problem(getattr(store, call), 'new', two, *[[dense(0)]] * len(outs))
    assert 'was never initialised' in problem(store.pull, 'new', dense(0))


def test_a_list_with_a_known_key_initialises_none(store):
    assert 'key 0 (0) was initialised before' in problem(store.init, [7, 0], [dense(1), dense(1)])
    store.init(7, dense(3))


@pytest.mark.parametrize('call', ['push', 'pull', 'pushpull'])
def test_wrong_shapes_and_dtypes_are_refused_and_change_nothing(store, call):
    method = getattr(store, call)
    text = problem(method, 0, dense(1, (3, 2)))
    assert text.startswith('%s: 0 has shape (2, 3)' % call) and '(3, 2)' in text
    if call != 'pull':
        text = problem(method, 0, [dense(1), dense(1, dtype='float64')])
        assert text.startswith('%s: 0 has dtype float32' % call) and "astype('float32')" in text
    out = dense(0)
    store.pull(0, out)
    assert (out.asnumpy() == 2).all()


def test_storage_types_must_fit(store):
    assert 'use pull' in problem(store.row_sparse_pull, 0, out=dense(0), row_ids=mx.nd.array([0]))
    assert 'row_sparse_pull' in problem(store.pushpull, 1, sparse([1]))
    assert "tostype('row_sparse')" in problem(store.push, 1, dense(1, TABLE))
    assert 'row_sparse' in problem(store.pull, 1, dense(1, TABLE))
    assert 'one storage type' in problem(store.push, 0, [dense(1), mx.nd.sparse.zeros('row_sparse', (2, 3))])
    csr = dense(1).tostype('csr')
    assert 'csr' in problem(store.init, 9, csr)
    assert 'csr' in problem(store.push, 0, csr)


def test_broadcast_outputs_must_fit():
    store = mxhybrid.create()
    assert 'shape' in problem(store.broadcast, 0, dense(1), dense(1, (3, 2)))
    assert 'storage type' in problem(store.broadcast, 0, dense(1), mx.nd.sparse.zeros('row_sparse', (2, 3)))
    store.broadcast(0, dense(1), dense(0))


@pytest.mark.parametrize('ids, text', [([6], 'row id 6 is out of range for 1: give row ids from 0 to 5'),
                                       ([-1, 2], 'row id -1 is out of range'),
                                       ([0.5], 'row id 0.5 of 1 is not a whole number')])
def test_wrong_row_ids_are_refused(store, ids, text):
    assert text in problem(store.row_sparse_pull, 1, out=sparse(), row_ids=mx.nd.array(ids))


def test_row_ids_are_given_once_or_per_output(store):
    text = problem(store.row_sparse_pull, 1, out=[sparse(), sparse()], row_ids=[mx.nd.array([0])] * 3)
    assert '2 outputs but 3 arrays of row ids' in text
    assert 'row_ids' in problem(store.row_sparse_pull, 1, out=sparse())
    assert 'row_ids' in problem(store.row_sparse_pull, [1, 1], out=[sparse(), sparse()])


@pytest.mark.parametrize('row_ids', [None, mx.nd.array([0]), [mx.nd.array([0])]], ids=['None', 'array', 'too few'])
def test_lists_of_keys_need_row_ids_for_each(store, row_ids):
    store.init(2, sparse(range(6), 3))
    text = problem(store.row_sparse_pull, [1, 2], out=[sparse(), sparse()], row_ids=row_ids)
    assert text.startswith('row_sparse_pull: ') and 'row' in text


@pytest.mark.parametrize('count', [0, -1, 2.5, 4.0, True, '4', None])
def test_counts_of_partitions_must_be_whole_numbers(store, count):
    assert ("repartition: 1 cannot be cut into partitions=%r: give a whole number of at least 1" % count
            ) in problem(store.repartition, 1, count)
    store.repartition(1, np.int64(4))


def test_int_rows_cannot_be_stored():
    rows = mx.nd.sparse.zeros('row_sparse', TABLE, dtype='int32')
    assert 'float16, float32 or float64' in problem(mxhybrid.create().init, 0, rows)


def test_a_failed_init_leaves_the_key_free():
    store = mxhybrid.create()
    store.init(0, dense(1))
    with pytest.raises(Exception, match='[Kk]ey'):  # MXNet's stores want keys of one type
        store.init('w', dense(1))
    assert "key 'w' was never initialised" in problem(store.push, 'w', dense(1))
