"""Underscored names of MXNet are used only in the files that are meant for them."""
import ast
import inspect
import pathlib
import re
import textwrap

import mxnet as mx
import mxnet.contrib.amp
import pytest
from mxnet.gluon.parameter import Constant

import mxhybrid

PACKAGE = pathlib.Path(mxhybrid.__file__).parent

#: Files in which the names may stand: patterns of paths in the package.
HOMES = ('native/*.py', 'kvstore/hooks.py', 'kvstore/trainer_step.py', 'kvstore/on_demand*.py')

#: Classes of MXNet's whose objects this package handles; those that they derive from count, and all optimizers.
CLASSES = [mx.gluon.Trainer, mx.gluon.Parameter, Constant, mx.gluon.ParameterDict, mx.gluon.Block,
           mx.gluon.HybridBlock, mx.gluon.SymbolBlock, mx.gluon.nn.Embedding, mx.gluon.contrib.nn.SparseEmbedding,
           mx.optimizer.Optimizer, mx.optimizer.Updater, mx.kvstore.KVStore, mx.kvstore.KVStoreBase,
           mx.kvstore.KVStoreServer, mx.nd.NDArray, mx.nd.sparse.RowSparseNDArray, mx.lr_scheduler.LRScheduler,
           mx.contrib.amp.loss_scaler.LossScaler]

#: Modules whose functions set attributes of others' objects: AMP those of Trainers.
MODULES = [mx.contrib.amp.amp]


def is_private(name):
    """Return whether a name begins with an underscore, and is not one of Python's own."""
    return name.startswith('_') and not re.fullmatch(r'__\w+__', name)


def stored_attributes(source):
    """Return the attributes to which a source assigns."""
    return {node.attr for node in ast.walk(ast.parse(textwrap.dedent(source)))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


def mxnets_names():
    """Return the underscored attributes of MXNet's classes, and of their objects."""
    classes = {parent for kind in CLASSES for parent in kind.__mro__ if parent.__module__.startswith('mxnet')}
    classes.update(kind for kind in mx.optimizer.Optimizer.opt_registry.values() if kind.__module__.startswith('mxnet'))
    names = set()
    for kind in classes:
        names.update(vars(kind), stored_attributes(inspect.getsource(kind)))
    for module in MODULES:
        names.update(stored_attributes(inspect.getsource(module)))
    return frozenset(filter(is_private, names))


NAMES = mxnets_names()


def root_of(node):
    """Return the name on which a chain of attributes begins, None if it begins otherwise."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def own_bases(tree):
    """Return the nodes of `self`, `cls`, and of parameters that are declared to be of the class around them."""
    bases = set()
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for function in (node for node in ast.walk(kind) if isinstance(node, ast.FunctionDef)):
            own = {'self', 'cls'} | {argument.arg for argument in function.args.args if argument.annotation is not None
                                     and getattr(argument.annotation, 'value', None) == kind.name}
            bases |= {node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in own}
    return bases


def accesses(source):
    """Return the uses of MXNet's underscored names in a source, as ``(line, text)``.

    Attributes of a class's own objects are its own, and so are methods that it defines.  Names in strings count, too:
    they are for ``getattr`` and ``__dict__``.
    """
    tree, of_mxnet, lines = ast.parse(source), set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_mxnet.update(name.asname or name.name.split('.')[0] for name in node.names
                            if name.name.split('.')[0] == 'mxnet')
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or '').split('.')[0] == 'mxnet':
            of_mxnet.update(name.asname or name.name for name in node.names)
            lines += [(node.lineno, name.name) for name in node.names if is_private(name.name)]
    own = own_bases(tree)
    slots = {name for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets
             if getattr(target, 'id', '') == '__slots__' for name in ast.walk(node.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.value not in own:
            if node.attr in NAMES or root_of(node) in of_mxnet:
                lines.append((node.lineno, ast.unparse(node) if hasattr(ast, 'unparse') else node.attr))
        elif isinstance(node, ast.Constant) and node not in slots and node.value in NAMES:
            lines.append((node.lineno, repr(node.value)))
    return sorted(set(lines))


def test_the_names_are_those_of_objects_and_classes():
    """Names that a method, another class, AMP or a class body sets, also those of subclasses, are known."""
    assert {'_kvstore', '_update_on_kvstore', '_param2idx', '_updaters', '_contexts', '_stype', '_grad_stype', '_data',
            '_check_and_get', '_fresh_grad', '_index_update_count', '_set_current_context', '_get_wds', '_updater',
            '_send_command_to_servers', '_children', '_amp_loss_scaler'} <= NAMES
    assert not [name for name in NAMES if not is_private(name)]


@pytest.mark.parametrize('planted, what', [
    ('def f(trainer):\n    return trainer._kvstore\n', 'trainer._kvstore'),
    ('def f(self):\n    return self.trainer._params[0]\n', 'self.trainer._params'),
    ('def f(param):\n    param._data[0]._fresh_grad = False\n', 'param._data[0]._fresh_grad'),
    ('def f(trainer):\n    return getattr(trainer, "_amp_loss_scaler", None)\n', "'_amp_loss_scaler'"),
    ('def f(param):\n    return param.__dict__.get("_data")\n', "'_data'"),
    ('from mxnet.base import _LIB\n', '_LIB'),
    ('import mxnet as mx\nmx.nd._internal.zeros\n', 'mx.nd._internal'),
    ('from mxnet.optimizer import Optimizer\nOptimizer._get_lrs\n', 'Optimizer._get_lrs'),
    # A function of no class; an object that is not of the class around.
    ('def hook(self):\n    return self._params\n', 'self._params'),
    ('class Own:\n    def take(self, other: Trainer):\n        self._params = other._params\n', 'other._params')])
def test_an_access_that_is_planted_is_found(planted, what):
    if not hasattr(ast, 'unparse'):  # CPython 3.8 names the attribute alone
        what = what.rsplit('.')[-1]
    assert what in [text for _, text in accesses('import os\n' + planted)]


@pytest.mark.parametrize('source', [
    'class Own:\n    def __init__(self, data):\n        self._data = data\n        self._params = [self._data]\n',
    'class Own:\n    __slots__ = ("_data",)\n    def take(self, other: "Own"):\n        self._data = other._data\n',
    'class Store(KVStore):\n    def _barrier(self):\n        pass\n',
    'import os\nos._exit(1)\n', 'def f(pair):\n    return pair._replace(name="data")\n',
    'import mxnet as mx\nmx.nd.zeros(1)\n'])
def test_own_names_are_no_accesses(source):
    assert accesses(source) == []


def test_private_names_stand_nowhere_else():
    elsewhere = ['%s:%d: %s' % (path.relative_to(PACKAGE), line, text) for path in sorted(PACKAGE.rglob('*.py'))
                 if not any(path.relative_to(PACKAGE).match(pattern) for pattern in HOMES)
                 for line, text in accesses(path.read_text())]
    assert not elsewhere, 'put what needs them into mxhybrid/native:\n' + '\n'.join(elsewhere)


def test_every_home_is_needed():
    for pattern in HOMES:
        assert any(accesses(path.read_text()) for path in PACKAGE.glob(pattern)), pattern
