"""What a worker knows of the optimizer of a table, wherever the table's rows are: on the servers or in this worker.

Whoever holds the rows has an optimizer of its own, with the settings that it was told last, and keeps state that MXNet
made once, with the settings of the first update.  Settings are told when they change, before the update that they are
for; :func:`mxhybrid.servers.partition_state.updated_optimizer` takes them.
"""
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ..native.optimizer_state import state_shapes
from ..native.optimizers import attributes_of, build, check_change, check_for_table, is_known, reference_of

#: What an optimizer is made of: its class, see :func:`mxhybrid.native.optimizers.reference_of`, and its attributes.
Recipe = Tuple[str, Dict[str, Any]]


class OptimizedTable:
    """A table of `width` elements a row, with the rules of its optimizer; where the rows are, a derived class says."""

    def __init__(self, name: str, width: int, dtype: Any):
        self.name, self.width = name, width
        self.dtype = np.dtype(dtype)
        self._made_with: Optional[Recipe] = None
        self._told: Optional[Recipe] = None
        #: Settings that were found fine last.
        self._passed: Optional[Tuple[Any, ...]] = None
        #: Updates that were made to every row, or could have been.
        self.updates = 0

    def _tell_optimizer(self, reference: str, attributes: Dict[str, Any], count: Optional[int]) -> None:
        """Tell whoever holds the rows: attributes that changed, of another class all, and a count that it lacks."""
        raise NotImplementedError

    def _drop_optimizer(self) -> None:
        """Have whoever holds the rows drop optimizer and state."""
        raise NotImplementedError

    @property
    def has_optimizer(self) -> bool:
        """Whether optimizer state is kept for this table."""
        return self._told is not None

    def state_maker(self) -> Any:
        """An optimizer that makes such state as is kept for the table."""
        assert self._made_with is not None
        return build(*self._made_with)

    def state_slots(self) -> int:
        """Arrays of optimizer state that are kept for the table."""
        return len(state_shapes(self.state_maker(), 0, (1, self.width), self.dtype)) if self._made_with else 0

    def check_optimizer(self, optimizer: Any, wd: float) -> None:
        """Refuse settings with which the next update cannot be made; see :meth:`set_optimizer`."""
        if not is_known(optimizer):
            check_for_table(optimizer, self.name, self.dtype, wd)
            return
        # What the two look at: most updates are made with the settings of the one before.
        settings = (type(optimizer), wd, optimizer.multi_precision, getattr(optimizer, 'momentum', None),
                    getattr(optimizer, 'centered', None), self._made_with)
        if settings != self._passed:
            check_for_table(optimizer, self.name, self.dtype, wd)
            check_change(self._made_with, optimizer, self.name)
            self._passed = settings

    def set_optimizer(self, optimizer: Any, lr: float, wd: float, count: int) -> None:
        """Have the next update made by `optimizer`, with `lr` and `wd` as its multipliers and schedule leave them.
        Updates made to this table before are `count`; a push that updates is expected to follow.
        """
        attributes = dict(attributes_of(optimizer), lr=float(lr), wd=float(wd))
        current = (reference_of(optimizer), attributes)
        if self._made_with is None or self._made_with[0] != current[0]:
            self._made_with = current
        if current != self._told or count != self.updates:
            if self._told is not None and self._told[0] == current[0]:
                old = self._told[1]
                attributes = {name: value for name, value in attributes.items() if old.get(name, old) != value}
            self._tell_optimizer(current[0], attributes, None if count == self.updates else count)
            self._told = current
        self.updates = count + 1

    def expect_count(self, count: int) -> None:
        """Correct the number of updates that have been made."""
        self.updates = count

    def forget_optimizer(self) -> None:
        """Drop optimizer and state."""
        self._drop_optimizer()
        self._told, self.updates, self._made_with = None, 0, None

    def inherit_optimizer(self, former: 'OptimizedTable') -> None:
        """Take over from another table, whose optimizer state will be assigned to this one."""
        self._made_with = former._made_with
