"""An exchange as an operator of MXNet's graph, which takes no thread while it waits.

A token goes from each exchange to the next one, so that all ranks make them in one order, and backward in the reverse:
memory that MXNet uses again would else have exchanges wait for each other in circles.
"""
import itertools
from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple

import mxnet as mx
import numpy as np

from ...lane.exchange_operator import ExchangeOperator
from ...native.arrays import host_view
from ...native.engine import Deferred, Notifier
from ...telemetry.recorder import OFF, AnyRecorder
from .redistribution import Redistribution, Transfer

#: Name of the operator.
OPERATOR = 'mxhybrid_exchange'

#: MXNet hands texts to operators: exchanges by their numbers in this process.
_redistributions: Dict[int, 'RedistributionOperator'] = {}
_numbers = itertools.count(1)


class Carrier(Protocol):
    """What moves pieces between ranks."""

    def begin(self, transfer: Transfer, source: Optional[np.ndarray], target: Optional[np.ndarray],
              done: Callable[[], None]
              ) -> None:
        """Make a move from one array to the other, both of which stay as they are until ``done()`` is called."""


class Transport(Protocol):
    """Moves arrays, as operations of MXNet's engine that nobody waits for."""

    def push(self, transfer: Transfer, source: Any, target: Any, others: List[Any], adds: bool = False) -> None:
        """Have the engine make a move; `source` is there already, `others` are held back, too, until it is made.

        `source` and `target` may be None; with `adds`, the target keeps what it has, and more is added.
        """

    def push_views(self, transfer: Transfer, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        """Have the engine make a move from one NumPy array to the other, which are the memory of `arrays`."""

    def operator(self, redistribution: Redistribution) -> Optional[ExchangeOperator]:
        """What makes an exchange without Python; None where nothing does."""

    def forget(self, transfers: List[Transfer]) -> None:
        """They will not be made any more, when what is under way is done."""


class CarrierTransport:
    """Moves arrays by a carrier, as operations of MXNet's engine that nobody waits for."""

    def __init__(self, carrier: Carrier):
        self._deferred = Deferred(lambda what, done: carrier.begin(what[0], what[1], what[2], done))

    def push(self, transfer: Transfer, source: Any, target: Any, others: List[Any], adds: bool = False) -> None:
        """See :class:`Transport`."""
        arrays = others if target is None else others + [target]
        given = None if source is None else host_view(source)
        taken = None if target is None else host_view(target)
        if not adds:
            self._deferred.push(arrays, (transfer, given, taken))
            return
        scratch = mx.nd.empty(target.shape, dtype=target.dtype, ctx=mx.cpu())
        self._deferred.push([scratch], (transfer, given, host_view(scratch)))
        target += scratch
        for other in others:
            other[:] = 0

    def push_views(self, transfer: Transfer, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        """See :class:`Transport`."""
        self._deferred.push(arrays, (transfer, source, target), priority)

    def operator(self, redistribution: Redistribution) -> Optional[ExchangeOperator]:
        """A carrier is Python."""
        return None

    def forget(self, transfers: List[Transfer]) -> None:
        """A carrier keeps nothing of them."""


class RedistributionOperator:
    """An exchange that a program makes, and who carries it."""

    def __init__(self, redistribution: Redistribution, transport: Transport, differentiable: bool,
                 on_failure: Callable[[BaseException], None], trace: AnyRecorder = OFF):
        self.redistribution, self._transport, self._differentiable = redistribution, transport, differentiable
        self._on_failure = on_failure
        self._trace: Any = trace
        self._notifier = Notifier() if trace.enabled else None
        self.number = next(_numbers)
        #: What makes it without Python, where something does and nobody has to look on.
        self._operator: Optional[ExchangeOperator] = None
        _redistributions[self.number] = self

    def forget(self) -> None:
        """Nobody calls it any more."""
        if self._operator is not None:
            mx.nd.waitall()  # what is under way needs it
        _redistributions.pop(self.number, None)
        self._transport.forget([self.redistribution.forward, self.redistribution.backward])

    def symbol(self, token: Any, given: Any, plain: bool = False) -> Tuple[Any, Any]:
        """The operator in a graph: the token after it, and what the rank gets, None if that is nothing.

        `plain`: the gradient of what is given is wanted, and never added up in place, or none goes back.
        """
        name = 'exchange%d' % self.number
        if plain and self._notifier is None:
            self._operator = self._transport.operator(self.redistribution)
        inputs = [token] if given is None else [token, given]
        if not self._differentiable:
            inputs = [mx.sym.BlockGrad(one) for one in inputs]
        if self._operator is not None:
            # It may read no input of the graph.
            made = self._operator.symbol(name, [mx.sym.identity(one) if _is_input(one) else one for one in inputs])
        else:
            inputs[1:] = [mx.sym.stack(one, axis=0) for one in inputs[1:]]
            made = mx.sym.Custom(*inputs, op_type=OPERATOR, number=str(self.number), name=name)
        after, taken = (made, None) if self.redistribution.target is None else (made[0], made[1])
        if taken is not None and self._operator is None:
            taken = mx.sym.SliceChannel(taken, num_outputs=1, axis=0, squeeze_axis=True)
        # Backward goes past an exchange of which nothing goes back: that would wait in the engine's queue for its turn.
        return after if self._differentiable else token + mx.sym.BlockGrad(after), taken

    def ending(self, made: Any) -> Any:
        """What a graph may have as an output, of what the operator makes."""
        return made if self._operator is None else mx.sym.identity(made)

    def forward(self, source: Any, token: Any, target: Any) -> None:
        """Begin it."""
        try:
            ends = self._begins(self.redistribution.forward)
            self._transport.push(self.redistribution.forward, _inner(source), _inner(target), [token])
            ends(token)
        except BaseException as error:
            self._on_failure(error)

    def backward(self, gradient: Any, token: Any, target: Any, request: str) -> None:
        """Begin its reverse."""
        try:
            if target is not None and request == 'null':
                target = mx.nd.empty(target.shape, dtype=target.dtype, ctx=mx.cpu())
            ends = self._begins(self.redistribution.backward)
            self._transport.push(self.redistribution.backward, _inner(gradient), _inner(target), [token],
                                 request == 'add')
            ends(token)
        except BaseException as error:
            self._on_failure(error)

    def _begins(self, transfer: Transfer) -> Callable[[Any], None]:
        """Record that a move begins; the function that is returned records its end, which makes an array."""
        if self._notifier is None:
            return lambda array: None
        trace, notifier, number = self._trace, self._notifier, self._trace.new_id()
        label = 'exchange %s%s' % (self.redistribution.label,
                                   '' if transfer is self.redistribution.forward else ', backward')
        trace.begin(label, number, 'exchange', {'bytes': transfer.bytes_sent(self.redistribution.dtype.itemsize)})
        return lambda array: notifier.when_ready(array, lambda: trace.end(label, number, 'exchange'))


def _is_input(symbol: Any) -> bool:
    """Of a graph."""
    return bool(symbol.list_outputs() == symbol.list_inputs())


def _inner(array: Any) -> Any:
    """Without the dimension in front."""
    return None if array is None else array.reshape(array.shape[1:])


class _PythonRedistribution(mx.operator.CustomOp):
    """Inputs are the token and, with a dimension of 1 in front, what the rank gives; outputs likewise.

    Arrays in a layout of oneDNN would reach Python as freed memory: what makes that dimension, and what takes it away,
    are operators that know no such layout, forwards as backwards (imperative_utils.h and custom.cc of MXNet 1.9.1).
    """

    def __init__(self, node: RedistributionOperator):
        super().__init__()
        self._node = node

    def forward(self, is_train: bool, req: List[str], in_data: List[Any], out_data: List[Any], aux: List[Any]) -> None:
        self._node.forward(in_data[1] if len(in_data) > 1 else None, out_data[0],
                           out_data[1] if len(out_data) > 1 else None)

    def backward(self, req: List[str], out_grad: List[Any], in_data: List[Any], out_data: List[Any],
                 in_grad: List[Any], aux: List[Any]) -> None:
        self._node.backward(out_grad[1] if len(out_grad) > 1 else None, in_grad[0],
                            in_grad[1] if len(in_grad) > 1 else None, req[1] if len(req) > 1 else 'null')


@mx.operator.register(OPERATOR)
class _Properties(mx.operator.CustomOpProp):
    # declare_backward_dependency stays MXNet's: operator.py of MXNet 1.9.1 keeps the first answer for all of a name.

    def __init__(self, number: str):
        super().__init__(need_top_grad=True)
        self._node = _redistributions[int(number)]

    def list_arguments(self) -> List[str]:
        return ['token'] + ['given'] * (self._node.redistribution.source is not None)

    def list_outputs(self) -> List[str]:
        return ['after'] + ['taken'] * (self._node.redistribution.target is not None)

    def infer_shape(self, in_shape: Any) -> Any:
        source, target = self._node.redistribution.shapes
        return ([(1,)] + ([] if source is None else [(1,) + source]),
                [(1,)] + ([] if target is None else [(1,) + target]), [])

    def infer_type(self, in_type: Any) -> Any:
        dtype = self._node.redistribution.dtype.type
        source, target = self._node.redistribution.shapes
        return ([np.float32] + ([] if source is None else [dtype]), [np.float32] + ([] if target is None else [dtype]),
                [])

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> _PythonRedistribution:
        return _PythonRedistribution(self._node)
