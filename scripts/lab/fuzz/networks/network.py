"""A network as data, and properties of it for modules that draw, write, run and shrink it.

A program is a dict that JSON can hold::

    {'seed': 17, 'workers': 3, 'dtype': 'float64',
     'inputs': [{'name': 'data0', 'shape': [4, 3], 'axis': 0, 'values': 'ties', 'dtype': 'float64', 'limit': 5}],
     'params': [{'name': 'weight0', 'shape': [3, 2]}],
     'layers': [{'name': 'dense0', 'make': 'nn.Dense(3, in_units=3)'}],
     'statements': [{'name': 'x0', 'op': 'relu', 'code': 'F.relu({0})', 'reads': ['data0']}],
     'heads': [{'name': 'x0', 'shape': [4, 3], 'samples': [[0, 1]], 'drawn': None}],
     'plan': {'kind': 'data_parallel'}, 'frozen': [], 'input_grad': False, 'steps': 2, 'calls': 1,
     'optimizer': {'learning_rate': 0.125}, 'on_store': None, 'shard_updates': False, 'end': 'release',
     'events': [{'do': 'set_data', 'step': 1, 'place': 'before', 'params': ['net_weight0'], 'value': 0.25}]}

A statement reads inputs, parameters and statements before it; ``x1[0]`` is an output of one that has several.  A
statement that draws numbers has the ``whole`` expression for one process, in which ``{given}`` stands for its value in
the job, and in ``drawn`` what is known of the numbers.  One with ``rounds`` computes as float32 in any network, and one
with ``scales`` multiplies what it reads by a factor that is not exact before it adds products up.  ``samples``
of a head are the dimensions that may have samples, and how often all of them stand there: twice after ``F.concat(x, x,
dim=0)``; None where that is not known.

The code of statements and the types of inputs are those of a network of float64.  If the `dtype` of the program is
'float32', the script has float32 in their places (`typed`), and the operators that know only float32 need no casts.
"""
import ast
import copy
import re
from typing import Any, Dict, Iterable, List, Set

Program = Dict[str, Any]


class Rejected(Exception):
    """A statement that MXNet does not run, a network that it does not train, or values that are of no use."""


#: Functions of F that take no name.
NAMELESS = {'maximum', 'minimum', 'power', 'hypot', 'split_v2', 'Custom'}


def base(value: str) -> str:
    """Return the name of the statement, input or parameter that a value belongs to."""
    return value.split('[')[0]


def layer_of(statement: Dict[str, Any]) -> str:
    """Return the name of the layer that a statement calls, '' if it calls none."""
    match = re.match(r'self\.(\w+)\(', statement['code'])
    return match.group(1) if match else ''


def named(statement: Dict[str, Any], code: str) -> str:
    """Give the outermost operator of an expression the statement's name, where it takes one."""
    match = re.match(r'F\.([\w.]+)\(', code)
    if not match or match.group(1) in NAMELESS or match.group(1).startswith('random.') or 'name=' in code:
        return code
    call = ast.parse(code, mode='eval').body
    is_outermost = isinstance(call, ast.Call) and call.func.end_col_offset == match.end() - 1
    return code[:-1] + ', name=%r)' % statement['name'] if is_outermost else code


def pruned(program: Program) -> Program:
    """Return the program without statements that its heads do not need; its type is float64 unless it has another."""
    smaller = copy.deepcopy(program)
    smaller.setdefault('dtype', 'float64')
    needed: Set[str] = {base(head['name']) for head in program['heads']}
    for statement in reversed(program['statements']):
        if statement['name'] in needed:
            needed.update(map(base, statement['reads']))
            needed.add(layer_of(statement))
    for layer in reversed(program['layers']):
        if layer['name'] in needed:
            needed.add(layer.get('tied', ''))
    for kind in ('inputs', 'params', 'layers', 'statements'):
        smaller[kind] = [each for each in smaller[kind] if each['name'] in needed]
    names = [each['name'] for kind in ('params', 'layers') for each in smaller[kind]]

    def known(params: Iterable[str]) -> List[str]:
        """Return the parameters that the smaller network has."""
        return [param for param in params
                if any(param == 'net_' + name or param.startswith('net_%s_' % name) for name in names)]
    smaller['frozen'] = known(smaller['frozen'])
    smaller['events'] = [dict(event, params=known(event['params'])) if event.get('params') else event
                         for event in smaller['events'] if event['step'] < smaller['steps']
                         and (not event.get('params') or known(event['params']))]
    if 'recompute' in smaller.get('plan', ()):
        recomputed = [name for name in smaller['plan'].pop('recompute') if name in needed]
        smaller['plan'].update({'recompute': recomputed} if recomputed else {})
    return smaller


def samples_of(program: Program) -> int:
    """Return the number of samples of a joint batch."""
    return next(each['shape'][each['axis']] for each in program['inputs'] if each['axis'] is not None)


def typed(code: str, dtype: str) -> str:
    """Return the code of a statement in a network of a type."""
    if dtype == 'float64':
        return code
    uncast = re.sub(r"F\.Cast\((\{\d\}), dtype='float32'\)", r'\1', code)
    if uncast != code:  # an operator that takes float32 only
        uncast = re.sub(r"^F\.Cast\((.*), dtype='float64'\)$", r'\1', uncast)
    return uncast.replace("'float64'", repr(dtype))


def rounds(program: Program) -> bool:
    """Return whether MXNet computes something as float32."""
    return program['dtype'] == 'float32' or any(statement.get('rounds') for statement in program['statements'])


def tolerance_of(program: Program) -> float:
    """Return the relative difference that needs no explanation: more where MXNet computes something as float32."""
    return 1e-5 if rounds(program) else 1e-9
