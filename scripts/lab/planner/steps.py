"""Steps like those of real plans, by size: a chain of operators on ranks, with exchanges between some of them."""
from typing import Dict, List, Optional

import numpy as np

from mxhybrid.planner.simulator.task_block import TaskBlock
from mxhybrid.planner.simulator.token_bucket import TokenBucket

#: Keys of blocks: of the operator with a number, of the edge after it, of its weight.
OPERATOR, EDGE, WEIGHT = 0, 100_000, 200_000
FORWARD, BACKWARD = range(2)


class MadeUpStep:
    """Blocks of a step of `operators` on `ranks`.

    Attributes
    ----------
    resources : list of TokenBucket
        A core of each rank, then uplinks and downlinks.
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
        """All of them."""
        found = [self.operator(number) for number in range(self.operators)]
        found += [self.edge(number) for number in self._edges]
        return found + [self.weight(number) for number in sorted(self._weights)]

    def proposal(self, number: int) -> Dict[int, Optional[TaskBlock]]:
        """Another way to split an operator: it, its edges and its weight take otherwise long."""
        found: Dict[int, Optional[TaskBlock]] = {OPERATOR + number: self.operator(number)}
        for edge in (number - 1, number):
            if edge in self._edges:
                found[EDGE + edge] = self.edge(edge)
        if number in self._weights:
            found[WEIGHT + number] = self.weight(number)
        return found

    def operator(self, number: int) -> TaskBlock:
        """Forward and backward on each rank; an edge after it is waited for where there is one, else the operator."""
        every = np.arange(self.ranks)
        seconds = np.repeat(self._random.choice([1e-3, 2e-3, 5e-4]), 2 * self.ranks)
        seconds[self.ranks:] *= 2
        waits = [self._waits(every, OPERATOR + other, FORWARD) for other in (number - 1, number - 4) if other >= 0]
        waits += [self._waits(every, EDGE + number - 1, FORWARD)] if number else []
        waits += [self._waits(every + self.ranks, OPERATOR + number + 1, BACKWARD),
                  self._waits(every + self.ranks, EDGE + number, BACKWARD)]
        return TaskBlock(OPERATOR + number, np.tile(every, 2), seconds, inner=np.stack([every, every + self.ranks], 1),
                     ports=np.stack([np.arange(2 * self.ranks)] * 2, 1), waits=np.concatenate(waits))

    def edge(self, number: int) -> TaskBlock:
        """Pieces are packed, sent and unpacked, forward after its operator and backward after the next one."""
        ranks = np.arange(self.ranks)
        if self._edges[number] == 'halo':
            pairs = np.concatenate([np.stack([ranks[:-1], ranks[1:]], 1), np.stack([ranks[1:], ranks[:-1]], 1)])
        else:
            pairs = np.stack([ranks.repeat(self.ranks), np.tile(ranks, self.ranks)], 1)
            pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        transfers, each = 2 * len(pairs), 2 * (self.ranks + len(pairs))
        size = self._random.choice([2e3, 8e3, 3e4])
        # What a rank sends and what another receives: each on its link.
        resource = np.tile(np.concatenate([ranks, ranks, self.ranks + pairs[:, 0], 2 * self.ranks + pairs[:, 1]]), 2)
        work = np.tile(np.concatenate([np.full(2 * self.ranks, 5e-5), np.full(transfers, size)]), 2)
        latency = np.tile(np.concatenate([np.zeros(2 * self.ranks), np.full(transfers, 1e-4)]), 2)
        moves, pairs = 2 * self.ranks + np.arange(transfers), np.tile(pairs, (2, 1))
        inner = np.concatenate([np.stack([pairs[:, 0], moves], 1), np.stack([moves, self.ranks + pairs[:, 1]], 1)])
        done = self.ranks + ranks
        return TaskBlock(EDGE + number, resource, work, -1, latency, resource >= self.ranks,
                     inner=np.concatenate([inner, inner + each]),
                     ports=np.concatenate([np.stack([ranks, done], 1), np.stack([ranks + self.ranks, done + each], 1)]),
                     waits=np.concatenate([self._waits(ranks, OPERATOR + number, FORWARD),
                                           self._waits(ranks + each, OPERATOR + number + 1, BACKWARD)]))

    def weight(self, number: int) -> TaskBlock:
        """A sum over all ranks, then updates."""
        ranks = np.arange(self.ranks)
        join = np.full(self.ranks, 2 * self.ranks)
        size = self._random.choice([1e4, 1e5, 1e6])
        return TaskBlock(WEIGHT + number, np.concatenate([self.ranks + ranks, ranks, [-1]]),
                     np.repeat([size, 1e-4, 0.0], [self.ranks, self.ranks, 1]),
                     np.concatenate([2 * self.ranks + (ranks + 1) % self.ranks, np.full(self.ranks + 1, -1)]),
                     inner=np.concatenate([np.stack([ranks, join], 1), np.stack([join, ranks + self.ranks], 1)]),
                     waits=self._waits(ranks, OPERATOR + number, BACKWARD))

    def _waits(self, own: np.ndarray, other: int, way: int) -> np.ndarray:
        ports = np.arange(self.ranks) + way * self.ranks
        return np.stack([own, np.full(self.ranks, other), ports], 1)
