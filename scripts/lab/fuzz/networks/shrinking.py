"""Makes a failing network small: fewer outputs and statements, inputs in place of values, a simpler plan."""
import copy
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from ..shrinking import Shrinking
from .network import Program, base, pruned, samples_of

#: Examines a candidate: gives it with the shapes of its outputs, or None where one process does not train it.
Examine = Callable[[Program], Optional[Program]]

#: Rounds of candidates.
_ROUNDS = 24


def shrink(program: Program, examine: Examine) -> Shrinking:
    """Shrink a program that fails."""
    rounds, before = 0, None
    while before != program:
        before = program
        for simpler in (_events, _outputs, _without, _inputs, _settings, _plans):
            while rounds < _ROUNDS:
                rounds += 1
                candidates = [each for each in (examine(candidate) for candidate in simpler(program, examine))
                              if each is not None and each != program]
                verdicts = (yield candidates) if candidates else []
                failing = [each for each, verdict in zip(candidates, verdicts) if verdict]
                if not failing:
                    break
                program = min(failing, key=size)
    return program


def size(program: Program) -> Any:
    """A program that is made smaller."""
    return (len(program['events']), len(program['statements']), len(program['heads']),
            len(program['layers']) + len(program['params']),
            len(str(program['plan'])), program['workers'], program['steps'] + program['calls'], len(str(program)))


def with_heads(program: Program, names: Sequence[str]) -> Program:
    """Return the program with these outputs, and with the outputs of random operators that lead to them."""
    heads = [dict(head) for head in program['heads'] if head['name'] in names and not head['drawn']]
    heads += [{'name': name, 'drawn': None} for name in names if name not in {head['name'] for head in heads}]
    found = pruned(dict(program, heads=heads))
    drawn = [{'name': statement['name'], 'drawn': statement['drawn']} for statement in found['statements']
             if statement.get('drawn')]
    heads = [head for head in heads if head['name'] not in {each['name'] for each in drawn}]
    return dict(found, heads=heads + drawn)


def _names(program: Program) -> List[str]:
    return [head['name'] for head in program['heads'] if not head['drawn']]


def _values(program: Program) -> Iterator[str]:
    """Return a value of each statement; of a statement with several outputs, all that are read."""
    read = {value for statement in program['statements'] for value in statement['reads']} | set(_names(program))
    for statement in program['statements']:
        inner = sorted(value for value in read if base(value) == statement['name'])
        yield inner[0] if inner else statement['name']


def _events(program: Program, examine: Examine) -> Iterator[Program]:
    """Drop half of the events, or one; let one happen a step earlier, or concern one parameter."""
    events, half = program['events'], len(program['events']) // 2
    for fewer in ([], events[:half], events[half:]):
        yield dict(program, events=fewer)
    for number, event in enumerate(events):
        others = events[:number], events[number + 1:]
        yield dict(program, events=[*others[0], *others[1]])
        if event['step']:
            yield dict(program, events=[*others[0], dict(event, step=event['step'] - 1), *others[1]])
        for name in event.get('params', ())[1:]:
            yield dict(program, events=[*others[0], dict(event, params=[name]), *others[1]])


def _outputs(program: Program, examine: Examine) -> Iterator[Program]:
    """Keep one output, an old one or any value, or drop one output."""
    names = _names(program)
    for name in _values(program):
        if [name] != names:
            yield with_heads(program, [name])
    for name in names if len(names) > 2 else []:
        yield with_heads(program, [other for other in names if other != name])


def _replaced(program: Program, old: str, new: str) -> Program:
    """The program where whatever read one value reads another one."""
    found = copy.deepcopy(program)
    for statement in found['statements']:
        if statement['name'] != base(new):
            statement['reads'] = [new if value == old else value for value in statement['reads']]
    return with_heads(found, list(dict.fromkeys(new if name == old else name for name in _names(program))))


def _without(program: Program, examine: Examine) -> Iterator[Program]:
    """Drop a statement: its input takes its place, unless that is an output by itself."""
    for statement, value in zip(program['statements'], list(_values(program))):
        for read in dict.fromkeys(statement['reads']):
            if read.startswith('x') or value not in _names(program):
                yield _replaced(program, value, read)


def _inputs(program: Program, examine: Examine) -> Iterator[Program]:
    """An input in place of a statement's value."""
    for value in _values(program):
        known = examine(with_heads(program, [value])) if value not in _names(program) else None
        if known is None:
            continue
        head = next(each for each in known['heads'] if each['name'] == value)
        taken = {each['name'] for each in program['inputs']}
        name = next('data%d' % number for number in range(99) if 'data%d' % number not in taken)
        count = samples_of(program)
        axes = [axis for axis, before in head['samples'] or () if before == 1 and head['shape'][axis] == count]
        made = {'name': name, 'shape': head['shape'], 'axis': next(iter(axes), None),
                'values': 'ties', 'dtype': 'float64', 'limit': 5}
        yield _replaced(dict(program, inputs=program['inputs'] + [made]), value, name)


def _settings(program: Program, examine: Examine) -> Iterator[Program]:
    simple: Dict[str, Any] = {'steps': 1, 'calls': 1, 'optimizer': {'learning_rate': 0.0625}, 'on_store': None,
                              'shard_updates': False, 'end': 'release', 'input_grad': False, 'frozen': []}
    plain = [dict(each, values='reals') if each['values'] == 'ties' else each for each in program['inputs']]
    yield dict(program, **simple)
    yield dict(program, **simple, inputs=plain)
    for name, value in simple.items():
        yield dict(program, **{name: value})
    yield dict(program, inputs=plain)


def _plans(program: Program, examine: Examine) -> Iterator[Program]:
    """A simpler plan, and fewer workers."""
    plan = program['plan']
    recomputed = plan.get('recompute', [])
    if recomputed:
        yield dict(program, plan={name: value for name, value in plan.items() if name != 'recompute'})
        for layer in recomputed:
            yield dict(program, plan={**plan, 'recompute': [layer]})
    recompute = {'recompute': recomputed} if recomputed else {}
    for kind in ('data_parallel', 'one_weird_trick'):
        yield dict(program, workers=2, plan={'kind': kind, **recompute})
        yield dict(program, plan={'kind': kind, **recompute})
    if plan['kind'] == 'pipeline':
        yield dict(program, workers=2, plan={'kind': 'pipeline', 'stages': 2, 'micro_batches': 1, 'schedule': 'gpipe',
                                             **recompute})
    kind = {'splits': 'splits', 'layers': 'by_pattern'}.get(plan['kind'])
    if kind is None:
        return
    entries = plan[kind]
    if all(rank < 2 for entry in entries.values() for rank in (
            entry[1] if isinstance(entry, list) else entry.get('ranks', []))):
        yield dict(program, workers=2)
    for label in entries:
        yield dict(program, plan={**plan, kind: {
            other: entry for other, entry in entries.items() if other != label}})
    for label in entries:
        if len(entries) > 2:
            yield dict(program, plan={**plan, kind: {label: entries[label]}})
