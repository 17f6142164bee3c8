"""Calls of a network that is a pipeline: passes of micro-batches through the stage of this rank, as scheduled.

The script's call of the network is one operation for autograd.  Its forward pass distributes the inputs of all
micro-batches, makes the passes of the schedule and collects the outputs.  Except with ``'gpipe'`` these are all passes,
with a gradient of ones for the loss; its backward pass multiplies the gradients of weights by the gradient that came
back to the loss, which has to be the same number for all samples.  With ``'gpipe'`` the backward pass makes all
backward passes.

All of these are operations of MXNet's engine: only the check of the gradient of the loss waits for values.
Redistributions of forward passes wait for those of earlier forward passes, and redistributions of backward passes for
those of earlier backward passes, in one order on all ranks (:mod:`~.schedule`).

With ``'gpipe'``, a thread of the pipeline gives the backward passes to the engine (:mod:`~.engine_threads`).
"""
import functools
import threading
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ...base.errors import InputError, JobError
from ...native.engine import write_after
from ...native.trainers import is_fresh, set_fresh
from ..ops.registry import rule_of
from ..plans.stages import Stages
from .call_pool import ProgramRunner, release_programs
from .dropped_networks import release_after
from .engine_threads import CallingThread
from .micro_batches import RouteMaker, output_boxes, read_boxes
from .rank_program import Program
from .schedule import passes
from .split_network import SplitNetwork

#: Seconds that a call waits for MXNet's thread to begin the passes of the last backward pass.
BACKWARD_S = 600.0


class _Call(autograd.Function):
    """A recorded call of the network: its micro-batches that wait for their backward passes, and its gradients."""

    def __init__(self, calls: 'PipelineCalls', training: bool, batch: Dict[str, Any]):
        super().__init__()
        self._calls, self.training, self._batch = calls, training, batch
        #: Outputs, token after and token before the forward pass of each micro-batch that waits for its backward pass.
        self.waiting: Dict[int, Tuple[List[Any], Any, Any]] = {}
        #: Gradients of weights by name, summed over the micro-batches so far; further backward passes scale them, too.
        self.sums: Dict[str, Any] = {}
        #: Whether a newer call has taken its place before its backward pass began.
        self.is_superseded = False
        #: Set once its backward pass has been given to the engine.
        self.ended = threading.Event()

    def forward(self, *inputs: Any) -> Any:
        batch, self._batch = self._batch, {}
        return self._calls.begin(self, batch)

    def backward(self, *gradients: Any) -> Any:
        try:
            return self._calls.end(self, [gradient.reshape(gradient.shape[1:]) for gradient in gradients])
        except BaseException as error:
            self._calls.fail(error)
            raise
        finally:
            self.ended.set()


class PipelineCalls:
    """The calls of a network that is a pipeline.

    - `programs`: the programs of a micro-batch by whether statistics are those of training.
    - `number`: the first number of its redistributions of inputs and outputs, and for the check of gradients.
    """

    def __init__(self, network: SplitNetwork, stages: Stages, programs: Dict[bool, Program], params: Any, number: int):
        workers, graph, shards = network.workers, network.graph, network.input_shards
        dimensions = network.joint.dimensions
        self._workers, self._stages, self._params = workers, stages, params
        maker = RouteMaker(workers.transport, workers.rank, stages.micro_batches, number)
        self._inputs = maker.of_inputs(network.joint, graph, shards.inputs, read_boxes(graph, network.shards))
        self._outputs = maker.of_outputs(graph, dimensions, output_boxes(graph, dimensions, network.shards.splits),
                                         shards.ranges, shards.ranges[-1][1] // stages.micro_batches)
        #: The outputs of which this rank computes a part, which are the first outputs of its program.
        self._computed = [routes for routes in self._outputs if routes.computes]
        self._programs = programs
        self._runners: Dict[bool, ProgramRunner] = {}
        self._passes = passes(stages.schedule, stages.of_rank(workers.rank), len(stages.ranks), stages.micro_batches)
        self._has_averages = bool(graph.auxiliary)
        self._scales_loss = not any(rule_of(operator).is_loss for operator in graph.computing)
        self._checks = None if workers.size == 1 else maker.of_rows(workers.size, 3)
        self._lock = threading.Lock()
        self._thread = CallingThread('mxhybrid-backward') if stages.schedule == 'gpipe' else None
        #: The weights that this rank's program trains, and the arrays of their gradients for one micro-batch.
        symbol = programs[True].symbol
        self._trained = [name for name in ([] if symbol is None else symbol.list_inputs())
                         if name in params and name not in network.frozen and name not in graph.auxiliary]
        self._gradients: Dict[str, Any] = {}
        self._copies: Dict[str, Any] = {}
        #: The token of the last forward pass, and that of the last backward pass.
        self._tokens = [mx.nd.zeros(1, ctx=mx.cpu()), mx.nd.zeros(1, ctx=mx.cpu())]
        #: An input of each call that needs a gradient, also on a rank without weights.
        self._anchor = mx.nd.zeros(1, ctx=mx.cpu())
        self._anchor.attach_grad()
        self._last: Optional[_Call] = None
        #: The highest number of micro-batches whose activations this rank held.
        self.most_alive = 0
        # MXNet keeps a call that waits for its backward pass, and the call keeps this object.
        # Its thread is another object's once nothing refers to it.
        self._finalizer = release_after(self, lambda: True, functools.partial(
            release_programs, list(programs.values()), self._runners), self._tokens)

    def run(self, training: bool, batch: Dict[str, Any]) -> List[Any]:
        """Run the network on this worker's samples; return the outputs."""
        self._await_backward(autograd.is_recording())
        if not autograd.is_recording():
            with autograd.pause(train_mode=autograd.is_training()):
                joined = self._forward_alone(training, batch)
        else:
            call = _Call(self, training, batch)
            self._last = call if self._thread is not None else None  # a call keeps the gradients of weights
            set_fresh(self._anchor, False)
            joined = call(self._anchor, *[self._input(name) for name in self._trained])
        return [mx.nd.SliceChannel(output, num_outputs=1, axis=0, squeeze_axis=True) for output in joined]

    def _input(self, name: str) -> Any:
        """Return a weight as an input of a call."""
        weight = self._params[name].data()
        # Function.backward of MXNet's autograd.py adds nothing to a gradient with grad_req='add'.
        return mx.nd.identity(weight) if self._params[name].grad_req == 'add' else weight

    def _await_backward(self, recorded: bool) -> None:
        """Wait until the passes of the last call are given to the engine, if its backward pass has begun.

        Two threads must not give operations on the same arrays, for example on running averages, at the same time, see
        :mod:`~.engine_threads`.
        """
        if self._last is not None:
            if is_fresh(self._anchor):
                if not self._last.ended.wait(BACKWARD_S):
                    raise JobError('a pipeline: the backward pass of the last call has begun, but MXNet has not '
                                   'completed it within %g s' % BACKWARD_S)
            elif recorded and not self._last.ended.is_set():
                self._last.is_superseded = True
                self._last.waiting.clear()

    # -- a call --------------------------------------------------------------------------------------------------------

    def _forward_alone(self, training: bool, batch: Dict[str, Any]) -> List[Any]:
        inputs = {name: self._inputs[name].distribute(array) for name, array in batch.items()}
        collected: List[List[Any]] = [[] for _ in self._outputs]
        for micro_batch in range(self._stages.micro_batches):
            heads, _ = self._forward(training, {name: pieces[micro_batch] for name, pieces in inputs.items()}, {})
            self._collect(collected, micro_batch, heads)
        return [routes.join(pieces) for routes, pieces in zip(self._outputs, collected)]

    def begin(self, call: _Call, batch: Dict[str, Any]) -> List[Any]:
        """Make the passes of the forward pass of a call; return its outputs, with a dimension of length 1 in front."""
        with self._lock, autograd.pause(train_mode=autograd.is_training()):
            inputs = {name: self._inputs[name].distribute(array) for name, array in batch.items()}
            collected: List[List[Any]] = [[] for _ in self._outputs]
            weights = self._weights()
            for is_forward, micro_batch in self._passes:
                if is_forward:
                    pieces = {name: pieces[micro_batch] for name, pieces in inputs.items()}
                    for routes in inputs.values():
                        routes[micro_batch] = None
                    heads = self._recorded_forward(call, micro_batch, pieces, weights)
                    self._collect(collected, micro_batch, heads)
                elif self._stages.schedule != 'gpipe':
                    self._backward(call, micro_batch, self._loss_gradients(call.waiting[micro_batch][0]))
            return [routes.join(pieces) for routes, pieces in zip(self._outputs, collected)]

    def end(self, call: _Call, gradients: List[Any]) -> List[Any]:
        """Make the passes of the backward pass of a call; return the gradients of its inputs."""
        if call.ended.is_set() and (self._thread is not None or self._has_averages):
            raise InputError('a pipeline with schedule=%r: a second backward pass of one call (retain_graph=True) is '
                             'possible only with other schedules than \'gpipe\', and without running averages, which '
                             'it would update again: run one backward pass of the sum of the losses'
                             % self._stages.schedule)
        with self._lock:
            if self._thread is not None:
                self._thread.call(self._backward_passes, call, gradients)
                scale = 1.0
            else:
                scale = self._checked_scale(gradients)
            return [mx.nd.zeros_like(self._anchor)] + [call.sums[name] if scale == 1 else call.sums[name] * scale
                                                       for name in self._trained]

    def _backward_passes(self, call: _Call, gradients: List[Any]) -> None:
        """Make all backward passes of a call, with the gradients of its outputs."""
        if call.is_superseded:
            raise InputError('a pipeline: the network was called again before the backward pass of this call: '
                             'run the backward pass of each call before the next call')
        by_output = [routes.send_gradient(gradient) if routes.differentiable else []
                     for routes, gradient in zip(self._outputs, gradients)]
        for micro_batch in range(self._stages.micro_batches):
            self._backward(call, micro_batch, [pieces[micro_batch] for pieces in by_output
                                               if pieces and pieces[micro_batch] is not None])

    def settle(self) -> None:
        """Wait until the backward pass of the last call is given to the engine, if it has begun."""
        self._await_backward(False)

    def fail(self, error: BaseException) -> None:
        """End the job: the backward pass runs in a thread of MXNet, which keeps exceptions from the script."""
        if self._workers.size > 1:
            self._workers.fail(error)

    def forget(self) -> None:
        """Release the memory of all programs: no more calls come."""
        self._finalizer.detach()
        programs = list(self._programs.values())
        for program in programs:
            program.forget()
        release_programs(programs, self._runners)
        if self._thread is not None:
            self._thread.close()

    # -- passes --------------------------------------------------------------------------------------------------------

    def _runner(self, training: bool) -> Optional[ProgramRunner]:
        if self._programs[training].symbol is None:
            return None
        if training not in self._runners:
            self._runners[training] = ProgramRunner(self._programs[training])
        return self._runners[training]

    def _weights(self) -> Dict[str, Any]:
        """Return the weights as variables whose gradients are those of one micro-batch.

        With ``'gpipe'`` they are copies.  Its backward passes begin in a thread of MXNet, perhaps after the script has
        given the update of the weights to the engine, which waits for their gradients: backward passes that read the
        weights themselves would wait for the update.
        """
        weights = {}
        for name in self._trained:
            weight = self._params[name].data()
            if self._stages.schedule == 'gpipe':
                if name not in self._copies:
                    self._copies[name] = mx.nd.empty(weight.shape, dtype=weight.dtype, ctx=mx.cpu())
                weight = weight.copyto(self._copies[name])
            weights[name] = weight.detach()
            if name not in self._gradients:
                self._gradients[name] = mx.nd.zeros_like(weights[name])
        if weights:
            autograd.mark_variables(list(weights.values()), [self._gradients[name] for name in weights], 'write')
        return weights

    def _forward(self, training: bool, inputs: Dict[str, Any], weights: Dict[str, Any]) -> Tuple[List[Any], Any]:
        """Make the forward pass of a micro-batch; return what this rank computes of outputs, and the tokens."""
        runner, program = self._runner(training), self._programs[training]
        if runner is None:
            return [], (None, None)
        token = self._tokens[0].detach()
        if autograd.is_recording():
            autograd.mark_variables([token], [mx.nd.zeros(1, ctx=mx.cpu())], 'write')
        runner.token = token
        arrays = {name: array for name, array in inputs.items() if array is not None}
        if arrays and program.uses_token:
            # Otherwise the engine would alternate between the passes of a first stage, and end all of them late.
            write_after([token], list(arrays.values()))
        if autograd.is_recording():
            arrays.update(self._shared_inputs(runner, weights))
        outputs = runner.run({**arrays, **weights}, self._params)
        after = outputs[program.token_position] if program.uses_token else None
        if after is not None:
            self._tokens[0] = after.detach()
        return outputs[:program.outputs], (after, token)

    def _shared_inputs(self, runner: ProgramRunner, weights: Dict[str, Any]) -> Dict[str, Any]:
        """Return new handles of inputs that are no variables.

        A backward pass of MXNet 1.9.1 clears the nodes of such inputs (AGInfo::Clear of imperative.h), which another
        forward pass that read the same handle still needs.
        """
        params = {name: self._params[name].data() for name in runner.program.symbol.list_inputs()
                  if name in self._params and name not in weights}
        return {name: array.detach() for name, array in {**runner.constants, **params}.items()}

    def _recorded_forward(self, call: _Call, micro_batch: int, inputs: Dict[str, Any], weights: Dict[str, Any]
                          ) -> List[Any]:
        with autograd.record(train_mode=autograd.is_training()):
            heads, tokens = self._forward(call.training, inputs, weights)
        call.waiting[micro_batch] = heads, tokens[0], tokens[1]
        self.most_alive = max(self.most_alive, len(call.waiting))
        return [head.detach() for head in heads]

    def _backward(self, call: _Call, micro_batch: int, gradients: List[Any]) -> None:
        """Make the backward pass of a micro-batch, with the gradients of this rank's parts of outputs."""
        heads, after, before = call.waiting.pop(micro_batch)
        arrays = [head for head, routes in zip(heads, self._computed) if routes.differentiable]
        assert len(arrays) == len(gradients), (len(arrays), len(gradients))
        if after is not None:
            if gradients:  # one backward pass after the other, as forward passes
                write_after([self._tokens[1]], gradients)
            arrays.append(after)
            gradients = gradients + [self._tokens[1]]
        if arrays and (self._trained or after is not None):  # otherwise the outputs depend on no variable
            autograd.backward(arrays, gradients)
        if after is not None:
            self._tokens[1] = before.grad
        for name in self._trained:
            if name in call.sums:
                call.sums[name] += self._gradients[name]
            else:
                call.sums[name] = self._gradients[name].copy()

    def _collect(self, collected: List[List[Any]], micro_batch: int, heads: List[Any]) -> None:
        rest = iter(heads)
        for routes, pieces in zip(self._outputs, collected):
            pieces.append(routes.collect(micro_batch, next(rest) if routes.computes else None))

    # -- the gradient of the loss --------------------------------------------------------------------------------------

    def _loss_gradients(self, heads: List[Any]) -> List[Any]:
        """Return gradients of ones for the first output, and of zeros for others."""
        return [mx.nd.ones_like(head) if routes is self._outputs[0] else mx.nd.zeros_like(head)
                for head, routes in zip(heads, self._computed) if routes.differentiable]

    def _checked_scale(self, gradients: List[Any]) -> float:
        """Return the number that came back as the gradient of every sample's loss (collective).

        Raises InputError if the gradient differs between samples, or one came back to another output.
        """
        schedule, values = self._stages.schedule, gradients[0].asnumpy()
        others = max([float(np.abs(gradient.asnumpy()).max()) for gradient in gradients[1:]] or [0.0])
        row = np.array([[values.min(), values.max(), others]], 'float64')
        if self._checks is not None:
            row = self._checks.send(mx.nd.array(row, dtype='float64', ctx=mx.cpu())).asnumpy()
        if row[:, 2].any():
            raise InputError('a pipeline with schedule=%r: a gradient comes back to another output than the first: '
                             "return the loss of each sample as the first output, or take schedule='gpipe'" % schedule)
        low, high = float(row[:, 0].min()), float(row[:, 1].max())
        if not low == high:
            raise InputError('a pipeline with schedule=%r: the gradient of the loss is between %r and %r, but has to '
                             'be the same for all samples on all workers: call backward() of the loss, or of its '
                             'product with a number, and weigh samples inside of the network; or take '
                             "schedule='gpipe'" % (schedule, low, high))
        if low != 1 and not self._scales_loss:
            raise InputError('a pipeline with schedule=%r: the gradient of the loss is %r, but the network has an '
                             'operator that does not use it, as SoftmaxOutput: call backward() of the loss itself'
                             % (schedule, low))
        return low
