"""A partition on the lane: the compiled agent handles the pushes to it by a rule, which follows its mode."""
from typing import Mapping

from ..lane.agent import Agent
from ..native.optimizers import TableOptimizer
from .partition_state import Partition
from .protocol import CAPTURE, MODE_RULES, OPTIMIZE, state_slot


class LanePartition(Partition):
    """Partition number `part` of the table `number` on the lane, with `rows` rows of `width` elements."""

    #: The last optimizer; a table gets one before the modes that need it.
    _optimizer: TableOptimizer

    def __init__(self, key: int, table: str, agent: Agent, number: int, part: int, rows: int, width: int):
        super().__init__(key, table, rows, width, CAPTURE)
        self._agent, self._number, self._part = agent, number, part

    def set_mode(self, mode: str) -> None:
        super().set_mode(mode)
        slot = state_slot(mode)
        if slot >= 0:
            self._set_state_rule(slot)
        elif mode == OPTIMIZE:
            self._set_optimizer_rule()
        else:
            self._set_rule(MODE_RULES[mode])

    def _set_state_rule(self, slot: int) -> None:
        """Let pushes assign optimizer state."""
        raise NotImplementedError

    def follow(self, optimizer: TableOptimizer) -> None:
        self._optimizer = optimizer
        if self.mode == OPTIMIZE:
            self._set_optimizer_rule()

    def _set_rule(self, rule: str, slot: int = 0, settings: Mapping[str, float] = {}) -> None:
        self._agent.set_rule(self._number, self._part, rule, slot, settings)

    def _set_optimizer_rule(self) -> None:
        """Let pushes update the rows by the optimizer."""
        raise NotImplementedError

    def expect_count(self, optimizer: TableOptimizer, count: int) -> None:
        super().expect_count(optimizer, count)
        self._agent.set_updates(self._number, self._part, count)

    def forget_state(self) -> None:
        super().forget_state()
        if self.mode == OPTIMIZE or state_slot(self.mode) >= 0:
            # The compiled part must not use state that is gone; a push now is an error, as with ps-lite.
            self._set_rule('callback')
        self._agent.set_updates(self._number, self._part, 0)
