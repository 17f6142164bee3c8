"""Optimizer classes of users: the allowed ones, the attributes that are sent, the errors that the check finds."""
import json
import subprocess
import sys
import types

import mxnet as mx
import numpy as np
import pytest
from lab.launchers import REPOSITORY

import mxhybrid
from mxhybrid.base.errors import InputError
from mxhybrid.native.optimizers import attributes_of, build, check_for_table, find_class, reference_of
from mxhybrid.native.row_wise import is_marked
from mxhybrid.routes.on_demand_rows import unsupported_reason
from mxhybrid.servers.row_wise_check import check_row_wise

from ...helpers.keyed_values import problem
from ...helpers.tables import COMMON, ROWS, WIDTH, Table, Whole, equal, merged_gradients, recut, start_values

pytestmark = pytest.mark.both_pythons


@mxhybrid.row_wise
class Plain(mx.optimizer.Optimizer):
    """w -= lr * g, with attributes of all kinds that travel."""

    def __init__(self, **keywords):
        super().__init__(**keywords)
        self.kinds = (1, [2.5, None], {'a': (True,), 'b': {'c': 'text'}}, np.float64(1 / 3), float('inf'))

    def update(self, index, weight, grad, state):
        """Update by MXNet's lazy kernel."""
        self._update_count(index)
        mx.nd.sparse.sgd_update(weight, grad, out=weight, lr=self._get_lr(index), wd=self._get_wd(index),
                                rescale_grad=self.rescale_grad)


class Unmarked(Plain):
    """A class derived from a marked one."""


@mxhybrid.row_wise
class SGD(mx.optimizer.SGD):
    """A class with the name of one of MXNet's, and a mark of its own."""

    def update_multi_precision(self, index, weight, grad, state):
        """Twice the step."""
        super().update_multi_precision(index, weight, grad * 2, state)


class Outer:
    """Holds a class."""

    @mxhybrid.row_wise
    class Inner(mx.optimizer.Optimizer):
        """Set a few attributes of kinds that MXNet's own classes do not have."""

        def __init__(self, **keywords):
            super().__init__(**keywords)
            self.aggregate_num = 2

        def create_state(self, index, weight):
            """The first values, and rows of one element."""
            return [weight.copy(), (None, mx.nd.ones((weight.shape[0],), dtype=weight.dtype))]

        def update(self, index, weight, grad, state):
            """MXNet's Updater gives lists where `aggregate_num` says so."""
            self._update_count(index)
            for one, w, g, (first, (_, count)) in zip(index, weight, grad, state):
                count[:] += 1
                w[:] = w - (g * self.rescale_grad + w - first) * self._get_lr(one)
                w[:] = w * 1.0


OWN = [Plain, SGD, Outer.Inner]


def marked(**members):
    """A marked class with some methods, in this module."""
    kind = type('Made', (mx.optimizer.Optimizer,), dict({'update': lambda *_: None}, **members))
    kind.__module__, kind.__qualname__ = __name__, 'Made'
    globals()['Made'] = kind
    return mxhybrid.row_wise(kind)


# ------------------------------------------------------------------------------------------ the mark


def test_the_mark_is_the_classes_own():
    assert mxhybrid.row_wise(Plain) is Plain and is_marked(Plain()) and is_marked(Outer.Inner())
    assert not is_marked(Unmarked()) and not is_marked(mx.optimizer.SGD())


@pytest.mark.parametrize('thing', [Outer, 'sgd', lambda: None, mx.optimizer.SGD()])
def test_only_classes_of_optimizers_can_be_marked(thing):
    with pytest.raises(InputError, match='mxnet.optimizer.Optimizer'):
        mxhybrid.row_wise(thing)


def test_the_mark_is_there_while_mxnet_is_being_imported():
    """A module that a server of launch.py imports may use the mark, which imports nothing there."""
    program = ('import sys, types\nsys.modules["mxnet"] = types.ModuleType("mxnet")\n'
               'import os\nos.environ["DMLC_ROLE"] = "server"\nimport mxhybrid\nprint(mxhybrid.row_wise.__name__)')
    done = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, cwd=str(REPOSITORY), timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == b'row_wise'


@pytest.mark.parametrize('kind', OWN)
def test_a_marked_class_is_found_by_name(kind):
    optimizer = kind(learning_rate=0.5)
    check_for_table(optimizer, 'words', 'float32', 0.1)
    check_row_wise(optimizer, 'words', (7, 3), 'float32')
    assert find_class(reference_of(optimizer)) is kind
    assert reference_of(optimizer) == '%s:%s' % (__name__, kind.__qualname__)
    route = types.SimpleNamespace(key=0, name='w', shape=(ROWS, WIDTH), rows=ROWS, wire_dtype=np.dtype('f4'),
                                  dtype=np.dtype('f4'))
    assert unsupported_reason(route, optimizer)  # servers do not hold dense weights for it


def test_a_derived_class_is_refused_naming_the_mark():
    with pytest.raises(InputError, match='mxhybrid.row_wise'):
        check_for_table(Unmarked(), 'words', 'float32', 0.0)


def test_a_class_with_mxnets_name_is_not_mxnets(monkeypatch):
    class Adam(mx.optimizer.Adam):
        """Registered in place of MXNet's."""

    monkeypatch.setitem(mx.optimizer.Optimizer.opt_registry, 'adam', Adam)
    with pytest.raises(InputError, match='row_wise'):
        check_for_table(Adam(), 'words', 'float32', 0.0)
    check_for_table(mx.optimizer.Adam(), 'words', 'float32', 0.0)
    assert type(build('adam', {})) is mx.optimizer.Adam


def test_a_class_that_servers_cannot_find_is_refused():
    def refusal(change):
        kind = marked()
        for name, value in change.items():
            setattr(kind, name, value)
        text = problem(check_for_table, kind(), 'words', 'float32', 0.0)
        assert 'words' in text
        return text

    check_for_table(marked()(), 'words', 'float32', 0.0)
    assert 'script itself' in refusal({'__module__': '__main__'})
    assert 'inside a function' in refusal({'__qualname__': 'f.<locals>.Made'})
    assert 'Keep the class under its own name' in refusal({'__qualname__': 'Plain'})
    assert 'refers to None' in refusal({'__module__': 'nowhere'})


@pytest.mark.parametrize('reference, words', [
    ('no_such_module:Ball', ['Ball', 'no_such_module', 'No module named', 'PYTHONPATH']),
    ('json:Ball', ['Ball', 'json', 'has no attribute']), ('json:JSONDecoder', ['JSONDecoder', 'Optimizer'])])
def test_the_error_about_a_missing_class_has_one_line(reference, words):
    with pytest.raises(ImportError) as caught:
        find_class(reference)
    text = str(caught.value)
    assert '\n' not in text and not [word for word in words if word not in text]


# ------------------------------------------------------------------------------------------ attributes


def test_attributes_travel_as_they_are():
    optimizer = Plain(learning_rate=0.5, rescale_grad=1 / 3, clip_gradient=2)
    sent = json.loads(json.dumps(dict(attributes_of(optimizer), lr=0.25, wd=0.5)))
    assert not {'lr_mult', 'param_dict', 'num_update', 'lr_scheduler', '_index_update_count'} & set(sent)
    copy = build(reference_of(optimizer), sent)
    assert type(copy) is Plain and (copy.lr, copy.wd, copy.rescale_grad, copy.clip_gradient) == (0.25, 0.5, 1 / 3, 2)
    assert copy.kinds == optimizer.kinds and type(copy.kinds) is tuple and type(copy.kinds[2]['a']) is tuple
    assert copy._get_lr(7) == 0.25 and copy._index_update_count == {}


@pytest.mark.parametrize('value, word', [
    (mx.nd.ones(2), 'NDArray'), (np.ones(2), 'ndarray'), ({1, 2}, 'set'), ({1: 2}, 'dict'), ([1, [object]], 'type'),
    ({'a': [b'x']}, 'bytes'), ({'__tuple__': 1}, 'dict')], ids=lambda value: value if isinstance(value, str) else '')
def test_other_attributes_are_refused_by_name(value, word):
    optimizer = Plain()
    optimizer.things = value
    text = problem(check_for_table, optimizer, 'words', 'float32', 0.0)
    assert 'things' in text and 'type %s.' % word in text


# ------------------------------------------------------------------------------------------ the check


def norm(self, index, weight, grad, state):
    """Depends on all rows."""
    weight[:] = weight - grad / (1 + mx.nd.norm(grad.tostype('default')).asscalar())


def calls(self, index, weight, grad, state):
    """Depends on how often it was called."""
    self.calls = getattr(self, 'calls', 0) + 1
    weight[:] = weight - grad * self.calls


def once(self, index, weight, grad, state):
    """Fails with the arrays that one process gives it."""
    raise RuntimeError('weight is %s, grad is %s' % (weight.stype, grad.stype))


@pytest.mark.parametrize('members, words', [
    ({'update': norm}, ['cut into partitions']), ({'update': calls}, ['cut into partitions']),
    ({'update': once}, ['weight is row_sparse, grad is row_sparse']),
    ({'create_state': lambda self, index, weight: 3.0}, ['a float as state']),
    ({'create_state': lambda self, index, weight: mx.nd.zeros(3)}, ['shape (3,)', '10 rows']),
    ({'create_state': lambda self, index, weight: mx.nd.zeros((weight.shape[0], 4))}, ['shape (10, 4)']),
    ({'create_state': lambda self, index, weight: mx.nd.zeros(weight.shape, dtype='float64')}, ['float64', 'float32']),
], ids=lambda value: str(list(value)[0]) if isinstance(value, dict) else None)
def test_classes_that_fail_on_servers_are_found(members, words):
    text = problem(check_row_wise, marked(**members)(), 'words', (50, 3), 'float32')
    assert not [word for word in ["'made'", 'words'] + words if word not in text], text


@pytest.mark.parametrize('name', ['lamb', 'sgld', 'nadam'])
def test_it_knows_mxnets_own_that_are_not_row_wise(name):
    with pytest.raises(InputError, match='cut into partitions'):
        check_row_wise(mx.optimizer.create(name), 'words', (50, 3), 'float32')


# ------------------------------------------------------------------------------------------ updates


@pytest.mark.parametrize('through_workers', [False, True])
@pytest.mark.parametrize('kind, arguments', [(Plain, {'wd': 0.1}), (SGD, {'momentum': 0.9}), (Outer.Inner, {})])
def test_updates_and_moves_equal_one_process(kind, arguments, through_workers):
    arguments = dict(arguments, learning_rate=0.3, rescale_grad=COMMON['rescale_grad'])
    table, whole = Table(start_values(), 3), Whole(start_values(), kind(**arguments))
    counts = iter((2, 1, 4, 4, ROWS, 3, 2))
    for step, (ids, rows) in enumerate(merged_gradients(3)):
        table.set_optimizer(whole.updater.optimizer, step)
        if step:
            recut(table, next(counts), through_workers)
        table.push(ids, rows)
        whole.push(ids, rows)
        equal(table.values(), whole.values())
        whole.updater.optimizer.rescale_grad /= 2
    for slot, state in enumerate(whole.states()):
        equal(table.read_state(slot, state.shape[1]), state)
