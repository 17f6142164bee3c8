"""Operators of MXNet's graphs for a BatchNorm over several workers, compiled in ``src/operators/norm_operators.h``.

Inputs and outputs are float32.  Unless a function says otherwise, its inputs must be outputs of other operators of the
graph: the operators overwrite gradients and never add to them.
"""
import ctypes
import functools
import weakref
from typing import Any, List, NamedTuple, Sequence

from ..native.engine import function_address
from ..native.symbols import symbol_function
from . import library


class CompiledOperator:
    """An operator on arrays, which must live as long as graphs with it run.

    `kind` is the first word of the compiled function that makes it, and `settings` are the parameters of that function,
    sequences of integers or floats as tuples.  An operator that `pushes` gives operations to the engine.
    """

    def __init__(self, kind: str, *settings: Any, pushes: bool = False):
        loaded = library.load()
        arguments = [setting if not isinstance(setting, tuple)
                     else library.counts(setting) if isinstance(setting[0], int)
                     else (ctypes.c_double * len(setting))(*setting) for setting in settings]
        names = ['MXNDArrayGetData', 'MXNDArrayFree'] + ['MXEnginePushAsyncND'] * pushes
        pointer = getattr(loaded, kind + '_operator_new')(*arguments, *map(function_address, names))
        self._info = '%x' % loaded.array_operator_info(pointer)
        weakref.finalize(self, loaded.array_operator_close, pointer).atexit = False

    def in_graph(self, *inputs: Any, name: str) -> Any:
        """Return the symbol of the operator, by the same call as MXNet's NDArrayOp, which warns that it is deprecated.
        """
        return symbol_function('_NDArray')(*inputs, info=self._info, name=name)


@functools.lru_cache(maxsize=None)
def lasting_operator(kind: str, *settings: Any) -> CompiledOperator:
    """Return an operator that is never deleted, since it has no state, and graphs may run at any time."""
    return CompiledOperator(kind, *settings)


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
    operator = lasting_operator('average', len(arrays), tuple(value.size for value in arrays),
                                len(averages), tuple(average.channels for average in averages),
                                tuple(float(average.factors[0]) for average in averages),
                                tuple(len(average.values) for average in averages), tuple(numbers),
                                tuple(value.offset for average in averages for value in average.values),
                                tuple(float(factor) for average in averages for factor in average.factors[1:]))
    inputs = [value.array for value in arrays]
    inputs += [symbol for average in averages for symbol in (average.following, average.average)]
    return operator.in_graph(*inputs, name='mxhybrid_averages')
