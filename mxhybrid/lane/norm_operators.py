"""Parts of a BatchNorm over several workers as operators in graphs, compiled, ``src/norm_operators.h``.

They take and give float32.  What they read is made by other operators of the graph, unless said otherwise: they write
gradients, and never add them.
"""
import ctypes
import functools
from typing import Any, List, NamedTuple, Sequence

from ..native.engine import function_address
from ..native.symbols import symbol_function
from . import library


@functools.lru_cache(maxsize=None)
def is_compiled() -> bool:
    """Whether there are such operators."""
    try:
        library.load()
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=None)
def _info(kind: str, *settings: Any) -> str:
    """An operator as MXNet knows it: it has no state, and stays, as graphs may run at any time.

    Sequences of integers and floats are tuples.
    """
    loaded = library.load()
    given = [one if not isinstance(one, tuple) else library.counts(one) if isinstance(one[0], int)
             else (ctypes.c_double * len(one))(*one) for one in settings]
    functions = [function_address(name) for name in ('MXNDArrayGetData', 'MXNDArrayFree')]
    made = loaded.checked(getattr(loaded, kind + '_operator_new')(*given, *functions))
    return '%x' % loaded.array_operator_info(made)


def moments_of(data: Any, shape: Sequence[int], axis: int, name: str) -> Any:
    """Return the symbol of mean and variance of each channel of data, of shape (1, 2, channels)."""
    return symbol_function('_NDArray')(data, info=_info('moments', len(shape), tuple(map(int, shape)), axis), name=name)


def joint_of(moments: Any, gamma: Any, beta: Any, shares: Sequence[float], channels: int, epsilon: float, name: str
             ) -> List[Any]:
    """Return the symbols of scale, shift, joint mean and joint variance of each channel.

    `moments` are those of several parts, of shape (parts, 2, channels); `shares` say how many of all elements each part
    has.  Normalised data is data * scale + shift.  The joint mean and variance have no gradient.
    """
    info = _info('joint', len(shares), tuple(map(float, shares)), channels, float(epsilon))
    return list(symbol_function('_NDArray')(moments, gamma, beta, info=info, name=name))


class NextAverage(NamedTuple):
    """The next value of a running average.

    Attributes
    ----------
    following : Symbol
        An input of the graph; its gradient is the next value, which replaces what is there.
    average : Symbol
        The average, which may be an input of the graph.
    values : sequence of Symbol
        The statistics that go into it; they have no gradient.
    factors : sequence of float
        The factor of the average, then those of the values.
    channels : int
    """

    following: Any
    average: Any
    values: Sequence[Any]
    factors: Sequence[float]
    channels: int


def next_averages(every: Sequence[NextAverage]) -> Any:
    """Return the symbol of a number without a meaning, whose backward pass computes the next averages."""
    inputs = [symbol for each in every for symbol in (each.following, each.average, *each.values)]
    info = _info('average', len(every), tuple(each.channels for each in every),
                 tuple(len(each.factors) for each in every),
                 tuple(float(factor) for each in every for factor in each.factors))
    return symbol_function('_NDArray')(*inputs, info=info, name='mxhybrid_averages')
