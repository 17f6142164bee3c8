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

from ..lane.keyed_rows import KeyedRows
from ..native.arrays import address_in_memory, host_view, sum_row_sparse
from ..native.trainers import is_fresh


class _Lookup:
    """An array of rows that was looked up, with its gradient, and the number of the group of lookups on its device."""

    def __init__(self, keys: np.ndarray, positions: Optional[np.ndarray], rows: Any, gradient: Any, device: Any,
                 group: int):
        self.keys, self.positions, self.rows, self.gradient = keys, positions, rows, gradient
        self.device, self.group = device, group
        self._address = address_in_memory(gradient)
        #: Whether a step has passed without a backward pass.
        self.waited = False

    @property
    def is_attached(self) -> bool:
        """True unless the script has given the rows another gradient, which takes them out of the graph before them."""
        gradient = self.rows.grad
        return gradient is not None and address_in_memory(gradient) == self._address

    def computed(self) -> KeyedRows:
        """Return the gradient that backward has computed."""
        return KeyedRows(self.keys, self.positions, host_view(self.gradient))


class PendingLookups:
    """The recorded lookups of one table since the last step."""

    def __init__(self) -> None:
        self._lookups: List[_Lookup] = []
        self._groups: Dict[Any, int] = {}
        #: The gradient that `grad_req` 'add' keeps from earlier steps.
        self._gradient: Optional[Tuple[np.ndarray, np.ndarray]] = None

    def record(self, keys: np.ndarray, positions: Optional[np.ndarray], rows: Any, gradient: Any, device: Any) -> None:
        """Note rows, an array on a device with a gradient, that a recorded forward pass looks up.

        `keys` and `positions` are those of :class:`mxhybrid.lane.keyed_rows.KeyedRows`.
        """
        group = self._groups.get(device, 0)
        if any(lookup.group == group and lookup.device == device and is_fresh(lookup.rows)
               for lookup in self._lookups):
            group += 1  # there was a backward pass since the last lookup
        self._groups[device] = group
        self._lookups.append(_Lookup(keys, positions, rows, gradient, device, group))

    def _counted(self, grad_req: str) -> List[_Lookup]:
        """Return the lookups whose gradients count."""
        fresh = [lookup for lookup in self._lookups if is_fresh(lookup.rows) and lookup.is_attached]
        if grad_req == 'add':
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
        parts = [lookup.computed() for lookup in self._counted(grad_req)]
        self._lookups = [lookup for lookup in self._lookups if not is_fresh(lookup.rows) and not lookup.waited]
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
