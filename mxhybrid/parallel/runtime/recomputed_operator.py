"""A segment of a program as one operator of MXNet's graph, which keeps only its inputs for the backward pass.

The gradient pass of MXNet 1.9.1 can recompute operators (``__force_mirroring__``, gradient.cc), but CachedOp passes it
no function that would let it (``CreateFullGraph`` of cached_op.h).  Therefore a segment is an operator of its own.  Its
forward pass runs the segment without recording it, so that MXNet frees what the segment computes.  Its backward pass
runs the segment again, recorded, and then the backward pass of that.  Both graphs allocate memory for each call: with
``static_alloc``, every segment would keep the memory of its activations.
"""
import contextlib
import threading
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Sequence, Tuple

import mxnet as mx
from mxnet import autograd

from ...native.custom_operators import PythonOperator
from ...native.engine import Deferred
from .engine_threads import SegmentThreads

#: Operations that do nothing, but wait for all earlier reads of arrays.
_reads_done = Deferred(lambda _, done: done())


class RecomputedOperator(PythonOperator):
    """A segment that is computed again in the backward pass.

    - `inputs`: the inputs of both graphs.
    - `learning`: the inputs that have gradients.
    - `forward`, `again`: the graph of the forward pass; and that of the backward pass, whose outputs are those outputs
      of `forward` that have gradients.
    - `heads`: the positions, among the outputs of `forward`, of the outputs that have gradients.
    - `on_failure`: ends the job because of an error, which MXNet's thread would keep from the script.
    """

    def __init__(self, inputs: Sequence[str], learning: Collection[str], forward: Any, again: Any,
                 heads: Sequence[int], threads: SegmentThreads, on_failure: Callable[[BaseException], None]):
        super().__init__(len(inputs), len(forward.list_outputs()))
        self.inputs, self._learning, self._heads = list(inputs), set(learning), list(heads)
        self._threads, self._on_failure = threads, on_failure
        self._forward_inputs, self._again_inputs = forward.list_inputs(), again.list_inputs()
        # Each thread that infers shapes has its own graph.  MXNet reads the shapes that a CustomOp infers from memory
        # that the next inference of the same operator, in any thread, frees (infer_shape_entry of operator.py).
        self._forward, self._again = mx.nd.CachedOp(_copied(forward), []), mx.nd.CachedOp(_copied(again), [])
        self._inferring, self._graph = threading.Lock(), _copied(forward)

    def symbol(self, name: str, inputs: List[Any]) -> List[Any]:
        """Return its outputs in a graph, given symbols of its inputs in their order."""
        outputs = self.custom_symbol(name, inputs)
        count = self.counts[1]
        return [outputs[position] for position in range(count)] if count > 1 else [outputs]

    def infer_shapes(self, shapes: List[Any]) -> Tuple[List[Any], List[Any]]:
        """Return the shapes of inputs and outputs for those of the inputs; any thread may call it."""
        with self._inferring:
            return shapes, [list(shape) for shape in self._graph.infer_shape(**self._read(map(tuple, shapes)))[1]]

    def infer_types(self, types: List[Any]) -> Tuple[List[Any], List[Any]]:
        """Return the types of inputs and outputs for those of the inputs; any thread may call it."""
        with self._inferring:
            return types, list(self._graph.infer_type(**self._read(types))[1])

    def _read(self, values: Iterable[Any]) -> Dict[str, Any]:
        """Return the values, by name, of the inputs that the forward pass reads."""
        return {name: value for name, value in zip(self.inputs, values) if name in self._forward_inputs}

    def forward(self, input_arrays: List[Any], requests: List[str], targets: List[Any]) -> None:
        """Compute the outputs, without keeping anything else."""
        with self._reporting():
            self._threads.forward.call(self._compute, input_arrays, requests, targets)

    def _compute(self, input_arrays: List[Any], requests: List[str], targets: List[Any]) -> None:
        arrays = dict(zip(self.inputs, input_arrays))
        outputs = [mx.nd.empty(target.shape, dtype=target.dtype, ctx=mx.cpu()) if request == 'null' else target
                   for request, target in zip(requests, targets)]
        # Operators of oneDNN would change the layout of weights in place in inference.
        with autograd.pause(train_mode=True):
            self._forward(*[arrays[name] for name in self._forward_inputs], out=outputs)
        _reads_done.push(input_arrays, None)

    def backward(self, gradients: List[Any], input_arrays: List[Any], requests: List[str], targets: List[Any]) -> None:
        """Compute the segment again, and then the gradients of its inputs."""
        with self._reporting():
            self._threads.backward.call(self._compute_again, gradients, input_arrays, requests, targets)

    def _compute_again(self, gradients: List[Any], input_arrays: List[Any], requests: List[str],
                       targets: List[Any]) -> None:
        arrays = {name: array.detach() for name, array in zip(self.inputs, input_arrays)}
        marked = []
        for name, request, target in zip(self.inputs, requests, targets):
            if request == 'null':
                continue
            if name in self._learning and name in self._again_inputs:
                marked.append((arrays[name], target, 'add' if request == 'add' else 'write'))
            elif request != 'add':
                target[:] = 0
        if marked and self._heads:
            with autograd.record(train_mode=True):
                variables, targets_of_marked, marked_requests = map(list, zip(*marked))
                autograd.mark_variables(variables, targets_of_marked, marked_requests)
                outputs = self._again(*[arrays[name] for name in self._again_inputs])
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            autograd.backward(outputs, [gradients[position] for position in self._heads])
        # MXNet waits for pending writes alone before it uses the memory of inputs again.
        _reads_done.push(input_arrays, None)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """End the job because of an error in this block."""
        try:
            yield
        except BaseException as error:
            self._on_failure(error)
            raise


def _copied(symbol: Any) -> Any:
    """Return a copy of a symbol, with operators of its own."""
    return mx.sym.load_json(symbol.tojson())
