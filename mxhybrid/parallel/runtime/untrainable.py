"""Networks whose backward pass MXNet cannot run, although it runs their forward pass."""
import collections
import json
from typing import Any, Collection, List

import mxnet as mx

from ...native.symbols import has_gradient, is_differentiable
from ..ops.graph import Graph, Operator
from ..ops.registry import rule_of
from .network_shards import NetworkShards


def untrainable_reason(symbol: Any, shards: NetworkShards, learning: Collection[int]) -> str:
    """Return the reason why MXNet cannot run the backward pass of a split network; '' if it can.

    `symbol` is the whole network, and `learning` are the numbers of the operators that learn.
    """
    return _lone_weights(shards, learning) or _lacking_gradients(symbol, shards.graph, learning)


def _lone_weights(shards: NetworkShards, learning: Collection[int]) -> str:
    """Return a message if a weight has a gradient that MXNet cannot add up or pass on to another operator, else ''."""
    graph = shards.graph
    readers = collections.Counter(entry for operator in graph.computing for entry in operator.inputs)
    for operator in graph.computing:
        position = rule_of(operator).lone_weight(graph, operator, shards.of_operator(operator))
        if position is None or operator.inputs[position][0] not in learning:
            continue
        source, count = graph.operators[operator.inputs[position][0]], readers[operator.inputs[position]]
        if source.op == 'null' and count == 1:
            continue
        what = ('%d operators read %s, among them' % (count, source.name) if source.op == 'null' else
                '%s computes the weight of' % graph.label(source))
        return ('%s %s (%s of float32), but MXNet 1.9.1 cannot add up or pass on the gradient of this weight, with one '
                "process either: give each %s a weight of its own, cast the network to float64, or set grad_req='null' "
                'for the weight before parallelize; predictions, without autograd.record(), work'
                % (what, graph.label(operator), operator.op, operator.op))
    return ''


def _lacking_gradients(symbol: Any, graph: Graph, learning: Collection[int]) -> str:
    """Return a message if a gradient would go back through an operator that has none in MXNet, else ''."""
    if is_differentiable(symbol):
        return ''
    lacking = [operator for operator in graph.operators if operator.op != 'null' and not has_gradient(
        operator.op, len(operator.inputs), tuple(operator.settings.items()))]
    for operator in lacking:
        # MXNet knows of some gradients that they are zero, as behind F.round, and then it does not ask for more.
        others = [other for other in lacking if other is not operator]
        if operator.number in learning and not is_differentiable(_with_constants(symbol, others)):
            return ('a gradient would go back through %s (%s), but MXNet 1.9.1 has no gradient of this operator, with '
                    'one process either: put F.BlockGrad around its inputs; predictions, without autograd.record(), '
                    'work' % (graph.label(operator), operator.op))
    return ''


def _with_constants(symbol: Any, operators: List[Operator]) -> Any:
    """Return a symbol in which variables take the place of operators."""
    described = json.loads(symbol.tojson(remove_amp_cast=False))
    for operator in operators:
        described['nodes'][operator.number] = {'op': 'null', 'name': operator.name, 'inputs': []}
        described['arg_nodes'].append(operator.number)
    return mx.sym.load_json(json.dumps(described))
