"""Turns a network, which is data, into the script that is run; a failure is shown as that very script."""
import pprint
from typing import Any, Dict, List, Optional

from .. import script as programs
from . import pieces, training
from .network import Program, layer_of, named, samples_of, tolerance_of, typed

HEAD = '''\
import functools
import os
import sys
import tempfile
import zlib

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

import mxhybrid

TOLERANCE, EVALUATION = %r, %r
''' % (pieces.TOLERANCE, pieces.EVALUATION)

_INDENT = ' ' * 4

#: The parts of a program that a script contains, besides the network itself.
_SPEC = ('inputs', 'heads', 'plan', 'frozen', 'input_grad', 'steps', 'calls', 'optimizer', 'on_store', 'events', 'end')


def spec_of(program: Program) -> Dict[str, Any]:
    """Return the entries of a program that the pieces read."""
    dtype = program['dtype']
    inputs = [dict(each, dtype=dtype if each['dtype'] == 'float64' else each['dtype']) for each in program['inputs']]
    return {**{name: program[name] for name in _SPEC}, 'samples': samples_of(program), 'dtype': dtype, 'inputs': inputs}


def layer_code(layer: Dict[str, Any], prefix: str = '') -> str:
    """Return the call that makes a layer; the names of its parameters begin with `prefix` and its name."""
    more = ', params=self.%s.params' % layer['tied'] if layer.get('tied') else ''
    return ('%s, prefix=%r%s)' % (layer['make'][:-1], '%s%s_' % (prefix, layer['name']), more)).replace('(, ', '(')


def network(program: Program, noisy: bool = False, dtype: Optional[str] = None) -> str:
    """Return the source of the class of the network, for another type than the program's if `dtype` is given; if
    `noisy`, each value goes through the function ``noisy``, see :class:`.alone.Noise`.
    """
    dtype = dtype or program['dtype']
    lines = ['class Net(gluon.HybridBlock):', _INDENT + '"""The network."""', '',
             _INDENT + 'def __init__(self):', 2 * _INDENT + "super().__init__(prefix='net_')",
             2 * _INDENT + 'with self.name_scope():']
    assignments = ['self.%s = %s' % (layer['name'], layer_code(layer)) for layer in program['layers']]
    assignments += ['self.%s = self.params.get(%r, shape=%r)' % (each['name'], each['name'], tuple(each['shape']))
                    for each in program['params']]
    lines += [3 * _INDENT + line for line in assignments or ['pass']]
    drawn = [head['name'] for head in program['heads'] if head['drawn']]
    inputs = [each['name'] for each in program['inputs']] + (['*drawn'] if drawn else [])
    params = [each['name'] for each in program['params']]
    lines += ['', _INDENT + 'def hybrid_forward(self, F, %s):' % ', '.join(inputs + params)]
    joint_norms = [layer['name'] for layer in program['layers'] if 'BatchNorm' in layer['make']]
    for statement in program['statements']:
        reads = statement['reads']
        if noisy and statement.get('scales'):
            reads = ['noisy.scaled(%s)' % read for read in reads]
        code = named(statement, typed(statement['code'], dtype).format(*reads))
        if statement.get('drawn'):
            whole = typed(statement['whole'], dtype).format(
                *statement['reads'], given='drawn[%d]' % drawn.index(statement['name']))
            code = '%s if not drawn else (%s)' % (code, whole)
        if noisy and not layer_of(statement).startswith('none'):
            code = 'noisy(%s, %r, %r)' % (code, bool(statement.get('rounds')), layer_of(statement) in joint_norms)
        lines.append(2 * _INDENT + '%s = %s' % (statement['name'], code))
    lines.append(2 * _INDENT + 'return [%s]' % ', '.join(head['name'] for head in program['heads']))
    return '\n'.join(lines) + '\n'


def standing_alone(program: Program, file: str = 'case.py') -> str:
    """Return a script that runs in a job, and prints the differences from one process."""
    body = '%s\n\nSPEC = %s\n\nif __name__ == \'__main__\':\n    main(Net, SPEC, %r)\n' % (
        network(program), pprint.pformat(spec_of(program), width=110, compact=True), tolerance_of(program))
    head = programs.head(' networks', program, commands(program, file), HEAD)
    return '\n\n'.join([head, *programs.needed(body, pieces, training), body])


def commands(program: Program, file: str) -> List[str]:
    """Return command lines that show the difference."""
    return ['    %shorovodrun -np %d --gloo python %s' % ('MXHYBRID_SHARD_UPDATES=1 ' * program['shard_updates'],
                                                        program['workers'], file)]
