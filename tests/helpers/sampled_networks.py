"""Small networks whose dimensions are equally long, so that lengths do not tell which dimension has the samples.

A network is called with one dimension or another of its inputs as that of the samples.  A case says for each output:
OWN, if it is the output of the network for a worker's samples alone; WHOLE, if no rule knows its sample axis, or it has
none; or a number, the dimension of the output for all samples in which a worker has its samples.
"""
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

OWN, WHOLE = 'own', 'whole'
#: Samples, times, channels.
N = 4


class Case(NamedTuple):
    """A network: its function, the shapes of its inputs, and the kind of its outputs by the dimensions that have
    samples.
    """

    forward: Callable[..., Any]
    shapes: Sequence[Tuple[int, ...]]
    outputs: Dict[Tuple[Any, ...], Tuple[Union[str, int], ...]]
    dtype: str = 'float64'


CUBE, SQUARE = (N, N, N), (N, N)


def one(forward, shape, *outputs, **more):
    """A network of one input and one output, by the dimension that has the samples."""
    return Case(forward, [shape], {(at,): (found,) for at, found in enumerate(outputs)}, **more)


def _two_behind_each_other(F, x, y):
    joint = F.concat(x, F.sin(y), dim=0)
    first, second = F.split(F.tanh(joint), num_outputs=2, axis=0)
    return [joint, first - second, F.reshape(joint, shape=(-4, 2, -1, 0))]


def _dense(flatten):
    return lambda F, x: F.FullyConnected(x, F.ones(shape=(3, N * N if flatten else N), dtype='float64'), num_hidden=3,
                                         no_bias=True, flatten=flatten)


def _filtered(op, groups):
    return lambda F, x: getattr(F, op)(x, F.ones(shape=(N, N // groups, 1), dtype='float64'), no_bias=True, kernel=(1,),
                                       num_filter=N, num_group=groups)


CASES: Dict[str, Case] = {
    'an operator of each element': one(lambda F, x: F.tanh(x) * 2, CUBE, OWN, OWN, OWN),
    'dense': one(_dense(True), CUBE, OWN, WHOLE, WHOLE),
    'dense of the last dimension': one(_dense(False), CUBE, OWN, OWN, WHOLE),
    # Samples in place of channels: those of a group depend on each other.
    'GroupNorm': one(lambda F, x: F.GroupNorm(x, F.ones(shape=(2,), dtype='float64'), F.zeros(
        shape=(2,), dtype='float64'), num_groups=2), CUBE, OWN, WHOLE, 2),
    'convolution of groups': one(_filtered('Convolution', 2), CUBE, OWN, WHOLE, OWN),
    'convolution of each channel': one(_filtered('Convolution', N), CUBE, OWN, 1, OWN),
    'transposed convolution of groups': one(_filtered('Deconvolution', 2), CUBE, OWN, WHOLE, OWN),
    'scores of attention': one(lambda F, x: F.contrib.interleaved_matmul_selfatt_qk(x, heads=2), (N, N, 12), WHOLE, OWN,
                               dtype='float32'),
    'attention': one(lambda F, x: F.contrib.interleaved_matmul_selfatt_valatt(
        x, F.softmax(F.contrib.interleaved_matmul_selfatt_qk(x, heads=2)), heads=2), (N, N, 12), WHOLE, OWN,
        dtype='float32'),
    'attention between': Case(lambda F, x, y: F.contrib.interleaved_matmul_encdec_valatt(
        y, F.softmax(F.contrib.interleaved_matmul_encdec_qk(x, y, heads=2)), heads=2), [(N, N, N), (N, N, 2 * N)],
        {(1, 1): (OWN,), (0, 0): (WHOLE,), (0, 1): (1,)}, 'float32'),
    'batch_dot': Case(lambda F, x, y: F.batch_dot(x, y), [CUBE, CUBE], {
        (0, 0): (OWN,), (1, None): (OWN,), (2, None): (WHOLE,), (None, 2): (OWN,), (1, 0): (WHOLE,), (1, 2): (WHOLE,)}),
    'batch_dot, transposed': Case(lambda F, x, y: F.batch_dot(x, y, transpose_a=True, transpose_b=True), [CUBE, CUBE], {
        (0, 0): (OWN,), (2, None): (OWN,), (1, None): (WHOLE,), (None, 1): (OWN,)}),
    'gemm2': one(lambda F, x: F.linalg_gemm2(x, F.sin(x), transpose_b=True), CUBE, OWN, WHOLE, WHOLE),
    'dot': Case(lambda F, x, y: F.dot(x, y), [SQUARE, SQUARE], {
        (0, None): (OWN,), (1, None): (WHOLE,), (None, 1): (OWN,), (0, 1): (WHOLE,)}),
    'dot of more dimensions': Case(lambda F, x, y: F.dot(x, y), [CUBE, CUBE], {
        (0, None): (OWN,), (1, None): (OWN,), (2, None): (WHOLE,), (None, 2): (OWN,), (None, 0): (WHOLE,)}),
    'concat and split': Case(_two_behind_each_other, [SQUARE, SQUARE], {
        (0, 0): (OWN,) * 3, (1, 1): (OWN,) * 3, (0, 1): (WHOLE,) * 3, (0, None): (WHOLE,) * 3}),
    'concat, of which the middle is cut': Case(
        lambda F, x, y: F.slice_axis(F.concat(x, y, dim=0), axis=0, begin=N // 2, end=3 * N // 2), [SQUARE, SQUARE], {
            (0, 0): (WHOLE,), (1, 1): (OWN,)}),
    'concat in another dimension': Case(lambda F, x, y: F.concat(x, y, dim=1), [SQUARE, SQUARE], {
        (0, 0): (OWN,), (0, None): (0,), (1, 1): (OWN,), (1, 0): (WHOLE,)}),
    'stack': Case(lambda F, x, y: F.stack(x, y, axis=1), [SQUARE, SQUARE], {
        (0, 0): (OWN,), (1, 1): (OWN,), (0, 1): (WHOLE,)}),
    'slice_axis': one(lambda F, x: F.slice_axis(x, axis=1, begin=1, end=3) * 2, CUBE, OWN, WHOLE, OWN),
    'slice': one(lambda F, x: F.slice(x, begin=(None, 1), end=(None, 3)) * 2, CUBE, OWN, WHOLE, OWN),
    'slice of every second': one(lambda F, x: F.slice(x, begin=(None, None), end=(None, None), step=(1, -2)) * 2, CUBE,
                                 OWN, WHOLE, OWN),
    'slice_like': Case(lambda F, x, y: F.slice_like(x, y, axes=(1,)) * 2, [CUBE, (N, 2)], {
        (0, 0): (OWN,), (1, None): (WHOLE,), (2, None): (OWN,)}),
    'two rows of a sample, cut': one(lambda F, x: F.slice_axis(F.reshape(x, shape=(-3, 0)), axis=0, begin=0, end=N),
                                     (N, 2, 3), WHOLE),
    'split': one(lambda F, x: F.split(x, num_outputs=2, axis=1)[1] * 2, CUBE, OWN, WHOLE, OWN),
    'split, squeezed': one(lambda F, x: F.split(x, num_outputs=N, axis=1, squeeze_axis=True)[1] * 2, CUBE, OWN, WHOLE,
                           OWN),
    'split_v2': one(lambda F, x: F.split_v2(x, (1, 3), axis=1)[1] * 2, CUBE, OWN, WHOLE, OWN),
    'two dimensions in one': one(lambda F, x: F.reshape(x, shape=(-3, 0)) * 2, CUBE, OWN, OWN, OWN),
    'the last two in one': one(lambda F, x: F.reshape(x, shape=(0, -3)) * 2, CUBE, OWN, OWN, OWN),
    'reshape from behind': one(lambda F, x: F.reshape(x, shape=(-1, 0), reverse=True) * 2, CUBE, OWN, OWN, OWN),
    'all dimensions in one': one(lambda F, x: F.reshape(x, shape=(-1,)) * 2, CUBE, OWN, OWN, OWN),
    'rows across samples': one(lambda F, x: F.reshape(x, shape=(-1, 3)) * 2, (6, N), WHOLE, WHOLE),
    'rows of samples': one(lambda F, x: F.reshape(x, shape=(-1, 3)) * 2, (N, 6), OWN, WHOLE),
    'reshape_like': Case(lambda F, x, y: F.reshape_like(x, y) * 2, [CUBE, (N, N * N)], {(0, 0): (OWN,)}),
    'one dimension more': one(lambda F, x: F.squeeze(F.expand_dims(x, axis=0) * 2, axis=0), SQUARE, OWN, OWN),
    'transpose': one(lambda F, x: F.transpose(x) * 2, CUBE, OWN, OWN, OWN),
    'swapaxes': one(lambda F, x: F.swapaxes(x, 0, 1) * 2, CUBE, OWN, OWN, OWN),
    'broadcast_to': one(lambda F, x: F.broadcast_to(x, shape=(0, N)) * 2, (N, 1), OWN),
    'broadcast_axis': one(lambda F, x: F.broadcast_axis(x, axis=1, size=N) * 2, (N, 1), OWN),
    'broadcast_like': Case(lambda F, x, y: F.broadcast_like(x, y) * 2, [(1, N), SQUARE], {
        (None, 0): (OWN,), (1, 1): (OWN,), (1, 0): (WHOLE,)}),
    'a sum with its transpose': one(lambda F, x: x + F.transpose(x), SQUARE, WHOLE, WHOLE),
    'mean': one(lambda F, x: F.mean(x, axis=1), CUBE, OWN, WHOLE, OWN),
    'norm': one(lambda F, x: F.norm(x, axis=1), CUBE, OWN, WHOLE, OWN),
    'argmax': one(lambda F, x: F.argmax(x, axis=1) + F.max(x, axis=1), CUBE, OWN, WHOLE, OWN),
    'moments': one(lambda F, x: F.moments(x, axes=(1,))[1] * 2, CUBE, OWN, WHOLE, OWN),
    'repeat': one(lambda F, x: F.repeat(x, repeats=N, axis=1) * 2, CUBE, OWN, OWN, OWN),
    'tile': one(lambda F, x: F.tile(x, reps=(N, 1)) * 2, CUBE, OWN, OWN, OWN),
    'tile with a dimension more': one(lambda F, x: F.tile(x, reps=(2, 1, N)) * 2, SQUARE, OWN, OWN),
    'reverse': one(lambda F, x: F.reverse(x, axis=1) * 2, CUBE, OWN, WHOLE, OWN),
    'sort': one(lambda F, x: F.sort(x, axis=1) * 2, CUBE, OWN, WHOLE, OWN),
    'topk': one(lambda F, x: F.topk(x, axis=1, k=N, ret_typ='value') * 2, CUBE, OWN, WHOLE, OWN),
    'cumsum': one(lambda F, x: F.cumsum(x, axis=1) * 2, CUBE, OWN, WHOLE, OWN),
    'softmax': one(lambda F, x: F.softmax(x, axis=1) * 2, CUBE, OWN, 1, OWN),
    'softmax of some': Case(lambda F, x, n: F.softmax(x, length=F.cast(n, 'int32'), use_length=True) * 2, [
        CUBE, SQUARE], {(0, 0): (OWN,), (1, 1): (OWN,), (0, 1): (WHOLE,), (2, None): (WHOLE,)}),
    'softmin': one(lambda F, x: F.softmin(x, axis=1) * 2, CUBE, OWN, WHOLE, OWN),
    'SequenceMask of times first': Case(lambda F, x, n: F.SequenceMask(x, n, use_sequence_length=True), [CUBE, (N,)], {
        (1, 0): (OWN,), (0, 0): (WHOLE,), (2, None): (OWN,)}),
    'SequenceMask of samples first': Case(lambda F, x, n: F.SequenceMask(x, n, use_sequence_length=True, axis=1), [
        CUBE, (N,)], {(0, 0): (OWN,), (1, 0): (WHOLE,)}),
    'SequenceReverse': Case(lambda F, x, n: F.SequenceReverse(x, n, use_sequence_length=True) * 2, [CUBE, (N,)], {
        (1, 0): (OWN,), (0, 0): (WHOLE,)}),
    'SequenceLast': Case(lambda F, x, n: F.SequenceLast(x, n, use_sequence_length=True) * 2, [CUBE, (N,)], {
        (1, 0): (OWN,), (0, 0): (WHOLE,)}),
    'SequenceLast of samples first': Case(lambda F, x, n: F.SequenceLast(x, n, use_sequence_length=True, axis=1) * 2, [
        CUBE, (N,)], {(0, 0): (OWN,), (1, 0): (WHOLE,)}),
    'CTCLoss': Case(lambda F, x, n: F.CTCLoss(x, F.clip(n, 1, 3)), [CUBE, (N, 2)], {(1, 0): (OWN,), (0, 0): (WHOLE,)},
                    'float32'),
    'take': Case(lambda F, x, n: F.take(x, n - 1, axis=1) * 2, [CUBE, SQUARE], {
        (None, 0): (OWN,), (None, 1): (OWN,), (0, None): (OWN,), (1, None): (WHOLE,), (2, 0): (WHOLE,)}),
    'Embedding': Case(lambda F, x, n: F.broadcast_mul(F.Embedding(
        n - 1, F.ones(shape=(N, 3), dtype='float64'), input_dim=N, output_dim=3), F.expand_dims(x, axis=2)),
        [SQUARE, SQUARE], {(0, 0): (OWN,), (1, 1): (OWN,), (0, 1): (WHOLE,)}),
    'pick': Case(lambda F, x, n: F.pick(x, n - 1, axis=1) * 2, [CUBE, SQUARE], {
        (0, 0): (OWN,), (2, 1): (OWN,), (1, None): (WHOLE,), (0, 1): (WHOLE,)}),
    'where, a condition of each row': Case(lambda F, x, n: F.where(n > 2, x, F.sin(x)), [SQUARE, (N,)], {
        (0, 0): (OWN,), (1, None): (OWN,), (1, 0): (WHOLE,)}),
    'LayerNorm': one(lambda F, x: F.LayerNorm(x, F.ones(shape=(N,), dtype='float64'), F.zeros(
        shape=(N,), dtype='float64')), CUBE, OWN, OWN, WHOLE),
    'L2Normalization': one(lambda F, x: F.L2Normalization(x), CUBE, OWN, WHOLE, WHOLE),
    'L2Normalization of channels': one(lambda F, x: F.L2Normalization(x, mode='channel'), CUBE, OWN, WHOLE, OWN),
    'div_sqrt_dim': one(lambda F, x: F.contrib.div_sqrt_dim(x), CUBE, OWN, OWN, WHOLE),
    'arange_like': one(lambda F, x: F.broadcast_add(x, F.contrib.arange_like(x, axis=1)), SQUARE, OWN, 1),
    'images side by side': Case(lambda F, x, y: F.UpSampling(x, y, scale=2, sample_type='nearest', num_args=2), [
        (N,) * 4, (N,) * 4], {(0, 0): (OWN,), (0, 1): (WHOLE,), (1, 1): (WHOLE,)}),
    'images': one(lambda F, x: F.Pooling(F.Convolution(x, F.ones(shape=(3, N, 3, 3), dtype='float64'), num_filter=3,
                                                       kernel=(3, 3), pad=(1, 1), no_bias=True), kernel=(2, 2)),
                  (N,) * 4, OWN, WHOLE, WHOLE, WHOLE),
    'softmax output': Case(lambda F, x, n: F.SoftmaxOutput(x, n - 1), [SQUARE, (N,)], {
        (0, 0): (OWN,), (1, 0): (WHOLE,)}),
    'softmax output by the batch': Case(lambda F, x, n: F.SoftmaxOutput(x, n - 1, normalization='batch'), [
        SQUARE, (N,)], {(0, 0): (OWN,)}),
    'regression': Case(lambda F, x, n: F.LinearRegressionOutput(x, n), [SQUARE, SQUARE], {
        (0, 0): (OWN,), (1, 1): (WHOLE,), (0, 1): (WHOLE,)}),
    'a loss of each sample': one(lambda F, x: F.make_loss(F.mean(x, axis=1)), SQUARE, OWN, WHOLE),
    'a loss of each element': one(lambda F, x: F.MakeLoss(F.sin(x), grad_scale=2), CUBE, OWN, OWN, OWN),
    'a loss of all samples': one(lambda F, x: F.MakeLoss(F.sum(x)), SQUARE, WHOLE, WHOLE),
    'no rule': one(lambda F, x: F.diag(x, axis1=1, axis2=2) * 2, CUBE, WHOLE, WHOLE, WHOLE),
    'no rule, of a product': one(lambda F, x: F.linalg_syrk(x) * 2, CUBE, WHOLE, WHOLE, WHOLE),
    'known again': one(lambda F, x: F.linalg_syrk(F.sin(x)) + x, CUBE, 0, 1, 2),
}

CALLS: List[Tuple[str, Tuple[Any, ...]]] = [(name, axes) for name, case in CASES.items() for axes in case.outputs]


def inputs_of(case: Case, seed: int = 0) -> List[np.ndarray]:
    """Values: real numbers, and numbers from 1 to N for lengths and indices."""
    rng = np.random.RandomState(seed)
    return [rng.randint(1, N + 1, shape).astype(case.dtype) if are_counts else
            rng.uniform(0.1, 1, shape).astype(case.dtype) for shape, are_counts in zip(case.shapes, counts(case))]


def counts(case: Case) -> List[bool]:
    """Tell for each input whether it has lengths or indices: the input that a network calls ``n``."""
    code = case.forward.__code__
    return [name == 'n' for name in code.co_varnames[1:code.co_argcount]]


def own(array: Any, axis: Any, samples: slice) -> Any:
    """A worker's samples of an array."""
    return array if axis is None else array[(slice(None),) * axis + (samples,)]


def listed(outputs: Any) -> List[Any]:
    """Outputs of a network as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def expected(case: Case, axes: Tuple[Any, ...], values: Sequence[np.ndarray], samples: slice) -> List[np.ndarray]:
    """Return the box of each output that a worker has to get."""
    def made(arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
        return [found.asnumpy() for found in listed(case.forward(mx.nd, *[
            mx.nd.array(array, dtype=case.dtype) for array in arrays]))]
    kinds = case.outputs[axes]
    whole = made(values)
    mine = made([own(array, axis, samples) for array, axis in zip(values, axes)]) if OWN in kinds else whole
    return [all_of_it if kind == WHOLE else part if kind == OWN else own(all_of_it, kind, samples)
            for kind, all_of_it, part in zip(kinds, whole, mine)]
