"""The common part of the Blocks that look up rows of a dynamic table."""
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import Block

from ..base.errors import InputError
from ..kvstore.ids import check_range, integer_ids
from ..kvstore.row_requests import RowRequest, request_rows
from ..kvstore.table_parameter import TableParameter
from ..lane.keyed_rows import distinct_keys
from ..native.trainers import device_of, put_param
from .bags import Bags, NoGradients, bags_of

#: Names of the arguments of a lookup.
ARGUMENTS = ('ids', 'offsets', 'combine', 'weights', 'padding')


class Lookup(NamedTuple):
    """The ids of one call: an array of any shape, each id of which gives a row, or bags."""

    #: Ids, int64.
    ids: np.ndarray
    bags: Optional[Bags]
    context: Any

    def is_direct(self, num_keys: int) -> bool:
        """Return whether the host writes the result: the rows of the ids, or their sums by bags.

        A device other than the CPU gets the rows of the `num_keys` distinct keys instead if the result has more rows:
        fewer bytes are copied to it, and fewer of the gradient back.
        """
        if self.bags is None:
            num_rows = self.ids.size
        elif self.bags.has_constant_weights:
            num_rows = len(self.bags.ends) - 1
        else:
            return False
        return self.context.device_type == 'cpu' or num_rows <= num_keys

    def request(self, param: TableParameter, keys: np.ndarray, positions: np.ndarray) -> RowRequest:
        """Return the request that writes the result of a direct lookup: `positions` are those of the ids."""
        if self.bags is None:
            return RowRequest(param, keys, positions, self.ids.shape, self.context)
        return RowRequest(param, keys, positions, self.bags.shape, self.context, self.bags.segments(param.dtype))

    def result(self, rows: Any, positions: np.ndarray) -> Any:
        """Return the result: `rows` are distinct rows on the device, `positions` those of the ids."""
        if self.bags is not None:
            return self.bags.reduce(rows, positions)
        taken = mx.nd.take(rows, mx.nd.array(positions, self.context, 'int32'))
        return taken.reshape(self.ids.shape + (rows.shape[1],))


class TableBlock(Block):
    """A Block with a dynamic table; see :class:`Embedding` and :class:`HashEmbedding`."""

    def __init__(self, rows: Optional[int], width: int, dtype: Any, weight_initializer: Any,
                 options: Dict[str, Any], prefix: Optional[str], params: Any):
        super().__init__(prefix=prefix, params=params)
        param = TableParameter(self.params.prefix + 'weight', rows, width, dtype, weight_initializer, options)
        existing = put_param(self.params, param)  # that of another Block if this one was made with its params
        if not isinstance(existing, TableParameter) or (
                (existing.rows, existing.width, existing.dtype, existing.options)
                != (param.rows, param.width, param.dtype, param.options)):
            raise InputError('params: %r cannot be shared as %r: give both Blocks the same rows, width, dtype and '
                             'options' % (existing, param))
        self.weight = existing

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call :meth:`forward`; MXNet's Blocks have no keywords."""
        if keywords:
            unknown = [name for name in keywords if name not in ARGUMENTS[len(arguments):]]
            if unknown:
                raise InputError('%s: argument %r is not known or was given twice: give %s'
                                 % (self.weight.name, unknown[0], ', '.join(ARGUMENTS)))
            arguments = arguments + tuple(keywords.get(name) for name in ARGUMENTS[len(arguments):])
        return super().__call__(*arguments)

    def forward(self, ids: Any, offsets: Any = None, combine: Optional[str] = None, weights: Any = None,
                padding: Optional[int] = None) -> Any:
        """Return the rows of ids, or of bags of ids.

        Parameters
        ----------
        ids : NDArray, numpy.ndarray or list
            Integers of any shape, also int64 and unsigned; floats if they hold exact integers.
        offsets : NDArray, numpy.ndarray or list, optional
            For each bag the number of ids before it; `ids` then has one dimension.
        combine : {'sum', 'mean', 'sqrtn'}, optional
            Combines the rows of each bag.  Default: no bags, and 'sum' if `offsets`, `weights` or `padding` is given.
            Without offsets, the last dimension of `ids` is a bag.
        weights : NDArray, numpy.ndarray or list, optional
            A weight for each id.  A gradient reaches weights that are an NDArray.
        padding : int, optional
            An id that is left out of bags.

        Returns
        -------
        NDArray
            Of shape ``ids.shape + (width,)``, or ``(bags, width)``, or ``ids.shape[:-1] + (width,)``, on the device of
            the parameter.

        Raises
        ------
        InputError
            An id is no key of the table, or the arguments do not fit together.
        """
        if mx.is_np_array():
            raise InputError('%s: mx.npx.set_np() is on: dynamic tables take and return mx.nd arrays; switch it off '
                             'with mx.npx.reset_np()' % self.weight.name)
        return look_up([self.weight], [self.lookup(ids, offsets, combine, weights, padding)])[0]

    def rows(self, ids: Any) -> Any:
        """Return the rows of ids, for other uses than a lookup, for example for a sampled softmax with tied weights.

        A gradient reaches the rows.

        Parameters
        ----------
        ids : NDArray, numpy.ndarray or list
            Integers of any shape.

        Returns
        -------
        NDArray
            Of shape ``ids.shape + (width,)``.
        """
        return self.forward(ids)

    def lookup(self, ids: Any, offsets: Any = None, combine: Optional[str] = None, weights: Any = None,
               padding: Optional[int] = None) -> Lookup:
        """Return the lookup of a call of :meth:`forward`, after checking its arguments.

        :func:`look_up` checks the range of ids that are not in bags.
        """
        param = self.weight
        context = param.context_for(ids)
        if offsets is None and combine is None and weights is None and padding is None:
            integers = integer_ids(ids, param.name, param.rows)
            if not integers.size:
                raise InputError('%s: there are no ids: MXNet has no arrays without elements; give at least one id, or '
                                 'offsets, by which bags may be empty' % param.name)
            return Lookup(integers, None, context)
        bags = bags_of(param.name, param.rows, ids, offsets, combine, weights, padding)
        return Lookup(bags.ids, bags, context)

    def __repr__(self) -> str:
        param = self.weight
        rows = 'any int64' if param.rows is None else param.rows
        options = ''.join(', %s=%r' % item for item in param.changed_options())
        return '%s(%s -> %d, %s%s)' % (type(self).__name__, rows, param.width, param.dtype, options)


def look_up(params: List[TableParameter], lookups: List[Lookup]) -> List[Any]:
    """Return the results of lookups, after requesting the rows of all of them.

    Lookups of the same parameter on the same device request each row once.
    """
    groups: Dict[Tuple[int, Any], List[int]] = {}
    for index, (param, lookup) in enumerate(zip(params, lookups)):
        groups.setdefault((id(param), device_of(lookup.context)), []).append(index)
    joint_ids = []
    for indices in groups.values():
        ids = [lookups[index].ids.reshape(-1) for index in indices]
        joint_ids.append(ids[0] if len(ids) == 1 else np.concatenate(ids))
    requests, requested = [], []
    for indices, joint, (keys, positions) in zip(groups.values(), joint_ids, distinct_keys(joint_ids)):
        param, lookup = params[indices[0]], lookups[indices[0]]
        if not len(keys):
            continue
        check_range(joint, int(keys[0]), int(keys[-1]), param.name, param.rows)
        is_direct = len(indices) == 1 and lookup.is_direct(len(keys))
        requests.append(lookup.request(param, keys, positions) if is_direct else
                        RowRequest(param, keys, None, (len(keys),), lookup.context))
        requested.append((indices, positions, is_direct))
    results: List[Any] = [None] * len(lookups)
    for (indices, positions, is_direct), rows in zip(requested, request_rows(requests)):
        if is_direct:
            results[indices[0]] = rows
            continue
        sizes = [lookups[index].ids.size for index in indices]
        for index, part in zip(indices, np.split(positions, np.cumsum(sizes)[:-1])):
            if len(part):
                results[index] = lookups[index].result(rows, part)
    return [_zeros(param, lookup) if result is None else result
            for param, lookup, result in zip(params, lookups, results)]


def _zeros(param: TableParameter, lookup: Lookup) -> Any:
    """Return the result for bags that are all empty; a backward pass may begin with it, and gives weights zeros."""
    assert lookup.bags is not None
    with mx.autograd.pause():
        zeros = mx.nd.zeros(lookup.bags.shape + (param.width,), lookup.context, param.dtype)
    if mx.autograd.is_recording():
        zeros.attach_grad()
        if not lookup.bags.has_constant_weights:
            return NoGradients()(zeros, lookup.bags.weights)[0]
    return zeros
