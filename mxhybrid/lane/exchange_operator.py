"""An exchange as an operator in graphs that MXNet's engine calls without Python, compiled,
``src/exchange_operator.h``.
"""
import weakref
from typing import Any, List, Optional, Tuple

from ..native.engine import function_address
from ..native.symbols import symbol_function
from . import library
from .transfers import PersistentTransfer

Shape = Optional[Tuple[int, ...]]


class ExchangeOperator:
    """Two transfers of arrays of float32, forwards and backwards; this object has to live as long as graphs with it
    run.

    Whatever a graph has it write is to be written, never added, as MXNet does not tell it: it may read no input of the
    graph and write no output of it, nor be one of so many readers that MXNet adds up their gradients in place.  Where a
    graph's own inputs and outputs are concerned, MXNet 1.9.1 moreover frees a copy in its default layout of what is
    given before the transfer is made (imperative_utils.h); in between, with ``static_alloc`` and ``static_shape``, an
    executor keeps that (attach_op_execs_pass.cc).
    """

    def __init__(self, forward: PersistentTransfer, backward: PersistentTransfer, input_shape: Shape,
                 output_shape: Shape):
        self._library = library.load()
        shapes = [part for shape in (input_shape, output_shape)
                  for part in (-1 if shape is None else len(shape), library.counts(shape or ()))]
        functions = [function_address(name) for name in ('MXNDArrayGetData', 'MXNDArrayFree', 'MXEnginePushAsyncND')]
        pointer = self._library.checked(self._library.exchange_operator_new(forward.pointer, backward.pointer, *shapes,
                                                                            *functions))
        self._info = self._library.exchange_operator_info(pointer)
        weakref.finalize(self, self._library.exchange_operator_close, pointer).atexit = False

    def symbol(self, name: str, inputs: List[Any]) -> Any:
        """The operator in a graph, of the token and what is given if that is anything: the token, and what is taken if
        that is anything.
        """
        # As NDArrayOp of MXNet, which warns that it is old, makes it.
        return symbol_function('_NDArray')(*inputs, info='%x' % self._info, name=name)
