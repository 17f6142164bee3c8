"""What exchanges and sums of groups take, as networks that are split make them."""
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ...parallel.redistribution.exchange import Exchange
from ...parallel.redistribution.exchange_op import ExchangeNode
from ...parallel.redistribution.worker_group import Team
from ...parallel.runtime.rank_program import COMPILED
from ...parallel.runtime.sharded_parameters import WeightBox
from ...parallel.sharding.box import Box, shape_of
from ...parallel.sharding.layout import Layout

#: Numbers that a chain, or a sum, may have.
_NUMBERS = 64

#: Weights of a dense layer between exchanges, of one sample: 4 MB, more than caches of a core hold.
_LAYER = 4096, 256

#: What each rank holds before and after an exchange.
Step = Tuple[Dict[int, Box], Dict[int, Box]]


def shifted(groups: List[List[int]], shift: int, columns: int) -> Callable[[int], Step]:
    """Each rank gives all it has to one other of its group, and gets as much."""
    def step(at: int) -> Step:
        return rows(at), rows(at + 1)

    def rows(moved: int) -> Dict[int, Box]:
        places = {rank: group[(number + shift * moved) % len(group)] for group in groups
                  for number, rank in enumerate(group)}
        return {rank: ((place, place + 1), (0, columns)) for rank, place in places.items()}
    return step


def all_to_all(groups: List[List[int]], columns: int) -> Callable[[int], Step]:
    """Each rank gives every other one of its group as much, rows to columns, then columns to rows."""
    rows: Dict[int, Box] = {}
    parts: Dict[int, Box] = {}
    for group in groups:
        for place, rank in enumerate(group):
            rows[rank] = (rank, rank + 1), (0, columns)
            parts[rank] = ((group[0], group[-1] + 1),
                           (place * columns // len(group), (place + 1) * columns // len(group)))
    return lambda at: (rows, parts) if at % 2 == 0 else (parts, rows)


class ExchangeChain:
    """A graph of some exchanges, one after the other (collective).  With `layers` there are so many dense ones, too,
    each behind an exchange as long as there are some, as in a network: what exchanges need is in no cache then, and
    threads sleep.
    """

    def __init__(self, team: Team, ranks: int, columns: int, step: Callable[[int], Step], length: int, layers: int = 0):
        first = team.reserve(_NUMBERS)
        token, given = mx.sym.var('token', dtype='float32'), mx.sym.var('given', dtype='float32')
        self._nodes: List[ExchangeNode] = []
        self._call: Any = None
        transport = team.transport  # which all have to make
        assert transport is not None and length <= _NUMBERS
        weight = mx.sym.var('weight', shape=_LAYER, dtype='float32')
        shape = None
        for at in range(max(length, layers)):
            if at >= length:
                given = _behind_a_layer(given, weight)
                continue
            have, wanted = step(at)
            exchange = Exchange(first + at, team.rank, Layout((ranks, columns), have), wanted, np.dtype('float32'),
                                label='calibration')
            if exchange.source is None:
                return  # this rank has no part in it
            shape = shape or shape_of(exchange.source)
            self._nodes.append(team.node(exchange, True))
            token, given = self._nodes[-1].symbol(token, given, plain=True)
            if at < layers:
                given = _behind_a_layer(given, weight)
        symbol = mx.sym.Group([self._nodes[-1].ending(one) for one in (given, token)])
        self._order = symbol.list_inputs()
        self._call = mx.nd.CachedOp(symbol, COMPILED + [('data_indices', list(range(len(self._order)))),
                                                        ('param_indices', [])])
        self._arrays = {'token': mx.nd.zeros(1, ctx=mx.cpu()), 'given': mx.nd.ones(shape, ctx=mx.cpu())}
        for array in self._arrays.values():
            array.attach_grad()
        if layers:
            self._arrays['weight'] = mx.nd.zeros(_LAYER, ctx=mx.cpu())

    def there(self) -> None:
        """Make them, and wait."""
        if self._call is not None:
            self._call(*[self._arrays[name] for name in self._order])[0].wait_to_read()

    def there_and_back(self) -> None:
        """Make them forwards and backwards, and wait."""
        if self._call is not None:
            with autograd.record():
                taken = self._call(*[self._arrays[name] for name in self._order])[0]
            taken.backward()
            self._arrays['given'].grad.wait_to_read()

    def forget(self) -> None:
        """It is not made any more, on any rank."""
        for node in self._nodes:
            node.forget()


def _behind_a_layer(given: Any, weight: Any) -> Any:
    """The same values, which wait for a dense layer that reads some of them."""
    made = mx.sym.FullyConnected(mx.sym.slice_axis(given, axis=1, begin=0, end=_LAYER[1]), weight, no_bias=True,
                                 num_hidden=_LAYER[0])
    return mx.sym.broadcast_add(given, mx.sym.slice_axis(made, axis=1, begin=0, end=1))


class GroupSums:
    """A sum over the workers of each group, of a gradient of so many values (collective)."""

    def __init__(self, team: Team, groups: List[List[int]], count: int):
        boxes: Dict[int, Box] = {rank: ((place * count, (place + 1) * count),)
                                 for place, group in enumerate(groups) for rank in group}
        part = WeightBox(team, (count * len(groups),), 'write', boxes, team.reserve(_NUMBERS))
        self._part: Optional[WeightBox] = part if part.holds else None
        self._gradient = mx.nd.zeros(count, ctx=mx.cpu())

    def make(self) -> None:
        """Sum, and wait."""
        if self._part is not None:
            self._part.allreduce_(self._gradient, 0)
            self._gradient.wait_to_read()
