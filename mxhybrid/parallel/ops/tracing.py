"""Traces a network: its graph, sample axes and names of dimensions, which runtime and planner start from."""
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from ...base.errors import InputError
from ...kvstore.weight_shards import refuse_emptied
from ...native import trainers
from .dimension_names import Dimensions
from .graph import Graph
from .heads import factor_heads


class TracedNetwork(NamedTuple):
    """A traced network and its inputs."""

    symbol: Any
    graph: Graph
    dimensions: Dimensions
    #: The dimension of each input that has the samples, None if there is none, in the order of the inputs.
    axes: Dict[str, Optional[int]]
    #: Puts a list of outputs into the form in which the network returns them.
    regroup: Callable[[List[Any]], Any]
    #: The names of the network's blocks in labels, see :class:`Graph`.
    blocks: Tuple[str, ...] = ()


def traced(net: Any, data: Any, batch_axis: Any = 0, dtype: Any = 'float32', init: Any = None) -> TracedNetwork:
    """Trace a network for joint batches of a shape; parameters and errors are those of :func:`mxhybrid.parallelize`."""
    if not isinstance(net, gluon.HybridBlock):
        raise InputError('parallelize: the network is a %s, not a HybridBlock: split a HybridBlock inside it, and keep '
                         'tables outside' % type(net).__name__)
    shapes = shapes_of(data)
    names = ['data'] if len(shapes) == 1 else ['data%d' % at for at in range(len(shapes))]
    axes = dict(zip(names, _each(batch_axis, len(shapes), 'batch_axis')))
    try:
        types = dict(zip(names, [None if kind is None else np.dtype(kind)
                                 for kind in _each(dtype, len(shapes), 'dtype')]))
    except TypeError as error:
        raise InputError('parallelize: dtype=%r: %s: give a type of arrays' % (dtype, error)) from error
    _check_shapes(shapes, axes)
    params = net.collect_params()
    for param in params.values():
        refuse_emptied(param)
        if init is not None:
            trainers.defer_initialisation(param, _initializer(init))
    missing = [name for name, param in params.items()
               if not trainers.has_values(param) and not trainers.awaits_shape(param)]
    if missing:
        raise InputError('parallelize: %s has no values: call initialize() first, or give parallelize init='
                         % missing[0])
    blocks = _blocks_of(net)
    for block in blocks:
        if isinstance(block, gluon.rnn.RecurrentCell):
            block.reset()  # else numbers in names would depend on the calls before
    try:
        with mx.name.NameManager():  # else numbers in names would depend on the networks that were traced before
            traced_outputs = net(*[mx.sym.var(name) for name in names])
    except Exception as error:  # of any type: the network's own code fails
        raise InputError('parallelize: the network cannot be traced: called with %d symbols, it raises %s: %s; give it '
                         'all of its inputs, and use neither their shapes nor their values in hybrid_forward'
                         % (len(names), type(error).__name__, error)) from error
    outputs, regroup = _flatten(traced_outputs)
    if not outputs or not all(isinstance(output, mx.sym.Symbol) for output in outputs):
        raise InputError('parallelize: the network cannot be traced: called with symbols, it returns %r: return '
                         'symbols, or lists of symbols' % (traced_outputs,))
    symbol = mx.sym.Group(outputs)
    used = set(symbol.list_inputs())
    unused = [name for name in names if name not in used]
    if unused:
        raise InputError('parallelize: the network does not use its input %s: leave it out' % unused[0])
    block_names = _names_of(blocks)
    graph = Graph(symbol, dict(zip(names, shapes)),
                  {**{name: param.dtype for name, param in params.items() if name in used}, **types}, block_names)
    for name, shape in graph.parameters.items():
        if trainers.has_values(params[name]) and tuple(params[name].shape) != shape:
            raise InputError('parallelize: the network does not take data of shapes %s: %s would have shape '
                             '%s, not %s: give the shapes for which the network was made'
                             % (graph.data, name, shape, tuple(params[name].shape)))
    return TracedNetwork(symbol, graph, dimensions_of(graph, axes), axes, regroup,
                         tuple(name for name in dict.fromkeys(block_names.values()) if name))


def _blocks_of(net: Any) -> List[Any]:
    """Return a network and the blocks in it, each before the blocks that it contains."""
    return [net] + [block for child in trainers.children_of(net) for block in _blocks_of(child)]


def _names_of(blocks: List[Any]) -> Dict[str, str]:
    """Return the names of blocks in labels, by their prefixes; the first block is the network, whose name is left out.

    Gluon numbers the blocks of a class in a name scope, or in the process.  Labels have the number in the network in
    place of that in the process.
    """
    network, hints, shown = blocks[0].prefix, {}, {}
    for block in blocks:
        hint = trainers.hint_of(block)
        hints[block.prefix], shown[block.prefix] = hint, block.prefix
        for child in trainers.children_of(block):
            if child.prefix and block.prefix.endswith(child.prefix + hint):
                shown[block.prefix] = child.prefix + hint  # a cell that modifies another one repeats its scope
    hints.pop('', None)
    scopes = {prefix: network if network and shown[prefix].startswith(network) else
              min((other for other in hints if shown[prefix].startswith(other)), key=len) for prefix in hints}
    names, counts = {network: ''}, dict.fromkeys(hints.values(), 0)
    for scope in scopes.values():
        numbered = re.fullmatch(re.escape(hints[scope]) + '[0-9]+_', scope)
        if scope not in names:
            names[scope] = '%s%d_' % (hints[scope], counts[hints[scope]]) if numbered else scope
            counts[hints[scope]] += bool(numbered)
    return {prefix: names[scope] + shown[prefix][len(scope):] for prefix, scope in scopes.items()}


def _initializer(init: Any) -> Any:
    """Return the initializer that a user gave, as an object or by its name."""
    try:
        return mx.initializer.create(init)
    except Exception as error:  # MXNet raises several types
        raise InputError("parallelize: init=%r is not an initializer: give an initializer, for example "
                         "mx.init.Xavier(), or its name, for example 'xavier'" % (init,)) from error


def dimensions_of(graph: Graph, axes: Dict[str, Optional[int]]) -> Dimensions:
    """Return the names of dimensions, once dimensions that contain heads have their factors."""
    dimensions = Dimensions(graph, axes)
    return Dimensions(graph, axes) if factor_heads(graph, dimensions) else dimensions


def reshaped(network: TracedNetwork, data: Any) -> TracedNetwork:
    """Return the network for joint batches of another shape; errors as :meth:`~.ParallelBlock.for_data`."""
    shapes, axes = shapes_of(data), network.axes
    if len(shapes) != len(axes):
        raise InputError('for_data: shapes of %d inputs, but the network takes %d: give the shape of each input'
                         % (len(shapes), len(axes)))
    _check_shapes(shapes, axes)
    graph = network.graph.with_data(network.symbol, dict(zip(axes, shapes)))
    return network._replace(graph=graph, dimensions=dimensions_of(graph, axes))


def shapes_of(data: Any) -> List[Tuple[int, ...]]:
    """Return the shapes of all inputs, from the `data` that a user gives."""
    if isinstance(data, (list, tuple)):
        if all(isinstance(count, (int, np.integer)) for count in data):
            return [_whole(data)]
        if all(isinstance(shape, (list, tuple)) for shape in data):
            return [_whole(shape) for shape in data]
    raise InputError('parallelize: data=%s: give the shape of each input, for the joint batch'
                     % (data if isinstance(data, (list, tuple, str, int, type(None))) else type(data).__name__,))


def _whole(shape: Any) -> Tuple[int, ...]:
    """Return a shape with ints in place of NumPy's integers, which are not instances of int."""
    return tuple(int(count) if isinstance(count, np.integer) else count for count in shape)


def _check_shapes(shapes: List[Tuple[int, ...]], axes: Dict[str, Optional[int]]) -> None:
    for shape, axis in zip(shapes, axes.values()):
        if axis is not None and (not isinstance(axis, (int, np.integer)) or isinstance(axis, bool)
                                 or not 0 <= axis < len(shape)):
            raise InputError('parallelize: batch_axis=%r is not a dimension of data of shape %s: give an integer from '
                             '0 to %d, or None for an input without samples' % (axis, shape, len(shape) - 1))
        if any(not isinstance(count, (int, np.integer)) or count < 1 for count in shape):
            raise InputError('parallelize: data=%s: give a shape of positive whole numbers, that of the joint batch'
                             % (shape,))


def _each(value: Any, count: int, argument: str) -> List[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InputError('parallelize: %s=%r for %d inputs: give one for each' % (argument, value, count))
    return list(value)


def _flatten(outputs: Any) -> Tuple[List[Any], Any]:
    """Return the outputs of a network in one list, and a function that puts such a list into their form."""
    if not isinstance(outputs, (list, tuple)):
        return [outputs], lambda values: values[0]
    pieces = [_flatten(item) for item in outputs]

    def regroup(values: List[Any]) -> Any:
        at, items = 0, []
        for symbols, inner in pieces:
            items.append(inner(values[at:at + len(symbols)]))
            at += len(symbols)
        return type(outputs)(items)
    return [symbol for symbols, _ in pieces for symbol in symbols], regroup
