"""Calls of a network: exchanges of a program are made by one call after the other, on all workers in the same order.

An exchange has one number, whichever call makes it, so that of two calls under way workers would take pieces for those
of each other.  Forwards, exchanges of a call come behind all those that were begun before it.  Backwards nothing has an
order that all workers share: a call that is recorded while an earlier one still waits for its backward pass, as where a
network is used twice in a step, has a program of its own, with other numbers.
"""
from typing import Any, Callable, Dict, List, Tuple

import mxnet as mx
from mxnet import autograd

from ...base.errors import InputError
from ...native.trainers import is_fresh, set_fresh
from .rank_program import COMPILED, TOKEN, Program

#: Tokens of calls that seem to be given up, of which a backward pass would still be noticed.
_WATCHED = 16


class _ProgramRunner:
    """A program as MXNet runs it, and the call of it that waits for its backward pass."""

    def __init__(self, program: Program, params: Any):
        self.program = program
        #: Which of all recorded calls that is; 0 for none.
        self.waiting = 0
        self.token = _new_token()
        self._inputs = program.symbol.list_inputs()
        self._constants = {name: mx.nd.array(values, ctx=mx.cpu(), dtype=values.dtype)
                           for name, values in program.constants.items()}
        #: Inputs whose gradients are the next values of running averages, and the arrays of these.
        self._next: Dict[str, Any] = {}
        self._averages: Dict[str, Any] = {}
        fixed = [at for at, name in enumerate(self._inputs) if name in self._constants or name in params]
        others = [at for at in range(len(self._inputs)) if at not in fixed]
        self._call = mx.nd.CachedOp(program.symbol, COMPILED + [('data_indices', others), ('param_indices', fixed)])

    def run(self, given: Dict[str, Any], params: Any) -> List[Any]:
        """What the program's symbol makes, but for what leads."""
        self._find_averages(params)
        given = {**self._constants, **self._next, **given, TOKEN: self.token}
        found = self._call(*[given[name] if name in given else params[name].data() for name in self._inputs])
        return (list(found) if isinstance(found, (list, tuple)) else [found])[self.program.leading:]

    def _find_averages(self, params: Any) -> None:
        """Have gradients of inputs written to the arrays that running averages have now."""
        for name, parameter in self.program.averages.items():
            average = params[parameter].data()
            if self._averages.get(name) is not average:
                self._averages[name] = average
                self._next[name] = mx.nd.zeros(average.shape, ctx=mx.cpu(), dtype=average.dtype)
                autograd.mark_variables([self._next[name]], [average], 'write')


class CallPool:
    """Of one network.

    Parameters
    ----------
    programs : dict of bool to Program
        By whether statistics are those of training.
    another : callable
        Makes one more program like that of training or not; `another(training, count)` makes the count-th one, whose
        exchanges have numbers of their own.  A worker without a part in any exchange makes none, so that the numbers
        depend on the arguments alone.
    params : dict of str to Parameter
    """

    def __init__(self, programs: Dict[bool, Program], another: Callable[[bool, int], Program], params: Any):
        self._programs, self._another, self._params = programs, another, params
        self._runners: Dict[bool, List[_ProgramRunner]] = {}
        self._count = 0
        #: Arrays that are there once all exchanges that were begun are made.
        self._after: List[Any] = []
        self._given_up: List[Any] = []

    def run(self, training: bool, given: Dict[str, Any]) -> Tuple[Program, List[Any]]:
        """Run a program with inputs by name; that program, and what its symbol makes."""
        recorded = autograd.is_recording()
        self._look_back()
        runner = self._free_runner(training, recorded)
        program = runner.program
        if not program.uses_token:
            return program, runner.run(given, self._params)
        if self._after:
            with autograd.pause():
                (self._after[0] if len(self._after) == 1 else mx.nd.add_n(*self._after)).copyto(runner.token)
            self._after = []
        if recorded:
            self._count += 1
            runner.waiting = self._count
            set_fresh(runner.token, False)
        found = runner.run(given, self._params)
        self._after = [found[program.token_place].detach()]
        return program, found

    def _look_back(self) -> None:
        """Notice which backward passes have begun since the last call."""
        waiting = [one for runners in self._runners.values() for one in runners if one.waiting]
        gone = [one for one in waiting if is_fresh(one.token)]
        newest = max([one.waiting for one in gone] or [0])
        for one in gone:
            self._after.append(one.token.grad)
            one.waiting = 0
        if any(is_fresh(token) for token in self._given_up):
            raise InputError('a parallelized network: a backward pass goes through a call that was followed by a newer '
                             'one with a backward pass before it, and by one more call: run backward passes in the '
                             'order of calls, or together')
        for one in waiting:
            if 0 < one.waiting < newest:  # calls are given up, where an exception comes between, or only a loss is read
                self._given_up = (self._given_up + [one.token])[-_WATCHED:]
                one.token, one.waiting = _new_token(), 0

    def _free_runner(self, training: bool, recorded: bool) -> _ProgramRunner:
        runners = self._runners.setdefault(training, [])
        if not runners:
            runners.append(_ProgramRunner(self._programs[training], self._params))
        found = [one for one in runners if not (recorded and one.waiting)]
        if not found:
            runners.append(_ProgramRunner(self._another(training, len(runners)), self._params))
        return (found or runners[-1:])[0]

    def forget(self) -> None:
        """No more calls come."""
        for program in [one.program for runners in self._runners.values() for one in runners]:
            program.forget()
        for program in self._programs.values():
            program.forget()
        self._runners.clear()


def _new_token() -> Any:
    token = mx.nd.zeros(1, ctx=mx.cpu())
    token.attach_grad()
    return token
