"""Turns a program, which is data, into the script that is run; a failure is shown as that very script."""
import ast
import builtins
import functools
import inspect
import symtable
from typing import Any, Callable, Dict, List, Set, Tuple

from . import pieces
from .program import optimizer_of, tolerance, update_on_store

HEAD = '''\
import contextlib
import os
import pickle
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid

WORDS, OUTPUTS = %d, %d
''' % (pieces.WORDS, pieces.OUTPUTS)

_INDENT = ' ' * 4


def _names(source: str) -> Set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


@functools.lru_cache(maxsize=None)
def _pieces(*modules: Any) -> Dict[str, Tuple[str, Set[str]]]:
    """Return the source of each piece, and the pieces that it names."""
    sources = {name: inspect.getsource(value) for module in modules for name, value in vars(module).items()
               if getattr(value, '__module__', None) == module.__name__}
    return {name: (source, _names(source) & set(sources)) for name, source in sources.items()}


def needed(source: str, *modules: Any) -> List[str]:
    """Return the sources of all pieces of modules that a source names, directly or not, in their order."""
    known = _pieces(*modules)
    needed_names: Set[str] = set()
    left = _names(source) & set(known)
    while left:
        name = left.pop()
        needed_names.add(name)
        left |= known[name][1] - needed_names
    return [known[name][0] for name in known if name in needed_names]


def _call(name: str, *positional: str, **keywords: Any) -> str:
    """Return a call, broken into lines."""
    words = list(positional) + ['%s=%r' % item for item in keywords.items()]
    line, lines = '%s(' % name, []
    for position, word in enumerate(words):
        word += ')' if position + 1 == len(words) else ', '
        if len(line) + len(word) > 102:
            lines.append(line.rstrip())
            line = _INDENT
        line += word
    return '\n'.join(lines + [line if words else line + ')'])


def _trainer(program: Dict[str, Any], optimizer: Dict[str, Any], store: Dict[str, Any]) -> List[str]:
    lines = [_call('options = dict', **optimizer['options'])]
    scheduler = optimizer.get('scheduler')
    if scheduler:
        lines.append(_call("options['lr_scheduler'] = mx.lr_scheduler." + scheduler['name'], **scheduler['options']))
    on_store = update_on_store(program)
    return lines + [_call('trainer = job.trainer', 'net', repr(optimizer['name']), 'options',
                          on_store=on_store, asked=program['asked'], **store)]


def _net(program: Dict[str, Any]) -> str:
    model = program['model']
    branches = ['(%s, %r)' % (branch['block'], {name: value for name, value in branch.items() if name != 'block'})
                for branch in model['branches']]
    options = {name: model[name] for name in ('devices', 'dtype', 'bias', 'units')}
    return _call('net, params = make_net', 'job', *branches, seed=program['seed'] % 1000, **options)


#: Events that a function carries out: its name, and what it takes before the arguments of the event.
_CALLS = {'step': ('train', 'job', 'record', 'net', 'trainer'),
          'steps ahead': ('train_ahead', 'job', 'record', 'net', 'trainer'),
          'evaluate': ('evaluate', 'job', 'record', 'net'),
          'save': ('save', 'job', 'record', 'net', 'trainer', 'directory'),
          'load': ('load', 'job', 'net', 'trainer', 'directory'),
          'set': ('set_value', 'job', 'params'), 'initialise': ('initialise_anew', 'job', 'net'),
          'read': ('read', 'job', 'params'), 'repartition': ('repartition', 'job', 'trainer', 'params'),
          'prefetch': ('prefetch', 'job', 'params')}
#: Events of one other statement.
_STATEMENTS = {'rate': 'trainer.set_learning_rate({value!r})', 'attribute': 'trainer.optimizer.{name} = {value!r}',
               'multiplier': 'params[{number}].{name} = {value!r}', 'grad_req': 'params[{number}].grad_req = {value!r}',
               'hybridize': 'net.branches[{branch}]{part}.hybridize({on!r})'}


def _event(program: Dict[str, Any], number: int, event: Dict[str, Any]) -> List[str]:
    """Return the statements of an event."""
    arguments = {name: value for name, value in event.items() if name != 'do'}
    do = event['do']
    if do in _STATEMENTS:
        return [_STATEMENTS[do].format(**arguments)]
    if do in _CALLS:
        lines = [_call(*_CALLS[do], **arguments)]
        if do == 'step' and program['model']['add']:
            lines.append('net.collect_params().zero_grad()')
        if do == 'initialise':
            # Worker 0's values count from the next step on.
            lines.append(_call(*_CALLS['step'], seed=0, samples=1, ids='any',
                               use=['none'] * len(program['model']['branches'])))
        return lines
    if do == 'report':
        return ['if job.rank == 0 and not job.alone and trainer._kvstore is not None:',
                _INDENT + 'trainer._kvstore.report()']
    if do == 'trainer':
        return _trainer(program, optimizer_of(program, number), event['store'])
    if do == 'renew':
        renewed = {'slot': 'renewed', 'kinds': ['parameters']}
        return [_call(*_CALLS['save'], **renewed), _net(program), *_requests(program),
                *_trainer(program, optimizer_of(program, number), event['store']), _call(*_CALLS['load'], **renewed)]
    raise ValueError('no event %r' % do)


def _requests(program: Dict[str, Any]) -> List[str]:
    """Return the statements that set requests of gradients, if the program adds them up."""
    if not program['model']['add']:
        return []
    return ['for param in params:', _INDENT + "if param._grad_stype == 'default':",
            2 * _INDENT + "param.grad_req = 'add'"]


def _function(program: Dict[str, Any], name: str) -> str:
    """Return the program as a function."""
    lines = [_net(program), *_requests(program), *_trainer(program, program['optimizer'], program['store'])]
    for number, event in enumerate(program['events'], 1):
        lines.append('record.at(%d, %r)' % (number, event['do']))
        lines += _event(program, number - 1, event)
        if program['looks'] or event['do'] == 'evaluate' or number == len(program['events']):
            lines.append('look(record, trainer, params)')
    body = '\n'.join(_INDENT + line for part in lines for line in part.split('\n'))
    return 'def %s(job, record, directory):\n%s\n' % (name, body)


def standing_alone(programs: List[Dict[str, Any]], file: str = 'case.py') -> str:
    """Return a script that runs programs one after the other, and prints how the last differs from MXNet alone."""
    body = body_of(programs, _function, tolerance(programs[-1]))
    return '\n\n'.join([head('', programs[-1], commands(programs[-1], file), HEAD), *needed(body, pieces), body])


def head(kind: str, program: Dict[str, Any], command_lines: List[str], imports: str) -> str:
    """Return the first lines of a script: its seed, the commands that run it, and its imports."""
    return '"""Seed %s of scripts/fuzz%s.\n\n%s\n"""\n%s' % (program['seed'], kind, '\n'.join(command_lines), imports)


def body_of(programs: List[Dict[str, Any]], function: Callable[[Dict[str, Any], str], str],
            tolerances: Tuple[float, float]) -> str:
    """Return the last lines of a script: a function for each program, and the call that runs all of them."""
    names = ['program_%d' % number for number in range(1, len(programs) + 1)]
    end = "if __name__ == '__main__':\n    main([%s], %r, %r)\n" % (', '.join(names), *tolerances)
    return '\n\n'.join([*map(function, programs, names), end])


def commands(program: Dict[str, Any], file: str) -> List[str]:
    """Return command lines that show the difference."""
    job = program['job']
    settings = 'MXHYBRID_ROW_TRANSPORT=%s ' % job['row_transport']
    lines = ['    python %s --mxnet    # what one process with MXNet alone finds' % file]
    if job['launcher'] == 'horovodrun':
        lines.append('    %sMXHYBRID_SERVERS_PER_HOST=%d horovodrun -np %d --gloo python %s' % (
            settings, job['servers'], job['workers'], file))
    elif job['launcher'] == 'launch.py':
        lines.append('    %spython scripts/launch.py -n %d -s %d --launcher local python %s' % (
            settings, job['workers'], job['servers'], file))
    else:
        lines.append('    python %s' % file)
    return lines


def check_names(source: str) -> None:
    """Raise an error if a script uses a name that it does not define."""
    script = symtable.symtable(source, 'script', 'exec')
    scopes = [script]
    for scope in scopes:
        scopes += scope.get_children()
    defined = {symbol.get_name() for symbol in script.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used = {symbol.get_name() for scope in scopes for symbol in scope.get_symbols() if symbol.is_global()}
    missing = used - defined - set(dir(builtins)) - {'__file__', '__name__'}
    if missing:
        raise NameError('a script would not define %s' % ', '.join(sorted(missing)))
