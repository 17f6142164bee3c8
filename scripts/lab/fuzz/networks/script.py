"""Turns a network, which is data, into the script that is run; a failure is shown as that very script."""
import pprint
from typing import Any, Dict, List, Optional

from .. import script as programs
from . import pieces, training
from .network import Program, dtype_of, layer_of, named, samples_of, typed

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
    dtype = dtype_of(program)
    inputs = [dict(each, dtype=dtype if each['dtype'] == 'float64' else each['dtype']) for each in program['inputs']]
    return {**{name: program[name] for name in _SPEC}, 'samples': samples_of(program), 'dtype': dtype, 'inputs': inputs}


def network(program: Program, noisy: bool = False, dtype: Optional[str] = None) -> str:
    """Return the source of the class of the network, for another type than the program's if `dtype` is given; if
    `noisy`, each value goes through the function ``noisy``, see :class:`.alone.Noise`.
    """
    dtype = dtype or dtype_of(program)
    lines = ['class Net(gluon.HybridBlock):', _INDENT + '"""The network."""', '',
             _INDENT + 'def __init__(self):', 2 * _INDENT + "super().__init__(prefix='net_')",
             2 * _INDENT + 'with self.name_scope():']
    assignments = ['self.%s = %s, prefix=%r%s)' % (layer['name'], layer['make'][:-1], layer['name'] + '_',
                                                   ', params=self.%s.params' % layer['tied'] if layer.get('tied')
                                                   else '')
                   for layer in program['layers']]
    assignments += ['self.%s = self.params.get(%r, shape=%r)' % (each['name'], each['name'], tuple(each['shape']))
                    for each in program['params']]
    lines += [3 * _INDENT + line.replace('(, ', '(') for line in assignments or ['pass']]
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


def standing_alone(program: Program, file: str = 'case.py', tolerance: float = pieces.TOLERANCE) -> str:
    """A script that runs in a job, and prints the differences from one process."""
    end = 'SPEC = %s\n\nif __name__ == \'__main__\':\n    main(Net, SPEC, %r)\n' % (
        pprint.pformat(spec_of(program), width=110, compact=True), tolerance)
    body = network(program) + '\n\n' + end
    title = '"""Seed %s of scripts/fuzz networks.\n\n%s\n"""\n' % (program['seed'], '\n'.join(commands(program, file)))
    return title + HEAD + '\n\n' + '\n\n'.join(programs.needed(body, pieces, training)) + '\n\n' + body


def commands(program: Program, file: str) -> List[str]:
    """Command lines that show the difference."""
    return ['    %shorovodrun -np %d --gloo python %s' % ('MXHYBRID_SHARD_UPDATES=1 ' * program['shard_updates'],
                                                        program['workers'], file)]
