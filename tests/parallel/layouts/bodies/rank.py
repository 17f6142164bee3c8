"""A rank of a split network, without a job: it computes networks that it reads from a pipe (helpers/split_networks.py).

Arguments: the rank, and a descriptor of a socket to each other rank, as ``rank:descriptor``.
"""
import functools
import os
import pickle
import socket
import sys
import traceback

import mxnet as mx
import numpy as np

from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.ops.tracing import dimensions_of
from mxhybrid.parallel.plans.recompute import Segment
from mxhybrid.parallel.redistribution.redistribution_operator import RedistributionOperator
from mxhybrid.parallel.redistribution.socket_transport import SocketTransport
from mxhybrid.parallel.runtime.fetched_inputs import TOKEN
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import Program, ProgramSpec
from mxhybrid.parallel.sharding import sum_steps
from mxhybrid.parallel.sharding.box import full, shape_of, slices_in
from mxhybrid.parallel.sharding.split import Split

RANK = int(sys.argv[1])
SOCKETS = {int(rank): socket.socket(fileno=int(descriptor))
           for rank, descriptor in (one.split(':') for one in sys.argv[2:])}


def fail(error):
    traceback.print_exception(type(error), error, error.__traceback__)
    os._exit(1)


def floats(data):
    """Return the names of the data that have gradients: all but ids."""
    return {name for name, values in data.items() if not np.array_equal(values, np.floor(values))}


def weigh(output):
    """Return a gradient of an output that depends on its value only, so that it is equal for every split."""
    return mx.nd.sin(output.detach() * 3 + 1)


def pieces(values, boxes):
    """Return the boxes of an output with their values, from an array that contains them one after the other."""
    shape = list(shape_of(boxes[0]))  # with factors of dimensions, if there are any
    if len(boxes) == 1:
        return [(boxes[0], values.reshape(shape))]
    axis = next(at for at, one in enumerate(boxes[0]) if one != boxes[1][at])
    shape[axis] *= len(boxes)
    values = values.reshape(shape)
    return list(zip(boxes, np.split(values, len(boxes), axis)))


@functools.lru_cache(maxsize=1)
def known(text, shapes, dtypes, axes):
    """Return the graph of a network and its dimensions, which are the same for all its splits."""
    graph = Graph(mx.sym.load_json(text), dict(shapes), dict(dtypes))
    return graph, dimensions_of(graph, dict(axes))


def compute(transport, text, data, weights, splits, training, axes, segments, first):
    """Return this rank's outputs and gradients, with their boxes."""
    graph, dimensions = known(text, tuple((name, array.shape) for name, array in data.items()),
                              tuple((name, array.dtype) for name, array in {**data, **weights}.items()),
                              tuple(axes.items()))
    shards = NetworkShards(graph, {number: Split(*key) for number, key in splits.items()})
    input_shards = InputShards(graph, axes, dimensions, len(SOCKETS) + 1, RANK, floats(data))
    spec = ProgramSpec(shards, input_shards.inputs, input_shards.outputs, collectives(training),
                       input_shards.gradient_inputs, segments=[Segment(*segment) for segment in segments])
    program = Program(spec, RANK, lambda redistribution, flows: RedistributionOperator(redistribution, transport, flows,
                                                                                       fail), first, fail)
    arrays = {}
    for name in program.symbol.list_inputs():
        if name in program.averages:
            continue
        if name == TOKEN:
            arrays[name] = mx.nd.zeros(1)
        elif name in program.constants:
            arrays[name] = mx.nd.array(program.constants[name], dtype=program.constants[name].dtype)
            continue
        else:
            whole, box = (data[name], input_shards.boxes[name]) if name in data else (
                weights[name].reshape(shards.weights.shapes[name]), shards.weights.boxes(name)[RANK])
            values = np.ascontiguousarray(whole[slices_in(box, full(whole.shape))])
            arrays[name] = mx.nd.array(values, dtype=values.dtype)
        if name not in graph.auxiliary and (name in input_shards.gradient_inputs or name not in data):
            arrays[name].attach_grad()
    for name, parameter in program.averages.items():
        arrays[name] = mx.nd.zeros_like(arrays[parameter])
        mx.autograd.mark_variables([arrays[name]], [arrays[parameter]])
    operator = mx.nd.CachedOp(program.symbol, [('static_alloc', True)])
    with mx.autograd.record(train_mode=training):
        results = operator(*[arrays[name] for name in program.symbol.list_inputs()])
    results = (list(results) if isinstance(results, (list, tuple)) else [results])[program.leading:][:program.outputs]
    mx.autograd.backward(results, [weigh(output) for output in results], train_mode=training)
    outputs = [pieces(output.asnumpy(), [boxes[RANK] for boxes in input_shards.outputs[head]])
               for head, output in zip(graph.heads, results)]
    gradients = {name: (input_shards.boxes[name] if name in data else shards.weights.boxes(name)[RANK],
                        array.grad.asnumpy(), None if name in data else shards.weights.shapes[name])
                 for name, array in arrays.items()
                 if name != TOKEN and name not in program.averages and array.grad is not None}
    program.forget()
    return outputs, gradients, len(program.redistributions)


def main():
    sum_steps.MIN_SAVED_BYTES = 1  # the arrays of tests are small
    tasks, results = sys.stdin.buffer, os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)  # whatever else is printed
    transport = SocketTransport(RANK, SOCKETS, fail)
    first = 0
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        pickle.dump(compute(transport, *task, first), results)
        results.flush()
        first += 1 << 20


main()
