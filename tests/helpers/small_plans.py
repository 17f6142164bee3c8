"""Small nets to be planned: a chain of layers with a short cut, each split by samples, by channels, or not at all."""
import numpy as np

from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.simulator.task_block import TaskBlock
from mxhybrid.planner.simulator.token_bucket import TokenBucket

#: Ways to split a layer: by what, and among how many ranks.
WAYS = (('samples', 4), ('samples', 2), ('channels', 4), ('channels', 2), ('whole', 1))
EDGE, WEIGHT = 1000, 2000


class SmallPlan:
    """A :class:`mxhybrid.planner.search.search_problem.SearchProblem`; numbers are drawn from a seed."""

    def __init__(self, seed, layers, ways=WAYS, ranks=4):
        random = np.random.RandomState(seed)
        self.operators = layers
        self._ways, self._ranks = ways, ranks
        # As in real nets: the first layers compute much and have few weights, the last ones the other way round.
        depth = np.linspace(0, 1, layers)
        self._seconds = 4e-3 * 0.3 ** depth * random.uniform(0.5, 2, layers)
        self._weights = 2e4 * 100 ** depth * random.uniform(0.5, 2, layers)
        self._outputs = 8e5 * 0.05 ** depth * random.uniform(0.5, 2, layers)
        self._edges = [(one, one + 1) for one in range(layers - 1)] + ([(0, 2)] if layers > 2 else [])
        link = TokenBucket(25e6, 1e9, 64e3)
        self._simulation = Simulation([TokenBucket(1.0)] * ranks + [link] * (2 * ranks))
        self._assignment = self._proposed = ()

    def candidates(self, operator):
        return self._ways

    def neighbours(self, operator):
        return [sum(edge) - operator for edge in self._edges if operator in edge]

    def begin(self, assignment):
        self._assignment = self._proposed = tuple(assignment)
        blocks = [self._block(key) for key in self._keys(range(self.operators))]
        return self._simulation.run([block for block in blocks if block is not None])

    def propose(self, changes, limit=None):
        self._proposed = tuple(changes.get(one, choice) for one, choice in enumerate(self._assignment))
        return self._simulation.propose({key: self._block(key) for key in self._keys(changes)},
                                       limit(self.memory()) if limit else np.inf)

    def accept(self):
        self._assignment = self._proposed

    def reject(self):
        self._simulation.rollback()
        self._proposed = self._assignment

    def memory(self):
        found = 0.0
        for (way, degree), weight, output in zip(self._proposed, self._weights, self._outputs):
            found += 3 * weight / (degree if way == 'channels' else 1) + output / degree
        return found

    def _keys(self, operators):
        for one in operators:
            yield from (one, WEIGHT + one)
        for number, edge in enumerate(self._edges):
            if any(one in edge for one in operators):
                yield EDGE + number

    def _block(self, key):
        if key >= WEIGHT:
            return self._sum(key - WEIGHT)
        return self._edge(key - EDGE) if key >= EDGE else self._operator(key)

    def _operator(self, one):
        _, degree = self._proposed[one]
        parts = np.arange(degree)
        seconds = self._seconds[one] / degree + 1e-4
        waits = [(part, EDGE + number, part) for number, edge in enumerate(self._edges) if edge[1] == one
                 for part in parts]
        waits += [(degree + part, EDGE + number, self._ranks + part) for number, edge in enumerate(self._edges)
                  if edge[0] == one for part in parts]
        return TaskBlock(one, np.tile(parts, 2), np.repeat([seconds, 2 * seconds], degree),
                     edges=[(part, degree + part) for part in parts],
                     outputs=[(way * self._ranks + part, way * degree + part) for way in range(2) for part in parts],
                     dependencies=waits)

    def _edge(self, number):
        """Joins, forward and backward, that wait for transfers where layouts differ."""
        first, last = self._edges[number]
        resource, second, work, inner, ports, waits = [], [], [], [], [], []
        for way, source, target in ((0, first, last), (1, last, first)):
            (how, given), (other, taken) = self._proposed[source], self._proposed[target]
            # Channels of an input are all needed; those of the same samples are there.
            stays = how == other == 'samples' and given == taken
            for to in range(taken):
                join = len(resource)
                resource, second, work = resource + [-1], second + [-1], work + [0.0]
                ports.append((way * self._ranks + to, join))
                for part in range(given):
                    if part == to or stays:
                        if part == to:
                            waits.append((join, source, way * self._ranks + part))
                        continue
                    move = len(resource)
                    size = self._outputs[first] / given / (taken if other == 'samples' else 1)
                    resource += [self._ranks + part]
                    second += [2 * self._ranks + to]
                    work += [size]
                    inner.append((move, join))
                    waits.append((move, source, way * self._ranks + part))
        return TaskBlock(EDGE + number, resource, work, second, np.where(np.array(second) >= 0, 2e-4, 0.0),
                     np.array(second) >= 0, inner, ports, waits)

    def _sum(self, one):
        """A ring over the ranks that have the same weights."""
        way, degree = self._proposed[one]
        if way != 'samples' or degree == 1:
            return None
        parts = np.arange(degree)
        return TaskBlock(WEIGHT + one, self._ranks + parts, 2 * self._weights[one] * (degree - 1) / degree,
                     2 * self._ranks + (parts + 1) % degree, 2e-4,
                     dependencies=[(part, one, self._ranks + part) for part in parts])
