"""Bags of ids: a variable number of rows of a table is combined to a single row.

A bag is the ids from an offset to the next, as in PyTorch's ``EmbeddingBag``, or the last dimension of an array of ids,
of which a padding id is left out.  With weights w of the rows x the results are those of TensorFlow's
``embedding_lookup_sparse``; without weights, all w are 1:

========  ==========================
sum       sum(w x)
mean      sum(w x) / sum(w)
sqrtn     sum(w x) / sqrt(sum(w^2))
========  ==========================

An empty bag, and one whose divisor is 0, gives zeros.
"""
from typing import Any, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..kvstore.ids import as_array, checked_ids
from ..lane.keyed_rows import Segments

#: How the rows of a bag are combined.
COMBINE = ('sum', 'mean', 'sqrtn')


class Bags(NamedTuple):
    """The ids of bags, one bag after another, without padding."""

    #: Ids, int64.
    ids: np.ndarray
    #: The begin of each bag among the ids, and the end of the last bag.
    ends: np.ndarray
    combine: str
    #: Weights of the ids: None, an array of NumPy, or one of MXNet, which a gradient may reach.
    weights: Any
    #: The shape of the result without its last dimension.
    shape: Tuple[int, ...]

    @property
    def has_constant_weights(self) -> bool:
        """True unless a gradient may reach the weights."""
        return not isinstance(self.weights, mx.nd.NDArray)

    def segments(self, dtype: Any) -> Segments:
        """Return the bags as segments of the ids; their weights must be constant."""
        is_sum = self.weights is None and self.combine == 'sum'
        return Segments(self.ends, None if is_sum else self._coefficients(dtype))

    def reduce(self, rows: Any, positions: np.ndarray) -> Any:
        """Return the combined rows: `rows` are distinct rows on some device, `positions` those of the ids."""
        context = rows.context
        if not self.has_constant_weights:
            weights = self.weights.as_in_context(context).astype(rows.dtype).reshape((-1, 1))
            chosen = mx.nd.take(rows, mx.nd.array(positions, context, 'int32'))
            ones = self._matrix(np.ones(len(positions), rows.dtype), np.arange(len(positions)), context)
            result = _SparseProduct(ones)(mx.nd.broadcast_mul(chosen, weights))
            if self.combine != 'sum':
                result = mx.nd.broadcast_div(result, _divisor(self.combine, ones, weights))
        else:
            matrix = self._matrix(self._coefficients(rows.dtype), positions, context, rows.shape[0])
            # MXNet's Function gives no gradient to an array with grad_req 'add', as rows may have it.
            result = _SparseProduct(matrix)(mx.nd.identity(rows))
        return result.reshape(self.shape + (rows.shape[1],))

    def _matrix(self, values: np.ndarray, columns: np.ndarray, context: Any, width: int = 0) -> Any:
        """Return a sparse matrix with a row for each bag."""
        with mx.autograd.pause():
            return mx.nd.sparse.csr_matrix((values, columns, self.ends), ctx=context, dtype=values.dtype,
                                           shape=(len(self.ends) - 1, width or len(columns)))

    def _coefficients(self, dtype: Any) -> np.ndarray:
        """Return the number by which the row of each id is multiplied."""
        weights = np.ones(len(self.ids), dtype) if self.weights is None else self.weights.astype(dtype)
        if self.combine == 'sum':
            return weights
        sizes = np.diff(self.ends)
        bags = np.repeat(np.arange(len(sizes)), sizes)
        if self.weights is None:
            sums = sizes
        else:
            sums = np.bincount(bags, weights if self.combine == 'mean' else weights * weights, len(sizes))
        divisors = sums if self.combine == 'mean' else np.sqrt(sums)
        with np.errstate(divide='ignore'):
            factors = np.where(divisors == 0, 0.0, 1.0 / divisors)
        return (weights * factors[bags]).astype(dtype)


class _SparseProduct(mx.autograd.Function):
    """The product of a constant sparse matrix and an array.

    The gradient that MXNet itself computes for ``sparse.dot`` converts the matrix to a dense one.
    """

    def __init__(self, matrix: Any):
        super().__init__()
        self._matrix = matrix

    def forward(self, array: Any) -> Any:
        """Return the product."""
        return mx.nd.sparse.dot(self._matrix, array)

    def backward(self, gradient: Any) -> Any:
        """Return the gradient of the array; with a dense result, the same product takes ten times as long."""
        return mx.nd.sparse.dot(self._matrix, gradient, transpose_a=True).tostype('default')


class NoGradients(mx.autograd.Function):
    """Arrays as they are, whose gradients are zeros, whatever values they have."""

    def forward(self, *arrays: Any) -> Any:
        """Return copies."""
        return tuple(array.copy() for array in arrays)

    def backward(self, *gradients: Any) -> Any:
        """Return zeros."""
        return tuple(mx.nd.zeros_like(gradient) for gradient in gradients)


def _divisor(combine: str, ones: Any, weights: Any) -> Any:
    """Return the divisors of bags as an array of MXNet; infinite where it would be 0."""
    if combine == 'mean':
        divisor = _SparseProduct(ones)(weights)
    else:
        squares = _SparseProduct(ones)(weights * weights)
        # The derivative of a root at 0 is infinite, and 0 times infinity is not a number.
        divisor = mx.nd.sqrt(mx.nd.where(squares == 0, mx.nd.ones_like(squares), squares))
        divisor = mx.nd.where(squares == 0, mx.nd.zeros_like(squares), divisor)
    return mx.nd.where(divisor == 0, mx.nd.full(divisor.shape, float('inf'), divisor.context, divisor.dtype), divisor)


def bags_of(table: str, rows: Optional[int], ids: Any, offsets: Any, combine: Optional[str], weights: Any,
            padding: Optional[int]) -> Bags:
    """Return the bags of a call of a Block; InputError if its arguments do not fit together."""
    combine = 'sum' if combine is None else combine
    if combine not in COMBINE:
        raise InputError('%s: combine=%r: give one of %s' % (table, combine, ', '.join(COMBINE)))
    if padding is not None and (isinstance(padding, bool) or not isinstance(padding, (int, np.integer))):
        raise InputError('%s: padding=%r: give an integer, the id that is left out' % (table, padding))
    checked = checked_ids(ids, table, rows, padding)
    if offsets is None:
        if checked.ndim < 2:
            raise InputError('%s: ids of shape %s have no dimension of bags: give offsets, or ids of shape (bags, ids '
                             'of a bag)' % (table, checked.shape))
        shape = checked.shape[:-1]
        ends = np.arange(int(np.prod(shape)) + 1, dtype=np.int64) * checked.shape[-1]
    else:
        if checked.ndim != 1:
            raise InputError('%s: ids of shape %s with offsets: give ids of one dimension, or leave offsets out'
                             % (table, checked.shape))
        ends = _ends(table, offsets, len(checked))
        shape = (len(ends) - 1,)
    if not len(ends) - 1:
        raise InputError('%s: ids without any bag: give at least one bag' % table)
    weights = _weights(table, weights, checked.shape)
    checked = checked.reshape(-1)
    return _without_padding(Bags(checked, ends, combine, weights, shape), padding)


def _ends(table: str, offsets: Any, count: int) -> np.ndarray:
    begins = as_array(offsets, table, 'offsets')
    if begins.ndim != 1 or begins.dtype.kind not in 'iuf' or not len(begins):
        raise InputError('%s: offsets of shape %s, %s: give one integer for each bag, the number of ids before it'
                         % (table, begins.shape, begins.dtype))
    if begins.dtype.kind == 'f' and not np.array_equal(begins, np.floor(begins)):
        raise InputError('%s: offsets hold %s: give integers' % (table, begins[begins != np.floor(begins)][0]))
    ends = np.append(begins.astype(np.int64), count)
    if ends[0] != 0:
        raise InputError('%s: offsets begin with %d: the first bag begins at 0' % (table, ends[0]))
    falling = np.flatnonzero(np.diff(ends) < 0)
    if len(falling):
        raise InputError('%s: offset %d follows %d, and there are %d ids: offsets must not decrease, and not exceed '
                         'the number of ids' % (table, ends[falling[0] + 1], ends[falling[0]], count)
                         if falling[0] + 1 < len(ends) - 1 else
                         '%s: offset %d exceeds the number of ids, %d' % (table, ends[falling[0]], count))
    return ends


def _weights(table: str, weights: Any, shape: Tuple[int, ...]) -> Any:
    if weights is None:
        return None
    if not isinstance(weights, mx.nd.NDArray):
        weights = as_array(weights, table, 'weights')
        if weights.dtype.kind not in 'iuf':
            raise InputError('%s: weights of type %s: give numbers' % (table, weights.dtype))
    if tuple(weights.shape) != shape:
        raise InputError('%s: weights of shape %s for ids of shape %s: give one weight for each id'
                         % (table, tuple(weights.shape), shape))
    return weights.reshape((-1,))


def _without_padding(bags: Bags, padding: Optional[int]) -> Bags:
    if padding is None:
        return bags
    stays = bags.ids != padding
    if stays.all():
        return bags
    before = np.concatenate([[0], np.cumsum(stays)])
    weights = bags.weights
    if isinstance(weights, mx.nd.NDArray):
        positions = np.flatnonzero(stays)
        if len(positions):  # otherwise there are no rows, and all weights get gradients of zeros
            weights = mx.nd.take(weights, mx.nd.array(positions, weights.context, 'int64'))
    elif weights is not None:
        weights = weights[stays]
    return bags._replace(ids=bags.ids[stays], ends=before[bags.ends].astype(np.int64), weights=weights)
