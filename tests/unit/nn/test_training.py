"""Training with a dynamic table in one process, compared with MXNet's own SparseEmbedding and optimizers."""
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.contrib import amp
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid

from ...helpers.gluon_nets import backward, initialised, step, trainer_of

ROWS, WIDTH, SAMPLES = 50, 3, 12
TOLERANCES = {np.float32: 1e-5, np.float64: 1e-10}
OPTIMIZERS = {
    'sgd': ('sgd', {'learning_rate': 0.1, 'wd': 0.01}),
    'momentum': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01, 'clip_gradient': 0.2}),
    'adam': ('adam', {'learning_rate': 0.05, 'wd': 0.01}),
    'adagrad': ('adagrad', {'learning_rate': 0.1}),
    'groupadagrad': ('groupadagrad', {'learning_rate': 0.1}),
    'ftrl': ('ftrl', {'learning_rate': 0.1, 'lamda1': 0.001, 'wd': 0.01}),
}


class Tied(gluon.Block):
    """A table that is looked up twice in a forward pass, and a dense layer."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.dense = gluon.nn.Dense(2, use_bias=False, in_units=WIDTH, weight_initializer=mx.init.Constant(0.3))

    def forward(self, ids, others):
        return self.dense(self.table(ids) * self.table(others))


def new_table(dtype='float32'):
    return mxhybrid.nn.Embedding(ROWS, WIDTH, dtype, mx.init.Normal(0.5))


def pair(dtype='float32', make=new_table, reference=SparseEmbedding):
    """Return the same net twice, with a dynamic table and with MXNet's own one, with equal values."""
    mx.random.seed(1)
    ours, theirs = Tied(make(dtype)), Tied(reference(ROWS, WIDTH, dtype=dtype))
    for net in (ours, theirs):
        net.dense.cast(dtype)
        net.initialize()
    values = ours.table.rows(np.arange(ROWS))
    theirs.table.weight.set_data(values.tostype(theirs.table.weight._stype))
    return ours, theirs


def trainers(nets, optimizer='sgd', settings=None, **keywords):
    return [gluon.Trainer(net.collect_params(), optimizer, dict(settings or {'learning_rate': 0.1}), kvstore='hybrid',
                          **keywords) for net in nets]


def whole(net):
    """Return all rows of a net's table."""
    if isinstance(net.table, gluon.nn.Embedding):
        return net.table.weight.data().asnumpy()
    if isinstance(net.table, SparseEmbedding):
        return net.table.weight.row_sparse_data(mx.nd.arange(ROWS, dtype='int64')).asnumpy()
    return net.table.rows(np.arange(ROWS)).asnumpy()


def ids_of(number):
    """Return the ids of both lookups in a batch."""
    return np.random.RandomState(number).randint(0, ROWS // 2, (2, SAMPLES))


def loss_of(net, number):
    """Return the loss of a batch."""
    ids = ids_of(number)
    if not isinstance(net.table, mxhybrid.nn.Embedding):
        ids = [mx.nd.array(one, dtype='int64') for one in ids]
    targets = np.random.RandomState(number).standard_normal((SAMPLES, 2))
    return ((net(*ids) - mx.nd.array(targets, dtype=net.dense.weight.dtype)) ** 2).sum()


def compute(net, number):
    """Make a forward and a backward pass."""
    backward(lambda: loss_of(net, number))


def train(nets, their_trainers, numbers, change=lambda net, trainer, number: None):
    """Make a step of each net with each batch; `change` is called before the step."""
    for number in numbers:
        for net, trainer in zip(nets, their_trainers):
            change(net, trainer, number)
            compute(net, number)
            trainer.step(SAMPLES)


def check_same(ours, theirs):
    tolerance = TOLERANCES[np.dtype(ours.dense.weight.dtype).type]
    for one, other in ((whole(ours), whole(theirs)), [net.dense.weight.data().asnumpy() for net in (ours, theirs)]):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_equals_mxnet(name, dtype):
    nets = pair(dtype)
    before, both = whole(nets[0]), trainers(nets, *OPTIMIZERS[name])
    if dtype == 'float64' and name in ('adagrad', 'groupadagrad', 'ftrl'):
        with pytest.raises(mxhybrid.InputError, match=r'cannot update .*weight, which is float64'):
            train(nets[:1], both, [0])
        return
    train(nets, both, range(6))
    check_same(*nets)
    assert np.abs(whole(nets[0]) - before).max() > 0.01
    assert nets[0].table.weight.table.statistics()['rows'] == len(np.unique([ids_of(number) for number in range(6)]))


def test_updates_on_the_store_are_the_same():
    """MXNet's row_sparse weight is always updated on the store."""
    nets = pair()
    train(nets, trainers(nets, 'adam', {'learning_rate': 0.05}, update_on_kvstore=True), range(4))
    check_same(*nets)


def test_schedules_multipliers_and_sizes_of_batches():
    nets = pair('float64')
    for net in nets:
        net.table.weight.lr_mult, net.table.weight.wd_mult = 0.5, 2.0
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5)
        trainer = trainer_of(net, 'adam', learning_rate=0.1, wd=0.1, lr_scheduler=schedule)
        for number in range(5):
            compute(net, number)
            trainer.step(SAMPLES + number)
    check_same(*nets)


def test_learning_rates_that_a_script_sets():
    def change(net, trainer, number):
        trainer.set_learning_rate((0.1, 0.2, 0.05)[number])
        net.table.weight.lr_mult = 1 + number
    nets = pair('float64')
    train(nets, trainers(nets), range(3), change)
    check_same(*nets)


def test_a_trainer_with_tables_only_and_allreduce_by_hand():
    table = initialised(new_table())
    first, trainer = table.rows([4, 5]).asnumpy(), trainer_of(table)
    backward(lambda: table(np.array([4, 4, 5])))
    trainer.allreduce_grads()
    trainer.update(2)
    np.testing.assert_allclose(table.rows([4, 5]).asnumpy(), first - [[1.0], [0.5]], rtol=1e-6)
    assert trainer.optimizer.num_update == 1


@pytest.mark.parametrize('grad_req', ['write', 'add'])
def test_several_backward_passes(grad_req):
    nets = pair('float64', reference=gluon.nn.Embedding)  # SparseEmbedding overwrites its gradient in any case
    for net, trainer in zip(nets, trainers(nets)):
        net.table.weight.grad_req = net.dense.weight.grad_req = grad_req
        for number in range(3):
            for part in range(3):
                compute(net, 10 * number + part)
            trainer.step(SAMPLES)
            if number == 1:
                net.collect_params().zero_grad()
    check_same(*nets)


def test_a_backward_pass_over_several_forward_passes():
    nets = pair('float64')
    for net, trainer in zip(nets, trainers(nets)):
        step(trainer, lambda net=net: [loss_of(net, part) for part in range(3)], SAMPLES)
    check_same(*nets)


def test_a_recorded_pass_without_backward_counts_for_nothing():
    nets = pair('float64')
    for net, trainer in zip(nets, trainers(nets)):
        for number in range(4):
            compute(net, number)
            with autograd.record():
                loss_of(net, 100)
            trainer.step(SAMPLES)
    check_same(*nets)
    assert len(nets[0].table.weight.lookups._lookups) == 2  # those of the last step


def test_several_devices():
    contexts = [mx.cpu(0), mx.cpu(1)]
    mx.random.seed(3)
    table = mxhybrid.nn.Embedding(ROWS, WIDTH, 'float64')
    table.initialize(ctx=contexts)
    first, trainer = table.rows(mx.nd.array([1, 2, 3], ctx=contexts[0])).asnumpy(), trainer_of(table)
    rows = []
    with autograd.record():
        for context, ids in zip(contexts, ([1, 2], [2, 3])):
            rows.append(table(mx.nd.array(ids, ctx=context, dtype='int64')))
            assert rows[-1].context == context
    for part in rows:
        part.backward()
    trainer.step(1)
    np.testing.assert_allclose(table.rows(mx.nd.array([1, 2, 3], ctx=contexts[1])).asnumpy(),
                               first - [[1], [2], [1]], rtol=1e-12)
    with pytest.raises(mxhybrid.InputError, match=r'the ids are on cpu\(2\)'):
        table(mx.nd.array([1], ctx=mx.cpu(2)))


def test_frozen_and_thawed():
    def change(net, trainer, number):
        net.table.weight.grad_req = ('write', 'null', 'write')[number]
    nets = pair('float64')
    train(nets, trainers(nets), range(3), change)
    check_same(*nets)


def test_a_step_without_lookups_counts_and_changes_nothing():
    net, _ = pair()
    trainer, = trainers([net], 'adam')
    train([net], [trainer], [0])
    before = whole(net)
    step(trainer, lambda: net.dense(mx.nd.ones((1, WIDTH))), SAMPLES)
    np.testing.assert_array_equal(whole(net), before)
    assert trainer.optimizer._index_update_count[1] == 2  # after the dense layer's weight


def test_an_initialised_table_has_no_former_rows():
    net, _ = pair()
    trainer = trainers([net], 'adam')
    train([net], trainer, [0])
    trained = whole(net)
    net.initialize(force_reinit=True)
    first = whole(net)
    assert np.abs(first - trained).max() > 0.01
    train([net], trainer, [1])
    others = np.setdiff1d(np.arange(ROWS), ids_of(1))
    assert net.table.weight.table.statistics()['rows'] == ROWS - len(others) < ROWS
    np.testing.assert_array_equal(whole(net)[others], first[others])


def test_another_trainer_takes_the_rows_and_begins_without_state():
    net, _ = pair('float64')
    former, = trainers([net], 'adam')
    train([net], [former], range(2))
    reference, values = pair('float64')[1], whole(net)
    reference.table.weight.set_data(mx.nd.array(values, dtype='float64').tostype('row_sparse'))
    for name, param in net.dense.params.items():
        reference.dense.params[reference.dense.prefix + name[len(net.dense.prefix):]].set_data(param.data())
    train((net, reference), trainers([net, reference], 'adam'), range(2))
    check_same(net, reference)
    compute(net, 0)
    with pytest.raises(mxhybrid.InputError, match='was given to another Trainer'):
        former.step(SAMPLES)


# -- losses that MXNet's loss scaler scales ------------------------------------------------------------------------


def amp_trainer(net):
    trainer, = trainers([net])
    trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), trainer._scale
    return trainer


def compute_scaled(net, trainer, factor=1.0):
    with autograd.record():
        loss = loss_of(net, 0) * factor
        with amp.scale_loss(loss, trainer) as scaled:
            autograd.backward(scaled)


@pytest.mark.parametrize('by_hand', [False, True])
def test_the_scale_of_a_loss_is_divided_out(by_hand):
    nets = pair()
    for net, trainer in zip(nets, map(amp_trainer, nets)):
        compute_scaled(net, trainer)
        if by_hand and net is nets[0]:
            amp.unscale(trainer)
        trainer.step(SAMPLES)
    check_same(*nets)


def test_an_overflow_skips_the_step():
    net, _ = pair()
    trainer = amp_trainer(net)
    before, scale = whole(net), trainer._amp_loss_scaler.loss_scale
    compute_scaled(net, trainer, float('inf'))
    trainer.step(SAMPLES)
    np.testing.assert_array_equal(whole(net), before)
    compute_scaled(net, trainer)
    trainer.step(SAMPLES)
    assert trainer._amp_loss_scaler.loss_scale == scale / 2
    assert np.abs(whole(net) - before).max() > 0


def test_an_overflow_skips_the_step_of_tables_alone():
    table = initialised(new_table())
    before, trainer = table.rows([7]).asnumpy(), trainer_of(table)
    trainer._amp_loss_scaler = LossScaler()
    for factor in (float('nan'), 1.0):
        step(trainer, lambda factor=factor: table([7]) * factor)
    np.testing.assert_allclose(table.rows([7]).asnumpy(), before - 1, rtol=1e-6)


@pytest.mark.parametrize('keywords, message', [
    ({'kvstore': 'device'}, r"kvstore='device': \w*weight is a dynamic table.*kvstore='hybrid', also in one process"),
    ({'kvstore': None}, r'kvstore=None: '), ({}, r"kvstore='device'")])
def test_other_stores_are_refused(keywords, message):
    net, _ = pair()
    with pytest.raises(mxhybrid.InputError, match=message):
        gluon.Trainer(net.collect_params(), 'sgd', **keywords)


@pytest.mark.parametrize('optimizer, settings, message', [
    ('nag', {}, r"optimizer 'nag' cannot update \w*weight: .*kernels, and those for float32 are adagrad, adam, ftrl"),
    ('nag', {'wd': 0.1}, r'those for float32 are adam, ftrl, sgd\. Use'),
    ('lamb', {}, r"optimizer 'lamb' cannot update"),
    ('adam', {'lazy_update': False}, r'lazy_update=False cannot update'),
    ('adagrad', {'wd': 0.1}, r'wd=0.1 cannot update')])
def test_optimizers_are_refused_before_a_step(optimizer, settings, message):
    net, _ = pair()
    compute(net, 0)
    before = net.dense.weight.data().asnumpy()
    trainer, = trainers([net], optimizer, settings)
    with pytest.raises(mxhybrid.InputError, match=message):
        trainer.step(1)
    np.testing.assert_array_equal(net.dense.weight.data().asnumpy(), before)


@pytest.mark.parametrize('optimizer', ['adagrad', 'lamb'])
def test_optimizers_that_an_error_advises_are_accepted(optimizer):
    def step_by(name):
        table = initialised(mxhybrid.nn.HashEmbedding(2, dtype='float64'))
        step(trainer_of(table, name), lambda: table([1]))

    with pytest.raises(mxhybrid.InputError, match='float64') as refused:
        step_by(optimizer)
    advised = re.search('(?:one of|float64 are) ([a-z, ]+)', str(refused.value)).group(1).split(', ')
    assert advised == ['adam', 'sgd']
    for name in advised:
        step_by(name)


def test_states_in_files_are_refused(tmp_path):
    net, _ = pair()
    trainer, = trainers([net])
    for call in (trainer.save_states, trainer.load_states):
        with pytest.raises(mxhybrid.InputError, match=r'state of \w*weight is with its rows.*checkpoint'):
            call(str(tmp_path / 'states'))


def test_the_report_shows_tables():
    net, _ = pair(make=lambda dtype: mxhybrid.nn.HashEmbedding(WIDTH, dtype))
    trainer, = trainers([net])
    train([net], [trainer], [0])
    lines = trainer._kvstore.report().split('\n')
    head = next(line for line in lines if line.startswith('dynamic table'))
    row = next(line for line in lines if line.startswith(net.table.weight.name))
    assert head.split()[:3] == ['dynamic', 'table', 'keys'] and 'rows so far' in head
    assert row.split()[1:4] == ['any', str(WIDTH), str(len(np.unique(ids_of(0))))]
