"""The blocks of a simulated training, as operators are split now; a change of some splits makes few of them anew."""
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

import numpy as np

from ...base.settings import TablePlan
from ...parallel.ops.graph import Entry
from ...parallel.sharding.split import Split
from ..simulator.task_block import TaskBlock, BlockInput
from .dataflow import SCRIPT
from .operator_tasks import BUCKET_BYTES, Flow, WeightShards, SplitOperator, OperatorTasks
from .task_builder import TaskSubgraph, Endpoints, Load

#: Of a block that waits: tasks, the key of the other block, and the unit there.
Wait = Tuple[Endpoints, int, int]


class StepTasks:
    """Of all steps that are simulated, one behind the other: the first begins with nothing under way, so that what a
    later one takes is what training takes.
    """

    def __init__(self, model: OperatorTasks, splits: Mapping[int, Split], steps: int = 2,
                 tables: Optional[Mapping[str, TablePlan]] = None, dense: Optional[str] = None):
        self._model, self._graph = model, model.dataflow
        self._ranks = model.machine.ranks
        self._steps, self.keys = steps, model.dataflow.keys
        #: By key: what tells a block apart from others of its key, and what it is made of.
        self._made: Dict[int, Tuple[Any, TaskSubgraph]] = {}
        self._flows: Dict[Entry, Flow] = {}
        #: Weights that all ranks hold whole, and the first of those that each is summed with.
        self._whole: Set[str] = set()
        self._bundled: Dict[str, Tuple[str, ...]] = {}
        self._operators: Dict[int, SplitOperator] = {}
        #: Of all weights, trained or not.
        self._held: Dict[str, WeightShards] = {}
        #: How rows of those travel that have row_sparse gradients.
        self._tables: Dict[str, TablePlan] = {}
        #: What sums dense weights.
        self._dense = dense
        self.blocks: Dict[int, TaskBlock] = {}
        self.memory = np.zeros(self._ranks)
        #: What the last :meth:`change` takes at least.
        self.least_seconds = 0.0
        #: What resources have to do: cores for operators, and all of them.
        self._computing, self._load = Load(model.machine), Load(model.machine)
        self._undo: Optional[_Before] = None
        operators = model.graph.operators
        self._heads = [(entry, (SCRIPT, place)) for place, entry in enumerate(model.graph.heads)
                       if entry in self._graph.consumers]
        self._inputs = {number: [(entry, (number, place)) for place, entry in enumerate(operators[number].inputs)
                                 if entry in self._graph.consumers] for number in self._graph.computing}
        self._outputs = {number: [(number, output) for output in range(operators[number].outputs)
                                  if (number, output) in self._graph.consumers] for number in self._graph.computing}
        #: Blocks that flows of an output have to do with.
        self._around = {entry: self._blocks_around(entry) for entry in self._graph.entries}
        self.change(splits, {name: model.table_plan(name, tables or {}) for name in self._graph.trained
                             if name in self._graph.tables})

    @property
    def splits(self) -> Dict[int, Split]:
        """How operators are split."""
        return {number: one.split for number, one in self._operators.items()}

    def key(self, kind: str, which: Any, step: int) -> int:
        """Of a block, in the order in which the script asks for them."""
        return self.keys[kind, which] + step * len(self.keys)

    def tasks(self, key: int) -> Any:
        """What the block of a key is made of."""
        return self._made[key][1].tasks

    def is_bundled(self, name: str) -> bool:
        """Whether the gradient of a weight is summed over all ranks, with others."""
        return name in self._bundled

    def summed_with(self, name: str) -> Tuple[str, ...]:
        """A weight, and those that are summed with it."""
        return self._bundled.get(name, (name,))

    def label_of(self, name: str) -> str:
        """A weight, or those that are summed with it, for people."""
        names = self.summed_with(name)
        return names[0] if len(names) == 1 else '%s to %s' % (names[0], names[-1])

    def _blocks_around(self, entry: Entry) -> List[Tuple[str, Any]]:
        found = [('there', entry), ('back', entry), ('backward', entry[0])]
        found += [('step', None) if reader == SCRIPT else ('forward', reader)
                  for reader, _ in self._graph.consumers[entry]]
        return [what for what in found if what in self.keys]

    def change(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None,
               limit: Optional[Callable[[], float]] = None, dense: Optional[str] = None
               ) -> Optional[Dict[int, Optional[TaskBlock]]]:
        """Split some operators otherwise, have rows of some tables travel otherwise, and dense weights be summed so.

        Parameters
        ----------
        splits, tables : mapping
        dense : str, optional
            None to leave it as it is.
        limit : callable, optional
            Asked when :attr:`memory` is known: seconds of all steps; that it is above them suffices to know.

        Returns
        -------
        dict of int to TaskBlock or None
            By key: the blocks that are others now, None for those that are no more. No dict where it takes longer than
            the limit, :attr:`least_seconds` at least; :meth:`undo` has to follow then.
        """
        changed = {number: split for number, split in splits.items()
                   if number not in self._operators or self._operators[number].split != split}
        what: Dict[Tuple[str, Any], None] = {}
        names: Dict[str, None] = {}
        kept: Dict[str, None] = {}
        entries: Dict[Entry, None] = {}
        self._undo = undo = _Before({}, {}, {}, {}, {}, {}, self._whole, self._bundled, self.memory.copy(),
                                    self._computing, self._load, self._dense)
        for number in changed:
            what[('forward', number)] = what[('backward', number)] = None
            names.update(dict.fromkeys(self._graph.weights_of.get(number, ())))
            kept.update(dict.fromkeys(self._graph.kept_of.get(number, ())))
            entries.update(dict.fromkeys(self._outputs[number]))
            entries.update(dict.fromkeys([entry for entry, _ in self._inputs[number]]))
        what.update({} if self._operators else {('step', None): None})
        self._remember(changed, kept, tables or {}, undo)
        most = np.inf if limit is None else limit()
        self.least_seconds = self._computing.least_seconds()
        if self.least_seconds > most:
            return None
        for entry in entries:
            flow = self._model.flow(entry, self._of(entry))
            if flow is not self._flows.get(entry):
                undo.flows[entry] = self._flows.get(entry)
                self._flows[entry] = flow
                what.update(dict.fromkeys(self._around[entry]))
        self._bundle([name for name in names if name in undo.held or name in self._graph.tables], what)
        what.update({('weight', name): None for name in undo.tables})
        if dense not in (None, undo.dense):
            self._dense = dense
            what[('step', None)] = None
            what.update({('weight', name): None for name in self._graph.trained})
        others = [other for step in range(self._steps) for other in self._others(what, step)]
        self._load = self._load.plus([self._model.work_of([now[0] for _, _, now in others if now])
                                      - self._model.work_of([before[1] for _, before, _ in others if before])])
        self.least_seconds = self._load.least_seconds()
        return None if self.least_seconds > most else dict(self._exchange(others, undo))

    def _remember(self, changed: Mapping[int, Split], names: Iterable[str], tables: Mapping[str, TablePlan],
                  undo: '_Before') -> None:
        """What is decided, the memory of it, and how long it computes."""
        model, less, more = self._model, [], []
        for number, split in changed.items():
            before = undo.operators[number] = self._operators.get(number)
            if before is not None:
                self.memory -= before.activations
                less.append(before.computing)
            now = self._operators[number] = model.operator(number, split)
            self.memory += now.activations
            more.append(now.computing)
        self._computing = self._computing.plus(less, -self._steps).plus(more, self._steps)
        for name in names:
            held, weight = self._held.get(name), model.held(name, self._readers(name))
            if weight is not held:
                undo.held[name], self._held[name] = held, weight
                self.memory += weight.size
                self.memory -= 0.0 if held is None else held.size
        for name, way in tables.items():
            former = self._tables.get(name)
            if former != way:
                undo.tables[name], self._tables[name] = former, way
                self.memory += model.table_bytes(name, way)
                self.memory -= 0.0 if former is None else model.table_bytes(name, former)

    def undo(self) -> None:
        """Back to before the last :meth:`change`; once for each."""
        undo = self._undo
        assert undo is not None
        for now, before in ((self._operators, undo.operators), (self._held, undo.held), (self._flows, undo.flows),
                            (self._made, undo.made), (self.blocks, undo.blocks), (self._tables, undo.tables)):
            _put_back(now, before)
        self._whole, self._bundled, self.memory, self._dense = undo.whole, undo.bundled, undo.memory, undo.dense
        self._computing, self._load = undo.computing, undo.load
        self._undo = None

    def _bundle(self, names: Iterable[str], what: Dict[Tuple[str, Any], None]) -> None:
        """Which weights are summed together, where those of these names have changed; adds blocks that this changes."""
        whole = {name for name in names if name not in self._graph.tables and self._held[name].is_everywhere}
        if whole != self._whole.intersection(names):
            self._whole = self._whole.difference(names) | whole
            what.update(dict.fromkeys(self._bundle_anew()))
        what.update({('weight', self._holder(name)): None for name in names})

    def _others(self, what: Iterable[Tuple[str, Any]], step: int
                ) -> Iterable[Tuple[int, Optional[Tuple[Any, TaskSubgraph]], Optional['Made']]]:
        """Of these, those that are others than before: key, before, and now."""
        for kind, which in what:
            core, waits, depends_on = getattr(self, '_' + kind)(which, step)
            key = self.key(kind, which, step)
            before = self._made.get(key)
            if core is None or not core.content.size:
                if before is not None:
                    yield key, before, None
            elif before is None or before[1] is not core or before[0] != depends_on:
                yield key, before, (core, waits, depends_on)

    def _exchange(self, others: Iterable[Tuple[int, Optional[Tuple[Any, TaskSubgraph]], Optional['Made']]], undo: '_Before'
                  ) -> Iterable[Tuple[int, Optional[TaskBlock]]]:
        """Put in the blocks of what is other than before."""
        for key, before, now in others:
            undo.made[key], undo.blocks[key] = before, self.blocks.get(key)
            if now is None:
                del self.blocks[key], self._made[key]
                yield key, None
            else:
                core, waits, depends_on = now
                block = self.blocks[key] = TaskBlock.of(key, core.content, self._reads(waits()))
                self._made[key] = depends_on, core
                yield key, block

    def _bundle_anew(self) -> List[Tuple[str, Any]]:
        """Put weights together that all ranks hold whole; blocks that this changes."""
        sizes, room = self._model.bytes_of, 0
        bundles: List[List[str]] = []
        for name in self._graph.trained:
            if name not in self._whole:
                continue
            if not bundles or sizes[name] > room:
                bundles.append([])
                room = BUCKET_BYTES
            bundles[-1].append(name)
            room -= sizes[name]
        found = set(map(tuple, bundles))
        others = found.symmetric_difference(self._bundled.values())
        self._bundled = {name: names for names in found for name in names}
        changed = {name for names in others for name in names}
        return [what for name in self._graph.trained if name in changed
                for what in [('weight', name)] + [('forward', reader.number) for reader in self._graph.readers[name]]]

    # -- what there is ---------------------------------------------------------------------------------------------

    def _readers(self, name: str) -> List[SplitOperator]:
        return [self._operators[reader.number] for reader in self._graph.readers[name]]

    def _of(self, entry: Entry) -> List[Optional[SplitOperator]]:
        """Who makes an output and who reads it."""
        return [self._operators.get(entry[0]), *[self._operators.get(number)
                                                 for number, _ in self._graph.consumers[entry]]]

    def _reads(self, waits: List[Wait]) -> List[BlockInput]:
        ranks = self._ranks
        return [BlockInput(key, ends.waits, unit * ranks) for ends, key, unit in waits if len(ends.tasks)]

    def _given(self, ends: Endpoints, entry: Entry, reader: Tuple[int, int], step: int) -> Wait:
        """Tasks that wait for an output that they read."""
        unit = self._flows[entry].unit_of[reader]
        return (ends, self._maker(entry, step), 0) if unit is None else (ends, self.key('there', entry, step), unit)

    def _maker(self, entry: Entry, step: int) -> int:
        """The block of what ranks make themselves, or are given by the script."""
        if self._graph.graph.operators[entry[0]].op == 'null':
            return self.key('step', None, step)
        return self.key('forward', entry[0], step)

    # Each of these says what tasks a block has, what makes what they wait for, and what that depends on.

    def _step(self, which: None, step: int) -> 'Made':
        core = self._model.script(self._dense)

        def waits() -> List[Wait]:
            if not step:
                return []
            # The script waits for what comes out.  MXNet computes in the same memory as in the step before, and begins
            # when backward has done with that.
            begun = core.first.of(1)
            return [self._given(core.first.of(0), entry, reader, step - 1) for entry, reader in self._heads] + [
                (begun, self.key('backward', number, step - 1), 0) for number in self._graph.deepest]
        return core, waits, [self._flows[entry].unit_of[reader] for entry, reader in self._heads]

    def _there(self, entry: Entry, step: int) -> 'Made':
        core = self._model.transfers(entry, self._flows[entry], False)
        return core, lambda: [(core.first, self._maker(entry, step), 0)], None

    def _forward(self, number: int, step: int) -> 'Made':
        core, inputs = self._model.core(number, self._operators[number], False), self._inputs[number]
        holders = [self._holder(name) for name in self._graph.weights_of.get(number, ())] if step else []
        return core, lambda: [self._given(core.first, entry, reader, step) for entry, reader in inputs] + [
            (core.first, self.key('weight', name, step - 1), 0) for name in holders], (
            [self._flows[entry].unit_of[reader] for entry, reader in inputs], holders)

    def _back(self, entry: Entry, step: int) -> 'Made':
        core = self._model.transfers(entry, self._flows[entry], True)
        unit_of = self._flows[entry].unit_of

        def waits() -> List[Wait]:
            found = []
            for (reader, _), unit in unit_of.items():
                if unit is None or reader != SCRIPT and reader not in self._graph.learning:
                    continue
                here = core.first.of(unit)
                found.append((here, self.key('there', entry, step), unit) if reader == SCRIPT else
                             (here, self.key('backward', reader, step), 0))
            return found
        return core, waits, list(unit_of.values())

    def _backward(self, number: int, step: int) -> 'Made':
        if number not in self._graph.learning:
            return None, None, None
        core = self._model.core(number, self._operators[number], True)
        flows = [(entry, self._flows[entry].unit_of) for entry in self._outputs[number]]

        def waits() -> List[Wait]:
            found = []
            for entry, unit_of in flows:
                for (reader, _), unit in unit_of.items():
                    if unit is not None:
                        found.append((core.first, self.key('back', entry, step), unit))
                    elif reader == SCRIPT:
                        found.append((core.first, self.key('forward', number, step), 0))
                    elif reader in self._graph.learning:
                        found.append((core.first, self.key('backward', reader, step), 0))
            return found
        return core, waits, [list(unit_of.values()) for _, unit_of in flows]

    def _holder(self, name: str) -> str:
        """The parameter under whose name a weight's sum goes."""
        return self._bundled[name][0] if name in self._bundled else name

    def _weight(self, name: str, step: int) -> 'Made':
        names = self._bundled.get(name, (name,))
        if names[0] != name:
            return None, None, None
        if name in self._bundled:
            core = self._model.bundle(names, self._dense)
        elif name in self._graph.tables:
            core = self._model.table(name, self._readers(name), self._tables[name], self._dense)
        else:
            core = self._model.part(name, self._held[name])
        # Of ranks that have no part of an operator there is nothing to wait for.
        return core, lambda: [(core.first, self.key('backward', reader.number, step), 0) for one in names
                              for reader in self._graph.readers[one]
                              if reader.number in self._graph.learning], names


class _Before(NamedTuple):
    """How it was before a change; None where there was nothing."""

    operators: Dict[int, Optional[SplitOperator]]
    held: Dict[str, Optional[WeightShards]]
    flows: Dict[Entry, Optional[Flow]]
    made: Dict[int, Optional[Tuple[Any, TaskSubgraph]]]
    blocks: Dict[int, Optional[TaskBlock]]
    tables: Dict[str, Optional[TablePlan]]
    whole: Set[str]
    bundled: Dict[str, Tuple[str, ...]]
    memory: np.ndarray
    computing: Load
    load: Load
    dense: Optional[str]


#: TaskBuilder of a block, None for no block; what they wait for; and what that depends on besides.
Made = Tuple[Any, Any, Any]


def _put_back(now: Dict[Any, Any], before: Mapping[Any, Any]) -> None:
    for key, value in before.items():
        if value is None:
            now.pop(key, None)
        else:
            now[key] = value
