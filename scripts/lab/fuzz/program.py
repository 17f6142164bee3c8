"""A program as data, and properties of it for modules that draw, write, run and shrink programs.

A program is a dict that JSON can hold::

    {'seed': 17,
     'job': {'launcher': 'horovodrun', 'workers': 3, 'servers': 2, 'row_transport': 'auto'},
     'model': {'dtype': 'float32', 'devices': 1, 'bias': True, 'units': 3, 'add': False,
               'branches': [{'block': 'Branch', 'kind': 'weight', 'rows': 20, 'width': 4, 'uses': 1}]},
     'optimizer': {'name': 'sgd', 'options': {'learning_rate': 0.1}, 'scheduler': None},
     'asked': None, 'store': {'partitions': 2}, 'looks': True,
     'events': [{'do': 'step', 'seed': 5, 'samples': 9, 'use': ['all'], 'ids': 'any'}]}

A branch may have ``'shared': 0``, the number of the branch whose table it uses.  ``asked`` is the Trainer's
``update_on_kvstore``.  ``looks`` says whether all values are compared after every event; otherwise they are where the
program evaluates, and at its end, so that a look does not refresh the rows of a worker.
"""
from typing import Any, Dict, List, NamedTuple, Tuple

#: Optimizers whose settings and state bring float64 down to float32, or that refuse it.
FLOAT32 = ('adagrad', 'groupadagrad', 'ftrl', 'rmsprop', 'adadelta', 'dcasgd', 'ftml', 'lamb', 'nadam')


class Parameter(NamedTuple):
    """A parameter of a program's network."""

    #: Index in ``net.collect_params()``.
    number: int
    #: 'weight', 'gradient', 'dense' or 'tied' for tables, '' for others.
    kind: str
    rows: int
    #: Branch that it belongs to, -1 for trunk and output.
    branch: int


def parameters(model: Dict[str, Any]) -> List[Parameter]:
    """Return all parameters of a model, in the order of ``net.collect_params()``."""
    params: List[Parameter] = []
    for number, branch in enumerate(model['branches']):
        if 'shared' not in branch:
            params.append(Parameter(len(params), branch['kind'], branch['rows'], number))
        for _ in range(1 + bool(model['bias'])):
            params.append(Parameter(len(params), '', 0, number))
    for _ in range(2 * (1 + bool(model['bias']))):
        params.append(Parameter(len(params), '', 0, -1))
    return params


def has(program: Dict[str, Any], kind: str) -> bool:
    """Return whether the model has a table of a kind."""
    return any(branch['kind'] == kind for branch in program['model']['branches'])


def update_on_store(program: Dict[str, Any]) -> bool:
    """Return whether the store updates the weights: MXNet's Trainer insists on it where they are row_sparse."""
    return has(program, 'weight') or bool(program['asked'])


def optimizer_of(program: Dict[str, Any], number: int) -> Dict[str, Any]:
    """Return the optimizer after event `number`, counted from 0."""
    optimizer = program['optimizer']
    for event in program['events'][:number + 1]:
        optimizer = event.get('optimizer') or optimizer
    return optimizer


def tolerance(program: Dict[str, Any]) -> Tuple[float, float]:
    """Return the relative and absolute difference that needs no explanation; where rounding grows, `slack_of` adds."""
    if program['model']['dtype'] == 'float64' and not has(program, 'weight') and not has(program, 'gradient'):
        return 1e-9, 1e-10
    return 1e-5, 1e-6
