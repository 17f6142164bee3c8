"""The blocks of a simulated training step, for the current splits of operators; a change of splits rebuilds few."""
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

import numpy as np

from ...base.settings import TablePlan
from ...parallel.ops.graph import Entry
from ...parallel.sharding.split import Split
from ..simulator.task_block import BlockInput, TaskBlock
from .dataflow import SCRIPT
from .gradient_buckets import GradientBuckets, filled_buckets
from .operator_shards import SplitOperator
from .operator_tasks import Flow, OperatorTasks
from .task_builder import Endpoints, TaskSubgraph
from .weight_tasks import WeightShards

#: Tasks of a block that wait, the key of the block that they wait for, and the unit of its endpoints.
Wait = Tuple[Endpoints, int, int]
#: A block by its kind and its object, as in :attr:`.Dataflow.keys`.
BlockName = Tuple[str, Any]


class BlockSpec(NamedTuple):
    """The tasks of a block, and their dependencies."""

    #: None for no block.
    subgraph: Optional[TaskSubgraph]
    #: Returns a list of :data:`Wait`; called only where the block has to be made again.
    waits: Callable[[], List[Wait]] = list
    #: Equal for specs that wait for the same, given equal subgraphs.
    wait_key: Any = None


class BuiltBlock(NamedTuple):
    """The parts of a :class:`BlockSpec` that tell a block from others of its key."""

    wait_key: Any
    subgraph: TaskSubgraph


class BlockChange(NamedTuple):
    """A block that differs from the current one of its key, which is `before`; None where there is no block."""

    key: int
    before: Optional[BuiltBlock]
    spec: Optional[BlockSpec]


class StepTasks(GradientBuckets):
    """The blocks of several steps that follow each other.

    The first step begins while nothing is under way, so a later one shows what a step of training takes.

    - `splits`: by number of the operator.
    - `steps`: the number of steps.
    - `tables`: the routes of tables, by name; the store chooses those of others.

    Attributes:

    - `blocks`: by key.
    - `memory`: bytes by rank.
    - `least_seconds`: a lower bound of the time of the last proposal.
    """

    def __init__(self, model: OperatorTasks, splits: Mapping[int, Split], steps: int = 2,
                 tables: Optional[Mapping[str, TablePlan]] = None):
        self._model, self._dataflow = model, model.dataflow
        self._ranks = model.machine.ranks
        self._steps, self.keys = steps, model.dataflow.keys
        self._built: Dict[int, BuiltBlock] = {}
        self._flows: Dict[Entry, Flow] = {}
        #: Weights that all ranks hold whole, and for each of them all weights of its gradient bucket.
        self._replicated: Set[str] = set()
        self._buckets: Dict[str, Tuple[str, ...]] = {}
        self._operators: Dict[int, SplitOperator] = {}
        #: The shards of all weights, trained or not.
        self._weights: Dict[str, WeightShards] = {}
        self._tables: Dict[str, TablePlan] = {}
        self.blocks: Dict[int, TaskBlock] = {}
        self.memory = model.table_bytes.copy()
        self.least_seconds = 0.0
        #: By resource: the work of operators, and all work; without high-priority tasks, which delay no others.
        self._compute_load = self._load = np.zeros(len(model.machine.resources))
        #: By rank: the number of its shards of operators; and the ranks without any.
        self._shard_counts, self._idle = np.zeros(self._ranks, int), tuple(range(self._ranks))
        self._saved: Optional[_Saved] = None
        operators = model.graph.operators
        self._block_of_kind: Dict[str, Callable[[Any, int], BlockSpec]] = {
            'step': self._step_block, 'redistribution': self._redistribution_block,
            'redistribution_back': self._redistribution_back_block, 'forward': self._forward_block,
            'backward': self._backward_block, 'weight': self._weight_block}
        self._heads = [(entry, (SCRIPT, index)) for index, entry in enumerate(model.graph.heads)
                       if entry in self._dataflow.consumers]
        self._inputs = {number: [(entry, (number, index)) for index, entry in enumerate(operators[number].inputs)
                                 if entry in self._dataflow.consumers] for number in self._dataflow.computing}
        self._outputs = {number: [(number, index) for index in range(operators[number].outputs)
                                  if (number, index) in self._dataflow.consumers]
                         for number in self._dataflow.computing}
        #: The blocks that the flow of an output affects.
        self._affected_by = {entry: self._blocks_at(entry) for entry in self._dataflow.entries}
        self._redistributions_of = {entry: [name for name in names if name[1] == entry]
                              for entry, names in self._affected_by.items()}
        self.propose(splits, {name: model.weights.table_plan(name, tables or {}) for name in self._dataflow.trained
                              if name in self._dataflow.tables})

    def key(self, kind: str, item: Any, step: int) -> int:
        """Return the key of a block; keys ascend in the order in which the script asks for blocks."""
        return self.keys[kind, item] + step * len(self.keys)

    def held_outputs(self, number: int) -> int:
        """Return how often the outputs of an operator are in memory at the same time."""
        return 1

    def _blocks_at(self, entry: Entry) -> List[BlockName]:
        names: List[BlockName] = [('redistribution', entry), ('redistribution_back', entry), ('backward', entry[0])]
        names += [('step', None) if reader == SCRIPT else ('forward', reader)
                  for reader, _ in self._dataflow.consumers[entry]]
        return [name for name in names if name in self.keys]

    # -- proposals -------------------------------------------------------------------------------------------------

    def propose(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None,
                limit: Optional[Callable[[], float]] = None
                ) -> Optional[Dict[int, Optional[TaskBlock]]]:
        """Change the splits of some operators, and the routes of some tables.

        Returns by key the blocks that have changed, None for those that were removed.  Returns None instead where the
        proposal takes longer than the limit, at least :attr:`least_seconds`; then :meth:`rollback` has to follow.

        - `limit`: called as soon as :attr:`memory` is known; returns seconds of all steps.
        """
        changed = {number: split for number, split in splits.items()
                   if number not in self._operators or self._operators[number].split != split}
        names: Dict[BlockName, None] = {}
        trained: Dict[str, None] = {}
        weight_names: Dict[str, None] = {}
        entries: Dict[Entry, None] = {}
        self._saved = saved = _Saved({}, {}, {}, {}, {}, {}, self._replicated, self._buckets, self.memory.copy(),
                                     self._compute_load, self._load, self._shard_counts.copy(), self._idle)
        for number in changed:
            names[('forward', number)] = names[('backward', number)] = None
            trained.update(dict.fromkeys(self._dataflow.weights_of.get(number, ())))
            weight_names.update(dict.fromkeys(self._dataflow.kept_of.get(number, ())))
            entries.update(dict.fromkeys(self._outputs[number]))
            entries.update(dict.fromkeys([entry for entry, _ in self._inputs[number]]))
        names.update({} if self._operators else {('step', None): None})
        self._apply(changed, weight_names, tables or {}, saved)
        self._idle = tuple(np.flatnonzero(self._shard_counts == 0).tolist())
        if self._idle != saved.idle:
            names[('step', None)] = None
        most_seconds = np.inf if limit is None else limit()
        self.least_seconds = self._model.machine.least_seconds(self._compute_load)
        if self.least_seconds > most_seconds:
            return None
        for entry in entries:
            flow = self._model.flow(entry, self._producer_and_readers(entry))
            former = self._flows.get(entry)
            if flow is not former:
                saved.flows[entry] = former
                self._flows[entry] = flow
                if former is None or former.redistribution_of != flow.redistribution_of:
                    names.update(dict.fromkeys(self._affected_by[entry]))
                elif flow.redistributions:  # all blocks wait for the same blocks as before
                    names.update(dict.fromkeys(self._redistributions_of[entry]))
        changed_weights = [name for name in trained if name in saved.weights or name in self._dataflow.tables]
        self._update_buckets(changed_weights, names)
        names.update({('weight', name): None for name in saved.tables})
        changes = [change for step in range(self._steps) for change in self._changes(names, step)]
        added = [change.spec.subgraph for change in changes
                 if change.spec is not None and change.spec.subgraph is not None]
        removed = [change.before.subgraph for change in changes if change.before is not None]
        self._load = self._load + (self._model.load(added) - self._model.load(removed))
        self.least_seconds = self._model.machine.least_seconds(self._load)
        return None if self.least_seconds > most_seconds else self._build(changes, saved)

    def _apply(self, changed: Mapping[int, Split], names: Iterable[str], tables: Mapping[str, TablePlan],
               saved: '_Saved') -> None:
        """Update operators, weights and tables, their memory, and the load of cores."""
        model, removed_loads, added_loads = self._model, [], []
        for number, split in changed.items():
            before = saved.operators[number] = self._operators.get(number)
            if before is not None:
                self.memory -= before.output_bytes
                self._shard_counts[list(before.split.ranks)] -= 1
                removed_loads.append(before.load)
            operator = self._operators[number] = model.operator(number, split)
            self.memory += operator.output_bytes
            self._shard_counts[list(split.ranks)] += 1
            added_loads.append(operator.load)
        for times, loads in ((-self._steps, removed_loads), (self._steps, added_loads)):
            self._compute_load = self._compute_load + times * np.sum(loads, axis=0)
        for name in names:
            former, shards = self._weights.get(name), model.weights.shards(name, self._readers(name))
            if shards is not former:
                saved.weights[name], self._weights[name] = former, shards
                self.memory += shards.bytes
                self.memory -= 0.0 if former is None else former.bytes
        for name, plan in tables.items():
            former_plan = self._tables.get(name)
            if former_plan != plan:
                saved.tables[name], self._tables[name] = former_plan, plan
                self.memory += model.weights.table_bytes(name, plan)
                self.memory -= 0.0 if former_plan is None else model.weights.table_bytes(name, former_plan)

    def rollback(self) -> None:
        """Undo the last :meth:`propose`; once for each."""
        saved = self._saved
        assert saved is not None
        for current, before in ((self._operators, saved.operators), (self._weights, saved.weights),
                                (self._flows, saved.flows), (self._built, saved.built), (self.blocks, saved.blocks),
                                (self._tables, saved.tables)):
            _restore(current, before)
        self._replicated, self._buckets, self.memory = saved.replicated, saved.buckets, saved.memory
        self._compute_load, self._load = saved.compute_load, saved.load
        self._shard_counts, self._idle = saved.shard_counts, saved.idle
        self._saved = None

    def _changes(self, names: Iterable[BlockName], step: int) -> Iterable[BlockChange]:
        """Find the blocks that differ from the current ones, among those of some names."""
        built, keys, block_of_kind, first_key = self._built, self.keys, self._block_of_kind, step * len(self.keys)
        for name in names:
            spec = block_of_kind[name[0]](name[1], step)
            key = keys[name] + first_key
            before = built.get(key)
            if spec.subgraph is None or not spec.subgraph.content.size:
                if before is not None:
                    yield BlockChange(key, before, None)
            elif before is None or before.subgraph is not spec.subgraph or before.wait_key != spec.wait_key:
                yield BlockChange(key, before, spec)

    def _build(self, changes: Iterable[BlockChange], saved: '_Saved') -> Dict[int, Optional[TaskBlock]]:
        """Build the blocks of changes; return them by key."""
        blocks: Dict[int, Optional[TaskBlock]] = {}
        for key, before, spec in changes:
            saved.built[key], saved.blocks[key] = before, self.blocks.get(key)
            if spec is None:
                del self.blocks[key], self._built[key]
                blocks[key] = None
            else:
                assert spec.subgraph is not None
                inputs = [BlockInput(other_key, endpoints.dependencies, unit * self._ranks)
                          for endpoints, other_key, unit in spec.waits() if len(endpoints.tasks)]
                blocks[key] = self.blocks[key] = TaskBlock(key, spec.subgraph.content, inputs)
                self._built[key] = BuiltBlock(spec.wait_key, spec.subgraph)
        return blocks

    # -- gradient buckets ------------------------------------------------------------------------------------------

    def _update_buckets(self, changed: Iterable[str], names: Dict[BlockName, None]) -> None:
        """Update the gradient buckets after changes of some weights; add the names of blocks that this changes."""
        replicated = {name for name in changed
                      if name not in self._dataflow.tables and self._weights[name].is_replicated}
        if replicated != self._replicated.intersection(changed):
            self._replicated = self._replicated.difference(changed) | replicated
            names.update(dict.fromkeys(self._fill_buckets()))
        names.update({('weight', self._bucket_name(name)): None for name in changed})

    def _fill_buckets(self) -> List[BlockName]:
        """Fill buckets with the replicated weights; return the names of blocks that this changes."""
        filled_of = filled_buckets([name for name in self._dataflow.trained if name in self._replicated],
                                   self._model.weights.bytes_of)
        different = set(filled_of.values()).symmetric_difference(self._buckets.values())
        self._buckets = filled_of
        changed = {name for names in different for name in names}
        return [block for name in self._dataflow.trained if name in changed
                for block in [('weight', name)] + [('forward', reader.number)
                                                   for reader in self._dataflow.readers[name]]]

    # -- specifications of blocks ----------------------------------------------------------------------------------

    def _readers(self, name: str) -> List[SplitOperator]:
        return [self._operators[reader.number] for reader in self._dataflow.readers[name]]

    def _producer_and_readers(self, entry: Entry) -> List[Optional[SplitOperator]]:
        return [self._operators.get(entry[0]), *[self._operators.get(number)
                                                 for number, _ in self._dataflow.consumers[entry]]]

    def _wait_for_input(self, endpoints: Endpoints, entry: Entry, reader: Tuple[int, int], step: int) -> Wait:
        """Return the wait of tasks for an output that they read."""
        unit = self._flows[entry].redistribution_of[reader]
        return ((endpoints, self._producer_key(entry, step), 0) if unit is None
                else (endpoints, self.key('redistribution', entry, step), unit))

    def _producer_key(self, entry: Entry, step: int) -> int:
        """Return the key of the block that makes an output; the script's block for data."""
        if self._dataflow.graph.operators[entry[0]].op == 'null':
            return self.key('step', None, step)
        return self.key('forward', entry[0], step)

    # A method for each kind of blocks, which `_changes` calls.

    def _step_block(self, item: None, step: int) -> BlockSpec:
        subgraph = self._model.script(self._idle)

        def waits() -> List[Wait]:
            if not step:
                return []
            # The script waits for the outputs.  MXNet computes in the same memory as in the step before, and begins
            # when backward no longer needs it.
            loop, start = subgraph.first.of_unit(0), subgraph.first.of_unit(1)
            return [self._wait_for_input(loop, entry, reader, step - 1) for entry, reader in self._heads] + [
                (start, self.key('backward', number, step - 1), 0) for number in self._dataflow.deepest]
        return BlockSpec(subgraph, waits, [self._flows[entry].redistribution_of[reader]
                                           for entry, reader in self._heads])

    def _redistribution_block(self, entry: Entry, step: int) -> BlockSpec:
        subgraph = self._model.redistribution_tasks(entry, self._flows[entry], False)
        return BlockSpec(subgraph, lambda: [(subgraph.first, self._producer_key(entry, step), 0)])

    def _forward_block(self, number: int, step: int) -> BlockSpec:
        subgraph, inputs = self._model.compute(number, self._operators[number], False), self._inputs[number]
        bucket_names = [self._bucket_name(name) for name in self._dataflow.weights_of.get(number, ())] if step else []

        def waits() -> List[Wait]:
            return [self._wait_for_input(subgraph.first, entry, reader, step) for entry, reader in inputs] + [
                (subgraph.first, self.key('weight', name, step - 1), 0) for name in bucket_names]
        return BlockSpec(subgraph, waits, ([self._flows[entry].redistribution_of[reader] for entry, reader in inputs],
                                           bucket_names))

    def _redistribution_back_block(self, entry: Entry, step: int) -> BlockSpec:
        subgraph = self._model.redistribution_tasks(entry, self._flows[entry], True)
        redistribution_of = self._flows[entry].redistribution_of

        def waits() -> List[Wait]:
            wait_list: List[Wait] = []
            for (reader, _), unit in redistribution_of.items():
                if unit is None or reader != SCRIPT and reader not in self._dataflow.learning:
                    continue
                senders = subgraph.first.of_unit(unit)
                wait_list.append((senders, self.key('redistribution', entry, step), unit) if reader == SCRIPT else
                                 (senders, self.key('backward', reader, step), 0))
            return wait_list
        return BlockSpec(subgraph, waits, list(redistribution_of.values()))

    def _backward_block(self, number: int, step: int) -> BlockSpec:
        if number not in self._dataflow.learning:
            return BlockSpec(None)
        subgraph = self._model.compute(number, self._operators[number], True)
        flows = [(entry, self._flows[entry].redistribution_of) for entry in self._outputs[number]]

        def waits() -> List[Wait]:
            wait_list: List[Wait] = []
            for entry, redistribution_of in flows:
                for (reader, _), unit in redistribution_of.items():
                    if unit is not None:
                        wait_list.append((subgraph.first, self.key('redistribution_back', entry, step), unit))
                    elif reader == SCRIPT:
                        wait_list.append((subgraph.first, self.key('forward', number, step), 0))
                    elif reader in self._dataflow.learning:
                        wait_list.append((subgraph.first, self.key('backward', reader, step), 0))
            return wait_list
        return BlockSpec(subgraph, waits, [list(redistribution_of.values()) for _, redistribution_of in flows])

    def _weight_block(self, name: str, step: int) -> BlockSpec:
        names = self.summed_with(name)
        if names[0] != name:
            return BlockSpec(None)
        weights = self._model.weights
        if name in self._buckets:
            subgraph = weights.gradient_bucket(names)
        elif name in self._dataflow.tables:
            subgraph = weights.table(name, self._readers(name), self._tables[name])
        else:
            subgraph = weights.sharded_weight(name, self._weights[name])

        # A rank without a shard of an operator has no output there: its tasks wait for nothing.
        def waits() -> List[Wait]:
            return [(subgraph.first, self.key('backward', reader.number, step), 0) for summed in names
                    for reader in self._dataflow.readers[summed] if reader.number in self._dataflow.learning]
        return BlockSpec(subgraph, waits, names)


class _Saved(NamedTuple):
    """The state before a proposal; None where there was nothing."""

    operators: Dict[int, Optional[SplitOperator]]
    weights: Dict[str, Optional[WeightShards]]
    flows: Dict[Entry, Optional[Flow]]
    built: Dict[int, Optional[BuiltBlock]]
    blocks: Dict[int, Optional[TaskBlock]]
    tables: Dict[str, Optional[TablePlan]]
    replicated: Set[str]
    buckets: Dict[str, Tuple[str, ...]]
    memory: np.ndarray
    compute_load: np.ndarray
    load: np.ndarray
    shard_counts: np.ndarray
    idle: Tuple[int, ...]


def _restore(current: Dict[Any, Any], before: Mapping[Any, Any]) -> None:
    for key, value in before.items():
        if value is None:
            current.pop(key, None)
        else:
            current[key] = value
