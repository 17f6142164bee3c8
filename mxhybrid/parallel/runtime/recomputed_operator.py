"""A segment of a program as one operator of MXNet's graph, which keeps only its inputs for the backward pass.

The gradient pass of MXNet 1.9.1 can recompute operators (``__force_mirroring__``, gradient.cc), but CachedOp passes it
no function that would let it (``CreateFullGraph`` of cached_op.h).  Therefore a segment is an operator of its own.  Its
forward pass runs the segment without recording it, so that MXNet frees what the segment computes.  Its backward pass
runs the segment again, recorded, and then the backward pass of that.  Both graphs allocate memory for each call: with
``static_alloc``, every segment would keep the memory of its activations.
"""
import contextlib
import itertools
import threading
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Sequence

import mxnet as mx
from mxnet import autograd

from ...native.engine import Deferred
from .engine_threads import SegmentThreads

#: Name of the operator.
OPERATOR = 'mxhybrid_recompute'

#: Segments by their numbers in this process: MXNet passes texts to operators.
_segments: Dict[int, 'RecomputedOperator'] = {}
_numbers = itertools.count(1)

#: Operations that do nothing, but wait for all earlier reads of arrays.
_reads_done = Deferred(lambda _, done: done())


class RecomputedOperator:
    """A segment that is computed again in the backward pass.

    - `inputs`: the inputs of both graphs.
    - `learning`: the inputs that have gradients.
    - `forward`, `again`: the graph of the forward pass; and that of the backward pass, whose outputs are those outputs
      of `forward` that have gradients.
    - `heads`: the positions, among the outputs of `forward`, of the outputs that have gradients.
    - `threads`: the threads of the program.
    - `on_failure`: ends the job because of an error, which MXNet's thread would keep from the script.
    """

    def __init__(self, inputs: Sequence[str], learning: Collection[str], forward: Any, again: Any,
                 heads: Sequence[int], threads: SegmentThreads, on_failure: Callable[[BaseException], None]):
        self.inputs, self._learning, self._heads = list(inputs), set(learning), list(heads)
        self._threads, self._on_failure = threads, on_failure
        self.number = next(_numbers)
        self._forward_inputs, self._again_inputs = forward.list_inputs(), again.list_inputs()
        self.outputs = len(forward.list_outputs())
        # Each thread that infers shapes has its own graph.  MXNet reads the shapes that a CustomOp infers from memory
        # that the next inference of the same operator, in any thread, frees (infer_shape_entry of operator.py).
        self._forward, self._again = mx.nd.CachedOp(_copied(forward), []), mx.nd.CachedOp(_copied(again), [])
        self._inferring, self._graph = threading.Lock(), _copied(forward)
        _segments[self.number] = self

    def forget(self) -> None:
        """Release its memory: no program calls it again."""
        _segments.pop(self.number, None)

    def symbol(self, name: str, inputs: List[Any]) -> List[Any]:
        """Return its outputs in a graph, given symbols of its inputs in their order."""
        outputs = mx.sym.Custom(*inputs, op_type=OPERATOR, number=str(self.number), name=name)
        return [outputs[position] for position in range(self.outputs)] if self.outputs > 1 else [outputs]

    def infer_shapes(self, shapes: List[Any]) -> List[List[int]]:
        """Return the shapes of the outputs for those of the inputs; any thread may call it."""
        with self._inferring:
            return [list(shape) for shape in self._graph.infer_shape(**self._read(map(tuple, shapes)))[1]]

    def infer_types(self, types: List[Any]) -> List[Any]:
        """Return the types of the outputs for those of the inputs; any thread may call it."""
        with self._inferring:
            return list(self._graph.infer_type(**self._read(types))[1])

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


class _PythonRecomputation(mx.operator.CustomOp):
    """The operator that MXNet calls; it passes all calls on to a :class:`RecomputedOperator`."""

    def __init__(self, segment: RecomputedOperator):
        super().__init__()
        self._segment = segment

    def forward(self, is_train: bool, req: List[str], in_data: List[Any], out_data: List[Any], aux: List[Any]) -> None:
        self._segment.forward(in_data, req, out_data)

    def backward(self, req: List[str], out_grad: List[Any], in_data: List[Any], out_data: List[Any],
                 in_grad: List[Any], aux: List[Any]) -> None:
        self._segment.backward(out_grad, in_data, req, in_grad)


@mx.operator.register(OPERATOR)
class _RecomputationProperties(mx.operator.CustomOpProp):
    # See redistribution_operator.py for why declare_backward_dependency is not overridden.

    def __init__(self, number: str):
        super().__init__(need_top_grad=True)
        self._segment = _segments[int(number)]

    def list_arguments(self) -> List[str]:
        return ['input%d' % position for position in range(len(self._segment.inputs))]

    def list_outputs(self) -> List[str]:
        return ['output%d' % position for position in range(self._segment.outputs)]

    def infer_shape(self, in_shape: Any) -> Any:
        return in_shape, self._segment.infer_shapes(in_shape), []

    def infer_type(self, in_type: Any) -> Any:
        return in_type, self._segment.infer_types(in_type), []

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> _PythonRecomputation:
        return _PythonRecomputation(self._segment)
