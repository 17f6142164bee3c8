"""The outline of a network: operators by their order in the graph, parameters by their order in the network.

Names of layers may depend on what a process has made before, so workers are matched by place.
"""
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from ...kvstore.weight_shards import agreed
from ...native import trainers
from ..ops.graph import Graph, Operator
from ..ops.tracing import TracedNetwork
from ..redistribution.outline import Line, Outline
from .split_network import SplitNetwork


def outline_of(call: str, network: TracedNetwork, params: Mapping[str, Any]) -> Outline:
    """Return the outline of a network, with its parameters in their order."""
    graph = network.graph
    places = {name: place for place, name in enumerate(params)}
    types = {one.name: graph.dtypes[one.number, 0] for one in graph.operators if one.op == 'null'}
    lines = [Line('the call', '', call)]
    lines += [Line('input', name, {'shape': _plain(graph.data[name]), 'dtype': str(types[name]), 'batch_axis': axis})
              for name, axis in network.axes.items()]
    lines += [Line('parameter %d' % place, name, _parameter(graph, param))
              for place, (name, param) in enumerate(params.items())]
    lines += [Line('operator %d' % one.number, one.name, _operator(graph, one, places)) for one in graph.operators]
    return Outline(lines + [Line('outputs', '', [list(head) for head in graph.heads])])


def outline_of_split(call: str, network: SplitNetwork, params: Mapping[str, Any]) -> Outline:
    """Return the outline of a network and of how it is split."""
    graph = network.graph
    places = {name: place for place, name in enumerate(params)}
    lines = outline_of(call, network.traced, params).lines
    lines += [Line('split of operator %d' % one.number, graph.label(one), _split(network, one))
              for one in graph.computing]
    lines += sorted((Line('table', name, [places[name], *table]) for name, table in network.tables.items()),
                    key=lambda line: int(line.value[0]))
    return Outline(lines + [Line('sums of dense weights', '', network.plan.store.dense),
                            Line('batch_norm', '', 'joint' if network.joint_statistics else 'local'),
                            Line('input_grad', '', bool(network.input_shards.gradient_inputs))])


def _split(network: SplitNetwork, one: Operator) -> Dict[str, Any]:
    split = network.shards.splits[one.number]
    return {'degrees': list(split.degrees), 'ranks': list(split.ranks), 'addends': split.addends,
            'copies': split.copies}


def _parameter(graph: Graph, param: Any) -> Dict[str, Any]:
    grad_req, shape = agreed(param)
    return {'shape': _plain(graph.parameters.get(param.name, shape)), 'dtype': str(np.dtype(param.dtype)),
            'grad_req': grad_req, 'row_sparse': bool(trainers.is_row_sparse(param))}


def _operator(graph: Graph, one: Operator, places: Dict[str, int]) -> Dict[str, Any]:
    if one.op == 'null':
        return {'input': one.name} if one.name in graph.data else {'parameter': places.get(one.name)}
    return {'op': one.op, 'attributes': dict(sorted(item for item in one.attrs.items()
                                                    if not item[0].startswith('__'))),
            'reads': [list(entry) for entry in one.inputs],
            'shapes': [_plain(graph.shape(one, output)) for output in range(one.outputs)],
            'dtypes': [str(graph.dtypes[one.number, output]) for output in range(one.outputs)]}


def _plain(shape: Sequence[int]) -> List[int]:
    return [int(count) for count in shape]
