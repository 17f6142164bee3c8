"""The optimizer of a table in a worker, for tables on the servers and tables in this worker.

The owner of the rows has an optimizer of its own, with the settings that it received last.  It keeps optimizer state
that MXNet made once, with the settings of the first update.  Settings are sent when they change, before the update that
needs them; :func:`mxhybrid.servers.partition_state.updated_optimizer` receives them.
"""
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ..native.optimizer_state import state_shapes
from ..native.optimizers import attributes_of, build, check_change, check_for_table, is_known, reference_of

#: The class of an optimizer, see :func:`mxhybrid.native.optimizers.reference_of`, and its attributes.
Recipe = Tuple[str, Dict[str, Any]]


class Saved(NamedTuple):
    """The result of the save of a dynamic table."""

    #: The results of :meth:`mxhybrid.row_store.row_store.RowStore.save` by the number of the partition, as text.
    parts: Dict[str, Any]
    #: The hosts that do not see the directory of worker 0, which has fetched their rows.
    hosts: List[str]


def recipe_of(optimizer: Any) -> Recipe:
    """Return the class of an optimizer and its attributes."""
    return reference_of(optimizer), attributes_of(optimizer)


class OptimizedTable:
    """A table of `width` elements a row, with its optimizer; derived classes own the rows or know their owner."""

    def __init__(self, name: str, width: int, dtype: Any):
        self.name, self.width = name, width
        self.dtype = np.dtype(dtype)
        #: The optimizer when the state was made, and as it was sent last.
        self._made_with: Optional[Recipe] = None
        self._sent: Optional[Recipe] = None
        #: The settings that were checked last.
        self._checked: Optional[Tuple[Any, ...]] = None
        #: The number of updates, each of which may have changed any row.
        self.updates = 0

    def _tell_optimizer(self, reference: str, attributes: Dict[str, Any], count: Optional[int]) -> None:
        """Send changed attributes of the optimizer to the owner of the rows: all of them if its class is new.

        `count` is the number of updates so far, if the owner does not know it.
        """
        raise NotImplementedError

    def _drop_optimizer(self) -> None:
        """Make the owner of the rows drop optimizer and state."""
        raise NotImplementedError

    @property
    def has_optimizer(self) -> bool:
        """True if the table has an optimizer."""
        return self._sent is not None

    def state_maker(self) -> Any:
        """Return an optimizer that makes state like that of the table."""
        assert self._made_with is not None
        return build(*self._made_with)

    def state_slots(self) -> int:
        """Return the number of arrays of optimizer state of the table."""
        return len(state_shapes(self.state_maker(), 0, (1, self.width), self.dtype)) if self._made_with else 0

    def check_optimizer(self, optimizer: Any, wd: float) -> None:
        """Refuse settings with which the next update cannot be made (InputError); see :meth:`set_optimizer`."""
        # Checks of MXNet's classes depend on these settings only, mostly the same as at the update before.
        settings = (type(optimizer), wd, optimizer.multi_precision, getattr(optimizer, 'momentum', None),
                    getattr(optimizer, 'centered', None), getattr(optimizer, 'lazy_update', None), self._made_with)
        if settings != self._checked or not is_known(optimizer):
            self._check_kind(optimizer, wd)
            check_for_table(optimizer, self.name, self.dtype, wd)
            check_change(self._made_with, optimizer, self.name)
            self._checked = settings

    def _check_kind(self, optimizer: Any, wd: float) -> None:
        """Refuse an optimizer that cannot update this kind of table (InputError)."""

    def set_optimizer(self, optimizer: Any, lr: float, wd: float, count: int, recipe: Optional[Recipe] = None) -> None:
        """Set the optimizer of the next update, with `lr` and `wd` after its multipliers and schedule.

        `count` is the number of earlier updates of this table; a push that updates it must follow.  `recipe` is the
        result of :func:`recipe_of` for the optimizer, for calls for several tables.
        """
        reference, attributes = recipe or recipe_of(optimizer)
        attributes = dict(attributes, lr=float(lr), wd=float(wd))
        current = (reference, attributes)
        if self._made_with is None or self._made_with[0] != reference:
            self._made_with = current
        if current != self._sent or count != self.updates:
            if self._sent is not None and self._sent[0] == reference:
                old = self._sent[1]
                attributes = {name: value for name, value in attributes.items() if old.get(name, old) != value}
            self._tell_optimizer(reference, attributes, None if count == self.updates else count)
            self._sent = current
        self.updates = count + 1

    def expect_count(self, count: int) -> None:
        """Set the number of updates that have been made."""
        self.updates = count

    def forget_optimizer(self) -> None:
        """Drop optimizer and state."""
        self._drop_optimizer()
        self._sent, self.updates, self._made_with = None, 0, None

    def inherit_optimizer(self, former: 'OptimizedTable') -> None:
        """Take over the optimizer of another table, whose optimizer state will be assigned to this one."""
        self._made_with = former._made_with
