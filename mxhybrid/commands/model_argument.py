"""Networks that a command line names: ``train.py:make_net``, or ``package.module:make_net``."""
import importlib
import inspect
import os
import runpy
import sys
from typing import Any, List, Tuple

import numpy as np

from ..base.errors import InputError


def load_model(where: str) -> Any:
    """What a function without arguments makes, initialised.

    Raises
    ------
    InputError
        No such file, module or function, or one that makes no HybridBlock.
    """
    from mxnet import gluon

    place, _, name = where.rpartition(':')
    if not place:
        raise InputError('model: %r: give a file or a module, and a function in it: train.py:make_net' % where)
    try:
        # What lies beside it can be imported, as where it is run.
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)) if place.endswith('.py') else os.getcwd())
        if place.endswith('.py'):
            # A name of its own: what it does as a program stays undone.
            found = runpy.run_path(place, run_name='mxhybrid_model')
        else:
            found = vars(importlib.import_module(place))
    except (OSError, ImportError, SyntaxError) as error:
        raise InputError('model: cannot read %s: %s' % (place, error)) from error
    if not callable(found.get(name)):
        raise InputError('model: %s has no function %s' % (place, name))
    try:
        inspect.signature(found[name]).bind()
    except TypeError as error:
        raise InputError('model: %s takes arguments (%s): give a function without' % (where, error)) from error
    net = found[name]()
    if not isinstance(net, gluon.HybridBlock):
        raise InputError('model: %s makes a %s: return a HybridBlock' % (where, type(net).__name__))
    if not all(_is_initialised(param) for param in net.collect_params().values()):
        net.initialize()
    return net


def _is_initialised(param: Any) -> bool:
    try:
        param.list_ctx()
    except RuntimeError:
        return False
    return True


def parse_inputs(words: List[str], net: Any = None) -> Tuple[List[Tuple[int, ...]], List[str]]:
    """Shapes and types of ``data=64,3,224,224`` or ``labels=64:int32``; InputError for other words.

    They are in the order of the words, which is that in which the network takes them, unless they have the very names
    that its ``hybrid_forward`` has for them.
    """
    shapes, types, names = [], [], []
    for word in words:
        name, _, rest = word.rpartition('=')
        sizes, _, dtype = rest.partition(':')
        try:
            shape = tuple(int(size) for size in sizes.split(','))
            types.append(np.dtype(dtype or 'float32').name)
        except (ValueError, TypeError) as error:
            raise InputError('inputs: %r: give the shape of the joint batch, data=64,3,224,224, and a type other than '
                             'float32 behind it, labels=64:int32' % word) from error
        if not name or min(shape) < 1:
            raise InputError('inputs: %r: give a name, and whole numbers of at least 1: data=64,3,224,224' % word)
        shapes.append(shape)
        names.append(name)
    taken = list(inspect.signature(net.hybrid_forward).parameters)[1:] if hasattr(net, 'hybrid_forward') else []
    if len(set(names)) == len(names) and set(names) <= set(taken):
        order = sorted(range(len(names)), key=lambda at: taken.index(names[at]))
        return [shapes[at] for at in order], [types[at] for at in order]
    return shapes, types
