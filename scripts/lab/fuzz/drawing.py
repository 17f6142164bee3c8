"""Draws programs from seeds."""
import random as randoms
from typing import Any, Dict, List, Optional

from .program import FLOAT32, has, parameters, update_on_store

#: Programs with following seeds that share a job.
PER_JOB = 25

_RATES = {'sgd': (0.01, 0.03, 0.1), 'nag': (0.01, 0.03), 'adam': (0.003, 0.01, 0.03), 'adagrad': (0.03, 0.1),
          'groupadagrad': (0.03, 0.1), 'ftrl': (0.05, 0.1), 'rmsprop': (0.003, 0.01), 'adadelta': (1.0, 0.5),
          'ftml': (0.003, 0.01), 'lamb': (0.003, 0.01), 'dcasgd': (0.01, 0.03), 'nadam': (0.003, 0.01)}

#: Optimizers that update row_sparse weights, and others.
_FOR_TABLES = ('sgd', 'sgd', 'adam', 'adam', 'adagrad', 'groupadagrad', 'ftrl', 'nag', 'rmsprop', 'adadelta')
_OTHERS = ('ftml', 'lamb', 'dcasgd', 'nadam')


def draw_job(number: int) -> Dict[str, Any]:
    """Draw the settings of the job that runs a batch of programs."""
    random = randoms.Random('job %d' % number)
    if random.random() < 0.05:
        return {'launcher': 'none', 'workers': 1, 'servers': 0, 'row_transport': 'auto'}
    return {'launcher': random.choice(('horovodrun', 'horovodrun', 'launch.py')),
            'workers': random.choice((2, 2, 2, 3, 3, 4)), 'servers': random.choice((1, 2, 3)),
            'row_transport': random.choice(('auto', 'auto', 'ps-lite'))}


def draw(seed: int) -> Dict[str, Any]:
    """Return the program of a seed."""
    return _Drawing(seed).program


class _Drawing:
    """Draws one program, and keeps the state that its events depend on."""

    def __init__(self, seed: int):
        self.random = random = randoms.Random(seed)
        self.program: Dict[str, Any] = {'seed': seed, 'job': draw_job(seed // PER_JOB)}
        # With a schedule, which rate a parameter gets that has missed steps depends on the order of updates in a step.
        self.scheduled = random.random() < 0.2
        self.program['model'] = self._model()
        self.program['asked'] = None if has(self.program, 'weight') else random.choice((None, None, None, True, False))
        self.program['optimizer'] = self.optimizer = self._optimizer()
        if self.optimizer['name'] in FLOAT32:
            self.program['model']['dtype'] = 'float32'
        if self.optimizer['name'] == 'groupadagrad':  # matrices only
            self.program['model']['bias'] = False
        self.program['store'] = self._store()
        self.program['looks'] = random.random() < 0.6
        self.params = parameters(self.program['model'])
        self.frozen: List[int] = []
        self.slots: Dict[str, List[str]] = {}
        self.program['events'] = events = []  # type: List[Dict[str, Any]]
        count = random.randint(20, 60)
        kinds = {'step': 60, 'steps ahead': 1.5, 'rate': 3, 'attribute': 4, 'multiplier': 4, 'grad_req': 4,
                 'evaluate': 4, 'save': 3, 'load': 3, 'set': 2, 'initialise': 1, 'read': 2, 'repartition': 3,
                 'prefetch': 4, 'hybridize': 1, 'report': 1, 'trainer': 1.5, 'renew': 0.7}
        while len(events) < count:
            kind = random.choices(list(kinds), list(kinds.values()))[0]
            event = getattr(self, '_' + kind.replace(' ', '_'))()
            if event is not None:
                events.append(dict(do=kind, **event))

    # -- the model -----------------------------------------------------------------------------------------------

    def _model(self) -> Dict[str, Any]:
        random = self.random
        branches: List[Dict[str, Any]] = []
        for number in range(random.choice((1, 2, 2, 3))):
            kind = random.choice(('weight', 'weight', 'gradient', 'gradient', 'gradient', 'dense', 'tied'))
            branch = {'block': 'Branch', 'kind': kind, 'rows': random.choice((1, 5, 12, 30, 61)),
                      'width': random.choice((1, 2, 5, 8)), 'uses': random.choice((1, 1, 1, 2))}
            if kind in ('gradient', 'dense') and random.random() < 0.4:
                branch['block'] = 'HybridBranch'
            same = [other for other in range(number) if branches[other]['kind'] in ('weight', 'gradient')
                    and 'shared' not in branches[other]]
            if same and random.random() < 0.2:
                other = random.choice(same)
                branch.update(branches[other], uses=branch['uses'], shared=other)
            branches.append(branch)
        return {'dtype': random.choice(('float32', 'float32', 'float64')), 'devices': random.choice((1, 1, 1, 2)),
                'bias': random.random() < 0.7, 'units': random.choice((1, 3)), 'add': random.random() < 0.12,
                'branches': branches}


    def _store(self) -> Dict[str, Any]:
        random = self.random
        settings: Dict[str, Any] = {}
        if random.random() < 0.5:
            settings['partitions'] = random.choice((1, 2, 3, 7, '*branch0*=3,*=1'))
        if random.random() < 0.35:
            settings['routes'] = random.choice(('servers', 'allreduce', '*branch0*=allreduce,*=servers'))
        if random.random() < 0.25:
            settings['on_demand_rows'] = False
        return settings

    # -- the optimizer -------------------------------------------------------------------------------------------

    def _optimizer(self) -> Dict[str, Any]:
        random = self.random
        name = random.choice(_OTHERS if not has(self.program, 'weight') and random.random() < 0.2 else _FOR_TABLES)
        if name == 'nadam' and self.program['model']['devices'] > 1:
            name = 'ftml'  # nadam advances a schedule at each call, so for each device
        options: Dict[str, Any] = {'learning_rate': random.choice(_RATES[name])}

        def maybe(option: str, *values: Any, often: float = 0.5) -> None:
            if random.random() < often:
                options[option] = random.choice(values)
        if name in ('sgd', 'nag'):
            maybe('momentum', 0.5, 0.9, often=0.7)
        if name in ('sgd', 'adam'):
            maybe('lazy_update', True, False, often=0.4)
        sparse = has(self.program, 'weight') or has(self.program, 'gradient')
        if name != 'groupadagrad' and not (name == 'adagrad' and sparse):
            maybe('wd', 0.01, 0.1, often=0.45)
        maybe('clip_gradient', 0.05, 0.3, 2.0, often=0.25)
        maybe('rescale_grad', 0.5, 2.0, often=0.1)
        if name in ('adam', 'ftml', 'lamb', 'nadam'):
            options['epsilon'] = random.choice((1e-2, 1e-3))
            maybe('beta1', 0.5, 0.8, often=0.4)
            maybe('beta2', 0.9, 0.99, often=0.4)
        elif name == 'rmsprop':
            maybe('gamma1', 0.8, 0.95)
            options['centered'] = random.random() < 0.4
            options['epsilon'] = random.choice((1e-3, 1e-4))
            maybe('clip_weights', 0.4, often=0.2)
        elif name == 'adadelta':
            maybe('rho', 0.8, 0.95)
            options['epsilon'] = random.choice((1e-3, 1e-4))
        elif name == 'ftrl':
            maybe('lamda1', 0.001, 0.02)
            maybe('beta', 0.5, 2.0)
        elif name in ('adagrad', 'groupadagrad'):
            maybe('eps', 1e-3, 1e-5)
        scheduler = None
        if self.scheduled and name != 'adadelta' and random.random() < 0.8:  # which never asks for the rate
            rate = options['learning_rate']
            scheduler = random.choice((
                {'name': 'FactorScheduler', 'options': {'step': random.choice((2, 5)), 'factor': 0.8,
                                                        'base_lr': rate, 'warmup_steps': random.choice((0, 3))}},
                {'name': 'MultiFactorScheduler', 'options': {'step': [3, 8, 15], 'factor': 0.5, 'base_lr': rate}},
                {'name': 'PolyScheduler', 'options': {'max_update': 40, 'base_lr': rate, 'pwr': 2}},
                {'name': 'CosineScheduler', 'options': {'max_update': 30, 'base_lr': rate, 'final_lr': rate / 10}}))
        return {'name': name, 'options': options, 'scheduler': scheduler}

    # -- events, None where a program cannot have one ------------------------------------------------------------

    def _seed(self) -> int:
        return self.random.randrange(1000)

    def _ranks(self) -> List[int]:
        return self.random.choice(([0], [1], [0, 1, 2, 3], [2, 3], [0, 1, 2, 3]))

    def _number(self, *kinds: str) -> Optional[int]:
        numbers = [param.number for param in self.params if param.kind in kinds]
        return self.random.choice(numbers) if numbers else None

    def _step(self) -> Dict[str, Any]:
        random, model = self.random, self.program['model']
        on_store, count = update_on_store(self.program), len(model['branches'])
        samples = random.choice((1, 3, 6, 12, 25))
        whole = ['all'] * count
        use = whole if random.random() < 0.6 else [random.choice(('all', 'some', 'none')) for _ in range(count)]
        ids = random.choice(('any', 'any', 'few', 'frequent', 'all'))
        event = {'seed': self._seed(), 'samples': samples, 'use': use, 'ids': ids,
                 'split': random.choice(('even', 'even', 'even', 'uneven', 'one'))}
        if model['add']:
            event.update(use=[random.choice(('all', 'all', 'all', 'none')) for _ in range(count)],
                         backwards=random.choice((1, 2, 3)))
        if self.scheduled:
            event.update(use=whole)
        if random.random() < 0.2:
            event['divisor'] = random.choice((max(1, samples // 3), 2 * samples, 40))
        if not on_store and random.random() < 0.08:
            # A parameter that no backward refreshed has an old gradient with MXNet alone, and zeros here: norms differ.
            event.update(by='hand', use=whole)
            if random.random() < 0.6 and model['dtype'] == 'float32':
                event['clip'] = random.choice((0.3, 2.0))
        elif not on_store and not model['add'] and model['devices'] == 1 and random.random() < 0.04:
            # Each worker for itself, all with the same batch.
            event.update(by='update', split='same', use=whole)
        return event

    def _steps_ahead(self) -> Optional[Dict[str, Any]]:
        model = self.program['model']
        if model['devices'] > 1 or model['add'] or self._number('weight', 'gradient') is None:
            return None
        return {'seed': self._seed(), 'samples': self.random.choice((4, 9)),
                'steps': self.random.choice((2, 4, 6))}

    def _rate(self) -> Optional[Dict[str, Any]]:
        if self.optimizer['scheduler']:
            return None  # MXNet refuses it
        return {'value': self.optimizer['options']['learning_rate'] * self.random.choice((0.0, 0.3, 1.0, 1.5))}

    def _attribute(self) -> Optional[Dict[str, Any]]:
        options, name = self.optimizer['options'], self.optimizer['name']
        choices = [(option, values) for option, values in (
            ('clip_gradient', (0.1, 1.0)), ('wd', (0.0, 0.05)), ('momentum', (0.0, 0.3, 0.8))) if option in options]
        choices += {'rmsprop': [('gamma1', (0.7, 0.9))], 'adadelta': [('rho', (0.7, 0.9))]}.get(name, [])
        if name in ('adam', 'ftml', 'lamb'):
            choices += [('beta1', (0.6, 0.95)), ('epsilon', (1e-2, 1e-3))]
        if not choices:
            return None
        attribute, values = self.random.choice(choices)
        return {'name': attribute, 'value': self.random.choice(values)}

    def _multiplier(self) -> Dict[str, Any]:
        random = self.random
        decays = 'wd' in self.optimizer['options'] and random.random() < 0.4
        return {'number': random.choice(self.params).number,
                'name': 'wd_mult' if decays else 'lr_mult', 'value': random.choice((0.0, 0.3, 1.0, 2.0))}

    def _grad_req(self) -> Optional[Dict[str, Any]]:
        model = self.program['model']
        if self.scheduled:
            return None
        if self.frozen and self.random.random() < 0.6:
            number = self.frozen.pop(self.random.randrange(len(self.frozen)))
            dense = self.params[number].kind not in ('weight', 'gradient')
            return {'number': number, 'value': 'add' if model['add'] and dense else 'write'}
        # MXNet makes no gradient of a bias where the weight beside it has none.
        last = {param.branch: param.number for param in self.params}
        numbers = [param.number for param in self.params if param.branch >= 0 and param.number not in self.frozen
                  and (param.kind or param.number == last[param.branch])]
        if not numbers:
            return None
        number = self.random.choice(numbers)
        self.frozen.append(number)
        return {'number': number, 'value': 'null'}

    def _evaluate(self) -> Dict[str, Any]:
        return {'seed': self._seed(), 'samples': self.random.choice((1, 5, 20)),
                'ids': self.random.choice(('any', 'frequent', 'all')), 'ranks': self._ranks()}

    def _save(self) -> Dict[str, Any]:
        kinds = self.random.choice((['parameters'], ['parameters', 'states'], ['states'], ['checkpoint']))
        slot = self.random.choice('abc')
        self.slots[slot] = kinds
        return {'slot': slot, 'kinds': kinds}

    def _load(self) -> Optional[Dict[str, Any]]:
        if not self.slots:
            return None
        slot = self.random.choice(sorted(self.slots))
        return {'slot': slot, 'kinds': self.slots[slot]}

    def _set(self) -> Dict[str, Any]:
        return {'number': self.random.choice(self.params).number, 'seed': self._seed()}

    def _initialise(self) -> Optional[Dict[str, Any]]:
        if update_on_store(self.program):
            return None  # MXNet's store knows nothing of it
        return {'seed': self._seed(), 'by_rank': self.random.random() < 0.7}

    def _read(self) -> Optional[Dict[str, Any]]:
        number = self._number('gradient', 'dense', '')
        if number is None:
            return None
        if not update_on_store(self.program) and self.random.random() < 0.3:
            return {'number': number, 'ranks': [0, 1, 2, 3], 'write': True}
        return {'number': number, 'ranks': self._ranks()}

    def _repartition(self) -> Optional[Dict[str, Any]]:
        number = self._number('weight', 'gradient')
        return None if number is None else {'number': number, 'partitions': self.random.choice((1, 2, 3, 5, 8))}

    def _prefetch(self) -> Optional[Dict[str, Any]]:
        number = self._number('weight', 'gradient')
        return None if number is None else {
            'number': number, 'seed': self._seed(), 'count': self.random.choice((1, 6, 20)),
            'after_step': self.random.random() < 0.3}

    def _hybridize(self) -> Optional[Dict[str, Any]]:
        branches = self.program['model']['branches']
        branch = self.random.randrange(len(branches))
        if branches[branch]['kind'] == 'weight':
            return None
        part = '' if branches[branch]['block'] == 'HybridBranch' and self.random.random() < 0.5 else '.table'
        return {'branch': branch, 'part': part, 'on': self.random.random() < 0.8}

    def _report(self) -> Dict[str, Any]:
        return {}

    def _anew(self) -> Dict[str, Any]:
        event, model = {'store': self._store()}, self.program['model']
        if self.random.random() < 0.5:
            optimizer = self._optimizer()
            if (optimizer['name'] not in FLOAT32 or model['dtype'] == 'float32') and (
                    optimizer['name'] != 'groupadagrad' or not model['bias']):
                event['optimizer'] = self.optimizer = optimizer
                # States and checkpoints belong to the optimizer before.
                self.slots = {slot: what for slot, what in self.slots.items() if what == ['parameters']}
        return event

    def _trainer(self) -> Optional[Dict[str, Any]]:
        # MXNet keeps a row_sparse weight with its first Trainer.
        return None if has(self.program, 'weight') else self._anew()

    def _renew(self) -> Dict[str, Any]:
        self.frozen = []
        return self._anew()
