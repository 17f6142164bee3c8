"""The first values of a dynamic table's rows, from an initializer of MXNet.

A row's first value is a function of the table's seed and the row's key, so an initializer that depends on the whole
array, or on other rows, has no counterpart.
"""
import math
from typing import Any

import mxnet as mx

from ..base.errors import InputError
from ..row_store.row_store import FirstValues

_ALLOWED = 'Zero, One, Constant of a number, Uniform, Normal, Xavier'


def first_values_of(initializer: Any, table: str, width: int, seed: int) -> FirstValues:
    """Return the first values that an initializer, or the name of one, gives to rows of `width` elements.

    Xavier's number of inputs and outputs is the width: the number of rows says nothing about a row that is looked up.
    """
    created = _created(initializer, table)
    kind = type(created)
    if kind is mx.initializer.Zero:
        return FirstValues('zero', 0.0, seed)
    if kind is mx.initializer.One:
        return FirstValues('constant', 1.0, seed)
    if kind is mx.initializer.Constant:
        return FirstValues('constant', _number(created.value, table, 'Constant'), seed)
    if kind is mx.initializer.Uniform:
        return FirstValues('uniform', _number(created.scale, table, 'Uniform'), seed)
    if kind is mx.initializer.Normal:
        return FirstValues('normal', _number(created.sigma, table, 'Normal'), seed)
    if kind is mx.initializer.Xavier:
        if created.factor_type not in ('avg', 'in', 'out') or created.rnd_type not in ('uniform', 'gaussian'):
            raise InputError('%s: Xavier(rnd_type=%r, factor_type=%r) is not known: give rnd_type uniform or gaussian, '
                             'and factor_type avg, in or out' % (table, created.rnd_type, created.factor_type))
        return FirstValues('uniform' if created.rnd_type == 'uniform' else 'normal',
                           math.sqrt(created.magnitude / width), seed)
    raise InputError("%s: initializer %s cannot give first values to a dynamic table, whose rows are made one by one "
                     "when they are touched. Use one of %s: weight_initializer=mx.init.Normal(0.01) for example"
                     % (table, kind.__name__, _ALLOWED))


def _created(initializer: Any, table: str) -> Any:
    """Return the initializer that an object, or the name of one, stands for."""
    try:
        return mx.initializer.create(initializer)
    except (AssertionError, TypeError, ValueError):  # MXNet asserts that it knows the name, for example
        name = repr(initializer) if isinstance(initializer, str) else type(initializer).__name__
        raise InputError('%s: %s is no initializer that MXNet creates: use one of %s' % (table, name, _ALLOWED)
                         ) from None


def _number(value: Any, table: str, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError('%s: %s(%s) does not have a single number: a dynamic table has no array of its shape. '
                         'Give a number' % (table, name, type(value).__name__)) from None
    if not math.isfinite(number):
        raise InputError('%s: %s(%r) is not a finite number: give a finite one' % (table, name, number))
    return number
