"""Training with a dynamic table in one process, compared with MXNet's own SparseEmbedding and optimizers."""
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid

ROWS, WIDTH = 50, 3
TOLERANCES = {'float32': 1e-5, 'float64': 1e-10}
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


def pair(dtype='float32', make=lambda dtype: mxhybrid.nn.Embedding(ROWS, WIDTH, dtype, mx.init.Normal(0.5)), seed=1,
         reference=SparseEmbedding):
    """Return the same net twice, with a dynamic table and with MXNet's own one, with equal values."""
    mx.random.seed(seed)
    ours, theirs = Tied(make(dtype)), Tied(reference(ROWS, WIDTH, dtype=dtype))
    for net in (ours, theirs):
        net.dense.cast(dtype)
        net.initialize()
    values = ours.table.rows(np.arange(ROWS))
    theirs.table.weight.set_data(values.tostype(theirs.table.weight._stype))
    return ours, theirs


def trainers(nets, optimizer='sgd', settings=(('learning_rate', 0.1),), **keywords):
    return [gluon.Trainer(net.collect_params(), optimizer, dict(settings), kvstore='hybrid', **keywords)
            for net in nets]


def whole(net):
    """Return all rows of a net's table."""
    if isinstance(net.table, gluon.nn.Embedding):
        return net.table.weight.data().asnumpy()
    if isinstance(net.table, SparseEmbedding):
        weight = net.table.weight
        return weight.row_sparse_data(mx.nd.arange(ROWS, dtype='int64')).asnumpy()
    return net.table.rows(np.arange(ROWS)).asnumpy()


def batch(seed, dtype='float32', size=12):
    random = np.random.RandomState(seed)
    ids, others = random.randint(0, ROWS // 2, (2, size))
    return ids, others, mx.nd.array(random.standard_normal((size, 2)), dtype=dtype)


def ids_for(net, ids):
    return ids if isinstance(net.table, mxhybrid.nn.Embedding) else mx.nd.array(ids, dtype='int64')


def compute(net, seed, dtype='float32'):
    """Make a forward and a backward pass."""
    ids, others, target = batch(seed, dtype)
    with autograd.record():
        loss = ((net(ids_for(net, ids), ids_for(net, others)) - target) ** 2).sum()
    loss.backward()


def same(ours, theirs, tolerance):
    np.testing.assert_allclose(whole(ours), whole(theirs), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(ours.dense.weight.data().asnumpy(), theirs.dense.weight.data().asnumpy(),
                               rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_equals_mxnet(name, dtype):
    optimizer, settings = OPTIMIZERS[name]
    nets = pair(dtype)
    before = whole(nets[0])
    if dtype == 'float64' and name in ('adagrad', 'groupadagrad', 'ftrl'):
        with pytest.raises(mxhybrid.InputError, match=r'cannot update .*weight, which is float64'):
            compute(nets[0], 0, dtype)
            trainers(nets[:1], optimizer, settings)[0].step(12)
        return
    for step in range(6):
        if not step:
            both = trainers(nets, optimizer, settings)
        for net, trainer in zip(nets, both):
            compute(net, step, dtype)
            trainer.step(12)
    same(*nets, TOLERANCES[dtype])
    assert np.abs(whole(nets[0]) - before).max() > 0.01
    assert nets[0].table.weight.table.statistics()['rows'] == len(
        np.unique(np.concatenate([batch(step)[:2] for step in range(6)])))


def test_updates_on_the_store_are_the_same():
    """MXNet's row_sparse weight is always updated on the store."""
    nets = pair()
    both = trainers(nets, 'adam', {'learning_rate': 0.05}.items(), update_on_kvstore=True)
    for step in range(4):
        for net, trainer in zip(nets, both):
            compute(net, step)
            trainer.step(12)
    same(*nets, 1e-5)


def test_schedule_multipliers_and_learning_rate():
    nets = pair('float64')
    for net in nets:
        net.table.weight.lr_mult, net.table.weight.wd_mult = 0.5, 2.0
    both = [gluon.Trainer(net.collect_params(), 'adam',
                          {'learning_rate': 0.1, 'wd': 0.1, 'lr_scheduler': mx.lr_scheduler.FactorScheduler(2, 0.5)},
                          kvstore='hybrid') for net in nets]
    for step in range(5):
        for net, trainer in zip(nets, both):
            compute(net, step, 'float64')
            trainer.step(12 + step)
    same(*nets, 1e-10)
    nets = pair('float64')
    both = trainers(nets)
    for step, rate in enumerate((0.1, 0.2, 0.05)):
        for net, trainer in zip(nets, both):
            trainer.set_learning_rate(rate)
            net.table.weight.lr_mult = 1 + step
            compute(net, step, 'float64')
            trainer.step(12)
    same(*nets, 1e-10)


def test_a_trainer_with_tables_only_and_allreduce_by_hand():
    mx.random.seed(2)
    table = mxhybrid.nn.Embedding(ROWS, WIDTH)
    table.initialize()
    first = table.rows([4, 5]).asnumpy()
    trainer = gluon.Trainer(table.collect_params(), 'sgd', {'learning_rate': 1.0}, kvstore='hybrid')
    with autograd.record():
        loss = table(np.array([4, 4, 5])).sum()
    loss.backward()
    trainer.allreduce_grads()
    trainer.update(2)
    np.testing.assert_allclose(table.rows([4, 5]).asnumpy(), first - [[1.0], [0.5]], rtol=1e-6)
    assert trainer.optimizer.num_update == 1


@pytest.mark.parametrize('grad_req', ['write', 'add'])
def test_several_backward_passes(grad_req):
    nets = pair('float64', reference=gluon.nn.Embedding)  # SparseEmbedding overwrites its gradient in any case
    for net in nets:
        net.table.weight.grad_req = net.dense.weight.grad_req = grad_req
    both = trainers(nets)
    for step in range(3):
        for net, trainer in zip(nets, both):
            for part in range(3):
                compute(net, 10 * step + part, 'float64')
            trainer.step(12)
            if step == 1:
                net.collect_params().zero_grad()
    same(*nets, 1e-10)


def test_a_backward_pass_over_several_forward_passes():
    nets = pair('float64')
    both = trainers(nets)
    for net, trainer in zip(nets, both):
        losses = []
        with autograd.record():
            for part in range(3):
                ids, others, target = batch(part, 'float64')
                losses.append(((net(ids_for(net, ids), ids_for(net, others)) - target) ** 2).sum())
        autograd.backward(losses)
        trainer.step(12)
    same(*nets, 1e-10)


def test_a_recorded_pass_without_backward_counts_for_nothing():
    nets = pair('float64')
    both = trainers(nets)
    for step in range(4):
        for net, trainer in zip(nets, both):
            compute(net, step, 'float64')
            with autograd.record():
                ids, others, _ = batch(100, 'float64')
                net(ids_for(net, ids), ids_for(net, others))
            trainer.step(12)
    same(*nets, 1e-10)
    assert len(nets[0].table.weight.lookups._lookups) == 2  # those of the last step


def test_several_devices():
    contexts = [mx.cpu(0), mx.cpu(1)]
    mx.random.seed(3)
    table = mxhybrid.nn.Embedding(ROWS, WIDTH, 'float64')
    table.initialize(ctx=contexts)
    first = table.rows(mx.nd.array([1, 2, 3], ctx=contexts[0])).asnumpy()
    trainer = gluon.Trainer(table.collect_params(), 'sgd', {'learning_rate': 1.0}, kvstore='hybrid')
    losses = []
    with autograd.record():
        for context, ids in zip(contexts, ([1, 2], [2, 3])):
            rows = table(mx.nd.array(ids, ctx=context, dtype='int64'))
            assert rows.context == context
            losses.append(rows.sum())
    for loss in losses:
        loss.backward()
    trainer.step(1)
    np.testing.assert_allclose(table.rows(mx.nd.array([1, 2, 3], ctx=contexts[1])).asnumpy(),
                               first - [[1], [2], [1]], rtol=1e-12)
    with pytest.raises(mxhybrid.InputError, match=r'the ids are on cpu\(2\)'):
        table(mx.nd.array([1], ctx=mx.cpu(2)))


def test_frozen_and_thawed():
    nets = pair('float64')
    both = trainers(nets)
    for step, grad_req in enumerate(['write', 'null', 'write']):
        for net, trainer in zip(nets, both):
            net.table.weight.grad_req = grad_req
            compute(net, step, 'float64')
            trainer.step(12)
    same(*nets, 1e-10)


def test_a_step_without_lookups_counts_and_changes_nothing():
    net, _ = pair()
    trainer, = trainers([net], 'adam')
    compute(net, 0)
    trainer.step(12)
    before = whole(net)
    with autograd.record():
        loss = net.dense(mx.nd.ones((1, WIDTH))).sum()
    loss.backward()
    trainer.step(12)
    np.testing.assert_array_equal(whole(net), before)
    assert trainer.optimizer._index_update_count[1] == 2  # after the dense layer's weight


def test_reinitialised():
    net, _ = pair()
    trainer, = trainers([net], 'adam')
    compute(net, 0)
    trainer.step(12)
    trained = whole(net)
    net.initialize(mx.init.Constant(0.25), force_reinit=True)
    assert np.abs(whole(net) - trained).max() > 0.01
    rest = np.setdiff1d(np.arange(ROWS), np.concatenate(batch(1)[:2]))
    compute(net, 1)
    trainer.step(12)
    again, values = mxhybrid.nn.Embedding(ROWS, WIDTH, 'float32', mx.init.Normal(0.5)), whole(net)
    again.initialize()
    assert again.rows([0]).asnumpy().std() > 0
    assert len(rest) and np.isfinite(values).all()


def test_another_trainer_takes_the_rows_and_begins_without_state():
    net, _ = pair('float64')
    former, = trainers([net], 'adam')
    for step in range(2):
        compute(net, step, 'float64')
        former.step(12)
    reference, values = pair('float64')[1], whole(net)
    reference.table.weight.set_data(mx.nd.array(values, dtype='float64').tostype('row_sparse'))
    for name, param in net.dense.params.items():
        reference.dense.params[reference.dense.prefix + name[len(net.dense.prefix):]].set_data(param.data())
    both = trainers([net, reference], 'adam')
    for step in range(2):
        for one, trainer in zip((net, reference), both):
            compute(one, step, 'float64')
            trainer.step(12)
    same(net, reference, 1e-10)
    compute(net, 0, 'float64')
    with pytest.raises(mxhybrid.InputError, match='was given to another Trainer'):
        former.step(12)


class TestAmp:
    """Scaled losses, by MXNet's loss scaler."""

    def trainer(self, net):
        from mxnet.contrib.amp.loss_scaler import LossScaler
        trainer, = trainers([net], 'sgd', {'learning_rate': 0.1}.items())
        trainer._amp_loss_scaler, trainer._amp_original_scale = LossScaler(), trainer._scale
        return trainer

    def scaled(self, net, trainer, factor=1.0):
        from mxnet.contrib import amp
        ids, others, target = batch(0)
        with autograd.record():
            loss = ((net(ids_for(net, ids), ids_for(net, others)) - target) ** 2).sum() * factor
            with amp.scale_loss(loss, trainer) as scaled:
                autograd.backward(scaled)

    @pytest.mark.parametrize('by_hand', [False, True])
    def test_the_scale_is_divided_out(self, by_hand):
        from mxnet.contrib import amp
        nets = pair()
        amps = [self.trainer(net) for net in nets]
        for net, trainer in zip(nets, amps):
            self.scaled(net, trainer)
            if by_hand and net is nets[0]:
                amp.unscale(trainer)
            trainer.step(12)
        same(*nets, 1e-5)

    def test_an_overflow_skips_the_step(self):
        net, _ = pair()
        trainer = self.trainer(net)
        before, scale = whole(net), trainer._amp_loss_scaler.loss_scale
        self.scaled(net, trainer, float('inf'))
        trainer.step(12)
        np.testing.assert_array_equal(whole(net), before)
        self.scaled(net, trainer)
        trainer.step(12)
        assert trainer._amp_loss_scaler.loss_scale == scale / 2
        assert np.abs(whole(net) - before).max() > 0

    def test_a_trainer_with_tables_only(self):
        from mxnet.contrib.amp.loss_scaler import LossScaler
        table = mxhybrid.nn.Embedding(ROWS, WIDTH)
        table.initialize()
        trainer = gluon.Trainer(table.collect_params(), 'sgd', {'learning_rate': 1.0}, kvstore='hybrid')
        trainer._amp_loss_scaler = LossScaler()
        before = table.rows([7]).asnumpy()
        for factor in (float('nan'), 1.0):
            with autograd.record():
                loss = table([7]).sum() * factor
            loss.backward()
            trainer.step(1)
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
    trainer, = trainers([net], optimizer, settings.items())
    with pytest.raises(mxhybrid.InputError, match=message):
        trainer.step(1)
    np.testing.assert_array_equal(net.dense.weight.data().asnumpy(), before)


@pytest.mark.parametrize('optimizer', ['adagrad', 'lamb'])
def test_optimizers_that_an_error_advises_are_accepted(optimizer):
    def step(name):
        table = mxhybrid.nn.HashEmbedding(2, dtype='float64')
        table.initialize()
        with autograd.record():
            loss = table([1]).sum()
        loss.backward()
        trainers([table], name)[0].step(1)

    with pytest.raises(mxhybrid.InputError, match='float64') as refused:
        step(optimizer)
    advised = re.search('(?:one of|float64 are) ([a-z, ]+)', str(refused.value)).group(1).split(', ')
    assert advised == ['adam', 'sgd']
    for name in advised:
        step(name)


def test_states_in_files_are_refused(tmp_path):
    net, _ = pair()
    trainer, = trainers([net])
    for call in (trainer.save_states, trainer.load_states):
        with pytest.raises(mxhybrid.InputError, match=r'state of \w*weight is with its rows.*checkpoint'):
            call(str(tmp_path / 'states'))


def test_the_report_shows_tables():
    net, _ = pair(make=lambda dtype: mxhybrid.nn.HashEmbedding(WIDTH, dtype))
    trainer, = trainers([net])
    compute(net, 0)
    trainer.step(12)
    lines = trainer._kvstore.report().split('\n')
    head = next(line for line in lines if line.startswith('dynamic table'))
    row = next(line for line in lines if line.startswith(net.table.weight.name))
    assert head.split()[:3] == ['dynamic', 'table', 'keys'] and 'rows so far' in head
    rows = len(np.unique(np.concatenate(batch(0)[:2])))
    assert row.split()[1:4] == ['any', str(WIDTH), str(rows)]
