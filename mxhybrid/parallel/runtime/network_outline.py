"""The outline of a network: operators in the order of the graph, parameters in the order of the network.

Names of layers may depend on the layers that a process has made before, so workers match them by position.
"""
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from ...kvstore.weight_shards import agreed
from ...native import trainers
from ..ops.graph import Graph, Operator
from ..ops.tracing import TracedNetwork
from ..redistribution.outline import Line
from .split_network import SplitNetwork


def outline_of(call: str, network: TracedNetwork, params: Mapping[str, Any]) -> List[Line]:
    """Return the outline of a network, with its parameters in their order."""
    graph = network.graph
    positions = {name: position for position, name in enumerate(params)}
    types = graph.input_dtypes
    lines = [Line('the call', '', call)]
    lines += [Line('input', name, {'shape': _plain(graph.data[name]), 'dtype': str(types[name]), 'batch_axis': axis})
              for name, axis in network.axes.items()]
    lines += [Line('parameter %d' % position, name, _parameter(graph, param))
              for position, (name, param) in enumerate(params.items())]
    lines += [Line('operator %d' % operator.number, operator.name, _operator(graph, operator, positions))
              for operator in graph.operators]
    return lines + [Line('outputs', '', [list(head) for head in graph.heads])]


def outline_of_split(call: str, network: SplitNetwork, params: Mapping[str, Any]) -> List[Line]:
    """Return the outline of a network and its split."""
    graph = network.graph
    positions = {name: position for position, name in enumerate(params)}
    lines = outline_of(call, network.traced, params)
    lines += [Line('split of operator %d' % operator.number, graph.label(operator),
                   network.shards.splits[operator.number].as_json())
              for operator in graph.computing]
    lines += sorted((Line('table', name, [positions[name], *table]) for name, table in network.tables.items()),
                    key=lambda line: int(line.value[0]))
    return lines + [Line('batch_norm', '', 'joint' if network.joint_statistics else 'local'),
                    Line('pipeline', '', None if network.stages is None else network.stages.as_json()),
                    Line('recompute', '', [list(segment.operators) for segment in network.segments]),
                    Line('input_grad', '', bool(network.input_shards.gradient_inputs))]


def _parameter(graph: Graph, param: Any) -> Dict[str, Any]:
    grad_req, shape = agreed(param)
    return {'shape': _plain(graph.parameter_arrays.get(param.name, shape)), 'dtype': str(np.dtype(param.dtype)),
            'grad_req': grad_req, 'row_sparse': bool(trainers.is_row_sparse(param))}


def _operator(graph: Graph, operator: Operator, positions: Dict[str, int]) -> Dict[str, Any]:
    if operator.op == 'null':
        return {'input': operator.name} if operator.name in graph.data else {'parameter': positions.get(operator.name)}
    return {'op': operator.op, 'attributes': dict(sorted(operator.settings.items())),
            'reads': [list(entry) for entry in operator.inputs],
            'shapes': [_plain(graph.shape(operator, output)) for output in range(operator.outputs)],
            'dtypes': [str(graph.dtypes[operator.number, output]) for output in range(operator.outputs)]}


def _plain(shape: Sequence[int]) -> List[int]:
    return [int(count) for count in shape]
