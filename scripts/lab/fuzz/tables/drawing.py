"""Draws programs with dynamic tables from seeds; a program is a dict that JSON can hold."""
import random as randoms
from typing import Any, Dict, List

#: Programs with following seeds that share a job.
PER_JOB = 20
#: Most ids that a sample has for a feature.
MOST_IDS = 3
#: Optimizers with settings, and whether they update float64.
_OPTIMIZERS = [('sgd', {'learning_rate': 0.1}, True), ('sgd', {'learning_rate': 0.05, 'momentum': 0.9}, True),
               ('sgd', {'learning_rate': 0.1, 'wd': 0.05, 'clip_gradient': 0.3}, True),
               ('adam', {'learning_rate': 0.02, 'epsilon': 1e-2}, True),
               ('adagrad', {'learning_rate': 0.1, 'eps': 1e-3}, False),
               ('groupadagrad', {'learning_rate': 0.1, 'eps': 1e-3}, False),
               ('ftrl', {'learning_rate': 0.1, 'lamda1': 0.001}, False)]
_INITIALIZERS = [('Normal', 0.3), ('Uniform', 0.3), ('Constant', 0.2)]


def draw_job(number: int) -> Dict[str, Any]:
    """Return the settings of the job that runs a batch of programs."""
    random = randoms.Random('tables %d' % number)
    return {'launcher': random.choice(('horovodrun', 'horovodrun', 'launch.py')),
            'workers': random.choice((2, 2, 3)), 'servers': random.choice((1, 2, 2))}


def draw(seed: int) -> Dict[str, Any]:
    """Return the program of a seed."""
    random = randoms.Random(seed)
    name, options, in_double = random.choice(_OPTIMIZERS)
    tables = [_table(random) for _ in range(random.choice((1, 2, 2, 3)))]
    features = [_feature(random, number) for number in range(len(tables))]
    features += [_feature(random, random.randrange(len(tables))) for _ in range(random.choice((0, 0, 1)))]
    has_capacity = any('capacity' in table['options'] for table in tables)
    return {'seed': seed, 'optimizer': [name, options],
            'dtype': random.choice(('float32', 'float64')) if in_double else 'float32',
            # The capacity is divided among partitions, so rows leave tables of several partitions in another order.
            'partitions': 1 if has_capacity else random.choice((1, 2, 3, 5)),
            'tables': tables, 'features': features, 'collection': random.random() < 0.5,
            'grad_req': 'add' if random.random() < 0.15 else 'write',
            'steps': [_step(random, len(tables)) for _ in range(random.randint(4, 10))]}


def _table(random: randoms.Random) -> Dict[str, Any]:
    kind = random.choice(('rows', 'keys', 'keys', 'sparse'))
    table: Dict[str, Any] = {'kind': kind, 'count': random.choice((5, 40, 200)), 'options': {},
                             'initializer': random.choice(_INITIALIZERS)}
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


def _feature(random: randoms.Random, table: int) -> Dict[str, Any]:
    return {'table': table, 'combine': random.choice((None, None, 'sum', 'mean', 'sqrtn')),
            'by_offsets': random.random() < 0.6, 'weighted': random.random() < 0.4}


def _step(random: randoms.Random, tables: int) -> Dict[str, Any]:
    step: Dict[str, Any] = {'seed': random.randrange(1000), 'samples': random.choice((1, 4, 12)),
                            'split': random.choice(('even', 'even', 'uneven', 'one')),
                            'prefetch': random.choice(('', 'next', 'wrong'))}
    changes: List[Any] = [None] * 6 + ['rate', 'freeze', 'thaw', 'evaluate']
    step['change'] = random.choice(changes)
    step['table'] = random.randrange(tables)
    return step
