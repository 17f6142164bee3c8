"""Times a program in one process: forward and backward passes, warm, without the overhead of the call."""
import copy
import functools
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ...base.machine import openmp_threads
from ...parallel.runtime.rank_program import COMPILED
from .local_program import LocalProgram, ProgramInput

#: Minimal seconds of a call.  A shard that takes less is timed as several copies in one program: in a call of its own
#: it finds different data in caches, and MXNet's engine and Python asleep.
CALL_S = 0.004

#: Minimal bytes of all copies in a call; otherwise data that caches keep from one call to the next would make a shard
#: faster than it is in a program, where everything else passes through the caches between two runs.
CALL_BYTES = 64 << 20

#: Maximal number of copies in a call, and maximal seconds of a call that has several.
MOST_COPIES, MOST_CALL_S = 16, 0.1

#: Seconds after which no more calls are made, minimal and maximal number of calls.
LIMIT_S, LEAST_CALLS, MOST_CALLS = 0.15, 3, 20

#: Minimal share of a call that the operators in it take: a disturbance may make the empty call as slow as the full one.
LEAST_SHARE = 0.1

#: The quantile of the times of several calls that counts: other processes make some of them longer.
QUANTILE = 0.25


class PassSeconds(NamedTuple):
    """Times of the forward and the backward pass, in seconds of a core."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """The sum of both passes."""
        return self.forward + self.backward


def omp_threads() -> int:
    """Return the number of threads that an operator computes with."""
    return openmp_threads() or os.cpu_count() or 1


def clock() -> Callable[[], float]:
    """Return the clock of measurements.

    It is that of CPU time if one thread computes, so that other processes count less.  Several threads of OpenMP spin
    while they wait, so that their CPU time means nothing.
    """
    return time.process_time if omp_threads() == 1 else time.perf_counter


class ProgramTimer:
    """Times a compiled program with its arrays, which may contain several copies of a shard.

    Outputs are written to memory that exists already: new arrays for each call cost page faults, which a whole program
    has only for its own outputs.
    """

    def __init__(self, program: LocalProgram, copies: int = 1):
        arrays: Dict[str, Any] = {}
        outputs: List[Any] = []
        for number in range(copies):
            names = {name: '%s_%d' % (name, number) for name in program.inputs}
            variables = {name: mx.sym.var(names[name], shape=value.shape, dtype=value.dtype)
                         for name, value in program.inputs.items()}
            outputs += list(copy.copy(program.symbol)(**variables))
            for name, value in program.inputs.items():
                array = arrays['%s_0' % name].copy() if value.is_weight and number else _random_values(value)
                arrays[names[name]] = array
                if value.has_gradient:
                    array.attach_grad(stype='row_sparse' if value.is_table else None)
        if not arrays:  # MXNet compiles no graph without inputs
            arrays['unused'] = mx.nd.zeros(1, ctx=mx.cpu())
            outputs.append(mx.sym.identity(mx.sym.var('unused', shape=(1,))))
        symbol = mx.sym.Group(outputs)
        self._call = mx.nd.CachedOp(symbol, COMPILED)
        self._arrays = [arrays[name] for name in symbol.list_inputs()]
        self._has_backward = any(value.has_gradient for value in program.inputs.values())
        self._outputs = self._new_outputs()
        # Gradients are in the layouts that outputs have.
        self._gradients = self._new_outputs()

    def _new_outputs(self) -> List[Any]:
        with autograd.record():
            outputs = self._call(*self._arrays)
        return [output.detach() for output in (outputs if isinstance(outputs, list) else [outputs])]

    def time_once(self) -> PassSeconds:
        """Call the program once and return the time, overhead included."""
        now = clock()
        outputs = [output.detach() for output in self._outputs]
        mx.nd.waitall()
        begin = now()
        with autograd.record():
            self._call(*self._arrays, out=outputs)
        mx.nd.waitall()
        middle = now()
        if self._has_backward:
            autograd.backward(outputs, self._gradients)
        mx.nd.waitall()
        return PassSeconds(middle - begin, now() - middle if self._has_backward else 0.0)

    def measure(self, warm: bool = False) -> PassSeconds:
        """Return the time of a warm call, overhead included; `warm` says that a call has been made already."""
        if not warm:
            self.time_once()
        calls: List[PassSeconds] = []
        deadline = time.perf_counter() + LIMIT_S
        while len(calls) < LEAST_CALLS or len(calls) < MOST_CALLS and time.perf_counter() < deadline:
            calls.append(self.time_once())
        return PassSeconds(*(float(np.quantile(seconds, QUANTILE)) for seconds in zip(*calls)))


def time_shard(program: LocalProgram) -> PassSeconds:
    """Return the time of a shard as part of a larger program, without the overhead of a call."""
    program_timer = ProgramTimer(program)
    # The first call also pays for what happens only once: that is little, except for other programs' disturbances, and
    # does not matter in a long call.
    call_s = program_timer.time_once().total
    if call_s > CALL_S:
        call_s = min(call_s, program_timer.time_once().total)
    copies = _copies(program, call_s)
    if copies > 1:
        program_timer = ProgramTimer(program, copies)
    calls, overheads = program_timer.measure(warm=copies == 1), call_overhead()
    return PassSeconds(*(max(call - overhead, LEAST_SHARE * call) / copies
                         for call, overhead in zip(calls, overheads)))


def _copies(program: LocalProgram, call_s: float) -> int:
    """Return the number of copies of a shard for a call, if one takes `call_s`."""
    size_bytes = sum(int(np.prod(value.shape)) * np.dtype(value.dtype).itemsize * (1 + value.has_gradient)
                     for value in program.inputs.values())
    copies = max(CALL_S / call_s, CALL_BYTES / max(size_bytes, 1) if size_bytes > CALL_BYTES // 256 else 0)
    return max(1, min(MOST_COPIES, int(copies) + 1, int(MOST_CALL_S / call_s)))


@functools.lru_cache(None)
def call_overhead() -> PassSeconds:
    """Return a lower bound of the time that a call takes in addition to its operators."""
    symbol, program_timers = mx.sym.var('data'), []
    for number in range(2):
        symbol = mx.sym.Activation(symbol, act_type='relu', name='relu%d' % number)
        program = LocalProgram(symbol, {'data': ProgramInput((1,), np.dtype('float32'), True)})
        program_timers.append(ProgramTimer(program))
    # In turn, so that a disturbance concerns both.
    rounds = [[program_timer.time_once() for program_timer in program_timers] for _ in range(60)]
    fastest = [PassSeconds(*(min(seconds) for seconds in zip(*calls))) for calls in zip(*rounds)]
    # The line through one and two operators at none; at most the time with one, in case two seem to be faster.
    return PassSeconds(*(max(0.0, min(one, 2 * one - two)) for one, two in zip(*fastest)))


def _random_values(value: ProgramInput) -> Any:
    """Return values that are neither 0 nor large, so that no logarithm or root of them fails."""
    if value.index_limit:
        return mx.nd.random.randint(0, value.index_limit, shape=value.shape).astype(value.dtype)
    if value.is_blocked:
        kernel = (1,) * (len(value.shape) - 2)
        data = mx.nd.random.uniform(0.1, 1.0, shape=(value.shape[0], 16) + value.shape[2:])
        weight = mx.nd.random.uniform(0.01, 0.05, shape=(value.shape[1], 16) + kernel)
        return mx.nd.Convolution(data, weight, kernel=kernel, num_filter=value.shape[1], no_bias=True)
    low, high = (-0.05, 0.05) if value.is_weight and len(value.shape) > 1 else (0.1, 1.0)
    return mx.nd.random.uniform(low, high, shape=value.shape).astype(value.dtype)
