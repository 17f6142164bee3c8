"""Simpler programs with dynamic tables, for :mod:`lab.fuzz.shrinking`."""
import copy
from typing import Any, Dict, Iterator

from .. import shrinking

_ALONE = {'launcher': 'none', 'workers': 1, 'servers': 0, 'row_transport': 'auto'}
#: Simple values, by name: of a program, a feature, and events; None stands for no such argument.
_SIMPLE = {'partitions': [1], 'unseen': False, 'collection': False, 'dtype': 'float32', 'grad_req': 'write',
           'on_store': None, 'looks': True, 'files': ''}
_OF_FEATURE = {'combine': 'sum', 'by_offsets': True, 'weighted': False}
_OF_EVENT = {'split': None, 'prefetch': None, 'empty': None, 'backwards': None, 'zero': None, 'fails': None,
             'delta': None, 'keep': None, 'among': 'known', 'slot': 'a', 'samples': 1, 'piece': 1000, 'count': 7}


def structures(program: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield programs in one process, without a table, and without a feature."""
    if program['job']['workers'] > 1:
        yield dict(program, job=dict(_ALONE, next=_ALONE))
    for gone in range(len(program['tables'])):
        simpler = copy.deepcopy(program)
        del simpler['tables'][gone]
        for name in ('features', 'events'):
            simpler[name] = [each for each in simpler[name] if each.get('table') != gone]
            for each in simpler[name]:
                each.update({'table': each['table'] - (each['table'] > gone)} if 'table' in each else {})
        if simpler['features']:  # so there is another table
            yield simpler
    for number in range(len(program['features'])):
        if len(program['features']) > 1:
            yield dict(program, features=program['features'][:number] + program['features'][number + 1:])


def changes(program: Dict[str, Any]) -> Iterator[shrinking.Change]:
    """Yield changes that can be made together."""
    for name, value in _SIMPLE.items():
        if program[name] != value:
            yield (name,), value if value is not None else False
    if program['optimizer'] != ['sgd', {'learning_rate': 0.1}]:
        yield ('optimizer',), ['sgd', {'learning_rate': 0.1}]
    for number, table in enumerate(program['tables']):
        for option in ('admit', 'expire_after', 'capacity'):
            if option in table['options']:
                yield ('tables', number, 'options', option), None
        if table['initializer'] != ['Constant', 0.2]:
            yield ('tables', number, 'initializer'), ['Constant', 0.2]
    for group, simple in (('features', _OF_FEATURE), ('events', _OF_EVENT)):
        for number, each in enumerate(program[group]):
            for name, value in simple.items():
                if name in each and each[name] not in (value, None) and not (name == 'slot' and each['do'] == 'resume'):
                    yield (group, number, name), value
