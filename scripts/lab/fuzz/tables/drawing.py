"""Draws programs with dynamic tables from seeds; a program is a dict that JSON can hold."""
import random as randoms
from typing import Any, Dict, List, Optional, Set

#: Programs with following seeds that share a job.
PER_JOB = 20
#: Optimizers with settings, and whether they update float64.
_OPTIMIZERS = [('sgd', {'learning_rate': 0.1}, True), ('sgd', {'learning_rate': 0.05, 'momentum': 0.9}, True),
               ('sgd', {'learning_rate': 0.1, 'wd': 0.05, 'clip_gradient': 0.3}, True),
               ('adam', {'learning_rate': 0.02, 'epsilon': 1e-2}, True),
               ('adagrad', {'learning_rate': 0.1, 'eps': 1e-3}, False),
               ('groupadagrad', {'learning_rate': 0.1, 'eps': 1e-3}, False),
               ('ftrl', {'learning_rate': 0.1, 'lamda1': 0.001}, False)]
_INITIALIZERS = [('Normal', 0.3), ('Uniform', 0.3), ('Constant', 0.2)]


def draw_job(number: int) -> Dict[str, Any]:
    """Return the settings of the job that runs a batch of programs, and of the 'next' one, in which some go on."""
    random = randoms.Random('tables %d' % number)
    job, following = ({'launcher': random.choice(('horovodrun', 'horovodrun', 'launch.py')), 'row_transport': 'auto',
                       'workers': random.choice((2, 2, 3)), 'servers': random.choice((1, 2, 2))} for _ in range(2))
    if random.random() < 0.25:
        job.update(launcher='none', workers=1, servers=0)
    return dict(job, next=following)


def draw(seed: int) -> Dict[str, Any]:
    """Return the program of a seed."""
    return _Drawing(seed).program


class _Drawing:
    """Draws one program, and keeps the state that its events depend on."""

    def __init__(self, seed: int):
        self.random = random = randoms.Random(seed)
        name, options, in_double = random.choice(_OPTIMIZERS)
        tables = [_draw_table(random) for _ in range(random.choice((1, 2, 2, 3)))]
        features = [_draw_feature(random, number) for number in range(len(tables))]
        features += [_draw_feature(random, random.randrange(len(tables))) for _ in range(random.choice((0, 0, 1)))]
        self.has_capacity = any('capacity' in table['options'] for table in tables)
        self.program: Dict[str, Any] = {
            'seed': seed, 'job': draw_job(seed // PER_JOB), 'optimizer': [name, options],
            'dtype': random.choice(('float32', 'float64')) if in_double else 'float32',
            # For this job and the next one.  The capacity is divided among partitions, so rows leave tables of several
            # partitions in another order.
            'partitions': [1 if self.has_capacity else random.choice((1, 2, 3, 5)) for _ in range(2)],
            'tables': tables, 'features': features, 'collection': random.random() < 0.5,
            'grad_req': 'add' if random.random() < 0.25 else 'write',
            'on_store': random.choice((None, None, True, False)),
            # Worker 0 sends rows of files that servers do not see.
            'unseen': random.random() < 0.25,
            'looks': random.random() < 0.5, 'files': random.choice(('', '', '', 'mapped', 'cached'))}
        self.dynamic = [number for number, table in enumerate(tables) if table['kind'] != 'sparse']
        self.frozen: Set[int] = set()
        # The number of initialisations of each table, now and, by slot, at the last save; and tables that no call has
        # used since their initialisation, which take the first values of a checkpoint.
        self.initialised, self.slots = [0] * len(tables), {}  # type: List[int], Dict[str, List[int]]
        self.unused: Set[int] = set()
        self.has_moved = False
        events: List[Dict[str, Any]] = []
        count = random.randint(6, 18)
        kinds = {'step': 30, 'rate': 2, 'freeze': 2, 'thaw': 2, 'evaluate': 2, 'set': 2, 'initialise': 2, 'save': 6,
                 'load': 5, 'resume': 3, 'move': 1, 'import_rows': 6}
        while len(events) < count:
            kind = random.choices(list(kinds), list(kinds.values()))[0]
            event = getattr(self, '_' + kind)()
            if event is not None:
                events.append(dict(do=kind, **event))
                if kind in ('step', 'save', 'load', 'resume', 'move', 'import_rows'):
                    self.unused.clear()
        self.program['events'] = events + [dict(do='step', **self._step()), {'do': 'save', 'slot': 'end'}]

    def _seed(self) -> int:
        return self.random.randrange(1000)

    def _table(self, numbers: Any) -> Optional[Dict[str, Any]]:
        return {'table': self.random.choice(sorted(numbers))} if numbers else None

    def _step(self) -> Dict[str, Any]:
        random = self.random
        step = {'seed': self._seed(), 'samples': random.choice((1, 4, 12)),
                'split': random.choice(('even', 'even', 'uneven', 'one')),
                'prefetch': random.choice(('', 'next', 'wrong')), 'empty': random.random() < 0.15}
        if self.program['grad_req'] == 'add':
            # With a capacity, the keys of a step are few.  MXNet's sparse gradients are those of the last pass, in
            # which a worker may have no share.
            is_dynamic = len(self.dynamic) == len(self.initialised)
            step.update(backwards=random.choice((1,) if not is_dynamic else (1, 2) if self.has_capacity else (1, 2, 3)),
                        zero=self.has_capacity or random.random() < 0.7)
            if not step['zero']:  # gradients of a worker without a lookup are stale, and left out
                step.update(samples=12, split='even', empty=False)
        return step

    def _rate(self) -> Dict[str, Any]:
        return {'value': self.program['optimizer'][1]['learning_rate'] * self.random.choice((0.3, 0.7, 1.2))}

    def _freeze(self) -> Optional[Dict[str, Any]]:
        event = self._table(set(range(len(self.initialised))) - self.frozen)
        self.frozen.update(event.values() if event else ())
        return event

    def _thaw(self) -> Optional[Dict[str, Any]]:
        event = self._table(self.frozen)
        self.frozen.difference_update(event.values() if event else ())
        return event

    def _evaluate(self) -> Dict[str, Any]:
        return {}

    def _set(self) -> Dict[str, Any]:
        return {'seed': self._seed()}

    def _initialise(self) -> Optional[Dict[str, Any]]:
        event = self._table(self.dynamic)
        if event is not None:
            self.initialised[event['table']] += 1
            self.unused.add(event['table'])
            event['seed'] = self._seed()
        return event

    def _save(self) -> Dict[str, Any]:
        random, slot = self.random, self.random.choice('aab')
        if random.random() < 0.15:
            return {'slot': slot, 'delta': True, 'fails': random.choice(('place', 'extra'))}
        self.slots[slot] = list(self.initialised)
        return {'slot': slot, 'delta': random.random() < 0.7, 'keep': random.choice((1, 3))}

    def _load(self) -> Optional[Dict[str, Any]]:
        slots = [slot for slot, initialised in sorted(self.slots.items())
                 if all(count == now or number in self.unused
                        for number, (count, now) in enumerate(zip(initialised, self.initialised)))]
        return self._from(self.random.choice(slots)) if slots else None

    def _from(self, slot: str) -> Dict[str, Any]:
        self.initialised = list(self.slots[slot])
        return {'slot': slot}

    def _resume(self) -> Dict[str, Any]:
        slot = self.random.choice([None, *sorted(self.slots)])
        return {} if slot is None else self._from(slot)

    def _move(self) -> Optional[Dict[str, Any]]:
        has_moved, self.has_moved = self.has_moved, True
        return None if has_moved else {}

    def _import_rows(self) -> Optional[Dict[str, Any]]:
        event = self._table(self.dynamic)
        if event is not None:
            event.update(seed=self._seed(), count=self.random.choice((1, 9, 40, 250)),
                         among=self.random.choice(('known', 'new', 'both')), piece=self.random.choice((5, 1000)))
            if self.random.random() < 0.3:
                event.update(count=12, piece=5, fails=self.random.choice(('width', 'read', 'push', 'interrupt')))
        return event


def _draw_table(random: randoms.Random) -> Dict[str, Any]:
    kind = random.choice(('rows', 'keys', 'keys', 'sparse'))
    table: Dict[str, Any] = {'kind': kind, 'count': random.choice((5, 40, 200)), 'options': {},
                             'initializer': list(random.choice(_INITIALIZERS))}
    if kind == 'keys':
        if random.random() < 0.4:
            table['options']['admit'] = random.choice((2, 3))
        if random.random() < 0.4:
            table['options']['expire_after'] = random.choice((1, 2, 4))
        if random.random() < 0.3:
            # More than the distinct keys of a step.
            table['options'].update(capacity=160, evict=random.choice(('lru', 'rarest')))
            table['count'] = 400
    return table


def _draw_feature(random: randoms.Random, table: int) -> Dict[str, Any]:
    return {'table': table, 'combine': random.choice((None, None, 'sum', 'mean', 'sqrtn')),
            'by_offsets': random.random() < 0.6, 'weighted': random.random() < 0.4}
