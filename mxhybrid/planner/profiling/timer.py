"""Times of a program in one process: forward and backward, warm, without what the call itself takes."""
import copy
import functools
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ...parallel.runtime.rank_program import COMPILED
from .local_program import LocalProgram, ProgramInput

#: Seconds that a call is to take at least: a part that takes less is timed as several in one program, since a call of
#: its own finds other things in caches, and engine and Python asleep.
CALL_S = 0.004

#: Bytes that the parts in a call are to take together, or what caches keep from one call to the next would make them
#: faster than in a program, where everything else passes between two runs of a part.
CALL_BYTES = 64 << 20

#: Parts in a call at most, and seconds that more than one of them may take.
MOST_COPIES, MOST_CALL_S = 16, 0.1

#: Seconds after which no more calls are made, and how many of them are made at least and at most.
LIMIT_S, LEAST_CALLS, MOST_CALLS = 0.15, 3, 20

#: Share of a call's operators that a part takes at the least: whatever else happened while the call without them was
#: timed, they took something.
LEAST_SHARE = 0.1

#: Of the times of several calls, the one with so many below it counts: other processes make some longer.
QUANTILE = 0.25


class PassSeconds(NamedTuple):
    """What something takes in each direction, in seconds of a core."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """Of both directions."""
        return self.forward + self.backward


def omp_threads() -> int:
    """Threads that an operator computes with."""
    try:
        return max(1, int(os.environ.get('OMP_NUM_THREADS', '').split(',')[0]))
    except ValueError:
        return os.cpu_count() or 1


def clock() -> Callable[[], float]:
    """Of CPU time where one thread computes, so that other processes count less; threads of OpenMP spin meanwhile."""
    return time.process_time if omp_threads() == 1 else time.perf_counter


class ProgramTimer:
    """A program that is compiled, several times over, and has its arrays.

    All outputs are written to memory that is there: new arrays for each call cost page faults, which a whole program
    has for its own outputs alone.
    """

    def __init__(self, program: LocalProgram, copies: int = 1):
        arrays: Dict[str, Any] = {}
        outputs: List[Any] = []
        for number in range(copies):
            names = {name: '%s_%d' % (name, number) for name in program.inputs}
            outputs += list(copy.copy(program.symbol)(**{
                own: mx.sym.var(names[own], shape=one.shape, dtype=one.dtype) for own, one in program.inputs.items()}))
            for name, one in program.inputs.items():
                array = arrays[names[name]] = arrays['%s_0' % name].copy() if one.is_weight and number else _values(one)
                if one.has_gradient:
                    array.attach_grad(stype='row_sparse' if one.is_table else None)
        if not arrays:  # MXNet compiles no graph without inputs
            arrays['unused'] = mx.nd.zeros(1, ctx=mx.cpu())
            outputs.append(mx.sym.identity(mx.sym.var('unused', shape=(1,))))
        symbol = mx.sym.Group(outputs)
        self._call = mx.nd.CachedOp(symbol, COMPILED)
        self._arrays = [arrays[name] for name in symbol.list_inputs()]
        self._has_backward = any(one.has_gradient for one in program.inputs.values())
        self._outputs = self._made()
        # Gradients are in the layouts that outputs have.
        self._gradients = self._made()

    def _made(self) -> List[Any]:
        """New outputs."""
        with autograd.record():
            found = self._call(*self._arrays)
        return [one.detach() for one in (found if isinstance(found, list) else [found])]

    def time_once(self) -> PassSeconds:
        """Make a call; what it takes in all."""
        now = clock()
        found = [one.detach() for one in self._outputs]
        mx.nd.waitall()
        begin = now()
        with autograd.record():
            self._call(*self._arrays, out=found)
        mx.nd.waitall()
        middle = now()
        if self._has_backward:
            autograd.backward(found, self._gradients)
        mx.nd.waitall()
        return PassSeconds(middle - begin, now() - middle if self._has_backward else 0.0)

    def measure(self, warm: bool = False) -> PassSeconds:
        """What a call takes in all, once it is warm."""
        if not warm:
            self.time_once()
        found: List[PassSeconds] = []
        deadline = time.perf_counter() + LIMIT_S
        while len(found) < LEAST_CALLS or len(found) < MOST_CALLS and time.perf_counter() < deadline:
            found.append(self.time_once())
        return PassSeconds(*(float(np.quantile(times, QUANTILE)) for times in zip(*found)))


def time_shard(program: LocalProgram) -> PassSeconds:
    """What a part takes within a program, without the call."""
    program_timer = ProgramTimer(program)
    # What happens once is little, but for what else happened meanwhile, and of a long call it does not count.
    alone = program_timer.time_once().total
    if alone > CALL_S:
        alone = min(alone, program_timer.time_once().total)
    copies = _copies(program, alone)
    if copies > 1:
        program_timer = ProgramTimer(program, copies)
    found, empty = program_timer.measure(warm=copies == 1), call_overhead()
    return PassSeconds(*(max(one - other, LEAST_SHARE * one) / copies for one, other in zip(found, empty)))


def _copies(program: LocalProgram, alone: float) -> int:
    """How many parts there are to be in a call, of which one takes so many seconds."""
    moved = sum(int(np.prod(one.shape)) * np.dtype(one.dtype).itemsize * (1 + one.has_gradient)
                for one in program.inputs.values())
    wanted = max(CALL_S / alone, CALL_BYTES / max(moved, 1) if moved > CALL_BYTES // 256 else 0)
    return max(1, min(MOST_COPIES, int(wanted) + 1, int(MOST_CALL_S / alone)))


@functools.lru_cache(None)
def call_overhead() -> PassSeconds:
    """What a call takes beside the operators in it, at the least."""
    made, program_timers = mx.sym.var('data'), []
    for at in range(2):
        made = mx.sym.Activation(made, act_type='relu', name='relu%d' % at)
        program_timers.append(ProgramTimer(LocalProgram(made, {'data': ProgramInput((1,), np.dtype('float32'), True)})))
    # In turn, so that whatever else happens meanwhile happens to both.
    calls = [[program_timer.time_once() for program_timer in program_timers] for _ in range(60)]
    least = [PassSeconds(*(min(times) for times in zip(*of))) for of in zip(*calls)]
    # No more than with one operator, which two cannot be faster than.
    return PassSeconds(*(max(0.0, min(one, 2 * one - two)) for one, two in zip(*least)))


def _values(one: ProgramInput) -> Any:
    """Values that mean nothing: neither 0 nor large, and no logarithm or root of them fails."""
    if one.below:
        return mx.nd.random.randint(0, one.below, shape=one.shape).astype(one.dtype)
    if one.is_blocked:
        kernel = (1,) * (len(one.shape) - 2)
        data = mx.nd.random.uniform(0.1, 1.0, shape=(one.shape[0], 16) + one.shape[2:])
        weight = mx.nd.random.uniform(0.01, 0.05, shape=(one.shape[1], 16) + kernel)
        return mx.nd.Convolution(data, weight, kernel=kernel, num_filter=one.shape[1], no_bias=True)
    low, high = (-0.05, 0.05) if one.is_weight and len(one.shape) > 1 else (0.1, 1.0)
    return mx.nd.random.uniform(low, high, shape=one.shape).astype(one.dtype)
