"""Tasks of exchanges and of sums among some ranks, and what tasks are to resources: what ``src/transfer_tasks.cc`` makes, to
the last bit, and slower.

This is the reference, and what runs where that could not be compiled.
"""
from typing import Dict, List, Sequence, Tuple

import numpy as np

from ...parallel.sharding.box import Box, size_of
from ..simulator.task_block import BlockContent, joined_tasks
from . import redistribution
from .redistribution import Transfers, RankBoxes, Redistribution
from .task_builder import TaskSubgraph, Endpoints, Machine, TaskBuilder


class TransferTasks:
    """On a machine."""

    def __init__(self, machine: Machine):
        self._machine = machine

    def has(self, have: RankBoxes, wanted: RankBoxes) -> int:
        """See :func:`.redistribution.has`."""
        return redistribution.has(have, wanted)

    def moved(self, have: RankBoxes, partial: bool, wanted: RankBoxes) -> Transfers:
        """See :func:`.redistribution.moved`."""
        return redistribution.moved(have, partial, wanted)

    def exchanges(self, units: Sequence[Tuple[int, Redistribution]], itemsize: int, back: bool) -> TaskSubgraph:
        """Exchanges beside each other, with their numbers, which go up; there, or back."""
        tasks, first, last = TaskBuilder(self._machine), [], []
        for number, unit in units:
            moved, givers, takers = unit.moved, unit.have.ranks, unit.wanted.ranks
            if back:
                moved, givers, takers = moved.reversed(unit.answers), unit.answers, unit.have.ranks
            give, take = tasks.exchange(moved, itemsize, dict.fromkeys(givers.tolist()),
                                        dict.fromkeys(takers.tolist()))
            first += [(number, rank, at) for rank, at in give.items()]
            last += [(number, rank, at) for rank, at in take.items()]
        return TaskSubgraph(tasks, *(Endpoints(*np.array(rows, np.int32).reshape(-1, 3).T) for rows in (first, last)))

    def work_of(self, contents: Sequence[BlockContent]) -> np.ndarray:
        """What resources have to do for tasks that are not express."""
        count = len(self._machine.resources)
        tasks = joined_tasks(contents)
        tasks = tasks[tasks['express'] == 0]
        held = np.stack([tasks['resource'], tasks['second']], axis=1) + 1
        return np.bincount(held.reshape(-1), tasks['work'].repeat(2), count + 1)[1:]

    def composed(self, kind: str, ranks: np.ndarray, before: np.ndarray, after: np.ndarray, between: Transfers,
                 itemsize: int) -> TaskSubgraph:
        """An operator whose parts, on `ranks`, exchange something after some seconds, and before some others."""
        tasks = TaskBuilder(self._machine)
        first = {rank: tasks.compute(kind, rank, seconds) for rank, seconds in zip(ranks.tolist(), before.tolist())}
        _, told = tasks.exchange(between, itemsize, first, dict(first))
        last = {rank: tasks.compute(kind, rank, seconds, [told[rank]])
                for rank, seconds in zip(ranks.tolist(), after.tolist())}
        return TaskSubgraph(tasks, Endpoints.by_rank(first), Endpoints.by_rank(last))

    def group_sums(self, held: RankBoxes, itemsize: int) -> TaskSubgraph:
        """Gradients are summed among those who hold the same box, by two exchanges, then each updates its own."""
        costs, tasks = self._machine.cluster.costs, TaskBuilder(self._machine)
        groups: Dict[Box, List[int]] = {}
        for rank, box in held.by_rank.items():
            groups.setdefault(box, []).append(rank)
        first: Dict[int, int] = {}
        last: Dict[int, int] = {}
        for box, ranks in groups.items():
            size = size_of(box) * itemsize
            before: Dict[int, List[int]] = {rank: [] for rank in ranks}
            if len(ranks) > 1:
                count = size_of(box) // len(ranks)
                pairs = [(one, other) for one in ranks for other in ranks if one != other]
                each = Transfers(np.array([one for one, _ in pairs]), np.array([other for _, other in pairs]),
                             np.full(len(pairs), count))
                give, take = tasks.exchange(each, itemsize, dict.fromkeys(ranks), dict.fromkeys(ranks), 'group_sum',
                                            'sum', False)
                _, gathered = tasks.exchange(each, itemsize, dict(take), dict(take), 'group_sum', 'sum', False)
                first.update(give)
                before = {rank: [at] for rank, at in gathered.items()}
            for rank in ranks:
                last[rank] = tasks.spend('update', rank, costs['update'].seconds(1, size), after=before[rank])
                first.setdefault(rank, last[rank])
        return TaskSubgraph(tasks, Endpoints.by_rank(first), Endpoints.by_rank(last))
