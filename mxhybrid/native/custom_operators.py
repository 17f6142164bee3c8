"""Operators in Python: each gets the arrays that it needs in its backward pass, whatever other operators need.

MXNet 1.9.1 keeps one set of the positions of arrays with a storage type of their own, that of the last operator that
was put into a graph (operator.py).  It asks for the type of each array at these positions, and fails for an operator
that does not have one of the arrays.  If there are several workers, the others then wait for ever.
"""
import itertools
from typing import Any, Dict, List

import mxnet as mx

#: The name in MXNet of all operators of this module.
_OPERATOR = 'mxhybrid_python'

#: Operators by their numbers in this process: MXNet passes texts to operators.
_operators: Dict[int, Any] = {}
_numbers = itertools.count(1)


class _EveryPosition:
    """A set of all positions."""

    def __contains__(self, position: int) -> bool:
        return True

    def add(self, position: int) -> None:
        """Do nothing: the position is in the set."""


_EVERY_POSITION = _EveryPosition()
_storage_type = mx.nd.sparse._storage_type


def _known_storage_type(handle: Any) -> int:
    """Return the storage type of an array; that of dense arrays if it has no memory."""
    return max(_storage_type(handle), mx.nd.ndarray._STORAGE_TYPE_DEFAULT)


mx.nd.sparse._storage_type = _known_storage_type
type(mx.operator._registry).result_deps = property(lambda registry: _EVERY_POSITION, lambda registry, positions: None)


class PythonOperator:
    """An operator of a graph, with numbers of inputs and outputs.  A derived class defines its computation:

    - ``infer_shapes(shapes)`` and ``infer_types(types)`` return those of the inputs, and of the outputs;
    - ``forward(inputs, requests, outputs)`` and ``backward(gradients, inputs, requests, targets)`` compute arrays; the
      requests say what becomes of the elements of each of them.
    """

    def __init__(self, inputs: int, outputs: int):
        self.counts = inputs, outputs
        self.number = next(_numbers)
        _operators[self.number] = self

    def custom_symbol(self, name: str, inputs: List[Any]) -> Any:
        """Return the symbol of its outputs, given those of its inputs."""
        return mx.sym.Custom(*inputs, op_type=_OPERATOR, number=str(self.number), name=name)

    def drop(self) -> None:
        """Release its memory: no graph calls it again."""
        _operators.pop(self.number, None)


class _Calls(mx.operator.CustomOp):
    """The operator that MXNet calls; it passes all calls on to a :class:`PythonOperator`."""

    def __init__(self, operator: Any):
        super().__init__()
        self._operator = operator

    def forward(self, is_train: bool, req: List[str], in_data: List[Any], out_data: List[Any], aux: List[Any]) -> None:
        self._operator.forward(in_data, req, out_data)

    def backward(self, req: List[str], out_grad: List[Any], in_data: List[Any], out_data: List[Any],
                 in_grad: List[Any], aux: List[Any]) -> None:
        self._operator.backward(out_grad, in_data, req, in_grad)


@mx.operator.register(_OPERATOR)
class _Properties(mx.operator.CustomOpProp):
    def __init__(self, number: str):
        super().__init__(need_top_grad=True)
        self._operator = _operators[int(number)]

    def list_arguments(self) -> List[str]:
        return ['input%d' % position for position in range(self._operator.counts[0])]

    def list_outputs(self) -> List[str]:
        return ['output%d' % position for position in range(self._operator.counts[1])]

    def infer_shape(self, in_shape: Any) -> Any:
        return (*self._operator.infer_shapes(in_shape), [])

    def infer_type(self, in_type: Any) -> Any:
        return (*self._operator.infer_types(in_type), [])

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> _Calls:
        return _Calls(self._operator)
