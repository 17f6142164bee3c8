"""Checkpoints in one process: training that is resumed equals training that went on, bit for bit."""
import contextlib
import os
import sys
import types

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.contrib.amp.loss_scaler import LossScaler

import mxhybrid
from mxhybrid import CheckpointError, InputError
from mxhybrid.checkpoint import collect, files, folder, restore, save_load as checkpoint
from mxhybrid.checkpoint.reader import Reader
from mxhybrid.checkpoint.workers import on_worker_0

from ...helpers.checkpoints import write

ROWS, STEPS, SAVED_AT = 20, 8, 4

TABLES = {'weight': gluon.contrib.nn.SparseEmbedding, 'dense': gluon.nn.Embedding,
          'gradient': lambda rows, width: gluon.nn.Embedding(rows, width, sparse_grad=True)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Tables in pieces of a few rows, shards of a few pieces."""
    monkeypatch.delenv('MXNET_UPDATE_ON_KVSTORE', raising=False)
    monkeypatch.setattr(files, 'SHARD_BYTES', 256)
    monkeypatch.setattr(collect, 'PIECE_BYTES', 64)


class Training:
    """A small model and its Trainer; sizes of its last layers are found in the first forward pass."""

    def __init__(self, kind='weight', optimizer='adam', kvstore='hybrid', devices=1, seed=1, dtype='float32', width=3,
                 on_store=None, **options):
        mx.random.seed(seed)
        np.random.seed(seed)
        self.devices = [mx.cpu(number) for number in range(devices)]
        self.net = gluon.nn.Sequential()
        self.net.add(TABLES[kind](ROWS, width), gluon.nn.Flatten(), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
        if dtype != 'float32':
            self.net.cast(dtype)
        self.dtype = dtype
        self.net.initialize(mx.init.Uniform(0.3), ctx=self.devices)
        self.trainer = gluon.Trainer(self.net.collect_params(), optimizer, dict({'learning_rate': 0.05}, **options),
                                     kvstore=kvstore, update_on_kvstore=on_store)

    def fit(self, begin=0, end=STEPS):
        """Train; returns the losses."""
        random = np.random.RandomState(7)
        ids, targets = random.randint(0, ROWS, (STEPS, 8, 3)), random.rand(STEPS, 8, 2)
        losses = []
        for step in range(begin, end):
            batch = [mx.nd.array(one[step], dtype=self.dtype) for one in (ids, targets)]
            parts = zip(*(gluon.utils.split_and_load(one, self.devices) for one in batch))
            with autograd.record():
                outputs = [gluon.loss.L2Loss()(self.net(part), target) for part, target in parts]
            autograd.backward(outputs)
            self.trainer.step(8)
            losses += [float(output.mean().asscalar()) for output in outputs]
        return losses

    def save(self, directory, step=SAVED_AT, **keywords):
        return checkpoint.save(directory, self.net, self.trainer, step, **keywords)

    def load(self, directory):
        return checkpoint.load(directory, self.net, self.trainer)


def initialised(*args, **options):
    """Return a training whose net knows all sizes."""
    training = Training(*args, **options)
    training.net(mx.nd.zeros((2, 3), dtype=training.dtype))
    return training


def saved(directory, *args, **options):
    """Return a training that saved a checkpoint after half of its steps."""
    training = Training(*args, **options)
    training.fit(end=SAVED_AT)
    training.save(directory)
    return training


def assert_goes_on(directory, first, second):
    """A training that loads the checkpoint makes the same steps as the one that saved it."""
    assert second.load(directory).step == SAVED_AT
    assert second.fit(SAVED_AT) == first.fit(SAVED_AT)


OPTIMIZERS = [('adam', {}), ('sgd', {'momentum': 0.9, 'wd': 0.01}), ('sgd', {}), ('adagrad', {}), ('ftrl', {}),
              ('rmsprop', {'centered': True})]
STORES = ['hybrid', 'device', None]
TRAININGS = [(kind, optimizer, options, store) for kind in TABLES
             for number, (optimizer, options) in enumerate(OPTIMIZERS)
             for store in (STORES if number < 2 else STORES[:1])]
TRAININGS += [('gradient', optimizer, {}, 'hybrid') for optimizer in ('nadam', 'dcasgd', 'adadelta', 'ftml', 'signum')]
TRAININGS += [(kind, 'adam', {'on_store': on_store, 'devices': 2}, store)
              for kind in TABLES for on_store in (None, True) for store in ('hybrid', 'device')]


@pytest.mark.parametrize('kind, optimizer, options, kvstore', TRAININGS,
                         ids=lambda value: str(value or 'plain'))
def test_training_goes_on(tmp_path, kind, optimizer, options, kvstore):
    if kind == 'weight' and kvstore is None:
        kvstore = 'local'  # row_sparse weights need a store
    first = Training(kind, optimizer, kvstore, **options)
    first.fit(end=SAVED_AT)
    first.save(tmp_path, extra={'at': [1, None]})
    expected = first.fit(SAVED_AT)
    for training in (first, Training(kind, optimizer, kvstore, seed=2, **options)):
        loaded = training.load(tmp_path)
        assert (loaded.step, loaded.extra) == (SAVED_AT, {'at': [1, None]})
        assert os.path.isfile(os.path.join(loaded.path, 'manifest.json'))
        assert training.fit(SAVED_AT) == expected


@pytest.mark.parametrize('multi_precision', [False, True])
def test_float16(tmp_path, multi_precision):
    """A float16 weight, with a float32 copy in the optimizer's state if asked for."""
    def training():
        net = gluon.nn.Embedding(3, 4, dtype='float16', weight_initializer=mx.init.Constant(0.1))
        net.initialize()
        options = {'learning_rate': 0.1, 'momentum': 0.9, 'multi_precision': multi_precision}
        return net, gluon.Trainer(net.collect_params(), 'sgd', options, kvstore='hybrid')

    def fit(net, trainer):
        for _ in range(3):
            with autograd.record():
                loss = (net(mx.nd.arange(3)) ** 2).sum()
            loss.backward()
            trainer.step(1)
        return net.weight.data().asnumpy().tolist()

    first, second = training(), training()
    fit(*first)
    path = checkpoint.save(tmp_path, *first, 3)
    dtypes = [entry['dtype'] for entry in Reader(path).content['arrays'].values()]
    assert sorted(dtypes) == (['float16', 'float32', 'float32'] if multi_precision else ['float16', 'float16'])
    checkpoint.load(tmp_path, *second)
    assert fit(*second) == fit(*first)


@pytest.mark.parametrize('schedule', [
    lambda: mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.1, warmup_steps=2),
    lambda: mx.lr_scheduler.MultiFactorScheduler([2, 5, 6], 0.5, base_lr=0.1),
    lambda: mx.lr_scheduler.CosineScheduler(STEPS, base_lr=0.1)], ids=['factor', 'multi', 'cosine'])
@pytest.mark.parametrize('kind', ['weight', 'dense'])
def test_a_schedule_goes_on(tmp_path, kind, schedule):
    first, second = saved(tmp_path, kind, lr_scheduler=schedule()), Training(kind, lr_scheduler=schedule())
    second.load(tmp_path)
    assert second.trainer._optimizer.num_update == SAVED_AT
    assert_goes_on(tmp_path, first, second)
    assert second.trainer.learning_rate == first.trainer.learning_rate


def test_another_schedule_is_kept_with_a_warning(tmp_path, messages):
    saved(tmp_path)
    second = Training(lr_scheduler=mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.1))
    second.load(tmp_path)
    assert 'written with lr_scheduler None, the Trainer has FactorScheduler' in messages.text
    assert second.trainer._optimizer.lr_scheduler.base_lr == 0.05


@pytest.mark.parametrize('kind', ['weight', 'dense', 'gradient'])
def test_momentum_that_went_is_stored_and_may_return(tmp_path, kind):
    first = Training(kind, 'sgd', momentum=0.9)
    first.fit(end=SAVED_AT)
    first.trainer._optimizer.momentum = 0.0
    first.save(tmp_path)
    second = Training(kind, 'sgd', momentum=0.9)
    second.load(tmp_path)
    assert second.trainer._optimizer.momentum == 0
    for training in (first, second):
        training.trainer._optimizer.momentum = 0.5
    assert second.fit(SAVED_AT) == first.fit(SAVED_AT)


def test_attributes_set_on_the_way_are_kept_and_reported(tmp_path, messages):
    first, second = Training(), Training()
    first.trainer.set_learning_rate(0.25)
    first.net[3].weight.lr_mult = 0.5
    first.net[0].weight.wd_mult = 2
    first.fit(end=SAVED_AT)
    first.save(tmp_path)
    second.load(tmp_path)
    assert second.trainer.learning_rate == 0.25 and second.net[3].weight.lr_mult == 0.5
    assert second.net[0].weight.wd_mult == 2
    assert 'optimizer.lr 0.25 (was 0.05)' in messages.text
    assert second.fit(SAVED_AT) == first.fit(SAVED_AT)


def test_state_of_the_loss_scaler(tmp_path):
    first, second = initialised(), Training()
    for training in (first, second):
        training.trainer._amp_loss_scaler = LossScaler()
    first.trainer._amp_loss_scaler._loss_scale, first.trainer._amp_loss_scaler._unskipped = 512.0, 17
    first.save(tmp_path)
    second.load(tmp_path)
    scaler = second.trainer._amp_loss_scaler
    assert (scaler.loss_scale, scaler._unskipped) == (512.0, 17)


@pytest.mark.parametrize('kind', TABLES)
@pytest.mark.parametrize('devices', [(1, 2), (2, 1)])
def test_other_numbers_of_devices(tmp_path, kind, devices):
    """Weights and state are those of the first device, for all devices."""
    first, second = saved(tmp_path, kind, devices=devices[0]), Training(kind, devices=devices[1], seed=3)
    second.load(tmp_path)
    second.save(tmp_path)
    assert_goes_on(tmp_path, first, Training(kind, devices=devices[0], seed=4))


@pytest.mark.parametrize('there, here', [('hybrid', 'device'), ('device', 'hybrid'), (None, 'hybrid')])
def test_other_stores(tmp_path, there, here):
    assert_goes_on(tmp_path, saved(tmp_path, 'gradient', kvstore=there), Training('gradient', kvstore=here))


def test_before_the_first_step(tmp_path):
    first, second = initialised(), Training(seed=9)
    first.save(tmp_path, 0)
    second.load(tmp_path)
    assert second.fit() == first.fit()


def test_a_parameter_that_was_never_updated_has_no_state(tmp_path):
    first, second = Training('dense'), Training('dense', seed=2)
    for training in (first, second):
        training.net[3].bias.grad_req = 'null'
    first.fit(end=SAVED_AT)
    first.save(tmp_path)
    assert_goes_on(tmp_path, first, second)
    names = [item.param.name for item in collect.items_of(second.net, second.trainer)
             if item.key not in second.trainer._updaters[0].states]
    assert len(names) == 3  # BatchNorm's two statistics, too


def test_names_are_places_in_the_net(tmp_path):
    """A net that was made before shifts MXNet's own names."""
    gluon.nn.Dense(3)
    first = saved(tmp_path)
    gluon.nn.Dense(3)
    second = Training()
    assert set(first.net.collect_params()) != set(second.net.collect_params())
    assert_goes_on(tmp_path, first, second)


def test_a_shared_parameter_is_stored_once(tmp_path):
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(2, in_units=2))
    net.add(gluon.nn.Dense(2, in_units=2, params=net[0].params))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    path = checkpoint.save(tmp_path, net, trainer, 1)
    assert sorted(Reader(path).content['arrays']) == ['0.bias/weight', '0.weight/weight']
    net[0].weight.set_data(mx.nd.zeros((2, 2)))
    checkpoint.load(tmp_path, net, trainer)
    assert net[1].weight.data().asnumpy().any()


def test_parameters_instead_of_a_net(tmp_path):
    first = saved(tmp_path)
    params = first.net.collect_params()
    checkpoint.save(tmp_path, params, first.trainer, SAVED_AT)
    expected = first.fit(SAVED_AT)
    checkpoint.load(tmp_path, params, first.trainer)
    assert first.fit(SAVED_AT) == expected


def test_nothing_there_changes_nothing(tmp_path):
    training = Training()
    assert training.load(tmp_path / 'missing') is None and training.load(tmp_path) is None
    assert not training.trainer._kv_initialized


def with_a_layer_more():
    training = initialised()
    training.net.add(gluon.nn.Dense(1, in_units=2))
    training.net[4].initialize()
    return training


MISFITS = {
    'has parameters': with_a_layer_more,
    'shape': lambda: initialised(width=4),
    'float64 in the net': lambda: initialised('dense', dtype='float64'),
    "written with optimizer 'adam', the Trainer has 'sgd'": lambda: initialised(optimizer='sgd'),
}


@pytest.mark.parametrize('words', MISFITS)
def test_another_model_is_refused_and_unchanged(tmp_path, words):
    saved(tmp_path)
    second = MISFITS[words]()
    before = second.net[3].weight.data().asnumpy()
    with pytest.raises(CheckpointError, match='step-4 does not fit: .*' + words):
        second.load(tmp_path)
    np.testing.assert_array_equal(second.net[3].weight.data().asnumpy(), before)


def test_a_net_that_was_not_initialised_is_refused(tmp_path):
    first = Training('dense')
    first.fit(end=1)
    first.save(tmp_path)
    net = gluon.nn.Sequential()
    net.add(TABLES['dense'](ROWS, 3), gluon.nn.Flatten(), gluon.nn.BatchNorm(), gluon.nn.Dense(2))
    net[2].initialize()
    trainer = gluon.Trainer(net[2].collect_params(), 'adam', kvstore='hybrid')
    with pytest.raises(CheckpointError, match='has not been initialised: call net.initialize'):
        checkpoint.load(tmp_path, net, trainer)


@pytest.mark.parametrize('name, value, message', [
    *(('step', step, 'step=') for step in (-1, 1.5, '3', None, True)),
    *(('keep', keep, 'keep=') for keep in (0, -1, 2.0, None, True)),
    ('extra', {'array': np.zeros(2)}, 'extra is not a JSON value')])
def test_wrong_arguments_of_a_save(tmp_path, name, value, message):
    with pytest.raises(InputError, match=message):
        initialised().save(tmp_path, **{name: value})
    assert os.listdir(str(tmp_path)) == []


def test_shapes_that_are_not_known_yet(tmp_path):
    with pytest.raises(InputError, match='has no values yet: .*make a forward pass'):
        Training().save(tmp_path)


def test_a_trainer_of_parameters_that_the_net_lacks(tmp_path):
    training = Training()
    with pytest.raises(InputError, match='which the net does not have'):
        checkpoint.save(tmp_path, training.net[3], training.trainer, 1)


@pytest.mark.parametrize('kvstore', [None, 'device'])
@pytest.mark.parametrize('variables', [
    {'HOROVOD_SIZE': '2'}, {'OMPI_COMM_WORLD_SIZE': '2'}, {'PMI_SIZE': '2'},
    {'PMIX_RANK': '0', 'SLURM_STEP_NUM_TASKS': '2'}, {'WORLD_SIZE': '2', 'RANK': '0'},
    {'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '127.0.0.1', 'DMLC_NUM_WORKER': '2'}], ids=lambda given: min(given))
def test_stores_that_do_not_join_the_workers_are_refused(tmp_path, monkeypatch, kvstore, variables):
    training = Training('dense', kvstore=kvstore)
    training.fit(end=1)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="the 2 workers of this job cannot be collected: use kvstore='hybrid'"):
        training.save(tmp_path)
    with pytest.raises(InputError, match="use kvstore='hybrid'"):
        training.load(tmp_path)


def test_the_others_are_told_that_worker_0_is_busy():
    calls = []

    @contextlib.contextmanager
    def busy():
        calls.append('begin')
        try:
            yield
        finally:
            calls.append('end')

    def fail():
        calls.append('call')
        raise InputError('no')

    workers = types.SimpleNamespace(rank=0, allgather_json=lambda value, _: [value], busy=busy)
    assert on_worker_0(workers, 'save', lambda: calls.append('call')) is None
    with pytest.raises(InputError, match='no'):
        on_worker_0(workers, 'save', fail)
    assert calls == ['begin', 'call', 'end'] * 2


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / 'file').write_text('')
    training = initialised()
    with pytest.raises(CheckpointError, match='checkpoint.save failed on worker 0: .*Error.*file'):
        training.save(tmp_path / 'file' / 'below')
    with pytest.raises(CheckpointError, match='checkpoint.load failed on worker 0: NotADirectoryError'):
        training.load(tmp_path / 'file')


def test_damage_on_the_way_is_an_error(tmp_path, monkeypatch):
    saved(tmp_path)
    shard = os.path.join(tmp_path, '00000001-step-%d' % SAVED_AT, '00001.safetensors')
    monkeypatch.setattr(Reader, 'verify', lambda reader: os.truncate(shard, 100))
    with pytest.raises(CheckpointError, match='00001.safetensors has 100 of its .* bytes, after a part'):
        Training().load(tmp_path)


def test_a_checkpoint_stays_while_it_is_loaded(tmp_path, monkeypatch):
    saved(tmp_path)
    put = restore.put

    def put_after_a_save(*arguments):
        write(tmp_path, 9, keep=1)
        assert folder.names(str(tmp_path)) == ['00000002-step-9', '00000001-step-4']
        put(*arguments)

    monkeypatch.setattr(restore, 'put', put_after_a_save)
    assert Training(seed=2).load(tmp_path).step == SAVED_AT
    write(tmp_path, 10, keep=1)
    assert folder.names(str(tmp_path)) == ['00000003-step-10']


def test_momentum_comes_from_the_checkpoint(tmp_path, messages):
    assert_goes_on(tmp_path, saved(tmp_path, optimizer='sgd', momentum=0.9), Training(optimizer='sgd'))
    assert 'optimizer.momentum 0.9 (was 0.0)' in messages.text


def test_state_of_another_shape_is_refused(tmp_path, monkeypatch):
    saved(tmp_path)
    monkeypatch.setattr(mx.optimizer.Adam, 'create_state', lambda self, index, weight: mx.nd.zeros(weight.shape))
    with pytest.raises(CheckpointError, match="the state of optimizer 'adam' for 0.weight has shapes"):
        Training().load(tmp_path)


def test_gathering_in_one_process():
    assert checkpoint.allgather(Training().trainer, {'a': (1, 2)}) == [{'a': [1, 2]}]


def test_without_safetensors_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(mxhybrid.SettingError, match='pip install safetensors'):
        files.safetensors()
