"""Exports the dense part of a network with dynamic tables as a symbol whose inputs are the looked-up rows."""
import json
import os
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import mxnet as mx
from mxnet import autograd

from ..base.errors import InputError
from ..base.files import write_atomically, written_aside
from ..base.log import get_logger
from ..kvstore.table_parameter import TableParameter
from ..native.params_file import ParamsWriter
from ..native.trainers import has_values, is_row_sparse, not_hybridized, params_by_place
from .collection import EmbeddingCollection
from .table_block import TableBlock

logger = get_logger(__name__)

_WEIGHT = '.weight'
#: Operators of a recorded graph that run Python code, or a graph of their own.
_OPAQUE = ('_CustomFunction', '_CachedOp', 'Custom')


class ExportedNetwork(NamedTuple):
    """The files of :func:`export`, and the inputs of the symbol.

    Attributes
    ----------
    symbol_file, params_file : str
        Paths, as ``gluon.SymbolBlock.imports`` takes them.
    inputs : dict
        The shape of each input by its name, in the order of the calls and arguments.
    """

    symbol_file: str
    params_file: str
    inputs: Dict[str, Tuple[int, ...]]


def export(net: Any, path: Any, *arguments: Any) -> ExportedNetwork:
    """Write a network with dynamic tables as a symbol, without its tables, and its dense weights.

    The inputs of the symbol are ``'NAME.rows'``, the result of the lookup in the table NAME, and for further lookups
    in it ``'NAME.rows1'`` and so on.  NDArrays among the arguments that operators use beside lookups are the inputs
    ``'data0'``, ``'data1'``, by their position.  Tables and weights have the names that they have in checkpoints.

    Parameters
    ----------
    net : gluon.Block
        A network whose forward pass uses operators of MXNet on lookups, arguments and weights.
    path : str
        The beginning of the names of the files, as for ``HybridBlock.export``.
    *arguments
        Arguments for a forward pass, which is recorded in predict mode.

    Returns
    -------
    ExportedNetwork

    Raises
    ------
    InputError
        The forward pass cannot be a symbol; no file is written then.
    """
    params = params_by_place(net)
    names = {id(params[name]): name for name in sorted(params, reverse=True)}  # the first name of shared ones
    arguments = tuple(_variable(argument.detach()) if isinstance(argument, mx.nd.NDArray) else argument
                      for argument in arguments)
    missing = [name for name, param in sorted(params.items()) if not isinstance(param, TableParameter)
               and not has_values(param)]
    if missing:
        raise InputError('export: %s has no values yet: call net.initialize(), and make a forward pass if the shape of '
                         'its input is not given' % missing[0])
    weights = {names[id(param)]: param.list_data()[0] for param in params.values()
               if not isinstance(param, TableParameter) and not is_row_sparse(param)}
    for param in params.values():
        if param.grad_req == 'null' and names[id(param)] in weights:
            _variable(weights[names[id(param)]])
    leaves: Dict[str, Any] = {}
    with not_hybridized(net), _leaves_of_lookups(net, names, leaves), autograd.record(train_mode=False):
        outputs = _arrays_in(net(*arguments))
    if not outputs:
        raise InputError('export: the forward pass of %s returned no NDArray: return one, or several in a list'
                         % type(net).__name__)
    leaves.update(('data%d' % number, argument) for number, argument in enumerate(arguments)
                  if isinstance(argument, mx.nd.NDArray))
    symbol = _symbol_of(outputs, {**leaves, **weights}, type(net).__name__)
    used, auxiliary = set(symbol.list_inputs()), set(symbol.list_auxiliary_states())
    inputs = {name: tuple(array.shape) for name, array in leaves.items() if name in used}
    _warn_of_fixed_sizes(symbol, inputs, {name: array.shape for name, array in weights.items() if name in used})
    stored = {'%s:%s' % ('aux' if name in auxiliary else 'arg', name): array.as_in_context(mx.cpu())
              for name, array in weights.items() if name in used}
    exported = ExportedNetwork('%s-symbol.json' % os.fspath(path), '%s-0000.params' % os.fspath(path), inputs)
    try:
        with written_aside(exported.params_file) as file:
            writer = ParamsWriter(file, len(stored))
            for name, array in stored.items():
                writer.add_array(name, array)
            writer.end()
        write_atomically(exported.symbol_file, symbol.tojson().encode())
    except OSError as error:
        raise InputError('export: cannot write %s: %s. Give the beginning of names of files that can be written'
                         % (os.fspath(path), error)) from error
    return exported


def _variable(array: Any) -> Any:
    """Make an array a variable of the graphs that are recorded with it; return it."""
    array.attach_grad('null')
    return array


def _arrays_in(value: Any) -> List[Any]:
    """Return the arrays in lists, tuples and dicts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [array for inner in value for array in _arrays_in(inner)]
    return [value] if isinstance(value, mx.nd.NDArray) else []


@contextmanager
def _leaves_of_lookups(net: Any, names: Dict[int, str], leaves: Dict[str, Any]) -> Iterator[None]:
    """Let lookups of the Blocks return arrays that nothing has computed, and keep these in `leaves` by name."""
    changed: List[Any] = []
    counts: Dict[str, int] = {}

    def leaf(array: Any, param: Any) -> Any:
        name = names[id(param)]
        counts[name] = counts.get(name, -1) + 1
        name = '%s.rows%s' % (name[:-len(_WEIGHT)] if name.endswith(_WEIGHT) else name, counts[name] or '')
        leaves[name] = _variable(array.copy())
        return leaves[name]

    def replace(block: Any) -> None:
        if not isinstance(block, (TableBlock, EmbeddingCollection)) or 'forward' in vars(block):
            return
        forward = block.forward

        def recorded(*arguments: Any, **keywords: Any) -> Any:
            with autograd.pause():
                result = forward(*arguments, **keywords)
                if isinstance(block, TableBlock):
                    return leaf(result, block.weight)
                return {feature: leaf(rows, block[feature].weight) for feature, rows in result.items()}

        changed.append(block)
        setattr(block, 'forward', recorded)  # noqa: B010 (mypy refuses an assignment to a method)

    try:
        net.apply(replace)
        yield
    finally:
        for block in changed:
            del block.forward


def _symbol_of(outputs: List[Any], arrays: Dict[str, Any], network: str) -> Any:
    """Return the recorded graph of the outputs, in which the variables of `arrays` have their names."""
    symbols = [autograd.get_symbol(output) for output in outputs]
    graph = json.loads((symbols[0] if len(symbols) == 1 else mx.sym.Group(symbols)).tojson())
    names = {}
    for name, array in arrays.items():
        try:
            variable = autograd.get_symbol(array)
        except mx.base.MXNetError:  # not a part of the graph
            continue
        names[variable.list_inputs()[0]] = name
    for node in graph['nodes']:
        if node['op'] == 'null':
            if node['name'] not in names:
                raise InputError('export: the forward pass of %s makes an array from values, by mx.nd.array or '
                                 'mx.nd.ones say, which a symbol cannot hold: give it as an argument, or as a '
                                 "parameter with grad_req='null'" % network)
            node['name'] = names[node['name']]
        elif node['op'] in _OPAQUE:
            raise InputError('export: the forward pass of %s runs Python code or a symbol of its own (%s), which '
                             'another symbol cannot hold: use operators of MXNet there' % (network, node['op']))
    return mx.sym.load_json(json.dumps(graph))


def _warn_of_fixed_sizes(symbol: Any, inputs: Dict[str, Tuple[int, ...]], weights: Dict[str, Tuple[int, ...]]
                         ) -> None:
    """Warn if the symbol does not accept twice the samples."""
    def sizes(factor: int) -> List[int]:
        shapes = {name: (factor * shape[0], *shape[1:]) for name, shape in inputs.items() if shape}
        return [shape[0] for shape in symbol.infer_shape(**shapes, **weights)[1] if shape]

    try:
        is_fixed = any(twice not in (2 * once, 1) for once, twice in zip(sizes(1), sizes(2)))
    except mx.base.MXNetError:
        is_fixed = True
    if is_fixed:
        logger.warning('export: the symbol is for the number of samples that the arguments have: in forward(), use '
                       'mx.nd.slice_axis in place of [], and mx.nd.reshape in place of the method reshape')
