"""The optimizers that may update tables, and the messages with their settings."""
import json

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.native.optimizers import (
    ELEMENTWISE,
    IN_PLACE,
    SPARSE_KERNELS,
    TableOptimizer,
    attributes_of,
    build,
    check_for_table,
    name_of,
)

from ...helpers.keyed_values import problem

pytestmark = pytest.mark.both_pythons

ALLOWED = SPARSE_KERNELS + ELEMENTWISE
# dcasgd, ftml, ... and whatever else this MXNet registers.
REGISTERED = sorted(name for name, kind in mx.optimizer.Optimizer.opt_registry.items()
                    if kind.__module__.startswith('mxnet.'))


def refusal(optimizer, dtype='float32', wd=0.0):
    """Return the message with which `optimizer` is refused for a table."""
    return problem(check_for_table, optimizer, 'encoder.weight', dtype, wd)


# ------------------------------------------------------------------------------------------ who may


def test_every_allowed_optimizer_is_registered():
    assert set(ALLOWED) <= set(REGISTERED)
    assert len(REGISTERED) > len(ALLOWED)


@pytest.mark.parametrize('name', REGISTERED)
def test_every_optimizer_is_allowed_or_refused_with_alternatives(name):
    optimizer = mx.optimizer.create(name, learning_rate=0.1)
    assert name_of(optimizer) == name
    if name in ALLOWED:
        check_for_table(optimizer, 'encoder.weight', 'float32', 0.0)
        return
    text = refusal(optimizer)
    assert repr(name) in text and 'encoder.weight' in text and 'sparse_grad=True' in text
    if name in ('lamb', 'lars', 'lbsgd', 'sgld', 'nadam'):  # their results depend on the cut
        assert 'partition' in text
    for other in ALLOWED:
        assert other in text or other in ('ccsgd', 'test')  # another name for sgd; MXNet's own, for its tests


def test_a_subclass_with_an_allowed_name_is_refused():
    class SGD(mx.optimizer.SGD):
        """A class that servers would not build."""

    assert "'sgd'" in refusal(SGD())


@pytest.mark.parametrize('name', ['sgd', 'nag'])
def test_float16_with_a_float32_copy_is_refused(name):
    optimizer = mx.optimizer.create(name, multi_precision=True)
    text = refusal(optimizer, 'float16')
    assert repr(name) in text and 'multi_precision=False' in text and 'float32' in text
    check_for_table(optimizer, 'w', 'float32', 0.0)
    check_for_table(mx.optimizer.create(name), 'w', 'float16', 0.0)


@pytest.mark.parametrize('name', ['adagrad', 'groupadagrad'])
def test_weight_decay_is_refused_where_mxnet_has_none(name):
    optimizer = mx.optimizer.create(name, learning_rate=0.1)
    text = refusal(optimizer, wd=0.01)
    assert 'wd=0.01' in text and 'encoder.weight' in text and 'wd_mult=0' in text
    check_for_table(optimizer, 'w', 'float32', 0.0)


@pytest.mark.parametrize('dtype', ['float16', 'float64'])
@pytest.mark.parametrize('name', ALLOWED)
def test_optimizers_allowed_for_a_dtype_work_in_mxnet(name, dtype):
    optimizer = mx.optimizer.create(name, learning_rate=0.1)
    try:
        check_for_table(optimizer, 'encoder.weight', dtype, 0.0)
    except InputError as error:
        text = str(error)
        assert repr(name) in text and 'encoder.weight' in text and dtype in text and 'float32' in text
        return
    weight, grad = mx.nd.ones((3, 2), dtype=dtype), mx.nd.ones((3, 2), dtype=dtype)
    if name not in IN_PLACE:
        weight, grad = weight.tostype('row_sparse'), grad.tostype('row_sparse')
    mx.optimizer.get_updater(optimizer)(0, grad, weight)
    assert np.isfinite(weight.asnumpy()).all()


# ------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize('name', ALLOWED)
def test_sparse_kernels_are_those_that_leave_untouched_rows_alone(name):
    optimizer = TableOptimizer(name, dict(attributes_of(mx.optimizer.create(name)), lr=0.1, wd=0.0))
    assert optimizer.keeps_rows(None) == (name in SPARSE_KERNELS or name == 'nag')
    assert not (optimizer.keeps_rows(None) and optimizer.takes_dense)
    if optimizer.keeps_rows(None):
        if name not in ('adagrad', 'groupadagrad'):
            optimizer.change({'wd': 0.1})
        weight = mx.nd.ones((3, 2)).tostype('row_sparse')
        grad = mx.nd.sparse.row_sparse_array((mx.nd.ones((1, 2)), [1]), shape=(3, 2))
        optimizer.update(0, weight, grad, optimizer.create_state(0, weight))
        rows = weight.asnumpy()
        assert (rows[[0, 2]] == 1).all() and (rows[1] < 1).all()
        assert not optimizer.changes_all_rows(None)


def test_nesterov_momentum_has_no_sparse_kernel():
    optimizer = TableOptimizer('nag', attributes_of(mx.optimizer.create('nag', momentum=0.9)))
    state = optimizer.create_state(0, mx.nd.ones((3, 2)))
    optimizer.change({'momentum': 0.0})
    assert not optimizer.keeps_rows(state) and optimizer.changes_all_rows(state)  # MXNet keeps the state, and uses it


# ------------------------------------------------------------------------------------------ how settings travel

CHANGED = [
    ('sgd', {'momentum': 0.7, 'lazy_update': False}), ('ccsgd', {'momentum': 0.7}), ('nag', {'momentum': 0.7}),
    ('adam', {'beta1': 0.8, 'beta2': 0.88, 'epsilon': 1e-5, 'lazy_update': False}), ('adagrad', {'eps': 1e-3}),
    ('groupadagrad', {'eps': 1e-3}), ('ftrl', {'lamda1': 0.2, 'beta': 2}),
    ('rmsprop', {'gamma1': 0.8, 'gamma2': 0.7, 'epsilon': 1e-5, 'centered': True, 'clip_weights': 2.0}),
    ('adadelta', {'rho': 0.8, 'epsilon': 1e-3}), ('test', {}),
]


@pytest.mark.parametrize('name, arguments', CHANGED, ids=[name for name, _ in CHANGED])
def test_a_server_builds_the_optimizer_that_the_worker_has(name, arguments):
    arguments = dict(arguments, rescale_grad=1 / 3, clip_gradient=0.1)
    original = mx.optimizer.create(name, learning_rate=0.3, **arguments)
    sent = json.loads(json.dumps(dict(attributes_of(original), lr=0.25, wd=0.125)))
    copy = build(name, sent)
    assert type(copy) is type(original)
    assert (copy.lr, copy.wd) == (0.25, 0.125)
    skipped = ('lr', 'wd', 'aggregate_num', 'num_update', 'begin_num_update', 'sym_info')
    for attribute, value in vars(original).items():
        if attribute not in skipped and not isinstance(value, (dict, tuple)):
            assert getattr(copy, attribute) == value, attribute


def test_every_allowed_optimizer_has_such_a_case():
    assert sorted(name for name, _ in CHANGED) == sorted(ALLOWED)


def test_schedules_multipliers_and_counts_stay_on_the_worker():
    optimizer = mx.optimizer.create('sgd', learning_rate=0.3, begin_num_update=7, param_idx2name={0: 'w'},
                                    lr_scheduler=mx.lr_scheduler.FactorScheduler(10))
    optimizer.set_lr_mult({'w': 0.5})
    sent = attributes_of(optimizer)
    assert not {'lr', 'wd', 'num_update', 'begin_num_update', 'aggregate_num', 'lr_scheduler', 'lr_mult',
                '_index_update_count'} & set(sent)
    assert {'rescale_grad', 'clip_gradient', 'momentum', 'lazy_update', 'multi_precision'} <= set(sent)
    assert build('sgd', dict(sent, lr=0.15, wd=0.0)).learning_rate == 0.15


@pytest.mark.parametrize('kind', [float, np.float64, np.float32, np.float16])
def test_numpy_scalars_travel_too(kind):
    sent = json.loads(json.dumps(attributes_of(mx.optimizer.create('sgd', momentum=kind(0.3), clip_gradient=kind(2)))))
    built = build('sgd', dict(sent, lr=0.1, wd=0.0))
    assert built.momentum == kind(0.3) and built.clip_gradient == 2
    # MXNet's operators get the text.
    assert (str(built.momentum), str(built.clip_gradient)) == (str(kind(0.3)), str(kind(2)))
