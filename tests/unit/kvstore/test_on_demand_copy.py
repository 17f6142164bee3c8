"""Parameters and optimizers that qualify for rows on demand: by reads of the value, and by the kernels."""
import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from mxhybrid.base.errors import InputError
from mxhybrid.kvstore import on_demand_copy
from mxhybrid.kvstore.trainer_step import hooks_of
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.native.optimizer_state import state_arrays
from mxhybrid.native.optimizers import TableOptimizer, attributes_of, name_of
from mxhybrid.routes.on_demand_rows import unsupported_reason
from mxhybrid.routes.route import ParameterSpec
from mxhybrid.servers.partition_state import Partition

from ...helpers.gluon_nets import backward, step

ROWS = 12


def embedding(kind=nn.Embedding):
    """An embedding with row_sparse gradients, initialised."""
    block = kind(ROWS, 3, sparse_grad=True)
    block.initialize(mx.init.Uniform(1))
    return block


def watch(block):
    return on_demand_copy.watch_of(block.weight)


IDS = mx.nd.array([1, 2, 2])


class Scaled(nn.Embedding):
    """An embedding of the user, whose use of its weight is unknown."""

    def hybrid_forward(self, F, x, weight):
        """Look up in a table made of the weight."""
        return F.Embedding(x, weight * 2, **self._kwargs)


# ------------------------------------------------------------------------------------------------- uses of a value


def test_forward_passes_with_arrays_are_no_reads():
    block = embedding()
    block(IDS)
    backward(lambda: block(IDS).sum())
    block.hybridize()  # by itself: it still gets the ids
    block(IDS)
    assert (watch(block).forwards, watch(block).read) == (3, False)


@pytest.mark.parametrize('kvstore', ['hybrid', 'device'])
def test_fractional_ids_are_refused_for_trained_weights(kvstore):
    block = embedding()
    block(mx.nd.array([0.5]))  # nothing is known of its store
    mx.gluon.Trainer(block.collect_params(), 'sgd', kvstore=kvstore)
    for whole in (IDS, IDS.astype('int32'), IDS.astype('float16')):
        block(whole)
    for fraction in (0.5, float('nan')):
        if kvstore == 'device':
            block(mx.nd.array([0.5]))
            continue
        with pytest.raises(InputError, match='nn.Embedding: row id %s of %s is not a whole number: round ids'
                                             % (fraction, block.weight.name)):
            block(mx.nd.array([1, fraction]))


@pytest.mark.parametrize('read', [
    lambda block: block.weight.data(), lambda block: block.weight.list_data(),
    lambda block: nn.Dense(ROWS, in_units=3, use_bias=False, params=block.params)(mx.nd.ones((1, 3))),
    lambda block: mx.nd.Embedding(IDS, block.weight.data(), ROWS, 3)])
def test_arrays_that_are_handed_out_count_as_read(read):
    block = embedding()
    read(block)
    assert watch(block).read


def test_a_hybridized_block_around_it_counts_as_read():
    net = nn.HybridSequential()
    net.add(embedding())
    net(IDS)
    assert not watch(net[0]).read
    net.hybridize()
    net(IDS)
    assert watch(net[0]).read


def test_an_embedding_that_computes_otherwise_counts_as_read():
    block = embedding(Scaled)
    block(IDS)
    assert (watch(block).forwards, watch(block).read) == (0, True)


def test_calls_that_return_no_array_are_no_reads(tmp_path):
    block = embedding()
    path = str(tmp_path / 'saved.params')
    block.save_parameters(path)
    block.load_parameters(path)
    block.weight.set_data(mx.nd.ones((ROWS, 3)))
    block.weight.list_ctx()
    backward(lambda: block(IDS).sum())
    block.collect_params().zero_grad()
    assert not watch(block).read


def test_only_dense_weights_with_sparse_gradients_are_watched():
    for block in (nn.Embedding(ROWS, 3), SparseEmbedding(ROWS, 3), nn.Dense(3)):
        assert watch(block) is None, block


def test_a_copy_of_a_parameter_starts_unread():
    block = embedding()
    block.weight.data()
    other = copy.deepcopy(block.weight)
    assert not on_demand_copy.watch_of(other).read and watch(block).read
    np.testing.assert_array_equal(other.data().asnumpy(), block.weight.data().asnumpy())


def test_gradients_may_be_read_only_before_a_step():
    block = embedding()
    trainer = gluon.Trainer(block.collect_params(), 'sgd', kvstore='hybrid')
    step(trainer, lambda: block(IDS).sum())
    backward(lambda: block(IDS).sum())
    block.weight.grad()
    block.weight.list_grad()
    assert not watch(block).read
    trainer.step(1)
    block.weight.grad()
    assert watch(block).read


def test_one_process_has_nothing_to_change_over():
    block = embedding()
    trainer = gluon.Trainer(block.collect_params(), 'sgd', kvstore='hybrid')
    for _ in range(6):
        step(trainer, lambda: block(IDS).sum())
    assert hooks_of(trainer).switch is None and type(block.weight) is gluon.Parameter


# --------------------------------------------------------------------------------------------------- optimizers


def route(dtype='float32', **options):
    return ParameterSpec(0, 'table', mx.nd.zeros((ROWS, 3), dtype=dtype), **options)


@pytest.mark.parametrize('optimizer', [
    mx.optimizer.SGD(learning_rate=0.3), mx.optimizer.SGD(learning_rate=0.3, momentum=0.9, wd=0.1, clip_gradient=0.4),
    mx.optimizer.Adam(learning_rate=0.1, wd=0.1), mx.optimizer.AdaGrad(learning_rate=0.1),
    mx.optimizer.contrib.GroupAdaGrad(learning_rate=0.1)], ids=name_of)
def test_servers_update_bit_for_bit_as_mxnet(optimizer):
    assert unsupported_reason(route(), optimizer) == ''
    random = np.random.RandomState(1)
    weight = mx.nd.array(random.normal(size=(ROWS, 3)))
    state = optimizer.create_state_multi_precision(0, weight)
    part = Partition(0, 'table', ROWS, 3, 'optimize')
    part.stored = make_row_sparse(np.arange(ROWS), weight.asnumpy(), (ROWS, 3))
    served = TableOptimizer(name_of(optimizer), dict(attributes_of(optimizer), lr=optimizer.lr, wd=optimizer.wd))
    for count in range(6):
        ids = np.unique(random.randint(0, ROWS, count))  # at first none
        gradient = make_row_sparse(ids, random.normal(size=(len(ids), 3)).astype('f4'), (ROWS, 3))
        optimizer.update_multi_precision(0, weight, gradient, state)
        part.update(served, gradient)
        np.testing.assert_array_equal(part.view, weight.asnumpy())
    arrays = state_arrays(state)
    assert len(arrays) == len(state_arrays(part.state))
    for slot, array in enumerate(arrays):
        np.testing.assert_array_equal(part.read(slot, 0, ROWS, served).reshape(array.shape), array.asnumpy())


@pytest.mark.parametrize('optimizer', [
    mx.optimizer.Ftrl(), mx.optimizer.RMSProp(), mx.optimizer.NAG(momentum=0.9), mx.optimizer.LAMB(),
    mx.optimizer.SGD(momentum=0.9, lazy_update=False), mx.optimizer.Adam(lazy_update=False)], ids=name_of)
def test_optimizers_that_change_all_rows_are_refused(optimizer):
    assert 'rows without a gradient' in unsupported_reason(route(), optimizer)


def test_optimizers_that_servers_cannot_compute_are_refused():
    assert 'wd' in unsupported_reason(route(), mx.optimizer.AdaGrad(wd=0.1))
    assert 'multi_precision' in unsupported_reason(route('float16'), mx.optimizer.SGD(multi_precision=True))
    assert 'float32' in unsupported_reason(route('float64'), mx.optimizer.AdaGrad())
    assert 'float16' in unsupported_reason(route(wire_dtype='float16'), mx.optimizer.SGD())


def test_a_setting_neither_yes_nor_no_is_refused():
    with pytest.raises(mxhybrid.SettingError, match='on_demand_rows'):
        mxhybrid.create(on_demand_rows='perhaps')
