"""Transfers by the lane: compiled, without Python on their way."""
import threading
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from ...kernels.operators import JointNorm, JointNormOperator, TransferOperator
from ...lane.transfers import Channels, PersistentTransfer
from ...native.engine import handles_of
from ..sharding.box import Box, full, overlap, subtract
from .redistribution import Redistribution, Slices, Transfer
from .redistribution_operator import Transport


class LaneTransport(Transport):
    """Moves arrays by the channels of the lane."""

    def __init__(self, channels: Channels):
        self._channels = channels
        self._persistent: Dict[int, PersistentTransfer] = {}
        #: The ranges of tags of transfers that are cancelled.
        self._cancelled: List[range] = []
        # The backward passes of two calls may come with one transfer at the same time, in two threads of MXNet; nobody
        # would receive what a second persistent transfer with its tag sends.
        self._lock = threading.Lock()

    def push_views(self, transfer: Transfer, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        some = target if source is None else source
        with self._lock:
            persistent = self._persistent.get(transfer.tag) or self._new_persistent_transfer(
                transfer, np.float32 if some is None else some.dtype, None if source is None else source.shape,
                None if target is None else target.shape)
        persistent.start(None if source is None else source.ctypes.data, None if target is None else target.ctypes.data,
                         handles_of(arrays), priority)

    def forget(self, transfers: List[Transfer]) -> None:
        for transfer in transfers:
            self._persistent.pop(transfer.tag, None)

    def tags_under_way(self) -> List[int]:
        return [tag for tag, transfer in list(self._persistent.items()) if transfer.is_under_way]

    def cancel(self, first: int, end: int) -> None:
        with self._lock:
            self._cancelled.append(range(first, end))
            for tag, transfer in self._persistent.items():
                if first <= tag < end:
                    transfer.cancel()

    def _new_persistent_transfer(self, transfer: Transfer, dtype: Any, source: Optional[Tuple[int, ...]],
                                 target: Optional[Tuple[int, ...]]) -> PersistentTransfer:
        self._persistent[transfer.tag] = persistent_transfer_of(self._channels, transfer, dtype, source, target)
        if any(transfer.tag in tags for tags in self._cancelled):
            self._persistent[transfer.tag].cancel()
        return self._persistent[transfer.tag]

    def operator(self, redistribution: Redistribution) -> Optional[TransferOperator]:
        """Return a compiled operator; None for a type for which MXNet has no such operators."""
        if redistribution.dtype != np.float32:
            return None
        return TransferOperator(*self._both_ways(redistribution), *redistribution.shapes)

    def norm_operator(self, redistribution: Redistribution, norm: JointNorm) -> Optional[JointNormOperator]:
        return JointNormOperator(norm, *self._both_ways(redistribution))

    def _both_ways(self, redistribution: Redistribution) -> Tuple[PersistentTransfer, PersistentTransfer]:
        """Return the transfers of the forward and the backward pass."""
        source, target = redistribution.shapes
        return (self._new_persistent_transfer(redistribution.forward, redistribution.dtype, source, target),
                self._new_persistent_transfer(redistribution.backward, redistribution.dtype, target, source))


def persistent_transfer_of(channels: Channels, transfer: Transfer, dtype: Any, source: Optional[Tuple[int, ...]],
                           target: Optional[Tuple[int, ...]]) -> PersistentTransfer:
    """Return a transfer of arrays of these shapes, described to the lane."""
    persistent = channels.transfer(transfer.tag, dtype, source, target, transfer.adds)
    for rank, where in transfer.sends:
        persistent.send(rank, where)
    for rank, where in transfer.receives:
        persistent.receive(rank, where)
    for here, there in transfer.local:
        persistent.copy_local(here, there)
    if target is not None and not transfer.adds and transfer.fill == transfer.fill:
        rest = [full(target)]
        for where in [where for _, where in transfer.receives] + [there for _, there in transfer.local]:
            rest = [remaining for box in rest for remaining in _less(box, where)]
        for box in rest:
            persistent.fill([slice(low, high) for low, high in box], transfer.fill)
    persistent.open()
    return persistent


def _less(box: Box, where: Slices) -> List[Box]:
    """Subtract a piece from a box; return the rest as disjoint boxes."""
    common = overlap(box, tuple((side.start, side.stop) for side in where))
    return [box] if common is None else subtract(box, common)
