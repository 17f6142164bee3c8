"""Parts of a BatchNorm over several workers as operators in graphs, compiled, ``src/norm_operators.h``.

They take and give float32.  What they read is made by other operators of the graph, unless said otherwise: they write
gradients, and never add them.
"""
import ctypes
import functools
from typing import Any, List, Sequence, Tuple

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
    """An operator as MXNet knows it: it has no state, and stays, as graphs may run at any time."""
    loaded = library.load()
    given = [library.counts(one) if kind == 'moments' and isinstance(one, tuple)
             else (ctypes.c_double * len(one))(*one) if isinstance(one, tuple) else one for one in settings]
    functions = [function_address(name) for name in ('MXNDArrayGetData', 'MXNDArrayFree')]
    made = loaded.checked(getattr(loaded, kind + '_operator_new')(*given, *functions))
    return '%x' % loaded.array_operator_info(made)


def moments_of(data: Any, shape: Sequence[int], axis: int, name: str) -> Any:
    """The symbol of mean and variance of each channel of data, of shape (1, 2, channels)."""
    return symbol_function('_NDArray')(data, info=_info('moments', len(shape), tuple(shape), axis), name=name)


def joint_of(moments: Any, gamma: Any, beta: Any, shares: Sequence[float], channels: int, epsilon: float, name: str
             ) -> List[Any]:
    """The symbols of scale, shift, joint mean and joint variance of each channel.

    `moments` are those of several parts, of shape (parts, 2, channels); `shares` say how many of all elements each part
    has.  Normalised is data * scale + shift.  The joint mean and variance have no gradient.
    """
    info = _info('joint', len(shares), tuple(map(float, shares)), channels, float(epsilon))
    return list(symbol_function('_NDArray')(moments, gamma, beta, info=info, name=name))


def next_average(following: Any, average: Any, values: Sequence[Any], factors: Tuple[float, ...], count: int) -> Any:
    """The symbol of a number without a meaning.

    Whatever its gradient is, that of `following` is the next running average: the sum of the average and of values,
    each times its factor.  `average` may be an input of the graph, and is read in the backward pass.
    """
    return symbol_function('_NDArray')(following, average, *values, info=_info('average', len(factors), factors, count))
