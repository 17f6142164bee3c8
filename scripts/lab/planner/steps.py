"""Made-up steps of the size of real plans: a chain of operators on ranks, with redistributions between some of them."""
from typing import Dict, List, Optional

import numpy as np

from mxhybrid.planner.simulator.resource_groups import TokenBucket
from mxhybrid.planner.simulator.task_block import TaskBlock

from .task_blocks import task_block

#: The key of a block is one of these plus the number of an operator: the operator, the edge after it, or its weight.
OPERATOR, EDGE, WEIGHT = 0, 100_000, 200_000
FORWARD, BACKWARD = range(2)


class MadeUpStep:
    """The blocks of a step of `operators` on `ranks`; `resources` are the cores of ranks, their uplinks and downlinks.
    """

    def __init__(self, operators: int, ranks: int, halos: int = 0, all_to_alls: int = 0, weights: int = 10,
                 seed: int = 0):
        self.operators, self.ranks = operators, ranks
        self._random = np.random.RandomState(seed)
        self._weights = set(range(0, operators, max(1, operators // max(1, weights))))
        self._edges: Dict[int, str] = {}
        for kind, count in (('halo', halos), ('all_to_all', all_to_alls)):
            free = [number for number in range(operators - 1) if number not in self._edges]
            self._edges.update(dict.fromkeys(self._random.permutation(free)[:count].tolist(), kind))
        link = TokenBucket(25e6, 1e9, 128e3)
        self.resources = [TokenBucket(1.0)] * ranks + [link] * (2 * ranks)

    def blocks(self) -> List[TaskBlock]:
        """Return the blocks of operators, edges and weights."""
        blocks = [self.operator(number) for number in range(self.operators)]
        blocks += [self.edge(number) for number in self._edges]
        return blocks + [self.weight(number) for number in sorted(self._weights)]

    def proposal(self, number: int) -> Dict[int, Optional[TaskBlock]]:
        """Return the blocks that another split of an operator changes: it, its edges and its weight, of other times."""
        blocks: Dict[int, Optional[TaskBlock]] = {OPERATOR + number: self.operator(number)}
        for edge in (number - 1, number):
            if edge in self._edges:
                blocks[EDGE + edge] = self.edge(edge)
        if number in self._weights:
            blocks[WEIGHT + number] = self.weight(number)
        return blocks

    def operator(self, number: int) -> TaskBlock:
        """Return forward and backward on each rank, which wait for the edges beside them, or else the operators."""
        ranks = np.arange(self.ranks)
        seconds = np.repeat(self._random.choice([1e-3, 2e-3, 5e-4]), 2 * self.ranks)
        seconds[self.ranks:] *= 2
        dependencies = [self._dependencies(ranks, OPERATOR + other, FORWARD)
                        for other in (number - 1, number - 4) if other >= 0]
        dependencies += [self._dependencies(ranks, EDGE + number - 1, FORWARD)] if number else []
        dependencies += [self._dependencies(ranks + self.ranks, OPERATOR + number + 1, BACKWARD),
                         self._dependencies(ranks + self.ranks, EDGE + number, BACKWARD)]
        return task_block(OPERATOR + number, np.tile(ranks, 2), seconds, edges=np.stack([ranks, ranks + self.ranks], 1),
                     outputs=np.stack([np.arange(2 * self.ranks)] * 2, 1), dependencies=np.concatenate(dependencies))

    def edge(self, number: int) -> TaskBlock:
        """Return the redistribution of data, forward after an operator and backward after the next one."""
        ranks = np.arange(self.ranks)
        if self._edges[number] == 'halo':
            pairs = np.concatenate([np.stack([ranks[:-1], ranks[1:]], 1), np.stack([ranks[1:], ranks[:-1]], 1)])
        else:
            pairs = np.stack([ranks.repeat(self.ranks), np.tile(ranks, self.ranks)], 1)
            pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        transfers, each = 2 * len(pairs), 2 * (self.ranks + len(pairs))
        size = self._random.choice([2e3, 8e3, 3e4])
        # Each message is a task on the uplink of one rank, and one on the downlink of the other.
        resource = np.tile(np.concatenate([ranks, ranks, self.ranks + pairs[:, 0], 2 * self.ranks + pairs[:, 1]]), 2)
        work = np.tile(np.concatenate([np.full(2 * self.ranks, 5e-5), np.full(transfers, size)]), 2)
        latency = np.tile(np.concatenate([np.zeros(2 * self.ranks), np.full(transfers, 1e-4)]), 2)
        moves, pairs = 2 * self.ranks + np.arange(transfers), np.tile(pairs, (2, 1))
        inner = np.concatenate([np.stack([pairs[:, 0], moves], 1), np.stack([moves, self.ranks + pairs[:, 1]], 1)])
        done = self.ranks + ranks
        return task_block(EDGE + number, resource, work, -1, latency, resource >= self.ranks,
                     edges=np.concatenate([inner, inner + each]),
                     outputs=np.concatenate([np.stack([ranks, done], 1),
                                             np.stack([ranks + self.ranks, done + each], 1)]),
                     dependencies=np.concatenate([
                         self._dependencies(ranks, OPERATOR + number, FORWARD),
                         self._dependencies(ranks + each, OPERATOR + number + 1, BACKWARD)]))

    def weight(self, number: int) -> TaskBlock:
        """Return a sum over all ranks, and the updates after it."""
        ranks = np.arange(self.ranks)
        join = np.full(self.ranks, 2 * self.ranks)
        size = self._random.choice([1e4, 1e5, 1e6])
        return task_block(WEIGHT + number, np.concatenate([self.ranks + ranks, ranks, [-1]]),
                     np.repeat([size, 1e-4, 0.0], [self.ranks, self.ranks, 1]),
                     np.concatenate([2 * self.ranks + (ranks + 1) % self.ranks, np.full(self.ranks + 1, -1)]),
                     edges=np.concatenate([np.stack([ranks, join], 1), np.stack([join, ranks + self.ranks], 1)]),
                     dependencies=self._dependencies(ranks, OPERATOR + number, BACKWARD))

    def _dependencies(self, tasks: np.ndarray, key: int, direction: int) -> np.ndarray:
        outputs = np.arange(self.ranks) + direction * self.ranks
        return np.stack([tasks, np.full(self.ranks, key), outputs], 1)
