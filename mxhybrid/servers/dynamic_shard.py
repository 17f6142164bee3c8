"""A partition of a dynamic table in the server that owns it: the rule of its row store, and its optimizer state.

The agent of the lane has the rows, in a row store (:mod:`mxhybrid.row_store.row_store`).
"""
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Iterator, Sequence

from ..base.errors import JobError
from ..base.settings import variable
from ..lane.agent import Agent, Shape
from ..native.optimizer_state import state_widths
from ..native.optimizers import TableOptimizer
from ..row_store.row_files import MORE_SLOTS
from ..row_store.row_store import FirstValues, RowStore, naming_table
from .kernel_rules import kernel_rule
from .lane_partition import LanePartition
from .protocol import CAPTURE


@contextmanager
def named_table(name: str, max_batch_rows: int) -> Iterator[None]:
    """Name a table, and a remedy, in errors about the shared memory that it needs."""
    try:
        yield
    except JobError as error:
        raise JobError('%s: %s. A dynamic table reserves address space for the rows of batches: another remedy is to '
                       'lower max_batch_rows=%d (%s) to the most distinct rows of a batch of a worker'
                       % (name, error, max_batch_rows, variable('max_batch_rows'))) from None


class DynamicShard(LanePartition):
    """Partition number `part` of the dynamic table `number` on the lane."""

    def __init__(self, key: int, table: str, agent: Agent, number: int, part: int, shape: Shape,
                 first_values: FirstValues):
        super().__init__(key, table, agent, number, part, 0, shape.width)
        self._dtype, self._first_values = shape.dtype, first_values
        self._widths: Sequence[int] = ()

    def with_store(self, use: Callable[[RowStore], Any]) -> Any:
        """Return the result of `use`, called with the row store; no rows are pushed or pulled during the call."""
        def call(address: int) -> Any:
            with self.borrowed(address) as store:
                return use(store)
        return self.with_address(call)

    def with_address(self, use: Callable[[int], Any]) -> Any:
        """Return the result of `use`, called with the address of the row store, as :meth:`with_store` does."""
        return self._agent.with_store(self._number, self._part, use)

    def borrowed(self, address: int) -> ContextManager[RowStore]:
        """Return a context manager of the row store at its address."""
        return RowStore.borrowed(address, self.shape[1], self._dtype, self._first_values, self._widths)

    def _set_optimizer_rule(self) -> None:
        self.ensure_state(self._optimizer)
        rule, settings = kernel_rule(self._optimizer.live, has_state=bool(self._widths))
        self._set_rule(rule, settings=settings)

    def _set_state_rule(self, slot: int) -> None:
        if slot not in MORE_SLOTS.values():  # these are no optimizer's
            self.ensure_state(self._optimizer)
        self._set_rule('assign state', slot)

    def ensure_state(self, optimizer: TableOptimizer) -> None:
        if self.has_state:
            return
        self._widths = state_widths(optimizer.maker, self.key, (1, self.shape[1]), self._dtype)
        self._set_state_widths()
        self.has_state = True

    def forget_state(self) -> None:
        super().forget_state()
        self._widths = ()
        self._set_state_widths()

    def _set_state_widths(self) -> None:
        with naming_table(self.table):
            self.with_store(lambda store: store.set_state_widths(self._widths))

    def release(self) -> None:
        self.set_mode(CAPTURE)  # the command that drops the table, which follows, frees the rows
