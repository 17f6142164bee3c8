"""Moves by the lane: compiled, without Python on their way."""
import threading
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ...lane.exchange_operator import ExchangeOperator
from ...lane.transfers import Channels, PersistentTransfer
from ...native.engine import address_of, handles_of
from ..sharding.box import Box, full, overlap, without
from .exchange import Exchange, Move, Slices


class LaneTransport:
    """Moves arrays by the channels of this worker, as operations of MXNet's engine that nobody waits for."""

    def __init__(self, channels: Channels):
        self._channels = channels
        self._transfers: Dict[int, PersistentTransfer] = {}
        # Where backward passes of two calls meet, threads of MXNet come with one move at the same time: of a second
        # transfer with its tag nobody would find what it sends.
        self._lock = threading.Lock()

    def push(self, move: Move, source: Any, target: Any, others: List[Any], adds: bool = False) -> None:
        """Have the engine make a move; `source` is there already, `others` are held back, too, until it is made.

        `source` and `target` may be None; with `adds`, the target keeps what it has, and more is added.
        """
        if adds:
            scratch = mx.nd.empty(target.shape, dtype=target.dtype, ctx=mx.cpu())
            self.push(move, source, scratch, [])
            target += scratch
            for other in others:
                other[:] = 0
            return
        arrays = others if target is None else others + [target]
        transfer = self._transfer(move, source, target)
        transfer.start(None if source is None else address_of(source), None if target is None else address_of(target),
                     handles_of(arrays))

    def push_views(self, move: Move, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        """Have the engine make a move from one NumPy array to the other, which are the memory of `arrays`."""
        transfer = self._transfer(move, source, target)
        transfer.start(None if source is None else source.ctypes.data, None if target is None else target.ctypes.data,
                     handles_of(arrays), priority)

    def forget(self, moves: List[Move]) -> None:
        """They will not be made any more, when what is under way is done: others may have the memory."""
        for move in moves:
            self._transfers.pop(move.tag, None)

    def _transfer(self, move: Move, source: Any, target: Any) -> PersistentTransfer:
        some = target if source is None else source
        with self._lock:
            return self._transfers.get(move.tag) or self._new_transfer(
                move, np.float32 if some is None else some.dtype, None if source is None else source.shape,
                None if target is None else target.shape)

    def _new_transfer(self, move: Move, dtype: Any, source: Optional[Tuple[int, ...]],
                     target: Optional[Tuple[int, ...]]) -> PersistentTransfer:
        self._transfers[move.tag] = transfer_of(self._channels, move, dtype, source, target)
        return self._transfers[move.tag]

    def operator(self, exchange: Exchange) -> Optional[ExchangeOperator]:
        """What makes an exchange without Python; None where its type is none that MXNet has such operators for."""
        if exchange.dtype != np.float32:
            return None
        source, target = exchange.shapes
        forward = self._new_transfer(exchange.forward, exchange.dtype, source, target)
        backward = self._new_transfer(exchange.backward, exchange.dtype, target, source)
        return ExchangeOperator(forward, backward, source, target)


def transfer_of(channels: Channels, move: Move, dtype: Any, source: Optional[Tuple[int, ...]],
               target: Optional[Tuple[int, ...]]) -> PersistentTransfer:
    """A move of arrays of these shapes, described to the lane."""
    made = channels.transfer(move.tag, dtype, source, target, move.adds)
    for rank, where in move.sends:
        made.send(rank, where)
    for rank, where in move.receives:
        made.receive(rank, where)
    for here, there in move.own:
        made.copy_local(here, there)
    if target is not None and not move.adds and move.fill == move.fill:
        rest = [full(target)]
        for where in [where for _, where in move.receives] + [there for _, there in move.own]:
            rest = [left for one in rest for left in _less(one, where)]
        for box in rest:
            made.fill([slice(low, high) for low, high in box], move.fill)
    made.open()
    return made


def _less(box: Box, where: Slices) -> List[Box]:
    """A box without a piece."""
    common = overlap(box, tuple((one.start, one.stop) for one in where))
    return [box] if common is None else without(box, common)
