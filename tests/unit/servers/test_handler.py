"""The handler of a server: modes of pushes, commands and their pickles, mistakes and recorded events."""
import inspect
import pickle

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.servers import pickled as pickled_module
from mxhybrid.servers.handler import Handler
from mxhybrid.servers.pickled import pickled
from mxhybrid.telemetry.recorder import Recorder

from ...helpers.programs import run_program
from ...helpers.tables import MAILBOX, ROWS, WIDTH, LoudHandler, Table, equal, merged_gradients, start_values


@pytest.mark.parametrize('count', [1, 2, 5])
@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_assign_overwrites_the_pushed_rows_only(count, dtype):
    table, expected = Table(start_values(dtype), count), start_values(dtype)
    table.handler.do_mode(table.keys, 'assign')
    for ids, rows in merged_gradients(8, dtype):
        table.push(ids, rows)
        expected[ids] = rows
        equal(table.values(), expected)


@pytest.mark.parametrize('count', [1, 2, 5])
def test_replace_does_what_mxnets_store_does_without_an_optimizer(count):
    table = Table(start_values(), count)
    store = mx.kv.create('local')
    store.init('w', make_row_sparse(np.arange(ROWS), start_values(), (ROWS, WIDTH)))
    table.handler.do_mode(table.keys, 'replace')
    for ids, rows in merged_gradients(9):
        table.push(ids, rows)
        store.push('w', make_row_sparse(ids, rows, (ROWS, WIDTH)))
        out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
        store.pull('w', out=out, ignore_sparse=False)
        np.testing.assert_array_equal(table.values(), out.asnumpy())


def test_capture_changes_nothing():
    table = Table(start_values(), 2)
    for ids, rows in merged_gradients(10):
        table.push(ids, rows)
    equal(table.values(), start_values())


def test_a_push_to_an_unknown_key_is_an_error():
    with pytest.raises(RuntimeError, match='key 9, which belongs to no table'):
        LoudHandler().update_multi_precision(9, mx.nd.zeros(1), mx.nd.zeros(1), None)


def test_an_unknown_mode_is_an_error():
    table = Table(start_values(), 1)
    table.handler.do_mode(table.keys, 'average')
    with pytest.raises(RuntimeError, match="'average' is unknown"):
        table.push(np.array([1]), np.ones((1, WIDTH), 'float32'))


def test_stored_weights_that_lack_rows_are_an_error():
    handler = LoudHandler()
    handler.do_table('w', [7], [4], WIDTH)
    handler.do_mode([7], 'assign')
    lacking = make_row_sparse(np.array([0, 2]), np.ones((2, WIDTH), 'float32'), (4, WIDTH))
    with pytest.raises(RuntimeError, match='partition 7 of w holds 2 of its 4 rows'):
        handler.update_multi_precision(7, lacking, make_row_sparse(np.array([0]), np.ones((1, WIDTH), 'float32'),
                                                                 (4, WIDTH)), None)


@pytest.mark.both_pythons
def test_commands_of_mxnet_reach_the_one_handler(monkeypatch):
    monkeypatch.setattr(pickled_module, '_handler', None)

    def send(command, /, **arguments):
        # As KVStore.set_optimizer does: a pickle of protocol 0, sent as text.
        assert pickled(command, arguments).isascii()
        return pickle.loads(pickled(command, arguments).encode())

    first = send('table', table='größe', keys=(5, 6), rows=[2, 3], width=4)
    assert isinstance(first, Handler)
    assert send('optimizer', table='größe', keys=(5, 6), name='sgd', count=3,
                attributes={'lr': 0.1, 'wd': 0.0, 'rescale_grad': 1 / 3, 'clip_gradient': None}) is first
    part = first._partitions[6]
    assert (part.table, part.shape, part.mode) == ('größe', (3, 4), 'optimize')
    optimizer = first._optimizers['größe'].live
    assert optimizer.rescale_grad == 1 / 3 and optimizer.clip_gradient is None
    assert optimizer._index_update_count == {5: 3, 6: 3}
    assert send('mailbox', keys=[7]) is first and first._mailbox_keys == [7]


@pytest.mark.both_pythons
def test_the_handler_passes_for_an_optimizer():
    assert isinstance(Handler(), mx.optimizer.Optimizer)
    assert Handler().multi_precision is False
    assert 'index' in inspect.signature(Handler.update_multi_precision).parameters
    updater = mx.optimizer.get_updater(LoudHandler())
    updater.optimizer.do_table('w', [0], [2], 1)
    updater.optimizer.do_mode([0], 'assign')
    weight = make_row_sparse(np.arange(2), np.zeros((2, 1), 'float32'), (2, 1))
    updater(0, make_row_sparse(np.array([1]), np.ones((1, 1), 'float32'), (2, 1)), weight)
    assert weight.asnumpy().tolist() == [[0], [1]]


@pytest.mark.both_pythons
def test_every_update_and_its_mode_is_recorded():
    table = Table(np.ones((ROWS, WIDTH), 'f4'), 2)
    recorder = table.handler.trace = Recorder('a server')
    table.handler.do_mailbox([MAILBOX, MAILBOX + 99])
    table.handler.update_multi_precision(MAILBOX + 99, mx.nd.zeros(3), mx.nd.zeros(3), None)
    assert recorder.name.startswith('server 1 (host ') and recorder.number == 1
    table.handler.do_mode(table.keys, 'assign')
    table.push(np.array([1, 2, 5]), np.zeros((3, WIDTH), 'f4'))
    events = [event for event in recorder.take(100) if event['ph'] == 'X']
    assert [(event['name'], event['cat'], event['args']['key']) for event in events] == [
        ('assign w', 'update', key) for key in table.keys]
    assert sum(event['args']['rows'] for event in events) == 3


@pytest.mark.both_pythons
def test_workers_pickle_commands_without_the_servers_program():
    found = run_program(
        'import sys, mxhybrid\nfrom mxhybrid.servers.pickled import pickled\npickled("mode", {"keys": []})\n'
        'print(*(name for name in sys.modules if name.startswith("mxhybrid.servers.")))').stdout.split()
    assert 'mxhybrid.servers.pickled' in found
    assert not {'mxhybrid.servers.handler', 'mxhybrid.servers.main'} & set(found)
