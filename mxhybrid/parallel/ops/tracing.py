"""A network as a graph, without a job: what both who splits it and who plans that start from."""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from ...base.errors import InputError
from ...kvstore.weight_shards import refuse_emptied
from ...native import trainers
from .dimension_names import Dimensions
from .graph import Graph


class TracedNetwork(NamedTuple):
    """A network and what its inputs are."""

    symbol: Any
    graph: Graph
    dimensions: Dimensions
    #: Which dimension of each input has the samples, if any, in the order of the inputs.
    axes: Dict[str, Optional[int]]
    #: Puts a list of outputs into the form that the network gives them.
    regroup: Callable[[List[Any]], Any]


def traced(net: Any, data: Any, batch_axis: Any = 0, dtype: Any = 'float32') -> TracedNetwork:
    """The graph of a network for joint batches of a shape; the parameters are those of
    :func:`mxhybrid.parallelize`, and so are the errors.
    """
    if not isinstance(net, gluon.HybridBlock):
        raise InputError('parallelize: the network is a %s, not a HybridBlock: split the part of it that is one, and '
                         'keep its tables outside' % type(net).__name__)
    shapes = shapes_of(data)
    names = ['data'] if len(shapes) == 1 else ['data%d' % at for at in range(len(shapes))]
    axes = dict(zip(names, _each(batch_axis, len(shapes), 'batch_axis')))
    try:
        types = dict(zip(names, [one if one is None else np.dtype(one)
                                 for one in _each(dtype, len(shapes), 'dtype')]))
    except TypeError as error:
        raise InputError('parallelize: dtype=%r: %s: give a type of arrays' % (dtype, error)) from error
    _check_shapes(shapes, axes)
    params = net.collect_params()
    for param in params.values():
        refuse_emptied(param)
    missing = [name for name, param in params.items()
               if not trainers.has_values(param) and not trainers.awaits_shape(param)]
    if missing:
        raise InputError('parallelize: %s has no values: call initialize() first' % missing[0])
    try:
        with mx.name.NameManager():  # or what was traced before would number the operators of a net without a prefix
            found = net(*[mx.sym.var(name) for name in names])
    except Exception as error:  # of any type: it is the network's own code that fails
        raise InputError('parallelize: the network cannot be traced: called with %d symbols, it raises %s: %s; give it '
                         'as many inputs as it takes, and have hybrid_forward use neither their shapes nor their values'
                         % (len(names), type(error).__name__, error)) from error
    outputs, regroup = _flatten(found)
    if not outputs or not all(isinstance(one, mx.sym.Symbol) for one in outputs):
        raise InputError('parallelize: the network cannot be traced: called with symbols, it returns %r: have it '
                         'return what it computes, or lists of that' % (found,))
    symbol = mx.sym.Group(outputs)
    used = set(symbol.list_inputs())
    unused = [name for name in names if name not in used]
    if unused:
        raise InputError('parallelize: the network does not use its input %s: leave it out' % unused[0])
    graph = Graph(symbol, dict(zip(names, shapes)),
                  {**{name: param.dtype for name, param in params.items() if name in used}, **types}, net.prefix)
    for name, shape in graph.parameters.items():
        if trainers.has_values(params[name]) and tuple(params[name].shape) != shape:
            raise InputError('parallelize: the network does not take data of shapes %s: %s would have shape %s, not %s'
                             % (graph.data, name, shape, tuple(params[name].shape)))
    dimensions = Dimensions(graph, axes)
    return TracedNetwork(symbol, graph, dimensions, axes, regroup)


def reshaped(network: TracedNetwork, data: Any) -> TracedNetwork:
    """Return the network for joint batches of another shape; errors as :meth:`~.parallel_block.Parallel.for_data`."""
    shapes, axes = shapes_of(data), network.axes
    if len(shapes) != len(axes):
        raise InputError('for_data: shapes of %d inputs, but the network takes %d' % (len(shapes), len(axes)))
    _check_shapes(shapes, axes)
    graph = network.graph.with_data(network.symbol, dict(zip(axes, shapes)))
    return network._replace(graph=graph, dimensions=Dimensions(graph, axes))


def shapes_of(data: Any) -> List[Tuple[int, ...]]:
    """Shapes of all inputs, of what users give as `data`."""
    if isinstance(data, (list, tuple)):
        if all(isinstance(one, (int, np.integer)) for one in data):
            return [_whole(data)]
        if all(isinstance(one, (list, tuple)) for one in data):
            return [_whole(one) for one in data]
    raise InputError('parallelize: data=%s: give the shape of the joint batch, of each input'
                     % (data if isinstance(data, (list, tuple, str, int, type(None))) else type(data).__name__,))


def _whole(shape: Any) -> Tuple[int, ...]:
    """A shape without numbers of NumPy's, which are no ints to whoever checks that they are."""
    return tuple(int(one) if isinstance(one, np.integer) else one for one in shape)


def _check_shapes(shapes: List[Tuple[int, ...]], axes: Dict[str, Optional[int]]) -> None:
    for shape, axis in zip(shapes, axes.values()):
        if axis is not None and (not isinstance(axis, (int, np.integer)) or isinstance(axis, bool)
                                 or not 0 <= axis < len(shape)):
            raise InputError('parallelize: batch_axis=%r, but data has shape %s' % (axis, shape))
        if any(not isinstance(count, (int, np.integer)) or count < 1 for count in shape):
            raise InputError('parallelize: data=%s: give a whole shape, that of the joint batch' % (shape,))


def _each(value: Any, count: int, what: str) -> List[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InputError('parallelize: %s=%r for %d inputs: give one each' % (what, value, count))
    return list(value)


def _flatten(found: Any) -> Tuple[List[Any], Any]:
    """Outputs of a network in one list, and what puts such a list into their form."""
    if not isinstance(found, (list, tuple)):
        return [found], lambda values: values[0]
    pieces = [_flatten(one) for one in found]

    def regroup(values: List[Any]) -> Any:
        at, made = 0, []
        for symbols, inner in pieces:
            made.append(inner(values[at:at + len(symbols)]))
            at += len(symbols)
        return type(found)(made)
    return [symbol for symbols, _ in pieces for symbol in symbols], regroup
