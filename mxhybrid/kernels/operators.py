"""Operators of MXNet's graphs on arrays, compiled in ``src/operators/``, which MXNet's engine calls without Python.

Inputs and outputs are float32.  Unless a function says otherwise, its inputs must be outputs of other operators of the
graph: the operators overwrite gradients and never add to them.
"""
import ctypes
import functools
import weakref
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from ..native.engine import function_address
from ..native.symbols import symbol_function
from . import library

Shape = Optional[Tuple[int, ...]]


class CompiledOperator:
    """An operator on arrays, which must live as long as graphs with it run.

    `kind` is the first word of the compiled function that makes it, and `settings` are the parameters of that function,
    sequences of integers or floats as tuples.  An operator that `pushes` gives operations to the engine.
    """

    def __init__(self, kind: str, *settings: Any, pushes: bool = False):
        loaded = library.load()
        arguments = [setting if not isinstance(setting, tuple)
                     else library.counts(setting) if isinstance(setting[0], int)
                     else (ctypes.c_double * len(setting))(*setting) for setting in settings]
        names = ['MXNDArrayGetData', 'MXNDArrayFree'] + ['MXEnginePushAsyncND'] * pushes
        pointer = getattr(loaded, kind + '_operator_new')(*arguments, *map(function_address, names))
        self._info = '%x' % loaded.array_operator_info(pointer)
        weakref.finalize(self, loaded.array_operator_close, pointer).atexit = False

    def in_graph(self, *inputs: Any, name: str) -> Any:
        """Return the symbol of the operator, by the same call as MXNet's NDArrayOp, which warns that it is deprecated.
        """
        return symbol_function('_NDArray')(*inputs, info=self._info, name=name)


@functools.lru_cache(maxsize=None)
def lasting_operator(kind: str, *settings: Any) -> CompiledOperator:
    """Return an operator that is never deleted, since it has no state, and graphs may run at any time."""
    return CompiledOperator(kind, *settings)


class TransferOperator(CompiledOperator):
    """An operator that runs one transfer of float32 arrays, a :class:`mxhybrid.lane.transfers.PersistentTransfer`,
    forwards and another one backwards.

    In a graph its inputs are a token and, if there is one, the input array; its outputs are the token and, if there is
    one, the output array.

    The operator overwrites its outputs and gradients, since MXNet does not tell it when to add to them.  Therefore it
    may not read an input of the graph, write an output of the graph, or read an array for which MXNet adds up the
    gradients of its many readers in place.

    Moreover, if one of its arrays is an input or output of a graph, MXNet 1.9.1 converts any array of the operator from
    a layout of oneDNN to a copy in the default layout, and frees this copy before the transfer is complete
    (PushOperator of imperative_utils.h).  Other arrays stay, with ``static_alloc`` and ``static_shape``
    (attach_op_execs_pass.cc).  The gradients of the graph's inputs and outputs count, too: a sum and its terms have one
    gradient array (CloneGradient of elemwise_op_common.h), so no sum of inputs of the graph, nor a term of an output,
    may be an array of the operator.  This holds for the token as well.
    """

    def __init__(self, forward: Any, backward: Any, input_shape: Shape, output_shape: Shape):
        shapes = [part for shape in (input_shape, output_shape)
                  for part in (-1 if shape is None else len(shape), library.counts(shape or ()))]
        super().__init__('transfer', forward.pointer, backward.pointer, *shapes, pushes=True)


class JointNorm(NamedTuple):
    """A part of a BatchNorm whose statistics are those of several parts."""

    #: That of the part.
    shape: Tuple[int, ...]
    #: The dimension of channels.
    axis: int
    #: The share of each part in all elements.
    shares: Tuple[float, ...]
    #: The position of this part among all parts.
    position: int
    #: The number that is added to a variance.
    epsilon: float
    #: Whether gamma is 1, and not among the parameters.
    fixes_gamma: bool
    #: Whether 0 takes the place of negative values, as in a relu.
    rectifies: bool = False
    #: Whether the output has the largest value of each window of two rows and two columns, as in a pooling.  The part
    #: has images with an even number of rows and of columns, and its channels are dimension 1.
    pools: bool = False

    @property
    def channels(self) -> int:
        """The number of channels of the part."""
        return self.shape[self.axis]

    @property
    def statistics_size(self) -> int:
        """The number of elements of the statistics."""
        return (1 + len(self.shares)) * 2 * self.channels


class JointNormOperator(CompiledOperator):
    """A BatchNorm of float32 with two transfers: of the moments of all parts, and of their gradients.

    The transfers are :class:`mxhybrid.lane.transfers.PersistentTransfer`. Without them, which is None, all parts are
    like this one.  The rules of :class:`TransferOperator` for arrays hold for all arrays of this operator, too.
    """

    def __init__(self, norm: JointNorm, forward: Any, backward: Any):
        super().__init__('joint_norm', *(transfer and transfer.pointer for transfer in (forward, backward)),
                         len(norm.shape), tuple(map(int, norm.shape)), norm.axis, len(norm.shares),
                         tuple(map(float, norm.shares)), norm.position, norm.epsilon, int(norm.fixes_gamma),
                         int(norm.rectifies), int(norm.pools), pushes=True)

    def symbol(self, name: str, token: Any, data: Any, parameters: Any) -> Tuple[Any, Any, Any]:
        """Return the symbols of the token after the operator, the normalized data, and the statistics.

        `parameters` are gamma and beta, one after the other.  The statistics are an array of one dimension: the mean
        and the variance of all channels, then those of each part.
        """
        after, normalized, statistics = self.in_graph(token, data, parameters, name=name)
        return after, normalized, statistics


@functools.lru_cache(maxsize=None)
def local_joint_norm(norm: JointNorm) -> JointNormOperator:
    """Return an operator without transfers, which is never deleted, since graphs may run at any time."""
    return JointNormOperator(norm, None, None)


class Statistics(NamedTuple):
    """Statistics of channels: a part of an array, which has no gradient."""

    #: An array of one dimension.
    array: Any
    #: The number of its elements.
    size: int
    #: The position of the first channel.
    offset: int = 0


class NextAverage(NamedTuple):
    """The next value of a running average."""

    #: An input of the graph.  Its gradient becomes the next value, which overwrites the gradient array.
    following: Any
    #: The average, which may be an input of the graph.
    average: Any
    #: The statistics that go into it.
    values: Sequence[Statistics]
    #: The factor of the average, then those of the values.
    factors: Sequence[float]
    channels: int


def next_averages(averages: Sequence[NextAverage]) -> Any:
    """Return a symbol whose backward pass computes the next averages; its value has no meaning."""
    arrays: List[Statistics] = []
    numbers = []
    for value in (value for average in averages for value in average.values):
        # An array may have the statistics of several averages.
        number = next((at for at, known in enumerate(arrays) if known.array is value.array), len(arrays))
        if number == len(arrays):
            arrays.append(value)
        numbers.append(number)
    operator = lasting_operator('average', len(arrays), tuple(value.size for value in arrays),
                                len(averages), tuple(average.channels for average in averages),
                                tuple(float(average.factors[0]) for average in averages),
                                tuple(len(average.values) for average in averages), tuple(numbers),
                                tuple(value.offset for average in averages for value in average.values),
                                tuple(float(factor) for average in averages for factor in average.factors[1:]))
    inputs = [value.array for value in arrays]
    inputs += [symbol for average in averages for symbol in (average.following, average.average)]
    return operator.in_graph(*inputs, name='mxhybrid_averages')


def softmax_parts(data: Any, shape: Sequence[int], axis: int, name: str) -> Tuple[Any, Any]:
    """Return the symbols of a copy of a part, and of its maxima and sums of exponentials.

    The second has the shape (2, ...) of the part with an axis of length 1, and is to be sent to the other workers.  The
    copy is to be read by :func:`softmax_of` alone.

    Both operators take 1.0 to 1.2 times the CPU seconds of MXNet's softmax; the same from MXNet's broadcasts and
    reductions takes 18 times.
    """
    copy, parts = lasting_operator('softmax_parts', len(shape), tuple(map(int, shape)), axis).in_graph(data, name=name)
    return copy, parts


def softmax_of(copy: Any, parts: Any, shape: Sequence[int], axis: int, count: int, is_log: bool, name: str) -> Any:
    """Return the symbol of the softmax of a part, or of its logarithm.

    `parts` are the maxima and sums of all `count` parts, concatenated along the axis, in the same order on all workers.
    """
    operator = lasting_operator('softmax', len(shape), tuple(map(int, shape)), axis, count, int(is_log))
    return operator.in_graph(copy, parts, name=name)
