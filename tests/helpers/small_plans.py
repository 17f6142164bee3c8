"""Small networks to plan: a chain of layers with a shortcut, each split by samples, by channels, or not at all."""
import numpy as np
from lab.planner.task_blocks import task_block

from mxhybrid.planner.simulator.resource_groups import TokenBucket
from mxhybrid.planner.simulator.simulation import Simulation

#: The splits of a layer: the dimension, and the number of ranks.
SPLITS = (('samples', 4), ('samples', 2), ('channels', 4), ('channels', 2), ('whole', 1))
EDGE, WEIGHT = 1000, 2000


class SmallPlan:
    """A :class:`mxhybrid.planner.search.plan_evaluator.PlanEvaluator` whose numbers are drawn from a seed."""

    def __init__(self, seed, layers, splits=SPLITS, ranks=4):
        random = np.random.RandomState(seed)
        self.operators = layers
        self._splits, self._ranks = splits, ranks
        # As in real networks, the first layers compute much and have few weights, the last ones compute little and have
        # many.
        depth = np.linspace(0, 1, layers)
        self._seconds = 4e-3 * 0.3 ** depth * random.uniform(0.5, 2, layers)
        self._weights = 2e4 * 100 ** depth * random.uniform(0.5, 2, layers)
        self._outputs = 8e5 * 0.05 ** depth * random.uniform(0.5, 2, layers)
        self._edges = [(layer, layer + 1) for layer in range(layers - 1)] + ([(0, 2)] if layers > 2 else [])
        link = TokenBucket(25e6, 1e9, 64e3)
        self._simulation = Simulation([TokenBucket(1.0)] * ranks + [link] * (2 * ranks))
        self._assignment = self._proposed = ()

    def candidates(self, operator):
        return self._splits

    def neighbours(self, operator):
        return [sum(edge) - operator for edge in self._edges if operator in edge]

    def alike(self, operator):
        return [operator]

    def begin(self, assignment):
        self._assignment = self._proposed = tuple(assignment)
        blocks = [self._block(key) for key in self._keys(range(self.operators))]
        return self._simulation.run([block for block in blocks if block is not None])

    def propose(self, changes, limit=None):
        self._proposed = tuple(changes.get(layer, choice) for layer, choice in enumerate(self._assignment))
        return self._simulation.propose({key: self._block(key) for key in self._keys(changes)},
                                       limit(self.memory()) if limit else np.inf)

    def accept(self):
        self._assignment = self._proposed

    def reject(self):
        self._simulation.rollback()
        self._proposed = self._assignment

    def memory(self):
        size_bytes = 0.0
        for (dimension, degree), weight, output in zip(self._proposed, self._weights, self._outputs):
            size_bytes += 3 * weight / (degree if dimension == 'channels' else 1) + output / degree
        return size_bytes

    def _keys(self, layers):
        for layer in layers:
            yield from (layer, WEIGHT + layer)
        for number, edge in enumerate(self._edges):
            if any(layer in edge for layer in layers):
                yield EDGE + number

    def _block(self, key):
        if key >= WEIGHT:
            return self._sum(key - WEIGHT)
        return self._edge(key - EDGE) if key >= EDGE else self._operator(key)

    def _operator(self, layer):
        _, degree = self._proposed[layer]
        parts = np.arange(degree)
        seconds = self._seconds[layer] / degree + 1e-4
        dependencies = [(part, EDGE + number, part) for number, edge in enumerate(self._edges) if edge[1] == layer
                        for part in parts]
        dependencies += [(degree + part, EDGE + number, self._ranks + part) for number, edge in enumerate(self._edges)
                         if edge[0] == layer for part in parts]
        return task_block(layer, np.tile(parts, 2), np.repeat([seconds, 2 * seconds], degree),
                         edges=[(part, degree + part) for part in parts],
                         outputs=[(direction * self._ranks + part, direction * degree + part)
                                  for direction in range(2) for part in parts],
                         dependencies=dependencies)

    def _edge(self, number):
        """Return joins, forward and backward, that wait for transfers where layouts differ."""
        first, last = self._edges[number]
        resource, second, work, edges, outputs, dependencies = [], [], [], [], [], []
        for direction, source, target in ((0, first, last), (1, last, first)):
            (dimension, senders), (target_dimension, receivers) = self._proposed[source], self._proposed[target]
            # All channels of an input are needed; the same samples are there already.
            is_local = dimension == target_dimension == 'samples' and senders == receivers
            for receiver in range(receivers):
                join = len(resource)
                resource, second, work = resource + [-1], second + [-1], work + [0.0]
                outputs.append((direction * self._ranks + receiver, join))
                for sender in range(senders):
                    output = direction * self._ranks + sender
                    if sender == receiver:
                        dependencies.append((join, source, output))
                    elif not is_local:
                        transfer = len(resource)
                        size_bytes = self._outputs[first] / senders / (
                            receivers if target_dimension == 'samples' else 1)
                        resource += [self._ranks + sender]
                        second += [2 * self._ranks + receiver]
                        work += [size_bytes]
                        edges.append((transfer, join))
                        dependencies.append((transfer, source, output))
        return task_block(EDGE + number, resource, work, second, np.where(np.array(second) >= 0, 2e-4, 0.0),
                         np.array(second) >= 0, edges, outputs, dependencies)

    def _sum(self, layer):
        """Return the sum of gradients in a ring over the ranks that have the same weights."""
        dimension, degree = self._proposed[layer]
        if dimension != 'samples' or degree == 1:
            return None
        parts = np.arange(degree)
        return task_block(WEIGHT + layer, self._ranks + parts, 2 * self._weights[layer] * (degree - 1) / degree,
                         2 * self._ranks + (parts + 1) % degree, 2e-4,
                         dependencies=[(part, layer, self._ranks + part) for part in parts])
