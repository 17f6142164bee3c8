"""Networks that are split over processes; random networks, and random splits of their operators."""
import contextlib
import os
import pickle
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

import mxnet as mx
import numpy as np
from hypothesis import strategies as st
from lab.launchers import PYTHON_PATH

from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import dimensions_of
from mxhybrid.parallel.sharding.box import full, slices_in
from mxhybrid.parallel.sharding.split import Split

ROOT = Path(__file__).resolve().parents[2]
BODY = ROOT / 'tests' / 'parallel' / 'layouts' / 'bodies' / 'rank.py'

LAYERS = ['_convolve', '_pool', '_normalise', '_activate', '_fork', '_repeat']

#: Seconds that a rank may take for a network.
ANSWER_S = 60.0


class Network(NamedTuple):
    """A network, with its inputs and weights, and the dimensions of inputs that have the samples."""

    symbol: Any
    data: Dict[str, np.ndarray]
    weights: Dict[str, np.ndarray]
    axes: Dict[str, Optional[int]]

    def graph(self):
        """Return the graph, with factors of dimensions, and its dimensions."""
        arrays = {**self.data, **self.weights}
        graph = Graph(self.symbol, {name: array.shape for name, array in self.data.items()},
                      {name: array.dtype for name, array in arrays.items()})
        return graph, dimensions_of(graph, self.axes)


class Ranks:
    """Processes that are connected like the ranks of a job; each computes its part of a network."""

    def __init__(self, count):
        self.count = count
        self._start()

    def _start(self):
        count = self.count
        pairs = {(higher, lower): socket.socketpair() for higher in range(count) for lower in range(higher)}
        self._processes = []
        for rank in range(count):
            mine = {**{lower: pair[0] for (higher, lower), pair in pairs.items() if higher == rank},
                    **{higher: pair[1] for (higher, lower), pair in pairs.items() if lower == rank}}
            self._processes.append(subprocess.Popen(
                [sys.executable, str(BODY), str(rank)] + ['%d:%d' % (other, sock.fileno())
                                                          for other, sock in mine.items()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[sock.fileno() for sock in mine.values()],
                env={**os.environ, 'PYTHONPATH': PYTHON_PATH, 'OMP_NUM_THREADS': '1'}))
        for pair in pairs.values():
            for sock in pair:
                sock.close()

    def close(self, seconds=10):
        """End the processes."""
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()

    def run(self, symbol, data, weights, splits, training=True, axes=None, segments=()):
        """Outputs and gradients of all parameters, joined from all ranks, and how many exchanges there are.

        `data` and `weights` are whole arrays by name, `splits` of every operator by its number; `axes` say which
        dimension of each input has the samples, the first where nothing is said; `segments` are computed again in the
        backward pass.  Ranks that fail, or take too long, are started again: their late answers would be taken for
        answers about the next network.
        """
        try:
            answers = self._answers(symbol, data, weights, splits, training, axes or dict.fromkeys(data, 0),
                                    segments)
        except (AssertionError, EOFError, OSError):
            self.close(seconds=0)
            self._start()
            raise
        outputs, gradients = None, {}
        for found, mine, _ in answers:
            outputs = outputs or [{} for _ in found]
            for boxes, pieces in zip(outputs, found):
                for box, values in pieces:
                    if box in boxes:  # all who have a sample have the same of it
                        np.testing.assert_allclose(values, boxes[box], rtol=1e-13, atol=1e-13)
                    boxes[box] = values
            for name, (box, values, shape) in mine.items():
                # The shape of a weight with the factors of its dimensions.
                whole = gradients.setdefault(name, np.zeros(shape or data[name].shape))
                whole[slices_in(box, full(whole.shape))] += values
        gradients = {name: whole.reshape({**data, **weights}[name].shape) for name, whole in gradients.items()}
        return [_joined(boxes) for boxes in outputs], gradients, answers[0][2]

    def _answers(self, symbol, data, weights, splits, training, axes, segments):
        """Return the answers of all ranks."""
        keys = {number: split.key for number, split in splits.items()}
        for process in self._processes:
            pickle.dump((symbol.tojson(remove_amp_cast=False), data, weights, keys, training, axes,
                         [tuple(segment) for segment in segments]), process.stdin)
            process.stdin.flush()
        deadline, answers = time.monotonic() + ANSWER_S, []
        for rank, process in enumerate(self._processes):
            assert select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0], 'rank %d' % rank
            answers.append(pickle.load(process.stdout))
        return answers


def _joined(boxes):
    whole = np.full([max(box[at][1] for box in boxes) for at in range(len(next(iter(boxes))))], np.nan)
    for box, values in boxes.items():
        whole[slices_in(box, full(whole.shape))] = values
    return whole


def weigh(output):
    """Return a gradient that depends on the values of the elements only, so that each shard computes its part."""
    return mx.nd.sin(output.detach() * 3 + 1)


def run_whole(symbol, data, weights, training=True):
    """Run the whole network by MXNet alone."""
    arrays = {name: mx.nd.array({**data, **weights}[name], dtype={**data, **weights}[name].dtype)
              for name in symbol.list_inputs()}
    auxiliary = set(symbol.list_auxiliary_states())
    for name, array in arrays.items():
        if name not in auxiliary and not (name in data and np.array_equal(data[name], np.floor(data[name]))):
            array.attach_grad()
    with mx.autograd.record(train_mode=training):
        outputs = mx.nd.CachedOp(symbol, [])(*[arrays[name] for name in symbol.list_inputs()])
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    mx.autograd.backward(outputs, [weigh(output) for output in outputs], train_mode=training)
    return [output.asnumpy() for output in outputs], {name: array.grad.asnumpy() for name, array in arrays.items()
                                                      if array.grad is not None}


def assert_equal_to_whole(split, whole, tolerance, by_size=False, case=''):
    """Compare outputs and gradients of ranks with those of the whole network; those of gradients may differ by tenfold,
    with `by_size` relative to the largest element of each, if it is above 1.
    """
    (outputs, gradients, *_), (whole_outputs, whole_gradients) = split, whole
    for output, expected in zip(outputs, whole_outputs):
        np.testing.assert_allclose(output.reshape(expected.shape), expected, rtol=tolerance, atol=tolerance,
                                   err_msg=case)
    for name, expected in whole_gradients.items():
        size = max(1.0, np.abs(expected).max()) if by_size else 1.0
        np.testing.assert_allclose(gradients[name], expected, rtol=10 * tolerance, atol=10 * tolerance * size,
                                   err_msg='%s %s' % (name, case))


def drawn_splits(draw, graph, ranks):
    """Draw a split of each operator that its rule allows, on any ranks, in any order."""
    splits = {}
    for operator in graph.computing:
        rule = rule_of(operator)
        limits, shape = rule.limits(graph, operator), graph.shape(operator)
        left, degrees, partials, copies = draw(st.integers(1, ranks)), [1] * len(shape), 1, 1
        for dimension in draw(st.permutations(range(len(shape) + 1))):
            if dimension == len(shape):
                partials = draw(st.integers(1, min(left, rule.partials(graph, operator))))
                left //= partials
            else:
                degrees[dimension] = draw(st.integers(1, min(left, limits[dimension])))
                left //= degrees[dimension]
        count = int(np.prod(degrees)) * partials
        if partials == 1 and not rule.not_replicable and ranks // count > 1:
            copies = draw(st.integers(1, ranks // count))
        chosen = draw(st.permutations(range(ranks)))[:count * copies]
        splits[operator.number] = Split(degrees, chosen, partials, copies)
    return splits


class Layers:
    """A random network of images, drawn layer by layer, as a symbol."""

    def __init__(self, draw, samples, channels, side):
        self._draw, self._count = draw, 0
        self.first = self.shape = (samples, channels, side, side)
        self.symbol = mx.sym.var('data', dtype='float64')
        for _ in range(draw(st.integers(1, 5))):
            getattr(self, draw(st.sampled_from(LAYERS)))()
        if draw(st.booleans()):
            self._flatten()

    def _name(self, what):
        self._count += 1
        return '%s%d' % (what, self._count)

    def _set(self, symbol):
        self.symbol = symbol
        self.shape = tuple(symbol.infer_shape(data=self.first)[1][0])

    def _convolve(self):
        draw, channels = self._draw, self.shape[1]
        groups = draw(st.sampled_from([one for one in (1, 2, channels) if channels % one == 0]))
        kernel = tuple(draw(st.integers(1, min(3, side))) for side in self.shape[2:])
        self._set(mx.sym.Convolution(
            self.symbol, num_filter=groups * draw(st.integers(1, 3)), num_group=groups, kernel=kernel,
            stride=tuple(draw(st.integers(1, 2)) for _ in kernel), pad=tuple(draw(st.integers(0, 2)) for _ in kernel),
            no_bias=draw(st.booleans()), name=self._name('conv')))

    def _pool(self):
        draw, sides = self._draw, self.shape[2:]
        kernel = tuple(draw(st.integers(1, min(3, side))) for side in sides)
        stride = tuple(draw(st.integers(1, 2)) for _ in kernel)
        pad = tuple(draw(st.integers(0, length // 2)) for length in kernel)
        convention = draw(st.sampled_from(['valid', 'full']))
        # MXNet gives a window that begins behind the padded side the lowest number, whose sums overflow in some orders.
        if any(-(-(side + 2 * border - length) // step) * step >= side + border
               for side, length, step, border in zip(sides, kernel, stride, pad)):
            convention = 'valid'
        self._set(mx.sym.Pooling(
            self.symbol, kernel=kernel, stride=stride, pad=pad, pool_type=draw(st.sampled_from(['max', 'avg'])),
            pooling_convention=convention, count_include_pad=draw(st.booleans()),
            global_pool=draw(st.sampled_from([False, False, True])), name=self._name('pool')))

    def _normalise(self):
        self._set(mx.sym.BatchNorm(self.symbol, fix_gamma=self._draw(st.booleans()), eps=1e-3, name=self._name('bn')))

    def _activate(self):
        self._set(mx.sym.Activation(self.symbol, act_type='tanh', name=self._name('act')))

    def _fork(self):
        """Two ways, put together."""
        before = self.symbol
        one = mx.sym.Convolution(before, num_filter=self.shape[1], kernel=(1, 1), name=self._name('conv'))
        other = mx.sym.Activation(before, act_type='sigmoid', name=self._name('act'))
        self._set(one + other if self._draw(st.booleans()) else
                  mx.sym.Concat(one, other, dim=self._draw(st.integers(1, 3)), name=self._name('concat')))

    def _repeat(self):
        axis = self._draw(st.sampled_from([1, (2, 3)]))
        mean = mx.sym.mean(self.symbol, axis=axis, keepdims=True, name=self._name('mean'))
        self._set(mx.sym.broadcast_mul(self.symbol, mean, name=self._name('scale')))

    def _flatten(self):
        symbol = self.symbol if self._draw(st.booleans()) else mx.sym.Flatten(self.symbol, name=self._name('flat'))
        self._set(mx.sym.FullyConnected(symbol, num_hidden=self._draw(st.integers(1, 7)), name=self._name('dense')))
        if self._draw(st.booleans()):
            self._set(mx.sym.log_softmax(self.symbol, name=self._name('softmax')))


def weights_of(symbol, data, seed):
    """Values of all parameters, of float32 if any data is."""
    rng = np.random.RandomState(seed)
    dtype = 'float32' if any(array.dtype == np.float32 for array in data.values()) else 'float64'
    shapes, _, auxiliary = symbol.infer_shape(**{name: array.shape for name, array in data.items()})
    named = list(zip(symbol.list_arguments(), shapes)) + list(zip(symbol.list_auxiliary_states(), auxiliary))
    return {name: np.ones(shape, dtype) if name.endswith('var') else rng.uniform(-1, 1, shape).astype(dtype)
            for name, shape in named if name not in data}
