"""A redistribution as an operator of MXNet's graph, which holds no thread while it waits.

A token goes from each redistribution to the next one, so that all ranks begin them in one order, and in the reverse
order in the backward pass: otherwise redistributions could wait for each other in a circle, since MXNet uses memory
again.
"""
import itertools
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import mxnet as mx
import numpy as np

from ...kernels.operators import JointNorm, JointNormOperator, TransferOperator, local_joint_norm
from ...native import custom_operators  # noqa: F401  its operators are some of several in a process
from ...native.arrays import host_view
from ...native.engine import Deferred, Notifier
from ...native.symbols import copied_input
from ...telemetry.recorder import OFF, AnyRecorder
from .redistribution import Redistribution, Transfer

#: Name of the operator.
OPERATOR = 'mxhybrid_redistribution'

#: Redistributions by their numbers in this process: MXNet passes texts to operators.
_redistributions: Dict[int, 'RedistributionOperator'] = {}
_numbers = itertools.count(1)


class Transport:
    """Moves arrays, by operations of MXNet's engine that block no thread."""

    def push_views(self, transfer: Transfer, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        """Let the engine make a transfer between two NumPy arrays; readers of `arrays`, whose memory they are, wait for
        it.

        `source`, which is ready, and `target` may be None.
        """
        raise NotImplementedError

    def operator(self, redistribution: Redistribution) -> Optional[TransferOperator]:
        """Return an operator that makes a redistribution without Python; None if there is none."""
        return None

    def norm_operator(self, redistribution: Redistribution, norm: JointNorm) -> Optional[JointNormOperator]:
        """Return a BatchNorm that makes the redistribution of its statistics; None if there is none."""
        return None

    def forget(self, transfers: List[Transfer]) -> None:
        """Release transfers, which are not made again once those under way are done."""

    def tags_under_way(self) -> List[int]:
        """Return the tags of the transfers that have begun and are not done."""
        raise NotImplementedError

    def cancel(self, first: int, end: int) -> None:
        """End transfers with the tags `first` to `end` at once, with arbitrary values, now and later."""
        raise NotImplementedError


class CarrierTransport(Transport):
    """Moves arrays by a carrier, :class:`~.socket_transport.SocketCarrier`.  A carrier is Python, so there are no
    operators, and it keeps nothing of a transfer.
    """

    def __init__(self, carrier: Any):
        self._carrier = carrier
        self._deferred = Deferred(lambda what, done: carrier.begin(*what, done))

    def push_views(self, transfer: Transfer, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        self._deferred.push(arrays, (transfer, source, target), priority)

    def tags_under_way(self) -> List[int]:
        return self._carrier.tags_under_way()

    def cancel(self, first: int, end: int) -> None:
        self._carrier.cancel(first, end)


class RedistributionOperator:
    """A redistribution in a program's graph, and the transport that makes it."""

    def __init__(self, redistribution: Redistribution, transport: Transport, differentiable: bool,
                 on_failure: Callable[[BaseException], None], trace: AnyRecorder = OFF):
        self.redistribution, self._transport, self._differentiable = redistribution, transport, differentiable
        self._on_failure = on_failure
        self._trace: Any = trace
        self._notifier = Notifier() if trace.enabled else None
        self.number = next(_numbers)
        #: Makes it without Python, where there is such an operator and no trace is written.
        self._operator: Union[None, TransferOperator, JointNormOperator] = None
        _redistributions[self.number] = self

    def release(self) -> None:
        """Release its memory: no program calls it again, and its transfers are done.

        Transfers under way need it.  In Python MXNet may even begin one after the results of the network are there:
        with the tag of a transfer that was released before, it would be refused.
        """
        _redistributions.pop(self.number, None)
        self._transport.forget([self.redistribution.forward, self.redistribution.backward])

    def symbol(self, token: Any, local: Any, plain: bool = False) -> Tuple[Any, Any]:
        """Return the token after the operator, and the symbol that the rank receives, or None.

        `plain` says that no gradient goes back, or that the gradient of `local` is needed and never added up in place.
        """
        name = 'redistribution%d' % self.number
        compiled = None
        if plain and self._notifier is None:
            compiled = self._operator = self._transport.operator(self.redistribution)
        inputs = [token] if local is None else [token, local]
        if not self._differentiable:
            inputs = [mx.sym.BlockGrad(symbol) for symbol in inputs]
        if compiled is not None:
            outputs = compiled.in_graph(*map(copied_input, inputs), name=name)
        else:
            inputs[1:] = [mx.sym.stack(symbol, axis=0) for symbol in inputs[1:]]
            outputs = mx.sym.Custom(*inputs, op_type=OPERATOR, number=str(self.number), name=name)
        after, received = (outputs, None) if self.redistribution.target is None else (outputs[0], outputs[1])
        if received is not None and compiled is None:
            received = mx.sym.SliceChannel(received, num_outputs=1, axis=0, squeeze_axis=True)
        if not self._differentiable:
            # The backward pass bypasses a redistribution without gradients, which would wait for its turn in the
            # engine.  A copy, since a sum passes its gradient on as it is: a compiled operator may neither write the
            # gradient of an input of the graph nor read that of an output.
            after = mx.sym.identity(token + mx.sym.BlockGrad(after))
        return after, received

    def joint_norm(self, token: Any, data: Any, parameters: Any, norm: JointNorm
                   ) -> Optional[Tuple[Any, Any, Any]]:
        """Return the token after the operator, the normalized data and the statistics of a BatchNorm that makes the
        redistribution of its statistics; None if there is no such operator.

        The gradient of `data` is needed and never added up in place.
        """
        if self._notifier is not None:
            return None
        operator = self._operator = self._transport.norm_operator(self.redistribution, norm)
        if operator is None:
            return None
        return operator.symbol('joint_norm%d' % self.number, copied_input(token), _in_default_layout(data, norm),
                               copied_input(parameters))

    def ending(self, symbol: Any) -> Any:
        """Return a symbol that a graph may have as an output, for an output of the operator."""
        return symbol if self._operator is None else mx.sym.identity(symbol)

    def forward(self, source: Any, token: Any, target: Any) -> None:
        """Begin the transfer of the forward pass."""
        self._begin(self.redistribution.forward, source, target, token)

    def backward(self, gradient: Any, token: Any, target: Any, request: str) -> None:
        """Begin the transfer of the backward pass; `request` says what becomes of the elements of `target`."""
        received = target
        if target is not None and request in ('null', 'add'):
            received = mx.nd.empty(target.shape, dtype=target.dtype, ctx=mx.cpu())
        self._begin(self.redistribution.backward, gradient, received, token)
        if target is not None and request == 'add':
            target += received

    def _begin(self, transfer: Transfer, source: Any, target: Any, token: Any) -> None:
        """Let the engine make a transfer between arrays with a dimension of length 1 in front; readers of the target
        and of the token wait for it.
        """
        try:
            record_end = self._record_begin(transfer)
            source_view, target_view = (None if array is None else host_view(array).reshape(array.shape[1:])
                                        for array in (source, target))
            self._transport.push_views(transfer, source_view, target_view,
                                       [token] + ([] if target is None else [target]), 0)
            record_end(token)
        except BaseException as error:
            self._on_failure(error)

    def _record_begin(self, transfer: Transfer) -> Callable[[Any], None]:
        """Record that a transfer begins; the function that is returned records its end, once an array is ready."""
        if self._notifier is None:
            return lambda array: None
        trace, notifier, number = self._trace, self._notifier, self._trace.new_id()
        label = 'redistribution %s%s' % (self.redistribution.label,
                                         '' if transfer is self.redistribution.forward else ', backward')
        trace.begin(label, number, 'redistribution',
                    {'bytes': transfer.bytes_sent(self.redistribution.dtype.itemsize)})
        return lambda array: notifier.when_ready(array, lambda: trace.end(label, number, 'redistribution'))


def isolated_joint_norm(name: str, data: Any, parameters: Any, norm: JointNorm) -> Tuple[Any, Any]:
    """Return the normalized data and the statistics of a BatchNorm that exchanges nothing, as if all parts were like
    this one; see :meth:`RedistributionOperator.joint_norm`.
    """
    _, normalized, statistics = local_joint_norm(norm).symbol(name, mx.sym.zeros((1,)),
                                                              _in_default_layout(data, norm),
                                                              mx.sym.identity(parameters))
    return normalized, statistics


def _in_default_layout(data: Any, norm: JointNorm) -> Any:
    """Return the symbol of data that a compiled operator may read, in the default layout.

    MXNet's reshape converts what is in a layout of oneDNN, once for both passes, up to 4 dimensions
    (mkldnn_reshape.cc).  MXNet would convert the input of a compiled operator again in the backward pass.
    """
    return mx.sym.reshape(data, shape=norm.shape) if len(norm.shape) <= 4 else mx.sym.identity(data)


class _PythonRedistribution(mx.operator.CustomOp):
    """A redistribution as an operator in Python.

    Inputs are the token and what the rank sends, outputs the token and what it receives, with a dimension of length 1
    in front.  Arrays in a layout of oneDNN would reach Python as freed memory: the operators that add and remove that
    dimension know no such layout, in either pass (imperative_utils.h and custom.cc of MXNet 1.9.1).
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
    # declare_backward_dependency is not overridden: operator.py of MXNet 1.9.1 keeps the first answer for all operators
    # of a name.

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
