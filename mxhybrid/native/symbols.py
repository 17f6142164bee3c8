"""Operators of MXNet by their names in the JSON of a symbol; and what autograd has recorded about an array."""
import ctypes
import functools
import math
from typing import Any, Sequence, Tuple

import mxnet as mx
from mxnet.base import _LIB
from mxnet.symbol import Symbol

from .engine import operator_handle
from .last_error import expected_errors

#: Operators that make an array of one value, with the attributes ``shape`` and ``dtype``.
CONSTANTS = ('_zeros', '_ones', '_full')


@functools.lru_cache(maxsize=None)
def symbol_function(op: str) -> Any:
    """Return the function that makes the symbol of an operator; AttributeError if MXNet has no such operator."""
    function = getattr(mx.sym, op, None) or getattr(mx.sym._internal, op, None)
    if function is not None:
        return function
    # Other operators have functions under other names, as _linalg_gemm2 has mx.sym.linalg.gemm2, or only functions for
    # NumPy arrays.
    return mx.symbol.register._make_symbol_function(_handle_of(op), 'mxhybrid' + op, 'mxhybrid' + op)


def _handle_of(op: str) -> ctypes.c_void_p:
    try:
        return operator_handle(op.encode())
    except mx.base.MXNetError as error:
        raise AttributeError('MXNet %s has no operator %s' % (mx.__version__, op)) from error


def is_differentiable(symbol: Any) -> bool:
    """Return whether MXNet can compile a graph with its backward pass, in which gradients go back to all variables."""
    with expected_errors():
        try:
            mx.nd.CachedOp(symbol, [])
        except mx.base.MXNetError as error:
            return 'non-differentiable' not in str(error)
    return True


@functools.lru_cache(maxsize=None)
def passes_gradient(op: str, inputs: int, attrs: Tuple[Tuple[str, str], ...], position: int) -> bool:
    """Return whether MXNet does not know the gradient of an input to be zero: it accepts an operator without a gradient
    as the source of any other input.
    """
    symbols = [mx.sym.var('input%d' % number) for number in range(inputs)]
    symbols[position] = mx.sym.random.shuffle(symbols[position])
    return not is_differentiable(_with_inputs(op, symbols, attrs))


@functools.lru_cache(maxsize=None)
def has_gradient(op: str, inputs: int, attrs: Tuple[Tuple[str, str], ...]) -> bool:
    """Return whether MXNet can compile a graph in which a gradient goes back to an operator with these attributes."""
    return is_differentiable(_with_inputs(op, [mx.sym.var('input%d' % number) for number in range(inputs)], attrs))


def _with_inputs(op: str, inputs: Sequence[Any], attrs: Tuple[Tuple[str, str], ...]) -> Any:
    """Return the symbol of an operator with the inputs that it has: functions of Python name optional inputs, too, such
    as the lengths of CTCLoss.
    """
    keys, values = [key for key, _ in attrs], [value for _, value in attrs]
    return mx.symbol.register._symbol_creator(_handle_of(op).value, list(inputs), None, keys, values, 'operator', False)


def part_of(symbol: Any, shape: Sequence[int], part: Sequence[slice]) -> Any:
    """Return the symbol of a part of an array of a shape; MXNet's slice takes at most five dimensions."""
    if len(shape) <= 5:
        return mx.sym.slice(symbol, begin=tuple(side.start for side in part), end=tuple(side.stop for side in part))
    lengths = list(shape)
    for axis, side in enumerate(part):
        if axis == 0 or side != slice(0, lengths[axis]):
            symbol = mx.sym.slice(mx.sym.reshape(symbol, shape=_around(lengths, axis)),
                                  begin=(None, side.start, None), end=(None, side.stop, None))
            lengths[axis] = side.stop - side.start
    return mx.sym.reshape(symbol, shape=lengths)


def joined_along(functions: Any, axis: int, arrays: Sequence[Any], shapes: Sequence[Sequence[int]]) -> Any:
    """Return arrays joined along an axis by `functions`, ``mx.sym`` or ``mx.nd``; oneDNN takes up to six dimensions."""
    joined = functions.concat(*[functions.reshape(array, shape=_around(shape, axis))
                                for array, shape in zip(arrays, shapes)], dim=1)
    lengths = list(shapes[0])
    lengths[axis] = sum(shape[axis] for shape in shapes)
    return functions.reshape(joined, shape=lengths)


def _around(shape: Sequence[int], axis: int) -> Tuple[int, int, int]:
    """Return the shape of an array whose dimensions before and behind an axis are one each."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])


def wants_gradient(array: Any) -> bool:
    """Return whether an array has a gradient, or was computed from arrays with gradients while that was recorded.

    The time grows with the number of recorded operators.
    """
    handle = ctypes.c_void_p()
    with expected_errors():
        if _LIB.MXAutogradGetSymbol(array.handle, ctypes.byref(handle)):  # an error means that nothing was recorded
            return False
    # By the names of imperative.cc of MXNet 1.9.1: arrays without a gradient are null0, null1 and so on.
    return any(name.startswith('var') for name in Symbol(handle).list_inputs())


def copied_input(symbol: Any) -> Any:
    """Return a symbol that a compiled operator may read: a copy of an input of the graph, whose gradients may have to
    be added.
    """
    return mx.sym.identity(symbol) if symbol.list_outputs() == symbol.list_inputs() else symbol
