"""The lookups of a dynamic table whose gradients the next step of its Trainer needs.

A recorded forward pass looks up an array of rows, whose gradient a backward pass writes.  MXNet overwrites the gradient
of a parameter in each backward pass, or adds to it (`grad_req`).  Lookups follow that rule for each device:

* lookups between two backward passes belong together, and their gradients are summed;
* with 'write', the last backward pass before the step counts;
* with 'add', all backward passes count until ``zero_grad()``, also those of earlier steps.

A lookup whose backward pass is made only after the next two steps has no effect.
"""
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from ..lane.keyed_rows import KeyedRows, Segments
from ..native.arrays import address_in_memory, host_view, sum_row_sparse
from ..native.trainers import is_fresh


class RecordedLookup:
    """Rows of distinct keys that a recorded forward pass has looked up, and the gradient that backward will compute.

    `keys`, `positions` and `segments` are those of :class:`mxhybrid.lane.keyed_rows.KeyedRows`; `rows` and `gradient`
    are arrays on a device, and `view` is a view of the gradient in the memory of the host, None on another device.
    """

    __slots__ = ('_address', 'device', 'gradient', 'group', 'keys', 'positions', 'rows', 'segments', 'view', 'waited')

    def __init__(self, keys: np.ndarray, positions: Optional[np.ndarray], segments: Optional[Segments], rows: Any,
                 gradient: Any, view: Optional[np.ndarray], device: Any):
        self.keys, self.positions, self.segments = keys, positions, segments
        self.rows, self.gradient, self.view, self.device = rows, gradient, view, device
        self._address = address_in_memory(gradient) if view is None else view.__array_interface__['data'][0]
        #: The number of the group of lookups on its device.
        self.group = 0
        #: Whether a step has passed without a backward pass.
        self.waited = False

    @property
    def is_attached(self) -> bool:
        """True unless the script has given the rows another gradient, which takes them out of the graph before them."""
        gradient = self.rows.grad
        return gradient is not None and address_in_memory(gradient) == self._address

    @property
    def counts(self) -> bool:
        """True if a backward pass has computed the gradient."""
        return is_fresh(self.rows) and self.is_attached

    def computed(self) -> KeyedRows:
        """Return the gradient that backward has computed."""
        if self.view is None:
            gradient = host_view(self.gradient)
        else:
            self.gradient.wait_to_read()
            gradient = self.view
        return KeyedRows(self.keys, self.positions, gradient, self.segments)


class PendingLookups:
    """The recorded lookups of one table since the last step."""

    def __init__(self) -> None:
        self._lookups: List[RecordedLookup] = []
        self._groups: Dict[Any, int] = {}
        #: The gradient that `grad_req` 'add' keeps from earlier steps.
        self._gradient: Optional[Tuple[np.ndarray, np.ndarray]] = None

    def record(self, lookup: RecordedLookup) -> None:
        """Note a lookup of a recorded forward pass."""
        lookup.group = self._groups.get(lookup.device, 0)
        if any(other.group == lookup.group and other.device == lookup.device and is_fresh(other.rows)
               for other in self._lookups):
            lookup.group += 1  # there was a backward pass since the last lookup
        self._groups[lookup.device] = lookup.group
        self._lookups.append(lookup)

    def _counted(self, grad_req: str) -> List[RecordedLookup]:
        """Return the lookups whose gradients count."""
        fresh = [lookup for lookup in self._lookups if lookup.counts]
        if grad_req == 'add' or len(fresh) < 2:
            return fresh
        newest: Dict[Any, int] = {}
        for lookup in fresh:
            newest[lookup.device] = max(newest.get(lookup.device, 0), lookup.group)
        return [lookup for lookup in fresh if lookup.group == newest[lookup.device]]

    def gradients(self, grad_req: str) -> List[Any]:
        """Return the arrays with the gradients that the next step will take."""
        return [lookup.gradient for lookup in self._counted(grad_req)]

    def overflow(self, grad_req: str) -> bool:
        """Return whether a sum of gradients that the next step will take is not finite."""
        return any(not np.isfinite(lookup.computed().sums()).all() for lookup in self._counted(grad_req))

    def keys(self, grad_req: str) -> np.ndarray:
        """Return the distinct keys of the gradients that the next step will take."""
        keys = [lookup.keys for lookup in self._counted(grad_req)]
        if grad_req == 'add' and self._gradient is not None and keys:
            keys.append(self._gradient[0])
        return np.unique(np.concatenate(keys)) if keys else np.empty(0, np.int64)

    def take(self, grad_req: str) -> Optional[KeyedRows]:
        """Return the gradients that count, None if there was no backward pass, and forget them.

        The rows of each key are to be added up.
        """
        counted = self._counted(grad_req)
        parts = [lookup.computed() for lookup in counted]
        if len(counted) == len(self._lookups):
            self._lookups = []
        else:
            self._lookups = [lookup for lookup in self._lookups if not lookup.waited and not is_fresh(lookup.rows)]
            for lookup in self._lookups:
                lookup.waited = True
        if not parts:
            return None
        if grad_req != 'add':
            self._gradient = None
            if len(parts) == 1:
                return parts[0]
        sums = [(part.keys, part.sums()) for part in parts]
        if grad_req == 'add' and self._gradient is not None:
            sums.insert(0, self._gradient)
        keys, rows = sum_row_sparse(sums)
        # Another backward pass may write to the array.
        self._gradient = (keys, np.array(rows)) if grad_req == 'add' else None
        return KeyedRows(keys, None, rows)

    def clear(self) -> None:
        """Forget all gradients and lookups."""
        self._lookups, self._gradient = [], None

    def zero(self) -> None:
        """Forget the gradients that backward has computed."""
        self._lookups = [lookup for lookup in self._lookups if not is_fresh(lookup.rows)]
        self._gradient = None
