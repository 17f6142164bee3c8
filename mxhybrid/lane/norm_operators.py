"""Operators in graphs that compute a worker's part of a BatchNorm, compiled, ``src/norm_operators.h``."""
import functools
from typing import Any, Optional, Tuple

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
def _info(scales: bool, shape: Tuple[int, ...], axis: int) -> int:
    """The operator for arrays of a shape: it has no state, and stays, as graphs may run at any time."""
    loaded = library.load()
    functions = [function_address(name) for name in ('MXNDArrayGetData', 'MXNDArrayFree')]
    made = loaded.checked(loaded.norm_operator_new(scales, len(shape), library.counts(shape), axis, *functions))
    return int(loaded.norm_operator_info(made))


def copy_with_moments(data: Any, shape: Tuple[int, ...], axis: int, name: Optional[str] = None) -> Any:
    """Copy data of float32, an output of another operator, to its default layout, and compute means and variances of
    its channels, of shape (1, 2, channels): both symbols.
    """
    return symbol_function('_NDArray')(data, info='%x' % _info(False, tuple(shape), axis), name=name)


def scale_channels(data: Any, center: Any, scale: Any, shift: Any, shape: Tuple[int, ...], axis: int,
                   name: Optional[str] = None) -> Any:
    """(data - center) * scale + shift, of each channel; the center has no gradient, and must not be asked for one."""
    info = '%x' % _info(True, tuple(shape), axis)
    return symbol_function('_NDArray')(data, center, scale, shift, info=info, name=name)
