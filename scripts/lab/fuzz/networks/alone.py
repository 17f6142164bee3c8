"""Runs a network in this process with MXNet alone: shapes of its outputs, where samples are, and whether it trains."""
import contextlib
import functools
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from . import pieces, training
from .network import Program, Rejected, base, samples_of
from .script import network

#: Operators whose second input has indices: an element of their output is of the sample of its index, although its
#: value may be of another sample.
_CHOOSING = ('take', 'pick', 'gather_nd')


class Noise:
    """A relative change of values that shows how far rounding may change results.

    Values that are not exact change a little, equal values by the same factor.  A value of few bits is exact: its sums
    and products have no rounding error.  Equal values of a BatchNorm change apart, as workers round its joint
    statistics apart.
    """

    def __init__(self, single: bool, everywhere: bool = True, number: int = 0):
        self._single, self._everywhere, self._number = single, everywhere, number
        #: The largest relative change of a value.
        self.size = 2.0 ** -23 if single else 1e-12
        #: The multiple of the change of a result that is taken for rounding.  An operator rounds many times: float32
        #: sums of the sizes that are drawn lose at most 16 times 2**-23.
        self.slack = 16.0 if single else 1e3
        #: The change of a result, relative to values above 1, from which on the result is not compared.
        self.unsound = 1e-3 if single else 1e-6

    def __call__(self, outputs: Any, rounds: bool, apart: bool = False) -> Any:
        """Return the outputs of a statement with noise; `rounds` tells whether MXNet computes them as float32, `apart`
        whether equal values may be rounded apart.
        """
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self(each, rounds, apart) for each in outputs])
        return self._changed(outputs, self._exact, apart) if self._everywhere or rounds else outputs

    def scaled(self, inputs: Any) -> Any:
        """Return an input of a statement with noise, also in exact values: its operator scales them before it adds
        products up, so that a sum of 0 may be a rounding error.
        """
        return self._changed(inputs, lambda values: ~np.isfinite(values))

    def _changed(self, array: Any, is_exact: Callable[[np.ndarray], np.ndarray], apart: bool = False) -> Any:
        if not array.dtype.__name__.startswith('float'):
            return array
        values = array.detach().asnumpy().astype('f8')
        bits = np.ascontiguousarray(values).view(np.uint64) + np.uint64(self._number)
        if apart:
            bits += np.arange(bits.size, dtype=np.uint64).reshape(bits.shape)
        signs = (((bits * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)) % np.uint64(201)).astype('f8') / 100 - 1
        factors = np.where(is_exact(values), 1.0, 1.0 + self.size * signs)
        return array * mx.nd.array(factors, dtype=array.dtype)

    def _exact(self, values: np.ndarray) -> np.ndarray:
        if self._single:
            scaled = np.frexp(values)[0] * 2.0 ** 20
            return ~np.isfinite(values) | (scaled == np.rint(scaled))
        with np.errstate(all='ignore'):
            scaled = values * 2.0 ** 24
            return ~np.isfinite(values) | (scaled == np.rint(scaled)) & (np.abs(values) < 2.0 ** 24)


def class_of(program, noise: Optional[Noise] = None, dtype: Optional[str] = None):
    """Compile the class of a network."""
    namespace = {'gluon': gluon, 'nn': nn, 'rnn': rnn, 'noisy': noise, 'own_operator': pieces.own_operator}
    exec(compile(network(program, noise is not None, dtype), 'network', 'exec'), namespace)
    return namespace['Net']


def examine(program: Program) -> Program:
    """Return the program with shapes of heads and the dimensions that may have samples; raise as `check_trains`."""
    make = class_of(program, dtype='float64')
    program = dict(program, heads=[dict(head) for head in program['heads']])
    shapes = {**program, 'frozen': [], 'samples': samples_of(program), 'dtype': 'float64'}
    first_reads = {statement['name']: base(statement['reads'][0]) for statement in program['statements']}
    with _rejecting():
        axes = _samples_of_values(program, shapes)
        for head, output in zip(program['heads'], _outputs(make, shapes)):
            head['shape'] = list(output.shape)
            # Numbers that are drawn tell nothing: they lie as the value that says how many of them are drawn.
            head['samples'] = axes.get(first_reads[head['name']]) if head['drawn'] else axes[head['name']]
    check_trains(program)
    return program


def check_trains(program: Program) -> None:
    """Raise Rejected if one process cannot train a program, or if its results are not finite."""
    spec = {**program, 'samples': samples_of(program), 'dtype': 'float64'}
    with _rejecting(), tempfile.TemporaryDirectory(prefix='mxhybrid-fuzz-') as folder:
        record = training.run_whole(class_of(program, dtype='float64'), spec, None, folder)
    if any(not np.isfinite(value).all() or np.abs(value).max(initial=0) > 1e6 for value in record.values()):
        raise Rejected('its results are not finite')


@contextlib.contextmanager
def _rejecting() -> Iterator[None]:
    """Raise Rejected in place of any error."""
    try:
        yield
    except Exception as error:
        raise Rejected('%s: %s' % (type(error).__name__, error)) from error


def _outputs(make: Any, spec: Dict[str, Any], change: Any = None, trains: bool = True, constant: bool = False
             ) -> List[np.ndarray]:
    """Return the outputs of a joint batch.

    `change` changes each input with samples.  With `constant`, inputs without samples have one value, and so have
    parameters whose values differ from sample to sample, as far as lengths tell.
    """
    net = pieces.prepared(make, spec)
    if constant:
        for param in net.collect_params().values():
            if any(length and length % spec['samples'] == 0 for length in param.shape or ()):
                param.initialize(mx.init.Constant(0.375), force_reinit=True)
    taken = []
    for each, values in zip(spec['inputs'], pieces.batch_of(spec, 0, 0)):
        if change is not None and each['axis'] is not None:
            values = change(values, each)
        if constant and each['axis'] is None:
            values = np.ones_like(values)
        taken.append(mx.nd.array(values, dtype=values.dtype))
    mx.random.seed(0)
    with autograd.record(train_mode=trains):
        return [output.asnumpy() for output in pieces.as_list(net(*taken))]


def _samples_of_values(program: Program, spec: Dict[str, Any]) -> Dict[str, Any]:
    """Find the dimension of the samples in each value that is an output; None where an operator reads values with
    samples and values that have lost them, or chooses among the samples of a value, and may cut its result.
    """
    names = list(dict.fromkeys(value for statement in program['statements'] for value in [
        *statement['reads'], *(head['name'] for head in program['heads'])] if value.startswith('x')))
    make = class_of(dict(program, heads=[{'name': name, 'drawn': None} for name in names],
                         statements=[{**statement, 'drawn': None} for statement in program['statements']]),
                    dtype='float64')
    axes_by_value: Dict[str, Any] = dict(zip(names, _sample_axes(make, spec, _outputs(make, spec))))
    for each in program['inputs']:
        axes_by_value[each['name']] = [[each['axis'], 1]] if each['axis'] is not None else []
    mixed = set()
    for statement in program['statements']:
        reads = [value for value in statement['reads'] if value in axes_by_value]
        lost = [value for value in reads if not axes_by_value[value] or base(value) in mixed]
        chooses = statement['op'] in _CHOOSING and len(reads) == 2 and not lost
        if any(base(value) in mixed for value in reads) or lost and len(lost) < len(reads) or chooses or (
                statement.get('drawn')):
            mixed.add(statement['name'])
    return {name: axes or (None if base(name) in mixed else []) for name, axes in axes_by_value.items()}


def _sample_axes(make: Any, spec: Dict[str, Any], outputs: List[np.ndarray]) -> List[List[List[int]]]:
    """Find the dimensions of each output that may have the samples, and how often all samples stand there.

    An output moves along such a dimension as samples move, or a sample changes its own part only.  Dimensions for which
    an output that does not change at all is the only evidence come last.
    """
    count = spec['samples']
    same = functools.partial(np.array_equal, equal_nan=True)
    axes_of_outputs = []
    # All values of each output, by run: before and after all samples move, twice, and with other values of a sample.
    moved = [list(zip(_outputs(make, spec, constant=constant), _outputs(
        make, spec, lambda values, each: np.roll(values, 1, each['axis']), constant=constant)))
        for constant in (False, True)]
    predicted = _outputs(make, spec, trains=False)
    replaced = [_outputs(make, spec, functools.partial(_replaced, sample=sample), trains=False)
                for sample in range(count)]
    for number, output in enumerate(outputs):
        candidates: List[Any] = []
        before_change, changed = predicted[number], [run[number] for run in replaced]
        changes = not all(same(before_change, after) for after in changed)
        for axis, length in enumerate(output.shape):
            for repeats in range(1, length // count + 1):
                if length % (repeats * count):
                    continue
                order = np.roll(np.arange(length).reshape(repeats, count, -1), 1, 1).reshape(-1)
                moves = [not same(before, after) for before, after in (run[number] for run in moved)
                         if np.allclose(np.take(before, order, axis), after, rtol=1e-9, atol=1e-9, equal_nan=True)]
                rows = [pieces.rows_of(length, repeats, [sample], count) for sample in range(count)]
                stays = all(same(np.delete(before_change, rows[sample], axis), np.delete(after, rows[sample], axis))
                            for sample, after in enumerate(changed))
                if moves or stays:
                    candidates.append([0 if stays and changes else 1 if any(moves) else 2, axis, repeats])
        axes_of_outputs.append([[axis, repeats] for _, axis, repeats in sorted(candidates)])
    return axes_of_outputs


def _replaced(values: np.ndarray, each: Dict[str, Any], sample: int) -> np.ndarray:
    """Return an input of which one sample has other values, among them zeros, which alone change logical operators."""
    values = values.copy()
    part = (slice(None),) * each['axis'] + (sample,)
    if each['values'] == 'ids':
        values[part] = (values[part] + 1) % each['limit']
    else:
        values[part] = np.where(np.arange(values[part].size).reshape(values[part].shape) % 2, values[part] + 0.375, 0)
    return values
