"""Calls of a network: all workers make the redistributions of calls in the same order.

A redistribution has one number, whichever call makes it: if two calls made it at once, workers could mistake the pieces
of one call for those of the other.  In the forward pass, the redistributions of a call wait for those of earlier calls.
In the backward pass, workers have no common order.  So a call that is recorded while an earlier one waits for its
backward pass, for example if a network is used twice in a step, runs a program of its own, with other numbers.
"""
import functools
import weakref
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ...base.errors import InputError
from ...native.compiled_graph import CompiledGraph, release_discarded
from ...native.trainers import is_fresh, set_fresh
from .dropped_networks import release_after
from .fetched_inputs import TOKEN
from .rank_program import COMPILED, SHARED, Program

#: The number of former calls of which another backward pass would still be noticed.
_WATCHED = 16


class ProgramRunner:
    """A program as MXNet runs it, and its call that waits for a backward pass."""

    def __init__(self, program: Program):
        self.program = program
        #: The number of the recorded call that waits for its backward pass; 0 for none.
        self.waiting = 0
        #: The array by which calls wait for each other, and a weak reference that dies with the last recorded call.
        self.token, self.calls = _new_token()
        self._inputs = program.symbol.list_inputs()
        #: Inputs besides data and parameters.
        self.constants = {name: mx.nd.array(values, ctx=mx.cpu(), dtype=values.dtype)
                           for name, values in program.constants.items()}
        #: Inputs whose gradients are the next values of running averages, and the arrays of the averages.
        self._next: Dict[str, Any] = {}
        self._averages: Dict[str, Any] = {}
        # MXNet writes gradients of static inputs, 'param_indices', to the arrays of the first backward pass for ever
        # (StaticBackward of cached_op.cc).  But parameters get other arrays, and calls that share a backward pass write
        # to temporary ones.
        fixed = [at for at, name in enumerate(self._inputs) if name in self.constants]
        others = [at for at in range(len(self._inputs)) if at not in fixed]
        self._graph = CompiledGraph(program.symbol, COMPILED + [('data_indices', others), ('param_indices', fixed)])

    def run(self, inputs: Dict[str, Any], params: Any) -> List[Any]:
        """Run the program; return its outputs after the leading ones."""
        self._find_averages(params)
        arrays = {**self.constants, **self._next, **inputs, TOKEN: self.token, SHARED: _shared()}
        outputs = self._graph(*[arrays[name] if name in arrays else params[name].data() for name in self._inputs])
        return outputs[self.program.leading:]

    def _find_averages(self, params: Any) -> None:
        """Let gradients of inputs be written to the present arrays of running averages."""
        for name, parameter in self.program.averages.items():
            average = params[parameter].data()
            if self._averages.get(name) is not average:
                self._averages[name] = average
                self._next[name] = mx.nd.zeros(average.shape, ctx=mx.cpu(), dtype=average.dtype)
                autograd.mark_variables([self._next[name]], [average], 'write')


class CallPool:
    """The calls of one network, each by a program that no other call occupies.

    - `programs`: the programs by whether statistics are those of training.
    - `another`: makes another program, for training or not: ``another(training, count)`` makes the count-th one, whose
      redistributions have numbers of their own.  The numbers depend on the arguments alone, since a worker that takes
      part in no redistribution makes no program.
    """

    def __init__(self, programs: Dict[bool, Program], another: Callable[[bool, int], Program], params: Any):
        self._programs, self._another, self._params = programs, another, params
        self._runners: Dict[bool, List[ProgramRunner]] = {}
        #: The programs of all runners, and those that no call has needed so far.
        self._all_programs = list(programs.values())
        self._count = 0
        #: Arrays that are ready once all redistributions under way are made.
        self._after: List[Any] = []
        #: The array that is written once the redistributions of all forward passes so far are made.
        self._last: List[Any] = []
        #: The tokens of former calls: their backward pass has begun, or they are abandoned.
        self._former: List[Any] = []
        #: The weak references of former calls.
        self._former_calls: List[Any] = []
        self._finalizer = release_after(self, functools.partial(_is_done, self._runners, self._former,
                                                                self._former_calls),
                                        functools.partial(release_programs, self._all_programs, self._runners),
                                        self._last)

    def run(self, training: bool, inputs: Dict[str, Any]) -> List[Any]:
        """Run a program with inputs by name; return its outputs."""
        recorded = autograd.is_recording()
        self._look_back()
        runner = self._free_runner(training, recorded)
        program = runner.program
        if not program.uses_token:
            return runner.run(inputs, self._params)
        if self._after:
            with autograd.pause():
                (self._after[0] if len(self._after) == 1 else mx.nd.add_n(*self._after)).copyto(runner.token)
            self._after = []
        if recorded:
            self._count += 1
            runner.waiting = self._count
        outputs = runner.run(inputs, self._params)
        self._last[:] = self._after = [outputs[program.token_position].detach()]
        return outputs

    def _look_back(self) -> None:
        """Notice the backward passes that have begun since the last call."""
        waiting = [runner for runners in self._runners.values() for runner in runners if runner.waiting]
        begun = [runner for runner in waiting if is_fresh(runner.token)]
        newest = max([runner.waiting for runner in begun] or [0])
        if any(is_fresh(token) for token in self._former):
            raise InputError('a parallelized network: a backward pass of a call came after a later call, or after the '
                             'backward pass of one: run backward passes in the order of the forward passes, or all '
                             'together, and all those of one call (retain_graph=True) before the next call')
        for runner in waiting:
            if runner in begun:
                self._after.append(runner.token.grad)
                set_fresh(runner.token, False)
            elif runner.waiting > newest:
                continue
            # Otherwise it is abandoned: after an exception, or if a script only reads the loss.
            self._former[:] = (self._former + [runner.token])[-_WATCHED:]
            self._former_calls[:] = [calls for calls in self._former_calls + [runner.calls] if calls() is not None]
            (runner.token, runner.calls), runner.waiting = _new_token(), 0

    def _free_runner(self, training: bool, recorded: bool) -> ProgramRunner:
        runners = self._runners.setdefault(training, [])
        if not runners:
            runners.append(ProgramRunner(self._programs[training]))
        # A segment that is computed again makes redistributions with the numbers of the forward pass.
        free = [runner for runner in runners if not runner.waiting or not (recorded or runner.program.recomputes)]
        if not free:
            self._all_programs.append(self._another(training, len(runners)))
            runners.append(ProgramRunner(self._all_programs[-1]))
        return (free or runners[-1:])[0]

    def settle(self) -> None:
        """Do nothing: calls of other programs of the network may begin at any time."""

    def forget(self) -> None:
        """Release the memory and the threads of all programs: no more calls come."""
        self._finalizer.detach()
        for program in self._all_programs:
            program.forget()
        release_programs(self._all_programs, self._runners)


def _is_done(runners_of_sorts: Mapping[bool, Sequence[ProgramRunner]], former: List[Any],
             former_calls: Sequence[Any]) -> bool:
    """Return whether no backward pass of a recorded call can come, for a pool to which no object refers any more.

    Until the first backward pass, or with ``retain_graph``, the outputs of a call and all that is computed from them
    keep its graph, which keeps the token.
    """
    runners = [runner for runners in runners_of_sorts.values() for runner in runners]
    for runner in runners:
        runner.token = None
    former.clear()
    return all(calls() is None for calls in [runner.calls for runner in runners] + list(former_calls))


def release_programs(programs: List[Program], runners: Dict[bool, Any]) -> None:
    """Release the memory of programs, whose redistributions are done, and of their runners.

    Those of backward passes are done when no token is left: MXNet frees the array of a gradient after all operations
    that write it.
    """
    while programs:
        programs.pop().release()
    runners.clear()
    release_discarded()


@functools.lru_cache(maxsize=None)
def _shared() -> Any:
    """Return the array that the calls of all networks share; nothing reads its gradient."""
    shared = mx.nd.zeros(1, ctx=mx.cpu())
    shared.attach_grad()
    return shared


def _new_token() -> Tuple[Any, Any]:
    """Return an array with a gradient, and a weak reference that dies with the array and all graphs that it is in.

    MXNet calls a function when it frees an array whose memory is NumPy's.  No call of its interface shows whether there
    still is a graph.
    """
    token, memory = mx.nd.empty(1, ctx=mx.cpu()), np.zeros(1, 'float32')  # the value of a token has no meaning
    autograd.mark_variables([token], [mx.nd.from_numpy(memory, zero_copy=True)], 'write')
    return token, weakref.ref(memory)
