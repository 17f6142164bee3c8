"""The settings of an optimizer that the owner of a table receives, and when."""
import mxnet as mx
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.native.optimizer_state import state_arrays
from mxhybrid.servers.optimized_table import OptimizedTable


class Listener(OptimizedTable):
    """Remembers the calls that it receives."""

    def __init__(self):
        super().__init__('words', 3, 'float32')
        self.heard = []

    def _tell_optimizer(self, reference, attributes, count):
        self.heard.append((reference, attributes, count))

    def _drop_optimizer(self):
        self.heard.append('drop')

    def news(self, optimizer, lr, count):
        """Set the optimizer for an update, and return what the owner of the rows is told."""
        self.heard.clear()
        self.check_optimizer(optimizer, 0.0)
        self.set_optimizer(optimizer, lr, 0.0, count)
        return list(self.heard)


def test_all_attributes_are_sent_then_changed_ones():
    table, sgd = Listener(), mx.optimizer.create('sgd', momentum=0.9)
    assert not table.has_optimizer and not table.state_slots()
    (reference, attributes, count), = table.news(sgd, 0.1, 0)
    assert (reference, count) == ('sgd', None) and attributes['momentum'] == 0.9 and attributes['lr'] == 0.1
    assert table.has_optimizer and table.updates == 1
    assert table.news(sgd, 0.1, 1) == []
    assert table.news(sgd, 0.05, 2) == [('sgd', {'lr': 0.05}, None)]
    sgd.rescale_grad = 0.5
    assert table.news(sgd, 0.05, 7) == [('sgd', {'rescale_grad': 0.5}, 7)]
    assert table.updates == 8


def test_a_count_that_was_corrected_is_expected():
    table, adam = Listener(), mx.optimizer.create('adam')
    table.news(adam, 0.1, 5)
    table.expect_count(5)
    assert table.news(adam, 0.1, 5) == []


def test_state_follows_the_class_not_the_settings():
    table, nag = Listener(), mx.optimizer.create('nag', momentum=0.9)
    table.news(nag, 0.1, 0)
    nag.momentum = 0.0
    table.news(nag, 0.1, 1)
    assert table.state_slots() == 1
    assert table.state_maker().momentum == 0.9
    (reference, attributes, count), = table.news(mx.optimizer.create('adam'), 0.1, 2)
    assert (reference, count) == ('adam', None) and 'beta1' in attributes
    state = table.state_maker().create_state_multi_precision(0, mx.nd.sparse.zeros('row_sparse', (1, 3)))
    assert len(state_arrays(state)) == table.state_slots() == 2


def test_settings_that_need_other_state_are_refused():
    plain, momentum = (mx.optimizer.create('sgd', momentum=value) for value in (0.0, 0.9))
    table, heir = Listener(), Listener()
    table.news(plain, 0.1, 0)
    heir.inherit_optimizer(table)
    for one in (table, heir):
        with pytest.raises(InputError, match='momentum=0.9 for words'):
            one.check_optimizer(momentum, 0.0)
    assert not heir.has_optimizer and heir.state_slots() == 0
    assert heir.news(plain, 0.1, 3)[0][2] == 3


def test_a_table_that_forgets_its_optimizer_starts_afresh():
    table, sgd = Listener(), mx.optimizer.create('sgd', momentum=0.0)
    table.news(sgd, 0.1, 0)
    table.forget_optimizer()
    assert table.heard[-1] == 'drop' and not table.has_optimizer and table.updates == 0
    (_, attributes, count), = table.news(mx.optimizer.create('sgd', momentum=0.9), 0.1, 0)
    assert attributes['momentum'] == 0.9 and count is None
