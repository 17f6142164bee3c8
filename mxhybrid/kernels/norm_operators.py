"""Operators of MXNet's graphs for a BatchNorm over several workers, compiled in ``src/operators/norm_operators.h``.

Inputs and outputs are float32.  Unless a function says otherwise, its inputs must be outputs of other operators of the
graph: the operators overwrite gradients and never add to them.
"""
import ctypes
import functools
from typing import Any, List, NamedTuple, Sequence

from ..native.engine import function_address
from ..native.symbols import symbol_function
from . import library


@functools.lru_cache(maxsize=None)
def is_compiled() -> bool:
    """Return whether the operators are compiled."""
    try:
        library.load()
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=None)
def operator_info(kind: str, *settings: Any) -> str:
    """Return MXNet's text for an operator.  Operators have no state and are never deleted, since graphs may run at any
    time.

    Sequences of integers or floats must be tuples.
    """
    loaded = library.load()
    arguments = [setting if not isinstance(setting, tuple)
                 else library.counts(setting) if isinstance(setting[0], int)
                 else (ctypes.c_double * len(setting))(*setting) for setting in settings]
    functions = [function_address(name) for name in ('MXNDArrayGetData', 'MXNDArrayFree')]
    handle = loaded.checked(getattr(loaded, kind + '_operator_new')(*arguments, *functions))
    return '%x' % loaded.array_operator_info(handle)


class Statistics(NamedTuple):
    """Statistics of channels: a part of an array, which has no gradient."""

    #: An array of one dimension.
    array: Any
    #: The number of its elements.
    size: int
    #: The position of the first channel.
    offset: int = 0


class NextAverage(NamedTuple):
    """The next value of a running average."""

    #: An input of the graph.  Its gradient becomes the next value, which overwrites the gradient array.
    following: Any
    #: The average, which may be an input of the graph.
    average: Any
    #: The statistics that go into it.
    values: Sequence[Statistics]
    #: The factor of the average, then those of the values.
    factors: Sequence[float]
    channels: int


def next_averages(averages: Sequence[NextAverage]) -> Any:
    """Return a symbol whose backward pass computes the next averages; its value has no meaning."""
    arrays: List[Statistics] = []
    numbers = []
    for value in (value for average in averages for value in average.values):
        # An array may have the statistics of several averages.
        number = next((at for at, known in enumerate(arrays) if known.array is value.array), len(arrays))
        if number == len(arrays):
            arrays.append(value)
        numbers.append(number)
    info = operator_info('average', len(arrays), tuple(value.size for value in arrays),
                         len(averages), tuple(average.channels for average in averages),
                         tuple(float(average.factors[0]) for average in averages),
                         tuple(len(average.values) for average in averages), tuple(numbers),
                         tuple(value.offset for average in averages for value in average.values),
                         tuple(float(factor) for average in averages for factor in average.factors[1:]))
    inputs = [value.array for value in arrays]
    inputs += [symbol for average in averages for symbol in (average.following, average.average)]
    return symbol_function('_NDArray')(*inputs, info=info, name='mxhybrid_averages')
