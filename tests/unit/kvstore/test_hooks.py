"""Hooks into MXNet act for stores of mxhybrid, once, and leave all other stores alone."""
import copy
import os
import subprocess
import sys

import mxnet as mx
import mxnet.gluon.trainer
import mxnet.model
import mxnet.module.module
import numpy as np
import pytest
from mxnet.gluon.contrib.estimator import CheckpointHandler

import mxhybrid
from mxhybrid.kvstore import hooks
from mxhybrid.kvstore.trainer_step import hooks_of

from ...helpers.gluon_nets import step

pytestmark = pytest.mark.both_pythons

USERS = [mx.model, mx.gluon.trainer, mx.module.module]
HOOKED = {
    mx.gluon.Trainer: ['__init__', '_check_contexts', '_init_kvstore', '_reset_kvstore', '_row_sparse_pull',
                       '_allreduce_grads', '_update', 'step', 'update', 'save_states', 'load_states'],
    mx.gluon.Parameter: ['initialize', 'set_data', 'data', 'list_data', 'grad', 'list_grad', 'list_ctx', 'reset_ctx',
                         'cast', '_load_init', '_reduce', '_set_trainer'],
    mx.gluon.ParameterDict: ['zero_grad'], mx.gluon.nn.Embedding: ['forward'],
    CheckpointHandler: ['__init__', '_save_symbol', '_save_params_and_trainer']}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Remove the variable by which the user's shell would decide where updates happen."""
    monkeypatch.delenv('MXNET_UPDATE_ON_KVSTORE', raising=False)


# ------------------------------------------------------------------------------------------ _create_kvstore


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('name', ['hybrid', 'Hybrid', 'HYBRID'])
@pytest.mark.parametrize('text, expected', [(None, False), ('0', False), ('1', True)])
def test_the_name_gives_a_store_also_for_one_device(monkeypatch, devices, name, text, expected):
    if text is not None:
        monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', text)
    store, update_on_kvstore = mx.gluon.trainer._create_kvstore(name, devices, {})
    assert isinstance(store, mxhybrid.Hybrid) and store.type == 'hybrid'
    assert update_on_kvstore is expected


def test_a_ready_store_is_used_as_it_is():
    store = mxhybrid.create(timeout=7)
    assert mx.gluon.trainer._create_kvstore(store, 1, {}) == (store, False)


@pytest.mark.parametrize('update', [None, '0', '1'])
@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('name', [None, 'local', 'device', 'instance'])
def test_other_stores_are_made_as_before(monkeypatch, name, devices, update):
    if update is not None:
        monkeypatch.setenv('MXNET_UPDATE_ON_KVSTORE', update)
    kvstore = mx.kv.create('device') if name == 'instance' else name
    params = {'w': mx.nd.zeros(3)}
    for user in USERS:
        store, on_store = user._create_kvstore(kvstore, devices, params)
        original, originally_on_store = user._create_kvstore.__wrapped__(kvstore, devices, params)
        assert on_store == originally_on_store
        assert type(store) is type(original) and not isinstance(store, mxhybrid.Hybrid)
        assert getattr(store, 'type', None) == getattr(original, 'type', None)


@pytest.mark.parametrize('fit', ['Module', 'BucketingModule', 'FeedForward'])
@pytest.mark.parametrize('given_as', ['name', 'instance'])
def test_module_interfaces_refuse_the_store_with_a_remedy(fit, given_as):
    data = mx.sym.Variable('data')
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2), name='softmax')
    batches = mx.io.NDArrayIter(np.ones((4, 3), 'f4'), np.zeros(4, 'f4'), batch_size=2)
    store = 'hybrid' if given_as == 'name' else mxhybrid.create()
    with pytest.raises(mxhybrid.InputError, match='gluon.Trainer'):
        if fit == 'FeedForward':
            mx.model.FeedForward(symbol, num_epoch=1).fit(batches, kvstore=store)
        elif fit == 'BucketingModule':
            batches.default_bucket_key = 3
            mx.mod.BucketingModule(lambda key: (symbol, ('data',), ('softmax_label',)), default_bucket_key=3).fit(
                batches, num_epoch=1, kvstore=store)
        else:
            mx.mod.Module(symbol).fit(batches, num_epoch=1, kvstore=store)


def test_a_sparse_module_is_told_no_impossible_remedy():
    weight = mx.sym.Variable('words_weight', stype='row_sparse', shape=(5, 2))
    rows = mx.sym.contrib.SparseEmbedding(mx.sym.Variable('data'), weight, input_dim=5, output_dim=2)
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(rows, num_hidden=2), name='softmax')
    batches = mx.io.NDArrayIter(np.ones((4, 3), 'f4'), np.zeros(4, 'f4'), batch_size=2)
    with pytest.raises(mxhybrid.InputError, match=r'gluon.contrib.nn.SparseEmbedding for its row_sparse weights '
                                                  r'\(words_weight\), which mx.gluon.SymbolBlock does not take'):
        mx.mod.Module(symbol).fit(batches, num_epoch=1, kvstore='hybrid')
    with pytest.raises(AssertionError, match="because its storage type is 'row_sparse'"):
        mx.gluon.SymbolBlock(symbol, mx.sym.Variable('data'))


def test_mistakes_are_refused_as_before():
    for user in USERS:
        with pytest.raises(TypeError, match='kvstore must be KVStore, str or None'):
            user._create_kvstore(3, 2, {})


# ------------------------------------------------------------------------------------------ installation


def test_installing_twice_wraps_once(monkeypatch):
    def hooked():
        methods = [vars(owner)[name] for owner, names in HOOKED.items() for name in names]
        return methods + [module._create_kvstore for module in USERS] + [sys.excepthook]

    monkeypatch.setattr(sys, 'excepthook', sys.excepthook)  # so that it is put back
    hooks.install()
    before = hooked()
    hooks.install()
    assert hooked() == before


@pytest.mark.parametrize('owner', HOOKED, ids=lambda owner: owner.__name__)
def test_these_methods_are_hooked_and_no_others(owner):
    hooked = {name: method for name, method in vars(owner).items() if getattr(method, '_mxhybrid', False)}
    assert sorted(hooked) == sorted(HOOKED[owner])
    for name, method in hooked.items():
        assert method.__name__ == name and method.__doc__ == method.__wrapped__.__doc__
        assert not getattr(method.__wrapped__, '_mxhybrid', False)


SCRIPT = """
%s
net = mx.gluon.nn.Dense(1, in_units=2)
net.initialize()
trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
with mx.autograd.record():
    loss = net(mx.nd.ones((1, 2))).sum()
loss.backward()
trainer.step(1)
print(type(trainer._kvstore).__name__, trainer._kvstore.type, mx.kv.create('hybrid').num_workers)
"""


def run_script(text, **variables):
    """Run Python text as a user's script."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(('DMLC_', 'HOROVOD_', 'MXHYBRID_'))}
    return subprocess.run([sys.executable, '-c', text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=50,
                          universal_newlines=True, env=dict(env, PYTHONPATH=os.pathsep.join(sys.path), **variables))


@pytest.mark.parametrize('imports', ['import mxhybrid\nimport mxnet as mx', 'import mxnet as mx\nimport mxhybrid'],
                         ids=['mxhybrid first', 'mxnet first'])
def test_the_order_of_imports_does_not_matter(imports):
    done = run_script(SCRIPT % imports)
    assert (done.returncode, done.stdout) == (0, 'Hybrid hybrid 1\n'), done.stderr


def test_an_exception_outside_a_job_is_shown_as_ever():
    done = run_script("import mxhybrid\nimport atexit\natexit.register(print, 'exit handler')\nraise KeyError('mine')")
    assert done.returncode == 1
    assert done.stdout == 'exit handler\n'
    assert done.stderr.count('Traceback') == 1 and done.stderr.endswith("KeyError: 'mine'\n")


def test_importing_reads_no_settings_and_starts_nothing():
    done = run_script('import mxhybrid, threading\nfrom mxhybrid.job.join import current\n'
                      'print(current(), threading.active_count())', MXHYBRID_TIMEOUT='soon')
    assert (done.returncode, done.stdout) == (0, 'None 1\n'), done.stderr


# ------------------------------------------------------------------------------------------ Trainer, one process

CONTEXTS = [mx.cpu(0), mx.cpu(1)]


class Net(mx.gluon.nn.Sequential):
    """An embedding, dense with row_sparse gradients or row_sparse itself, and a dense layer."""

    def __init__(self, kind):
        super().__init__(prefix='net_')
        with self.name_scope():
            if kind == 'row_sparse weight':
                self.add(mx.gluon.contrib.nn.SparseEmbedding(20, 3))
            else:
                self.add(mx.gluon.nn.Embedding(20, 3, sparse_grad=kind == 'row_sparse gradient'))
            self.add(mx.gluon.nn.Dense(2, in_units=3, flatten=False))


def trained(kind, kvstore, contexts, update_on_kvstore=None, states=None, optimizer='adam'):
    """Train a few steps on fixed data; return the weights and the Trainer."""
    net = Net(kind)
    net.initialize(mx.init.Zero(), ctx=contexts)
    random = np.random.RandomState(3)
    for param in net.collect_params().values():
        value = mx.nd.array(random.standard_normal(param.shape))
        param.set_data(value if param._stype == 'default' else value.tostype('row_sparse'))
    # A list keeps its order, so the table comes before the dense layer; a ParameterDict would be sorted by name.
    trainer = mx.gluon.Trainer(list(net.collect_params().values()), optimizer, {'learning_rate': 0.1}, kvstore=kvstore,
                               update_on_kvstore=update_on_kvstore)
    for number in range(4):
        if states and number == 2:
            trainer.save_states(states)
            trainer.load_states(states)
        with mx.autograd.record():
            losses = [(net(mx.nd.array(random.randint(0, 20, 6), ctx=context)) ** 2).sum() for context in contexts]
        mx.autograd.backward(losses)
        trainer.step(6 * len(contexts))
    weights = [param.data(contexts[0]) if param._stype == 'default' else param.row_sparse_data(mx.nd.arange(20))
               for param in net.collect_params().values()]
    return [weight.asnumpy() for weight in weights], trainer


KINDS = ['dense', 'row_sparse gradient', 'row_sparse weight']


@pytest.mark.parametrize('contexts', [CONTEXTS[:1], CONTEXTS], ids=['one device', 'two devices'])
@pytest.mark.parametrize('kind, update_on_kvstore', [
    (kind, update) for kind in KINDS for update in (None, True, False)
    if (kind, update) != ('row_sparse weight', False)])  # which MXNet refuses
def test_training_equals_mxnets_own_store(kind, contexts, update_on_kvstore):
    expected, _ = trained(kind, mx.kv.create('device'), contexts, update_on_kvstore)
    weights, trainer = trained(kind, 'hybrid', contexts, update_on_kvstore)
    assert isinstance(trainer._kvstore, mxhybrid.Hybrid)
    assert trainer._update_on_kvstore == (bool(update_on_kvstore) or kind == 'row_sparse weight')
    assert all(weight.any() for weight in weights)
    np.testing.assert_equal(weights, expected)


@pytest.mark.parametrize('optimizer', ['nadam', 'sgld'])
def test_weights_are_updated_in_key_order_if_needed(optimizer):
    results = []
    for kvstore in (mx.kv.create('device'), 'hybrid'):
        mx.random.seed(5)
        results.append(trained('row_sparse gradient', kvstore, CONTEXTS[:1], True, optimizer=optimizer)[0])
    np.testing.assert_equal(*results)


@pytest.mark.parametrize('kind', KINDS)
def test_states_written_in_the_middle_change_nothing(kind, tmp_path):
    expected, _ = trained(kind, 'hybrid', CONTEXTS[:1])
    weights, _ = trained(kind, 'hybrid', CONTEXTS[:1], states=str(tmp_path / 'states'))
    np.testing.assert_equal(weights, expected)
    assert [entry.name for entry in tmp_path.iterdir()] == ['states']


@pytest.fixture(params=['by name', 'an instance'])
def kvstore(request):
    """A store as a script gives it to a Trainer."""
    return 'hybrid' if request.param == 'by name' else mxhybrid.create()


def test_new_weights_leave_other_tables_as_they_were(kvstore):
    _, trainer = trained('row_sparse weight', kvstore, CONTEXTS[:1])
    embedding, = (param for param in trainer._params if param._stype == 'row_sparse')
    dense, = (param for param in trainer._params if param.name.endswith('dense0_weight'))
    before = embedding.row_sparse_data(mx.nd.arange(20)).asnumpy()
    dense.set_data(mx.nd.full(dense.shape, 3))
    np.testing.assert_array_equal(embedding.row_sparse_data(mx.nd.arange(20)).asnumpy(), before)
    assert (dense.data().asnumpy() == 3).all()


@pytest.mark.parametrize('kind, update_on_kvstore', [('dense', True), ('row_sparse gradient', True),
                                                     ('row_sparse weight', None)])
def test_training_goes_on_from_loaded_parameters(tmp_path, kvstore, kind, update_on_kvstore):
    """The same steps follow each time: with the parameters, the state of the optimizer begins again."""
    path = str(tmp_path / 'parameters')
    net, ids = Net(kind), mx.nd.array([3, 5, 5, 7])
    net.initialize(mx.init.Uniform(1))

    def steps(trainer):
        for _ in range(3):
            step(trainer, lambda: (net(ids) ** 2).sum(), 4)
        return [param._reduce().tostype('default').asnumpy() for param in net.collect_params().values()]

    trainer = mx.gluon.Trainer(net.collect_params(), 'adagrad', {'learning_rate': 0.1}, kvstore=kvstore,
                               update_on_kvstore=update_on_kvstore)
    net.save_parameters(path)
    first = steps(trainer)
    for _ in range(2):
        net.load_parameters(path)
        np.testing.assert_equal(steps(trainer), first)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_a_saved_table_keeps_type_and_bits(tmp_path, dtype, kvstore):
    net = mx.gluon.contrib.nn.SparseEmbedding(20, 3, dtype=dtype)
    net.initialize(mx.init.Uniform(1))
    trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore=kvstore)
    for name in ('before', 'after'):
        net.save_parameters(str(tmp_path / name))
        saved, = mx.nd.load(str(tmp_path / name)).values()
        assert saved.stype == 'row_sparse' and saved.dtype == np.dtype(dtype)
        rows = net.weight.row_sparse_data(mx.nd.arange(20)).data.asnumpy()
        np.testing.assert_array_equal(saved.data.asnumpy(), rows)
        step(trainer, lambda: (net(mx.nd.array([1, 2, 2])) / 3).sum())
    assert (saved.data.asnumpy() != mx.nd.load(str(tmp_path / 'before'))['weight'].data.asnumpy()).any()


@pytest.mark.parametrize('text, gist', [
    ('plain', 'plain'), ('first\nsecond', 'first'), ('', ''),
    ('Traceback (most recent call last):\n  File "x.cc", line 3\nMXNetError: Check failed: disk full\n',
     'Check failed: disk full'),
    ('Traceback (most recent call last):\nmxnet.base.MXNetError: no MXNetError: here', 'no MXNetError: here')])
def test_an_error_that_travels_says_its_cause(text, gist):
    assert hooks._gist(text) == gist


def test_a_net_can_be_copied_together_with_its_trainer():
    """A Trainer is copied before its first step; later it has a store, which MXNet cannot copy."""
    net = Net('row_sparse gradient')
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    net[1].bias.set_data(mx.nd.ones(2))
    other, copied = copy.deepcopy((net, trainer))
    assert hooks_of(trainer) is not hooks_of(copied)
    assert [param.data().asnumpy().tolist() for param in (net[1].bias, other[1].bias)] == [[1, 1]] * 2
    assert copied._params[0]._trainer is copied and trainer._params[0]._trainer is trainer


@pytest.mark.parametrize('kvstore', ['hybrid', 'device', None])
def test_parameters_of_a_failed_trainer_can_be_saved(tmp_path, kvstore):
    net = mx.gluon.nn.Embedding(4, 2, sparse_grad=True)
    net.initialize()
    with pytest.raises(ValueError, match='Cannot find optimizer'):
        mx.gluon.Trainer(net.collect_params(), 'no such optimizer', kvstore=kvstore)
    net.save_parameters(str(tmp_path / 'net'))
    saved = mx.nd.load(str(tmp_path / 'net'))['weight'].asnumpy()
    assert (saved == net.weight.data().asnumpy()).all() and net.weight.grad().shape == (4, 2)
