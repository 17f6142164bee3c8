"""Updates of tables in a server, driven directly with MXNet's arrays: equal, bit for bit, to MXNet's own Updater."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid.native.arrays import make_row_sparse, row_sparse_parts
from mxhybrid.native.optimizer_state import state_arrays
from mxhybrid.native.optimizers import attributes_of
from mxhybrid.servers import handler as handler_module
from mxhybrid.servers.half_precision_keys import packed_width, unpack
from mxhybrid.servers.protocol import MAILBOX_ELEMENTS

from ...helpers.tables import (
    COMMON,
    MAILBOX,
    ROWS,
    STARTS,
    WIDTH,
    WITHOUT_DECAY,
    LoudHandler,
    Table,
    Whole,
    equal,
    merged_gradients,
    pair,
    push_to_both,
    recut,
    start_values,
)

OPTIMIZERS = [(name, arguments if name in WITHOUT_DECAY else dict(arguments, wd=0.01))
              for name, starts in STARTS.items() for arguments in starts]


def case_name(value):
    """Name a test by its optimizer and the special settings."""
    if isinstance(value, dict):
        return '-'.join('%s=%s' % item for item in value.items() if item[0] != 'wd') or 'plain'
    return str(value)


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_mxnets_optimizer_for_tests_gives_the_same_weights(dtype):
    """``state[:] = weight`` fails in one process, after the update of the weight; MXNet's stores ignore the error."""
    table, whole = pair('test', {}, 3, dtype)
    for ids, rows in merged_gradients(1, dtype):
        table.push(ids, rows)
        with pytest.raises(TypeError):
            whole.push(ids, rows)
        equal(table.values(), whole.values())
    assert not np.array_equal(whole.values(), start_values(dtype))
    equal(table.read_state(0, WIDTH), whole.values().astype('float32'))  # which MXNet keeps it in


class HalfTable(Table):
    """A table whose rows travel as float16: servers add pushes of float16 to weights of float32."""

    def __init__(self, values, count):
        super().__init__(values, count)
        self.push_keys = [1000 + key for key in self.keys]
        pair_keys = [2000 + key for key in self.keys]
        shapes = [self.partitioning.shape(part) for part in range(count)]
        self.handler.do_table('w', self.keys, [shape[0] for shape in shapes], WIDTH, self.push_keys, pair_keys)
        self.pairs, self.stubs = [], []
        for part, (rows, _) in enumerate(shapes):
            pairs = np.zeros((rows, packed_width(WIDTH)), np.float32)
            unpack(pairs, WIDTH)[:] = values[self.partitioning.members(part)]
            self.pairs.append(make_row_sparse(np.arange(rows), pairs, pairs.shape))
            self.stubs.append(make_row_sparse(np.arange(1), np.zeros((1, WIDTH), np.float32), (rows, WIDTH)))
            nothing = mx.nd.sparse.zeros('row_sparse', pairs.shape)
            self.handler.update_multi_precision(pair_keys[part], self.pairs[part], nothing, None)
        Table.push(self, np.empty(0, np.int64), np.empty((0, WIDTH), np.float32))

    def push_exactly(self, ids, rows):
        """A push to the keys of the weights."""
        super().push(ids, rows)

    def push(self, ids, rows):
        """A push of gradients, to keys of their own."""
        super().push(ids, rows, self.push_keys, self.stubs)

    def halves(self):
        """The whole table as workers see it."""
        whole = np.empty((ROWS, WIDTH), np.float16)
        for part, array in enumerate(self.pairs):
            whole[self.partitioning.members(part)] = unpack(row_sparse_parts(array)[1], WIDTH)
        return whole


@pytest.mark.parametrize('name, arguments', OPTIMIZERS, ids=case_name)
def test_weights_stay_float32_where_rows_travel_as_float16(name, arguments):
    table, whole = pair(name, arguments, 3, kind=HalfTable)
    equal(table.halves(), start_values().astype(np.float16))
    for ids, rows in merged_gradients(1):
        table.push(ids, rows)
        whole.push(ids, rows)
        equal(table.values(), whole.values())
        equal(table.halves(), whole.values().astype(np.float16))  # rows that only weight decay changed as well
    for slot, state in enumerate(whole.states()):
        equal(table.read_state(slot, state.shape[1]), state)


@pytest.mark.parametrize('push', ['push', 'push_exactly'])
def test_assigned_rows_are_exact_and_shown_rounded(push):
    table = HalfTable(start_values(), 3)
    ids = np.array([1, 4, 9])
    rows = np.random.RandomState(3).normal(size=(3, WIDTH)).astype(np.float32)
    for mode, expected in (('assign', start_values()), ('replace', np.zeros((ROWS, WIDTH), np.float32))):
        table.handler.do_mode(table.keys, mode)
        getattr(table, push)(ids, rows)
        expected[ids] = rows
        equal(table.values(), expected)
        equal(table.halves(), expected.astype(np.float16))


@pytest.mark.parametrize('name, arguments', [('sgd', {'momentum': 0.9}), ('adam', {}), ('rmsprop', {})], ids=case_name)
def test_changed_settings_reach_the_update_and_keep_the_state(name, arguments):
    table, whole = pair(name, arguments, 2)
    push_to_both(table, whole, 3, steps=4)
    changes = {'lr': 0.5, 'wd': 0.1, 'rescale_grad': 2.0}
    table.handler.do_optimizer('w', table.keys, name, changes, None)
    vars(whole.updater.optimizer).update(changes)
    push_to_both(table, whole, 4, steps=3)


def test_a_given_count_of_updates_moves_adams_clock():
    table = Table(start_values(), 2)
    table.set_optimizer(mx.optimizer.create('adam', **COMMON), count=10)
    whole = Whole(start_values(), mx.optimizer.create('adam', begin_num_update=10, **COMMON))
    fresh = Whole(start_values(), mx.optimizer.create('adam', **COMMON))
    for ids, rows in merged_gradients(4):
        for each in (table, whole, fresh):
            each.push(ids, rows)
    equal(table.values(), whole.values())
    assert not np.array_equal(table.values(), fresh.values())


@pytest.mark.parametrize('name, arguments, forgets', [('sgd', {'momentum': 0.9}, False), ('adam', {}, True)])
def test_fresh_state_of_another_optimizer_or_after_forgetting(name, arguments, forgets):
    table, whole = pair(name, arguments, 2)
    push_to_both(table, whole, 5)
    if forgets:
        table.handler.do_forget_state('w', table.keys)
    table.set_optimizer(mx.optimizer.create('adam'))
    push_to_both(table, Whole(table.values(), mx.optimizer.create('adam')), 6)


def test_tables_have_their_own_optimizers():
    first, whole = pair('sgd', {}, 2)
    handler = first.handler
    handler.do_table('other', [100], [2], WIDTH)
    other = make_row_sparse(np.arange(2), np.ones((2, WIDTH), 'float32'), (2, WIDTH))
    handler.update_multi_precision(100, other, mx.nd.sparse.zeros('row_sparse', (2, WIDTH)), None)
    handler.do_optimizer('other', [100], 'sgd', dict(attributes_of(mx.optimizer.create('sgd')), lr=1.0, wd=0.0), None)
    push_to_both(first, whole, 7)
    handler.update_multi_precision(100, other, make_row_sparse(np.array([1]), np.ones((1, WIDTH), 'float32'),
                                                             (2, WIDTH)), None)
    equal(first.values(), whole.values())
    assert other.asnumpy()[:, 0].tolist() == [1, 0]


@pytest.mark.parametrize('name, arguments', [('sgd', {'momentum': 0.9}), ('adam', {}), ('adam', {'lazy_update': False}),
                                             ('ftrl', {})], ids=case_name)
def test_state_reads_as_its_start_before_the_first_update(name, arguments):
    table, whole = pair(name, arguments, 2)
    template = whole.updater.optimizer.create_state_multi_precision(0, mx.nd.zeros((ROWS, WIDTH)))
    for slot, wanted in enumerate(state_arrays(template)):
        equal(table.read_state(slot, WIDTH), wanted.asnumpy())


@pytest.mark.parametrize('name, arguments', [('sgd', {'momentum': 0.9}), ('nag', {'momentum': 0.9})], ids=case_name)
def test_writing_some_rows_of_a_state_keeps_the_others(name, arguments):
    table, whole = pair(name, arguments, 2)
    ids = np.array([1, 2, 7, 8])
    rows = np.random.RandomState(14).standard_normal((4, WIDTH)).astype('float32')
    table.push(ids, rows)
    whole.push(ids, rows)
    wanted = whole.states()[0]
    wanted[[2, 5]] = 3
    table.handler.do_mode(table.keys, 'state:0')
    table.push(np.array([2, 5]), np.full((2, WIDTH), 3, 'float32'))
    equal(table.read_state(0, WIDTH), wanted)


def test_state_on_another_server_is_not_read():
    handler = LoudHandler()
    handler.do_table('w', [7], [3], WIDTH)
    mailbox = mx.nd.full(MAILBOX_ELEMENTS, 5)
    handler.do_mailbox([MAILBOX])
    handler.update_multi_precision(MAILBOX, mailbox, mx.nd.zeros(MAILBOX_ELEMENTS), None)
    handler.do_read(7, 0, 0, 3, 'float32')
    assert (mailbox.asnumpy() == 5).all()


def test_assigned_rows_are_found_without_copying_ids(monkeypatch):
    table, looked_at = Table(start_values(), 2), []

    def parts(array):
        looked_at.append(array)
        return row_sparse_parts(array)

    monkeypatch.setattr(handler_module, 'row_sparse_parts', parts)
    table.handler.do_mode(table.keys, 'assign')
    for value in (1, 2):
        del looked_at[:]
        table.push(np.array([2, 5]), np.full((2, WIDTH), value, 'float32'))
        equal(table.values()[[2, 5]], np.full((2, WIDTH), value, 'float32'))
    assert len(looked_at) == 2 and not any(array is stored for array in looked_at for stored in table.stored)


@pytest.mark.parametrize('through_workers', [False, True])
@pytest.mark.parametrize('name, arguments', OPTIMIZERS, ids=case_name)
def test_moves_change_no_bit(name, arguments, through_workers):
    table, whole = pair(name, arguments, 3)
    for count, (ids, rows) in zip((4, 1, 1, 11, 2, 3, 6), merged_gradients(2)):
        recut(table, count, through_workers)
        table.push(ids, rows)
        whole.push(ids, rows)
        equal(table.values(), whole.values())
    for slot, state in enumerate(whole.states()):
        equal(table.read_state(slot, state.shape[1]), state)


def test_released_partitions_hold_nothing_and_can_be_filled_again():
    table, _ = pair('sgd', {'momentum': 0.9}, 2)
    ids, rows = next(merged_gradients(1))
    table.push(ids, rows)
    before, keys, partitioning, stored = table.values(), table.keys, table.partitioning, table.stored
    recut(table, 5)
    parts = [table.handler._partitions[key] for key in keys]
    assert all(part.state is None and not part.has_state and part.mode == 'capture' for part in parts)
    table.handler.do_move('w', ROWS, table.keys, keys, 1)
    table.keys, table.partitioning, table.stored = keys, partitioning, stored
    np.testing.assert_array_equal(table.values(), before)
    assert all(table.handler._optimizers['w'].live._index_update_count[key] == 1 for key in keys)
