"""Moves by the lane: compiled, without Python on their way."""
import threading
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ...lane.exchange_operator import ExchangeOperator
from ...lane.moves import Channels, PersistentTransfer
from ...native.engine import address_of, handles_of
from ..sharding.box import Box, full, overlap, subtract
from .redistribution import Redistribution, Slices, Transfer


class LaneTransport:
    """Moves arrays by the channels of this worker, as operations of MXNet's engine that nobody waits for."""

    def __init__(self, channels: Channels):
        self._channels = channels
        self._transfers: Dict[int, PersistentTransfer] = {}
        # Where backward passes of two calls meet, threads of MXNet come with one move at the same time: of a second
        # transfer with its tag nobody would find what it sends.
        self._lock = threading.Lock()

    def push(self, transfer: Transfer, source: Any, target: Any, others: List[Any], adds: bool = False) -> None:
        """Have the engine make a move; `source` is there already, `others` are held back, too, until it is made.

        `source` and `target` may be None; with `adds`, the target keeps what it has, and more is added.
        """
        if adds:
            scratch = mx.nd.empty(target.shape, dtype=target.dtype, ctx=mx.cpu())
            self.push(transfer, source, scratch, [])
            target += scratch
            for other in others:
                other[:] = 0
            return
        arrays = others if target is None else others + [target]
        transfer = self._transfer(transfer, source, target)
        transfer.start(None if source is None else address_of(source), None if target is None else address_of(target),
                     handles_of(arrays))

    def push_views(self, transfer: Transfer, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        """Have the engine make a move from one NumPy array to the other, which are the memory of `arrays`."""
        transfer = self._transfer(transfer, source, target)
        transfer.start(None if source is None else source.ctypes.data, None if target is None else target.ctypes.data,
                     handles_of(arrays), priority)

    def forget(self, transfers: List[Transfer]) -> None:
        """They will not be made any more, when what is under way is done: others may have the memory."""
        for transfer in transfers:
            self._transfers.pop(transfer.tag, None)

    def _transfer(self, transfer: Transfer, source: Any, target: Any) -> PersistentTransfer:
        some = target if source is None else source
        with self._lock:
            return self._transfers.get(transfer.tag) or self._new_transfer(
                transfer, np.float32 if some is None else some.dtype, None if source is None else source.shape,
                None if target is None else target.shape)

    def _new_transfer(self, transfer: Transfer, dtype: Any, source: Optional[Tuple[int, ...]],
                     target: Optional[Tuple[int, ...]]) -> PersistentTransfer:
        self._transfers[transfer.tag] = transfer_of(self._channels, transfer, dtype, source, target)
        return self._transfers[transfer.tag]

    def operator(self, redistribution: Redistribution) -> Optional[ExchangeOperator]:
        """What makes an exchange without Python; None where its type is none that MXNet has such operators for."""
        if redistribution.dtype != np.float32:
            return None
        source, target = redistribution.shapes
        forward = self._new_transfer(redistribution.forward, redistribution.dtype, source, target)
        backward = self._new_transfer(redistribution.backward, redistribution.dtype, target, source)
        return ExchangeOperator(forward, backward, source, target)


def transfer_of(channels: Channels, transfer: Transfer, dtype: Any, source: Optional[Tuple[int, ...]],
               target: Optional[Tuple[int, ...]]) -> PersistentTransfer:
    """A move of arrays of these shapes, described to the lane."""
    made = channels.transfer(transfer.tag, dtype, source, target, transfer.adds)
    for rank, where in transfer.sends:
        made.send(rank, where)
    for rank, where in transfer.receives:
        made.receive(rank, where)
    for here, there in transfer.own:
        made.copy_local(here, there)
    if target is not None and not transfer.adds and transfer.fill == transfer.fill:
        rest = [full(target)]
        for where in [where for _, where in transfer.receives] + [there for _, there in transfer.own]:
            rest = [left for one in rest for left in _less(one, where)]
        for box in rest:
            made.fill([slice(low, high) for low, high in box], transfer.fill)
    made.open()
    return made


def _less(box: Box, where: Slices) -> List[Box]:
    """A box without a piece."""
    common = overlap(box, tuple((one.start, one.stop) for one in where))
    return [box] if common is None else subtract(box, common)
