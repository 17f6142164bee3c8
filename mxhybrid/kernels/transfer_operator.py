"""A transfer as an operator in graphs, compiled in ``src/operators/transfer_operator.h``, which MXNet's engine calls
without Python.
"""
from typing import Any, List, Optional, Tuple

from . import library
from .norm_operators import CompiledOperator

Shape = Optional[Tuple[int, ...]]


class TransferOperator(CompiledOperator):
    """An operator that runs one transfer of float32 arrays, a :class:`mxhybrid.lane.transfers.PersistentTransfer`,
    forwards and another one backwards.

    The operator overwrites its outputs and gradients, since MXNet does not tell it when to add to them.  Therefore it
    may not read an input of the graph, write an output of the graph, or read an array for which MXNet adds up the
    gradients of its many readers in place.

    Moreover, if one of its arrays is an input or output of a graph, MXNet 1.9.1 converts any array of the operator from
    a layout of oneDNN to a copy in the default layout, and frees this copy before the transfer is complete
    (PushOperator of imperative_utils.h).  Other arrays stay, with ``static_alloc`` and ``static_shape``
    (attach_op_execs_pass.cc).  The gradients of the graph's inputs and outputs count, too: a sum and its terms have one
    gradient array (CloneGradient of elemwise_op_common.h), so no sum of inputs of the graph, nor a term of an output,
    may be an array of the operator.  This holds for the token as well.
    """

    def __init__(self, forward: Any, backward: Any, input_shape: Shape, output_shape: Shape):
        shapes = [part for shape in (input_shape, output_shape)
                  for part in (-1 if shape is None else len(shape), library.counts(shape or ()))]
        super().__init__('transfer', forward.pointer, backward.pointer, *shapes, pushes=True)

    def symbol(self, name: str, inputs: List[Any]) -> Any:
        """Return the operator in a graph: its inputs are a token and, if there is one, the input array; its outputs are
        the token and, if there is one, the output array.
        """
        return self.in_graph(*inputs, name=name)
