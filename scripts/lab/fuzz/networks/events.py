"""Draws events between and in the middle of steps, see :mod:`.training`, and layers that begin frozen."""
import contextlib
import random as randoms
import re
from typing import Any, Dict, List

from . import pieces
from .alone import check_trains, class_of
from .network import Program, Rejected
from .script import spec_of

#: The places in a step where each event may happen, and how often it is drawn.
EVENTS = {
    'initialize': (3, 'before'), 'set_data': (2, 'before after'), 'grad_req': (5, 'before'), 'freeze': (1, 'after'),
    'zero_grad': (1, 'before between after'), 'backward': (2, 'before after'), 'accumulate': (3, 'before'),
    'retain': (2, 'between'), 'abandon': (2, 'before between after'), 'misfit': (1, 'before between after'),
    'evaluate': (2, 'before between after'), 'cast': (1, 'before'), 'reset_ctx': (1, 'before'),
    'trainer': (1, 'before after'), 'hybridize': (1, 'before between after'), 'again': (3, 'before'),
    'file': (5, 'before after')}

#: Requests of gradients, one set after the other.
_REQUESTS = (['null'], ['write'], ['write'], ['add'], ['null', 'write'], ['null', 'add'], ['add', 'write'])


def draw_events(program: Program, random: randoms.Random) -> Program:
    """Return the program with events, and perhaps frozen layers; as it is if one process does not train these."""
    params = pieces.prepared(class_of(program), spec_of(program)).collect_params()
    learned = [name for name, param in params.items() if param.grad_req != 'null']
    if program['dtype'] == 'float32':
        # FullyConnected of oneDNN computes the gradient of a bias only together with that of the weight.
        read = {name for each in program['statements'] if each['op'] == 'FullyConnected' for name in each['reads']}
        learned = [name for name in learned if not re.match('net_dense.*weight', name) and name[4:] not in read]
    for _ in range(4 if learned and random.random() < 0.8 else 0):
        share, events = random.choice((0, 0.1, 0.5)), []
        frozen = [name for name in learned if random.random() < share]
        for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4))):
            events += draw_event(program, list(params), learned, random)
        if frozen and random.random() < 0.7:
            events.append({'do': 'grad_req', 'step': random.randrange(program['steps']), 'place': 'before',
                           'requests': [random.choice(('write', 'write', 'add'))], 'params': frozen})
        changed = dict(program, frozen=frozen, events=events, end=random.choice(('release', 'drop', 'keep')))
        with contextlib.suppress(Rejected):
            check_trains(changed)
            return changed
    return program


def draw_event(program: Program, params: List[str], learned: List[str], random: randoms.Random) -> List[Dict[str, Any]]:
    """Draw an event, or several that belong together."""
    kind = random.choices(list(EVENTS), [chance for chance, _ in EVENTS.values()])[0]
    places = EVENTS[kind][1].split()
    if program['plan']['kind'] == 'pipeline' and kind == 'abandon':
        places.remove('between')  # a pipeline makes the backward pass of each recorded call before the next one
    # MXNet's Dropout has no mask in a second backward pass; pipelines of schedule gpipe refuse one.
    if kind == 'retain' and (program['plan']['kind'] == 'pipeline' or any(
            statement.get('drawn') for statement in program['statements'])):
        return []
    # New values make a new store, whose optimizer begins without the state of dense weights (docs/compatibility.md).
    loses_state = program['on_store'] and program['optimizer'].get('momentum')
    if loses_state and kind in ('initialize', 'set_data'):
        return []
    event: Dict[str, Any] = {'do': kind, 'step': random.randrange(program['steps']), 'place': random.choice(places)}
    some = random.sample(learned, random.randint(1, min(3, len(learned))))
    if kind == 'initialize':
        event.update(value=random.choice((0.25, -0.375)), params=random.choice(([], [random.choice(params)])))
    elif kind == 'set_data':
        event.update(value=random.choice((0.25, -0.375)), params=some)
    elif kind in ('grad_req', 'freeze'):
        event.update(do='grad_req', requests=['null'] if kind == 'freeze' else random.choice(_REQUESTS),
                     params=random.choice(([], some)))
    elif kind == 'accumulate':
        return [dict(event, do='grad_req', requests=['add'], params=random.choice(([], some))),
                dict(event, do='backward', place=random.choice(('before', 'after')))]
    elif kind == 'misfit':
        event.update(records=random.random() < 0.7)
    elif kind == 'cast':
        event.update(dtype=random.choice(('float32', 'float64', 'float16')))
    elif kind == 'again':
        event.update(forgets=random.random() < 0.5)
    elif kind == 'file':
        what = ('states', 'checkpoint') if loses_state else ('parameters', 'dict', 'states', 'checkpoint')
        event.update(what=random.choice(what), loads=False)
        # It is loaded in this step or in a later one.
        step = random.randint(event['step'], program['steps'] - 1)
        place = 'after' if step == event['step'] else random.choice(('before', 'after'))
        return [event, dict(event, loads=True, step=step, place=place)]
    return [event]
