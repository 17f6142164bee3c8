"""The blocks of a simulated training, as operators are split now; a change of some splits makes few of them anew."""
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import numpy as np

from ..base.settings import TablePlan
from ..parallel.graph import Entry
from ..parallel.split import Split
from . import step_model
from .machine import Tasks
from .simulator import Block
from .step_graph import SCRIPT
from .step_model import BUNDLE_BYTES, Core, Ends, StepModel


class StepBlocks:
    """Of all steps that are simulated, one behind the other: the first begins with nothing under way, so that what a
    later one takes is what training takes.
    """

    def __init__(self, model: StepModel, splits: Mapping[int, Split], steps: int = 2,
                 tables: Optional[Mapping[str, TablePlan]] = None):
        self._model, self._graph = model, model.step_graph
        self._ranks = model.machine.ranks
        self._steps, self.keys = steps, model.step_graph.keys
        self._ids: Dict[Split, int] = {}
        #: The number of each operator's split; data have none.
        self._id: Dict[int, int] = {}
        self._known: Dict[Any, Optional[Block]] = {}
        self._tasks: Dict[int, Tasks] = {}
        #: Weights that all ranks hold whole, and the first of those that each is summed with.
        self._whole: Set[str] = set()
        self._bundled: Dict[str, Tuple[str, ...]] = {}
        self.splits: Dict[int, Split] = {}
        #: How rows of those travel that have row_sparse gradients.
        self._tables: Dict[str, TablePlan] = {}
        self.blocks: Dict[int, Block] = {}
        self.memory = np.zeros(self._ranks)
        operators = model.graph.operators
        self._heads = [entry for entry in model.graph.heads if entry in self._graph.consumers]
        self._inputs = {number: [entry for entry in operators[number].inputs if entry in self._graph.consumers]
                        for number in self._graph.computing}
        self._outputs = {number: [(number, output) for output in range(operators[number].outputs)
                                  if (number, output) in self._graph.consumers] for number in self._graph.computing}
        self._affected = {number: self._near(number) for number in self._graph.computing}
        self.change(splits, {name: model.table_plan(name, tables or {}) for name in self._graph.trained
                             if name in self._graph.tables})

    def key(self, kind: str, which: Any, step: int) -> int:
        """Of a block, in the order in which the script asks for them."""
        return self.keys[kind, which] + step * len(self.keys)

    def tasks(self, key: int) -> Tasks:
        """What the block of a key is made of."""
        return self._tasks[key]

    def is_bundled(self, name: str) -> bool:
        """Whether the gradient of a weight is summed over all ranks, with others."""
        return name in self._bundled

    def label_of(self, name: str) -> str:
        """A weight, or those that are summed with it, for people."""
        names = self._bundled.get(name, (name,))
        return names[0] if len(names) == 1 else '%s to %s' % (names[0], names[-1])

    def _near(self, number: int) -> List[Tuple[str, Any]]:
        """The blocks, without those of weights, that the split of an operator has to do with."""
        graph, one = self._graph.graph, self._graph.graph.operators[number]
        found: Dict[Tuple[str, Any], None] = {('forward', number): None, ('backward', number): None}
        inputs = [entry for entry in one.inputs if entry[0] not in graph.fixed]
        for entry in inputs + [(number, output) for output in range(one.outputs)]:
            if entry not in self._graph.consumers:
                continue
            found[('there', entry)] = found[('back', entry)] = None
            found[('backward', entry[0])] = None
            for reader, _ in self._graph.consumers[entry]:
                if reader != SCRIPT:
                    found[('forward', reader)] = None
                else:
                    found[('step', None)] = None
        return [what for what in found if what in self.keys]

    def change(self, splits: Mapping[int, Split], tables: Optional[Mapping[str, TablePlan]] = None
               ) -> Dict[int, Optional[Block]]:
        """Split some operators otherwise, and have rows of some tables travel otherwise; the blocks that are others
        now, None for those that are no more.
        """
        changed = {number: split for number, split in splits.items() if self.splits.get(number) != split}
        what: Dict[Tuple[str, Any], None] = {}
        names: Set[str] = set()
        first = not self.splits
        for number, split in changed.items():
            before = self.splits.get(number)
            if before is not None:
                self.memory -= self._model.activations(number, before)
            self.memory += self._model.activations(number, split)
            what.update(dict.fromkeys(self._affected[number]))
            names.update(self._graph.weights_of.get(number, ()))
            self._id[number] = self._ids.setdefault(split, len(self._ids) + 1)
        for name in names if not first else ():
            self.memory -= self._model.weight_bytes(name, self._readers(name))
        self.splits.update(changed)
        for name in names:
            self.memory += self._model.weight_bytes(name, self._readers(name))
        if first:
            what[('step', None)] = None
        whole = {name for name in names if name not in self._graph.tables
                 and self._model.is_whole_everywhere(name, self._readers(name))}
        if whole != self._whole & names:
            self._whole = self._whole - names | whole
            what.update(dict.fromkeys(self._bundle_anew()))
        what.update({('weight', self._holder(name)): None for name in names})
        for name, way in (tables or {}).items():
            if self._tables.get(name) == way:
                continue
            if name in self._tables:
                self.memory -= self._model.table_bytes(name, self._tables[name])
            self.memory += self._model.table_bytes(name, way)
            self._tables[name] = way
            what['weight', name] = None
        found: Dict[int, Optional[Block]] = {}
        for step in range(self._steps):
            for kind, which in what:
                key = self.key(kind, which, step)
                made = self._block(kind, which, step)
                if made is self.blocks.get(key):
                    continue
                found[key] = made
                if made is None:
                    del self.blocks[key]
                else:
                    self.blocks[key] = made
        return found

    def _bundle_anew(self) -> List[Tuple[str, Any]]:
        """Put weights together that all ranks hold whole; blocks that this changes."""
        model, found = self._model, {}
        names: List[str] = []
        room = 0

        def close() -> None:
            for one in names:
                found[one] = tuple(names)
        for name in self._graph.trained:
            if name not in self._whole:
                continue
            size = model.bytes_of[name]
            if names and size > room:
                close()
                names = []
            if not names:
                room = BUNDLE_BYTES
            names = names + [name]
            room -= size
        close()
        before, self._bundled = self._bundled, found
        return [what for name in self._graph.trained if before.get(name) != found.get(name)
                for what in [('weight', name)] + [('forward', reader.number) for reader in self._graph.readers[name]]]

    # -- what there is ---------------------------------------------------------------------------------------------

    def _readers(self, name: str) -> Tuple[Split, ...]:
        return tuple(self.splits[reader.number] for reader in self._graph.readers[name])

    def _of(self, entry: Entry) -> Tuple[Optional[Split], ...]:
        """Splits of who makes an output and of who reads it."""
        return (self.splits.get(entry[0]),) + tuple(self.splits.get(number)
                                                    for number, _ in self._graph.consumers[entry])

    def _content(self, entry: Entry) -> Tuple[int, ...]:
        """Tells apart how an output moves."""
        splits = self._id
        return (splits.get(entry[0], 0),) + tuple([splits.get(number, 0) for number, _ in self._graph.consumers[entry]])

    def _block(self, kind: str, which: Any, step: int) -> Optional[Block]:
        if kind in ('there', 'back'):
            content: Any = self._content(which)
        elif kind == 'forward':
            content = self._id[which], tuple([self._content(entry) for entry in self._inputs[which]]), tuple([
                self._holder(name) for name in self._graph.weights_of.get(which, ())]) if step else None
        elif kind == 'backward':
            content = self._id[which], tuple([self._content(entry) for entry in self._outputs[which]])
        elif kind == 'weight':
            names = self._bundled.get(which, (which,))
            content = names, self._tables.get(which), tuple([
                self._id[reader.number] for name in names for reader in self._graph.readers[name]])
        else:
            content = tuple([self._content(entry) for entry in self._heads])
        key = kind, which, step, content
        if key not in self._known:
            made = getattr(self, '_' + kind)(which, step)
            if len(self._known) * self._ranks >= step_model.MOST_KNOWN:
                self._known.clear()
            self._known[key] = made
        return self._known[key]

    def _made(self, kind: str, which: Any, step: int, core: Core, waits: List[np.ndarray]) -> Optional[Block]:
        if not len(core.tasks):
            return None
        key = self.key(kind, which, step)
        self._tasks[key] = core.tasks
        ports = np.column_stack([core.last.units * self._ranks + core.last.ranks, core.last.tasks])
        columns: Dict[str, Any] = core.tasks.columns()
        return Block(key, inner=core.tasks.inner, ports=ports, waits=np.concatenate(waits) if waits else (), **columns)

    def _waits(self, ends: Ends, key: int, unit: Optional[int] = None) -> np.ndarray:
        """Tasks that wait for what another block has for their ranks: own task, key of the block, port."""
        found = np.empty((len(ends.tasks), 3), np.int64)
        found[:, 0], found[:, 1], found[:, 2] = ends.tasks, key, ends.ranks + (unit or 0) * self._ranks
        return found

    def _given(self, ends: Ends, entry: Entry, reader: Tuple[int, int], step: int) -> np.ndarray:
        """Tasks that wait for an output that they read."""
        unit = self._model.flow(entry, self._of(entry)).unit_of[reader]
        return self._waits(ends, self._maker(entry, step) if unit is None else self.key('there', entry, step), unit)

    def _maker(self, entry: Entry, step: int) -> int:
        """The block of what ranks make themselves, or are given by the script."""
        if self._graph.graph.operators[entry[0]].op == 'null':
            return self.key('step', None, step)
        return self.key('forward', entry[0], step)

    def _step(self, which: None, step: int) -> Optional[Block]:
        core = self._model.script()
        return self._made('step', None, step, core, [
            self._given(core.first, entry, (SCRIPT, place), step - 1) for place, entry in enumerate(self._heads)
            ] if step else [])

    def _there(self, entry: Entry, step: int) -> Optional[Block]:
        core = self._model.transfers(entry, self._of(entry), False)
        return self._made('there', entry, step, core, [self._waits(core.first, self._maker(entry, step))])

    def _forward(self, number: int, step: int) -> Optional[Block]:
        core = self._model.operator(number, self.splits[number], False)
        waits = [self._given(core.first, entry, (number, place), step)
                 for place, entry in enumerate(self._graph.graph.operators[number].inputs)
                 if entry in self._graph.consumers]
        waits += [self._waits(core.first, self.key('weight', self._holder(name), step - 1))
                  for name in self._graph.weights_of.get(number, ()) if step]
        return self._made('forward', number, step, core, waits)

    def _back(self, entry: Entry, step: int) -> Optional[Block]:
        core = self._model.transfers(entry, self._of(entry), True)
        waits = []
        for (reader, _), unit in self._model.flow(entry, self._of(entry)).unit_of.items():
            if unit is None or reader != SCRIPT and reader not in self._graph.learning:
                continue
            here = core.first.of(unit)
            waits.append(self._waits(here, self.key('there', entry, step), unit) if reader == SCRIPT else
                         self._waits(here, self.key('backward', reader, step)))
        return self._made('back', entry, step, core, waits)

    def _backward(self, number: int, step: int) -> Optional[Block]:
        if number not in self._graph.learning:
            return None
        core, waits = self._model.operator(number, self.splits[number], True), []
        for entry in self._outputs[number]:
            for (reader, _), unit in self._model.flow(entry, self._of(entry)).unit_of.items():
                if unit is not None:
                    waits.append(self._waits(core.first, self.key('back', entry, step), unit))
                elif reader == SCRIPT:
                    waits.append(self._waits(core.first, self.key('forward', number, step)))
                elif reader in self._graph.learning:
                    waits.append(self._waits(core.first, self.key('backward', reader, step)))
        return self._made('backward', number, step, core, waits)

    def _holder(self, name: str) -> str:
        """The parameter under whose name a weight's sum goes."""
        return self._bundled[name][0] if name in self._bundled else name

    def _weight(self, name: str, step: int) -> Optional[Block]:
        names = self._bundled.get(name, (name,))
        if names[0] != name:
            return None
        if name in self._bundled:
            core = self._model.bundle(names)
        elif name in self._graph.tables:
            core = self._model.table(name, self._readers(name), self._tables[name])
        else:
            core = self._model.part(name, self._readers(name))
        # Of ranks that have no part of an operator there is nothing to wait for.
        waits = [self._waits(core.first, self.key('backward', reader.number, step))
                 for one in names for reader in self._graph.readers[one] if reader.number in self._graph.learning]
        return self._made('weight', name, step, core, waits)
