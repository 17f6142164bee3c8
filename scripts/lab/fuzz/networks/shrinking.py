"""Makes a failing network small: fewer outputs and statements, inputs in place of values, a simpler plan."""
import functools
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
        for simpler in (_events, _outputs, _without, functools.partial(_inputs, examine), _settings, _plans):
            while rounds < _ROUNDS:
                rounds += 1
                candidates = [each for each in (examine(candidate) for candidate in simpler(program))
                              if each is not None and each != program]
                verdicts = (yield candidates) if candidates else []
                failing = [each for each, verdict in zip(candidates, verdicts) if verdict]
                if not failing:
                    break
                program = min(failing, key=size)
    return program


def size(program: Program) -> Any:
    """Return a measure of a program, the smaller the better."""
    return (len(program['events']), len(program['statements']), len(program['heads']),
            len(program['layers']) + len(program['params']),
            len(str(program['plan'])), program['workers'], program['steps'] + program['calls'], len(str(program)))


def with_heads(program: Program, names: Sequence[str]) -> Program:
    """Return the program with these outputs, and with the outputs of random operators that lead to them."""
    heads = [dict(head) for head in program['heads'] if head['name'] in names and not head['drawn']]
    heads += [{'name': name, 'drawn': None} for name in names if name not in {head['name'] for head in heads}]
    smaller = pruned(dict(program, heads=heads))
    drawn = {statement['name']: statement['drawn'] for statement in smaller['statements'] if statement.get('drawn')}
    heads = [head for head in heads if head['name'] not in drawn]
    return dict(smaller, heads=heads + [{'name': name, 'drawn': how} for name, how in drawn.items()])


def _names(program: Program) -> List[str]:
    """Return the names of the outputs that no random operator draws."""
    return [head['name'] for head in program['heads'] if not head['drawn']]


def _values(program: Program) -> Iterator[str]:
    """Return a value of each statement; of a statement with several outputs, all that are read."""
    read = {value for statement in program['statements'] for value in statement['reads']} | set(_names(program))
    for statement in program['statements']:
        inner = sorted(value for value in read if base(value) == statement['name'])
        yield inner[0] if inner else statement['name']


def _events(program: Program) -> Iterator[Program]:
    """Drop half of the events, or one; let one happen a step earlier, or concern one parameter."""
    events, half = program['events'], len(program['events']) // 2
    for fewer in ([], events[:half], events[half:]):
        yield dict(program, events=fewer)
    for number, event in enumerate(events):
        simpler: List[List[Any]] = [[]]
        if event['step']:
            simpler.append([dict(event, step=event['step'] - 1)])
        simpler += [[dict(event, params=[name])] for name in event.get('params', ())[1:]]
        for replacement in simpler:
            yield dict(program, events=[*events[:number], *replacement, *events[number + 1:]])


def _outputs(program: Program) -> Iterator[Program]:
    """Keep one output, an old one or any value, or drop one output."""
    names = _names(program)
    for name in _values(program):
        if [name] != names:
            yield with_heads(program, [name])
    for name in names if len(names) > 2 else []:
        yield with_heads(program, [other for other in names if other != name])


def _replaced(program: Program, old: str, new: str) -> Program:
    """Return the program in which all readers of one value read another one."""
    statements = [statement if statement['name'] == base(new) else dict(
        statement, reads=[new if value == old else value for value in statement['reads']])
        for statement in program['statements']]
    return with_heads(dict(program, statements=statements),
                      list(dict.fromkeys(new if name == old else name for name in _names(program))))


def _without(program: Program) -> Iterator[Program]:
    """Drop a statement: its input takes its place, unless that is an output by itself."""
    for statement, value in zip(program['statements'], list(_values(program))):
        for read in dict.fromkeys(statement['reads']):
            if read.startswith('x') or value not in _names(program):
                yield _replaced(program, value, read)


def _inputs(examine: Examine, program: Program) -> Iterator[Program]:
    """Put an input in the place of a statement's value."""
    taken, count = {each['name'] for each in program['inputs']}, samples_of(program)
    name = next('data%d' % number for number in range(99) if 'data%d' % number not in taken)
    for value in _values(program):
        known = examine(with_heads(program, [value])) if value not in _names(program) else None
        if known is None:
            continue
        head = next(each for each in known['heads'] if each['name'] == value)
        axes = (axis for axis, before in head['samples'] or () if before == 1 and head['shape'][axis] == count)
        data = {'name': name, 'shape': head['shape'], 'axis': next(axes, None), 'values': 'ties', 'dtype': 'float64',
                'limit': 5}
        yield _replaced(dict(program, inputs=program['inputs'] + [data]), value, name)


def _settings(program: Program) -> Iterator[Program]:
    """Give all settings simple values, or one, or give inputs values without ties."""
    simple: Dict[str, Any] = {'steps': 1, 'calls': 1, 'optimizer': {'learning_rate': 0.0625}, 'on_store': None,
                              'shard_updates': False, 'end': 'release', 'input_grad': False, 'frozen': []}
    plain = [dict(each, values='reals') if each['values'] == 'ties' else each for each in program['inputs']]
    yield dict(program, **simple)
    yield dict(program, **simple, inputs=plain)
    for name, value in simple.items():
        yield dict(program, **{name: value})
    yield dict(program, inputs=plain)


def _plans(program: Program) -> Iterator[Program]:
    """Make the plan simpler, and use fewer workers."""
    plan = program['plan']
    recompute = {name: value for name, value in plan.items() if name == 'recompute'}
    if recompute:
        yield dict(program, plan={name: value for name, value in plan.items() if name != 'recompute'})
        for layer in plan['recompute']:
            yield dict(program, plan={**plan, 'recompute': [layer]})
    for kind in ('data_parallel', 'one_weird_trick'):
        yield dict(program, workers=2, plan={'kind': kind, **recompute})
        yield dict(program, plan={'kind': kind, **recompute})
    if plan['kind'] == 'pipeline':
        yield dict(program, workers=2, plan={'kind': 'pipeline', 'stages': 2, 'micro_batches': 1, 'schedule': 'gpipe',
                                             **recompute})
    kind = {'splits': 'splits', 'layers': 'by_pattern'}.get(plan['kind'])
    entries = plan.get(kind, {})
    if kind and all(rank < 2 for entry in entries.values() for rank in (
            entry[1] if isinstance(entry, list) else entry.get('ranks', []))):
        yield dict(program, workers=2)
    for label in entries:
        yield dict(program, plan={**plan, kind: {
            other: entry for other, entry in entries.items() if other != label}})
    for label in entries if len(entries) > 2 else ():
        yield dict(program, plan={**plan, kind: {label: entries[label]}})
