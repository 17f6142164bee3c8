"""Plans as JSON, in files and as users give them."""
import json
from typing import Any, Mapping

import numpy as np

from ...base import json_text
from ...base.errors import InputError
from ...base.files import write_atomically
from ..sharding.split import Split
from .megatron import megatron
from .pipeline_plan import pipeline
from .plan import Plan
from .stages import stages_from_json
from .store_plan import store_plan_from_json
from .strategies import Explicit, Layers, OneWeirdTrick, grid

#: The format of files.
_FORMAT = 'mxhybrid.parallel 2'

#: Keys of a plan by its kind, of an operator, and of all plans.
_KEYS = {'grid': {'model', 'batch', 'domain', 'sequence'}, 'layers': {'layers'},
         'megatron': {'model', 'batch', 'sequence'},
         'explicit': {'model', 'workers', 'cluster', 'operators', 'pipeline'},
         'pipeline': {'stages', 'micro_batches', 'schedule', 'inside'}}
_OF_OPERATORS = {'degrees', 'partials', 'copies', 'ranks'}
_COMMON = {'format', 'plan', 'tables', 'recompute'}


def from_json(value: Mapping[str, Any]) -> Plan:
    """Return the plan that :meth:`Plan.as_json` wrote; InputError for any other value."""
    plan = _from_json(value)
    known = _COMMON | _KEYS.get(value['plan'], set())
    unknown = sorted(set(map(str, value)) - known)
    if unknown:
        raise InputError('plan: %s is not a key of a plan of kind %r: remove it; the keys are %s'
                         % (unknown[0], value['plan'], ', '.join(sorted(known))))
    plan = plan.with_store(store_plan_from_json(value))
    return plan.with_recompute(value['recompute']) if 'recompute' in value else plan


def _from_json(value: Mapping[str, Any]) -> Plan:
    kind = value.get('plan') if isinstance(value, Mapping) else None
    if kind == 'data_parallel':
        return Plan()
    if kind == 'one_weird_trick':
        return OneWeirdTrick()
    if kind == 'grid':
        return grid(value.get('model', 1), value.get('batch', 1), value.get('domain', ()), value.get('sequence', 1))
    if kind == 'megatron':
        if 'model' not in value:
            raise InputError("plan: 'megatron' has no model: give the number of workers of a group")
        return megatron(value['model'], value.get('batch', 1), value.get('sequence', False))
    if kind == 'layers' and isinstance(value.get('layers'), Mapping):
        return Layers(value['layers'])
    if kind == 'explicit':
        return _explicit(value)
    if kind == 'pipeline':
        inside = value.get('inside')
        stages: Any = value.get('stages')
        micro_batches: Any = value.get('micro_batches')
        return pipeline(stages, micro_batches, value.get('schedule', '1f1b'),
                        None if inside is None else from_json(inside))
    raise InputError("plan: %r is not a plan: give 'plan' as 'data_parallel', 'one_weird_trick', 'grid', 'megatron', "
                     "'pipeline' or 'layers'" % (value,))


def _explicit(value: Mapping[str, Any]) -> Plan:
    try:
        splits = {}
        for label, split in value['operators'].items():
            unknown = sorted(set(map(str, split)) - _OF_OPERATORS)
            if unknown:
                raise ValueError('%s has the key %r: remove it; the keys are %s'
                                 % (label, unknown[0], ', '.join(sorted(_OF_OPERATORS))))
            degrees, ranks = [[_whole(number, label, key) for number in split[key]] for key in ('degrees', 'ranks')]
            partials, copies = [_whole(split.get(key, 1), label, key) for key in ('partials', 'copies')]
            if min(degrees + [partials, copies, 1]) < 1 or len(set(ranks)) != len(ranks) or len(ranks) != int(
                    np.prod(degrees)) * partials * copies:
                raise ValueError('%s has %s: give distinct ranks, whose number is the product of degrees, partials '
                                 'and copies' % (label, split))
            splits[label] = Split(degrees, ranks, partials, copies)
        cluster, workers = value.get('cluster'), _whole(value['workers'], 'the plan', 'workers')
        stages = stages_from_json(value['pipeline'], splits, workers) if 'pipeline' in value else None
        return Explicit(splits, str(value['model']), workers, None if cluster is None else str(cluster), stages=stages)
    except KeyError as error:
        raise InputError('plan: %s is missing: give a plan that mxhybrid.parallel.save has written' % error) from error
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError('plan: not a valid explicit plan (%s): give a plan that mxhybrid.parallel.save has written'
                         % error) from error


def _whole(number: Any, owner: str, key: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError('%s has %r in %s: give whole numbers' % (owner, number, key))
    return number


def as_plan(plan: Any) -> Plan:
    """Return the plan that a user gave: a plan, a dict by pattern, or the name of a file."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Mapping):
        return from_json(plan) if isinstance(plan.get('plan'), str) else Layers(plan)
    if isinstance(plan, str):
        return load(plan)
    raise InputError('parallelize: plan=%r is not a plan: give a plan of mxhybrid.parallel, a dict by names of layers, '
                     'or the name of a JSON file' % (plan,))


def save(path: str, plan: Plan) -> None:
    """Write a plan to a file; InputError if it cannot be written."""
    text = json.dumps({'format': _FORMAT, **plan.as_json()}, indent=1)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError('plan: cannot write %s: %s: give the name of a file in a directory that exists'
                         % (path, error)) from error


def load(path: str) -> Plan:
    """Read a plan from a file; InputError for any other file."""
    try:
        with open(path, encoding='utf-8') as file:
            value = json_text.parse(file.read())
    except OSError as error:
        raise InputError("plan: cannot read the file %s: %s: give the name of a plan's file, a plan of "
                         'mxhybrid.parallel, or a dict by names of layers' % (path, error.strerror)) from error
    except ValueError as error:
        raise InputError('plan: cannot read %s: %s: give a file that mxhybrid.parallel.save has written'
                         % (path, error)) from error
    file_format = value.get('format') if isinstance(value, dict) else None
    if file_format != _FORMAT:
        raise InputError('plan: %s has format %r, but this version reads %r: write it again with mxhybrid.parallel.save'
                         % (path, file_format, _FORMAT))
    return from_json(value)
