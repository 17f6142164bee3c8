"""The redistributions and group sums that are timed: the same operators as in a split network."""
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet import autograd

from ...parallel.redistribution.redistribution import Redistribution
from ...parallel.redistribution.redistribution_operator import RedistributionOperator
from ...parallel.redistribution.worker_group import WorkerGroup
from ...parallel.runtime.rank_program import COMPILED
from ...parallel.runtime.sharded_parameters import ShardedWeight
from ...parallel.sharding.box import Box, shape_of
from ...parallel.sharding.layout import Layout, Movement

#: Redistribution numbers that are reserved for a chain, or for a sum.
_NUMBERS = 64

#: Shape of the weights of a dense layer between redistributions: 4 MB, more than a core's caches hold.
_LAYER = 4096, 256

#: The box that each rank holds before and after a redistribution.
Step = Tuple[Dict[int, Box], Dict[int, Box]]


def shifted(groups: List[List[int]], shift: int, columns: int) -> Callable[[int], Step]:
    """Describe redistributions in which each rank sends its data to one rank of its group, and receives as much."""
    def step(number: int) -> Step:
        return rows(number), rows(number + 1)

    def rows(moves: int) -> Dict[int, Box]:
        row_of = {rank: group[(position + shift * moves) % len(group)] for group in groups
                  for position, rank in enumerate(group)}
        return {rank: ((row, row + 1), (0, columns)) for rank, row in row_of.items()}
    return step


def all_to_all(groups: List[List[int]], columns: int) -> Callable[[int], Step]:
    """Describe redistributions in which ranks of a group exchange equal shares: rows become columns, and rows again."""
    rows: Dict[int, Box] = {}
    column_ranges: Dict[int, Box] = {}
    for group in groups:
        for position, rank in enumerate(group):
            rows[rank] = (rank, rank + 1), (0, columns)
            column_ranges[rank] = ((group[0], group[-1] + 1),
                                   (position * columns // len(group), (position + 1) * columns // len(group)))
    return lambda number: (rows, column_ranges) if number % 2 == 0 else (column_ranges, rows)


class RedistributionChain:
    """A graph of redistributions, one after the other (collective).

    With `layers`, the graph also has this number of dense layers, each after a redistribution as long as there are
    any, as in a network: then the data of redistributions are in no cache, and threads sleep.
    """

    def __init__(self, workers: WorkerGroup, columns: int, step: Callable[[int], Step], length: int, layers: int = 0):
        first = workers.reserve_numbers(_NUMBERS)
        token, data = mx.sym.var('token', dtype='float32'), mx.sym.var('given', dtype='float32')
        self._nodes: List[RedistributionOperator] = []
        self._call: Any = None
        transport = workers.transport  # all ranks have to open it
        assert transport is not None and length <= _NUMBERS
        weight = mx.sym.var('weight', shape=_LAYER, dtype='float32')
        shape = None
        for number in range(max(length, layers)):
            if number >= length:
                data = _behind_a_layer(data, weight)
                continue
            before, after = step(number)
            movement = Movement(Layout((workers.size, columns), before), after, 'float32')
            redistribution = Redistribution(first + number, workers.rank, movement, 'calibration')
            if redistribution.source is None:
                return  # this rank is in none of the groups
            shape = shape or shape_of(redistribution.source)
            self._nodes.append(workers.make_node(redistribution, True))
            token, data = self._nodes[-1].symbol(token, data, plain=True)
            if number < layers:
                data = _behind_a_layer(data, weight)
        symbol = mx.sym.Group([self._nodes[-1].ending(output) for output in (data, token)])
        self._order = symbol.list_inputs()
        self._call = mx.nd.CachedOp(symbol, COMPILED + [('data_indices', list(range(len(self._order)))),
                                                        ('param_indices', [])])
        self._arrays = {'token': mx.nd.zeros(1, ctx=mx.cpu()), 'given': mx.nd.ones(shape, ctx=mx.cpu())}
        for array in self._arrays.values():
            array.attach_grad()
        if layers:
            self._arrays['weight'] = mx.nd.zeros(_LAYER, ctx=mx.cpu())

    def forward(self) -> None:
        """Run the chain forward, and wait for it."""
        if self._call is not None:
            self._call(*[self._arrays[name] for name in self._order])[0].wait_to_read()

    def forward_and_backward(self) -> None:
        """Run the chain forward and backward, and wait for it."""
        if self._call is not None:
            with autograd.record():
                output = self._call(*[self._arrays[name] for name in self._order])[0]
            output.backward()
            self._arrays['given'].grad.wait_to_read()

    def forget(self) -> None:
        """Release the redistributions; the chain must not run on any rank afterwards."""
        mx.nd.waitall()
        for node in self._nodes:
            node.release()


def _behind_a_layer(data: Any, weight: Any) -> Any:
    """Return the same values, which wait for a dense layer that reads some of them."""
    layer = mx.sym.FullyConnected(mx.sym.slice_axis(data, axis=1, begin=0, end=_LAYER[1]), weight, no_bias=True,
                                  num_hidden=_LAYER[0])
    return mx.sym.broadcast_add(data, mx.sym.slice_axis(layer, axis=1, begin=0, end=1))


class GroupSums:
    """A sum over the workers of each group, of a gradient of `count` values (collective)."""

    def __init__(self, workers: WorkerGroup, groups: List[List[int]], count: int):
        boxes: Dict[int, Box] = {rank: ((number * count, (number + 1) * count),)
                                 for number, group in enumerate(groups) for rank in group}
        weight_box = ShardedWeight(workers, (count * len(groups),), boxes, workers.reserve_numbers(_NUMBERS))
        self._weight_box: Optional[ShardedWeight] = weight_box if weight_box.holds else None
        self._gradient = mx.nd.zeros(count, ctx=mx.cpu())

    def make(self) -> None:
        """Sum, and wait for the result."""
        if self._weight_box is not None:
            self._weight_box.allreduce_(self._gradient, 0)
            self._gradient.wait_to_read()
