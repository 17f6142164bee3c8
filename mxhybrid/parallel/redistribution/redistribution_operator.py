"""A redistribution as an operator of MXNet's graph, which holds no thread while it waits.

A token goes from each redistribution to the next one, so that all ranks begin them in one order, and in the reverse
order in the backward pass: otherwise redistributions could wait for each other in a circle, since MXNet uses memory
again.
"""
from typing import Any, Callable, List, Optional, Tuple, Union

import mxnet as mx
import numpy as np

from ...kernels.operators import JointNorm, JointNormOperator, TransferOperator, local_joint_norm
from ...native.arrays import host_view
from ...native.custom_operators import PythonOperator
from ...native.engine import when_ready
from ...native.symbols import copied_input
from ...telemetry.recorder import OFF, AnyRecorder
from .redistribution import Redistribution, Transfer


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


class RedistributionOperator(PythonOperator):
    """A redistribution in a program's graph, and the transport that makes it.

    Inputs of the operator in Python are the token and what the rank sends, outputs the token and what it receives, with
    a dimension of length 1 in front.  Arrays in a layout of oneDNN would reach Python as freed memory: the operators
    that add and remove that dimension know no such layout, in either pass (imperative_utils.h and custom.cc of MXNet
    1.9.1).
    """

    def __init__(self, redistribution: Redistribution, transport: Transport, differentiable: bool,
                 on_failure: Callable[[BaseException], None], trace: AnyRecorder = OFF):
        super().__init__(*(1 if shape is None else 2 for shape in redistribution.shapes))
        self.redistribution, self._transport, self._differentiable = redistribution, transport, differentiable
        self._on_failure = on_failure
        self._trace: Any = trace
        #: Makes it without Python, where there is such an operator and no trace is written.
        self._operator: Union[None, TransferOperator, JointNormOperator] = None

    def release(self) -> None:
        """Release its memory: no program calls it again, and its transfers are done.

        Transfers under way need it.  In Python MXNet may even begin one after the results of the network are there:
        with the tag of a transfer that was released before, it would be refused.
        """
        self.drop()
        self._transport.forget([self.redistribution.forward, self.redistribution.backward])

    def symbol(self, token: Any, local: Any, plain: bool = False) -> Tuple[Any, Any]:
        """Return the token after the operator, and the symbol that the rank receives, or None.

        `plain` says that no gradient goes back, or that the gradient of `local` is needed and never added up in place.
        """
        name = 'redistribution%d' % self.number
        compiled = None
        if plain and not self._trace.enabled:
            compiled = self._operator = self._transport.operator(self.redistribution)
        inputs = [token] if local is None else [token, local]
        if not self._differentiable:
            inputs = [mx.sym.BlockGrad(symbol) for symbol in inputs]
        if compiled is not None:
            outputs = compiled.in_graph(*map(copied_input, inputs), name=name)
        else:
            inputs[1:] = [mx.sym.stack(symbol, axis=0) for symbol in inputs[1:]]
            outputs = self.custom_symbol(name, inputs)
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
        if self._trace.enabled:
            return None
        operator = self._operator = self._transport.norm_operator(self.redistribution, norm)
        if operator is None:
            return None
        return operator.symbol('joint_norm%d' % self.number, copied_input(token), _in_default_layout(data, norm),
                               copied_input(parameters))

    def ending(self, symbol: Any) -> Any:
        """Return a symbol that a graph may have as an output, for an output of the operator."""
        return symbol if self._operator is None else mx.sym.identity(symbol)

    def infer_shapes(self, shapes: List[Any]) -> Tuple[List[Any], ...]:
        return tuple([(1,)] + ([] if shape is None else [(1, *shape)]) for shape in self.redistribution.shapes)

    def infer_types(self, types: List[Any]) -> Tuple[List[Any], ...]:
        dtype = self.redistribution.dtype.type
        return tuple([np.float32] + ([] if shape is None else [dtype]) for shape in self.redistribution.shapes)

    def forward(self, inputs: List[Any], requests: List[str], outputs: List[Any]) -> None:
        """Begin the transfer of the forward pass."""
        self._begin(self.redistribution.forward, _behind_token(inputs), _behind_token(outputs), outputs[0])

    def backward(self, gradients: List[Any], inputs: List[Any], requests: List[str], targets: List[Any]) -> None:
        """Begin the transfer of the backward pass."""
        target, request = _behind_token(targets), _behind_token(requests)
        received = target
        if request in ('null', 'add'):
            received = mx.nd.empty(target.shape, dtype=target.dtype, ctx=mx.cpu())
        self._begin(self.redistribution.backward, _behind_token(gradients), received, targets[0])
        if request == 'add':
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
        if not self._trace.enabled:
            return lambda array: None
        trace, number = self._trace, self._trace.new_id()
        label = 'redistribution %s%s' % (self.redistribution.label,
                                         '' if transfer is self.redistribution.forward else ', backward')
        trace.begin(label, number, 'redistribution',
                    {'bytes': transfer.bytes_sent(self.redistribution.dtype.itemsize)})
        return lambda array: when_ready(array, lambda: trace.end(label, number, 'redistribution'))


def _behind_token(values: List[Any]) -> Any:
    """Return the value that follows that of the token; None if there is none."""
    return values[1] if len(values) > 1 else None


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
