"""The network that a command line names, as ``train.py:make_net`` or ``package.module:make_net``, and its inputs."""
import importlib
import inspect
import os
import runpy
import sys
from typing import Any, Dict, List, Tuple

import numpy as np

from ..base.errors import InputError


def load_model(argument: str) -> Tuple[Any, Dict[Any, float]]:
    """Return the network that the function named on the command line makes, initialised, and its dynamic tables with
    their ids of a sample; no tables if the function returns only a network.

    Raises InputError if there is no such file, module or function, or the function returns something else than a
    HybridBlock, or a HybridBlock and a dict.
    """
    from mxnet import gluon

    source, _, name = argument.rpartition(':')
    if not source:
        raise InputError('model %r: give a file or a module, and a function in it: train.py:make_net' % argument)
    try:
        # Modules in the same directory can be imported, as when the file is run as a program.
        sys.path.insert(0, os.path.dirname(os.path.abspath(source)) if source.endswith('.py') else os.getcwd())
        if source.endswith('.py'):
            # With another name than __main__, so that the file does not do what it does as a program.
            namespace = runpy.run_path(source, run_name='mxhybrid_model')
        else:
            namespace = vars(importlib.import_module(source))
    except (OSError, ImportError, SyntaxError) as error:
        raise InputError('model: cannot read %s: %s' % (source, error)) from error
    if not callable(namespace.get(name)):
        raise InputError('model: %s has no function %s: give FILE:FUNCTION or MODULE:FUNCTION' % (source, name))
    try:
        inspect.signature(namespace[name]).bind()
    except TypeError as error:
        raise InputError('model: %s takes arguments (%s): give a function without arguments' % (argument, error)
                         ) from error
    net = namespace[name]()
    tables: Dict[Any, float] = {}
    if isinstance(net, tuple) and len(net) == 2 and isinstance(net[1], dict):
        net, tables = net
    if not isinstance(net, gluon.HybridBlock):
        raise InputError('model: %s returns a %s: return a HybridBlock, or with dynamic tables a '
                         'HybridBlock and a dict of the ids of a sample by table' % (argument, type(net).__name__))
    if not all(_is_initialised(param) for param in net.collect_params().values()):
        net.initialize()
    return net, tables


def _is_initialised(param: Any) -> bool:
    try:
        param.list_ctx()
    except RuntimeError:
        return False
    return True


def parse_inputs(words: List[str], net: Any = None) -> Tuple[List[Tuple[int, ...]], List[str]]:
    """Return the shapes and types of inputs like ``data=64,3,224,224`` or ``labels=64:int32``.

    They are in the order of the words, which is that of the network's inputs.  If the names are those of the arguments
    of the network's ``hybrid_forward``, the words may be in any order.

    Raises InputError if a word has another form.
    """
    shapes, types, names = [], [], []
    for word in words:
        name, _, rest = word.rpartition('=')
        sizes, _, dtype = rest.partition(':')
        try:
            shape = tuple(int(size) for size in sizes.split(','))
            types.append(np.dtype(dtype or 'float32').name)
        except (ValueError, TypeError) as error:
            raise InputError('--inputs %r: give the shape of the joint batch, for example data=64,3,224,224, and a '
                             'type other than float32 after it, for example labels=64:int32' % word) from error
        if not name or min(shape) < 1:
            raise InputError('--inputs %r: give a name, and whole numbers of at least 1, for example data=64,3,224,224'
                             % word)
        shapes.append(shape)
        names.append(name)
    arguments = list(inspect.signature(net.hybrid_forward).parameters)[1:] if hasattr(net, 'hybrid_forward') else []
    if len(set(names)) == len(names) and set(names) <= set(arguments):
        order = sorted(range(len(names)), key=lambda number: arguments.index(names[number]))
        return [shapes[number] for number in order], [types[number] for number in order]
    return shapes, types
