"""Makes a failing program small: fewer events, then simpler events, a simpler model, fewer arguments, fewer workers.

Shrinking is a generator, so that the candidates of a round, and those of several programs, share a job.
"""
import collections
import copy
from typing import Any, Callable, Dict, Generator, Iterator, List, Optional, Sequence, Tuple

from .program import parameters

Program = Dict[str, Any]

#: Gives candidates, is sent which of them still fail, and returns the smallest program.
Shrinking = Generator[List[Program], Sequence[bool], Program]

#: A path in a program, and the value to put there; None removes the entry.
Change = Tuple[Tuple[Any, ...], Any]

#: Give simpler programs, of which one is taken, and changes, of which all are made that leave a failure.
Structures, Changes = Callable[[Program], Iterator[Program]], Callable[[Program], Iterator[Change]]

#: Candidates in a round.
_MOST = 24


def drive(reductions: Dict[Any, Shrinking], fails: Callable[[List[Tuple[Any, Program]]], Sequence[bool]]
          ) -> Dict[Any, Program]:
    """Make several programs small together; return them by key.

    `fails` is given pairs of a key and a candidate, whose jobs it may share, and says of each whether it still fails.
    """
    reduced: Dict[Any, Program] = {}
    candidates: Dict[Any, List[Program]] = {}

    def advance(key: Any, verdicts: Optional[List[bool]]) -> None:
        try:
            candidates[key] = reductions[key].send(verdicts)
        except StopIteration as stop:
            reduced[key] = stop.value
            candidates.pop(key, None)
    for key in reductions:
        advance(key, None)
    while candidates:
        places = [(key, program) for key in candidates for program in candidates[key]]
        verdicts: Dict[Any, List[bool]] = collections.defaultdict(list)
        for (key, _), verdict in zip(places, fails(places)):
            verdicts[key].append(verdict)
        for key in list(candidates):
            advance(key, verdicts[key])
    return reduced


def shrink(program: Program, event: int, structures: Structures, changes: Changes) -> Shrinking:
    """Shrink a program that fails in an event, counted from 1, or in an unknown one, 0."""
    if 0 < event < len(program['events']):
        shorter = dict(program, events=program['events'][:event])
        program = shorter if (yield [shorter])[0] else program
    before = None
    while before != program:
        before = program
        program = yield from _fewer_events(program)
        for simpler in (structures, _simpler_job):
            program = yield from _first_of(simpler, program)
        program = yield from _together(program, changes)
    return program


def _first_of(simpler: Structures, program: Program) -> Shrinking:
    """Take the first simpler program that fails, again and again."""
    while True:
        candidates = list(simpler(program))
        verdicts = (yield candidates) if candidates else []
        failing = [each for each, verdict in zip(candidates, verdicts) if verdict]
        if not failing:
            return program
        program = failing[0]


def _together(program: Program, simpler: Changes) -> Shrinking:
    """Make all changes that leave a failure, as many as do so together."""
    changes = list(simpler(program))
    for first in range(0, len(changes), _MOST):
        some = changes[first:first + _MOST]
        verdicts = yield [_changed(program, [change]) for change in some]
        useful = [change for change, verdict in zip(some, verdicts) if verdict]
        if not useful:
            continue
        rows = [_changed(program, useful[:count]) for count in range(1, len(useful) + 1)]
        verdicts = yield rows
        program = next((row for row, verdict in zip(rows[::-1], verdicts[::-1]) if verdict), program)
    return program


def _fewer_events(program: Program) -> Shrinking:
    """Drop all pieces that can be dropped: large groups first, then each piece by itself."""
    pieces = 2
    while True:
        events = program['events']
        size = max(1, -(-len(events) // pieces))
        cuts = [(start, min(len(events), start + size)) for start in range(0, len(events), size)]
        candidates = [dict(program, events=events[:start] + events[end:]) for start, end in cuts]
        shorter = None
        for first in range(0, len(candidates), _MOST):
            verdicts = yield candidates[first:first + _MOST]
            failing = [number for number, verdict in enumerate(verdicts, first) if verdict]
            if failing:
                # Often all of these can go; otherwise the first can.
                gone = {event for number in failing for event in range(*cuts[number])}
                both = dict(program, events=[event for each, event in enumerate(events) if each not in gone])
                shorter = both if len(failing) > 1 and (yield [both])[0] else candidates[failing[0]]
                break
        if shorter is not None:
            program = shorter
            pieces = max(2, min(pieces, len(program['events'])))
        elif size == 1:
            return program
        else:
            pieces = min(2 * pieces, max(1, len(events)))


def plain_structures(program: Program) -> Iterator[Program]:
    """Yield plain programs without a branch, and without bias."""
    model = program['model']
    for number in range(len(model['branches'])):
        simpler = without_branch(program, number)
        if simpler is not None:
            yield simpler
    if model['bias']:
        yield _renumbered(program, dict(model, bias=False))


def _simpler_job(program: Program) -> Iterator[Program]:
    """Yield programs in a simple job, and with one simple setting of the job."""
    job, simple = program['job'], {'workers': 2, 'servers': 1, 'row_transport': 'auto', 'launcher': 'horovodrun'}
    if job['workers'] == 1:
        return
    changes = {name: value for name, value in simple.items() if job[name] != value}
    if len(changes) > 1:
        yield dict(program, job=dict(job, **simple))
    for name, value in changes.items():
        yield dict(program, job=dict(job, **{name: value}))


def _changed(program: Program, changes: Sequence[Change]) -> Program:
    program = copy.deepcopy(program)
    for (*path, last), value in changes:
        where: Any = program
        for name in path:
            where = where.get(name) if isinstance(where, dict) else where[name]
            if where is None:
                break
        if where is not None and value is not None:
            where[last] = copy.deepcopy(value)
        elif where is not None:
            where.pop(last, None)
    return program


def plain_changes(program: Program) -> Iterator[Change]:
    """Yield changes of plain programs, each of which makes one thing simpler, and that can be made together."""
    model, optimizer = program['model'], program['optimizer']
    for name, value in (('devices', 1), ('add', False), ('dtype', 'float32'), ('units', 1)):
        if model[name] != value:
            yield ('model', name), value
    for number, branch in enumerate(model['branches']):
        for name, value in (('uses', 1), ('width', 1), ('rows', 5), ('block', 'Branch')):
            common = 'shared' in branch or any(other.get('shared') == number for other in model['branches'])
            if branch[name] != value and (name != 'rows' or value < branch['rows']) and not (name != 'uses' and common):
                yield ('model', 'branches', number, name), value
    for setting in program['store']:
        yield ('store', setting), None
    if optimizer.get('scheduler'):
        yield ('optimizer', 'scheduler'), None
    if optimizer['name'] != 'sgd':
        yield ('optimizer',), {'name': 'sgd', 'options': {'learning_rate': 0.1}, 'scheduler': None}
    for option in optimizer['options']:
        if option != 'learning_rate':
            yield ('optimizer', 'options', option), None
    for number, event in enumerate(program['events']):
        for name, value in _simple_arguments(program, event):
            if name in event and event[name] != value and not (name in ('samples', 'steps') and event[name] < value):
                yield ('events', number, name), value
    if program['asked'] is not None:
        yield ('asked',), False
    if not program['looks']:
        yield ('looks',), True


def _simple_arguments(program: Program, event: Dict[str, Any]) -> Sequence[Tuple[str, Any]]:
    renewed = (('optimizer', None), ('store', {}))
    return {'step': (('by', None), ('clip', None), ('backwards', None), ('divisor', None),
                     ('split', 'even'), ('use', ['all'] * len(program['model']['branches'])), ('ids', 'any'),
                     ('samples', 6)),
            'steps ahead': (('samples', 4), ('steps', 2)), 'trainer': renewed, 'renew': renewed,
            'read': (('write', None),), 'evaluate': (('samples', 5), ('ids', 'any'))}.get(event['do'], ())


def without_branch(program: Program, number: int) -> Any:
    """Return the program without a branch; None if the branch must stay."""
    branches = program['model']['branches']
    if len(branches) == 1 or any(branch.get('shared') == number for branch in branches):
        return None
    branches_left = copy.deepcopy(branches[:number] + branches[number + 1:])
    for branch in branches_left:
        if branch.get('shared', -1) > number:
            branch['shared'] -= 1
    shorter = _renumbered(program, dict(program['model'], branches=branches_left), number)
    for event in shorter['events']:
        if 'use' in event:
            del event['use'][number]
        if event['do'] == 'hybridize' and event['branch'] > number:
            event['branch'] -= 1
    return shorter


def _renumbered(program: Program, model: Dict[str, Any], gone: int = -2) -> Program:
    """Return the program with another model; events of parameters that it lacks are dropped."""
    def names(model: Dict[str, Any], gone: int) -> List[Any]:
        """Return the branch of each parameter, and its place there in a model with bias."""
        names_of_params, counts = [], collections.Counter()  # type: ignore[var-annotated]
        for param in parameters(model):
            branch = param.branch + (param.branch >= gone >= 0)
            number = counts[branch]
            counts[branch] += 1
            if not model['bias']:  # a bias would follow each parameter but the table
                has_table = branch >= 0 and 'shared' not in model['branches'][param.branch]
                number = max(0, 2 * number - 1) if has_table else 2 * number
            names_of_params.append((branch, number))
        return names_of_params
    old = names(program['model'], -2)
    new = {name: number for number, name in enumerate(names(model, gone))}
    renumbered = copy.deepcopy(dict(program, model=model))
    events = []
    for event in renumbered['events']:
        if 'number' in event:
            event['number'] = new.get(old[event['number']])
        is_gone = event['do'] == 'hybridize' and event['branch'] == gone
        if event.get('number', 0) is not None and not is_gone:
            events.append(event)
    return dict(renumbered, events=events)
