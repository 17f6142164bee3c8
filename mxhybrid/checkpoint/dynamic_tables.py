"""Saves and restores dynamic tables, whose rows their owners write and read themselves: the servers, or this process.

All workers call the functions of this module together.  In a job each server writes its partitions into the directory
of the checkpoint, and reads the rows of its partitions from all parts.  Where not all servers see the directory,
worker 0 fetches the files that servers write on their own disks, and sends the rows of a checkpoint that is loaded.
"""
import os
import shutil
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from ..base import json_text
from ..base.errors import CheckpointError, HybridError, InputError
from ..base.log import get_logger, speaks_for_all
from ..kvstore.table_parameter import TableParameter
from ..kvstore.trainer_tables import tables_split_off
from ..native import trainers
from ..native.optimizer_state import counts_of, maker_of, rates_of, state_shapes, state_widths
from ..native.optimizers import name_of
from ..row_store.row_files import MORE_SLOTS, WAITING_FILES, Marks, remove_parts, widened
from ..row_store.row_store import FirstValues
from . import files, npy_files
from .collect import PIECE_BYTES as _PIECE_BYTES, Item
from .layers import merged
from .reader import MANIFEST, Reader, remaining_bases
from .table_files import Part, TableDescription, table_directory
from .workers import assign_rows

logger = get_logger(__name__)

#: Attribute of a Trainer: its last save, on which a delta can build.
_LAST_SAVE = '_mxhybrid_last_save'
#: Seconds between two looks for the results of the owners of rows.
_POLL_S = 0.05
#: Files of a checkpoint and its bases from which on the next one is whole: a reader maps all of them, and Linux allows
#: a process about 65,000 mappings (vm.max_map_count).
MOST_FILES = 50000


class LastSave(NamedTuple):
    """The last checkpoint that a Trainer has saved, and the marks of its tables, by which changes are known."""

    directory: str
    #: The identities of the checkpoint and of its bases, from new to old.
    identities: Tuple[Dict[str, str], ...]
    #: The number of files of dynamic tables that each of them had when it was written.
    files: Tuple[int, ...]
    #: By the name of a table, a reference to it and the marks that the owners of its rows gave.
    marks: Dict[str, Tuple[Any, Marks]]


def split_off_tables(trainer: Any, items: List[Item]) -> Tuple[List[Item], List[Item]]:
    """Return the parameters that have arrays, and the dynamic tables, with their numbers in the optimizer."""
    first = len(trainers.params_of(trainer))
    keys = {id(param): first + index for index, param in enumerate(tables_split_off(trainer))}
    tables = [item._replace(key=keys.get(id(item.param))) for item in items if isinstance(item.param, TableParameter)]
    return [item for item in items if not isinstance(item.param, TableParameter)], tables


class TableSave:
    """The save of all dynamic tables of a model into one checkpoint.

    All workers call :meth:`write`.  Then worker 0 calls :meth:`raise_problem` and :meth:`add`, and after the commit
    :meth:`remember`.
    """

    def __init__(self, trainer: Any, tables: List[Item], directory: str):
        self._trainer, self._tables, self._directory = trainer, tables, directory
        self._results: Dict[str, Dict[str, Any]] = {}
        self._problem: Optional[Exception] = None
        self._paths: Dict[str, str] = {}
        #: The number of updates of each table.
        self._updates: Dict[str, int] = {}
        #: The marks since which changes are saved, by the name of a table.
        self._marks: Dict[str, Marks] = {}
        #: The files in which the owners of rows will leave the results of saves from copies, and their directory.
        self._awaited: List[str] = []
        #: The identities of the checkpoints on which this one builds, from new to old; none if it is whole.
        self.bases: List[Dict[str, str]] = []
        self._why_whole = ('there is no earlier checkpoint of this Trainer in %s on which a delta could build'
                           % directory)
        # The number of files of each of the bases, after `add` also that of this checkpoint.
        self._files: Tuple[int, ...] = ()

    def write(self, workers: Any, open_writer: Callable[[], files.Writer], delta: bool, wait: bool = True) -> None:
        """Let the owners of the rows write them (collective).

        Unless `wait`, owners that can do so write a copy of their rows later; :meth:`add` waits for them.
        Worker 0 calls `open_writer`, and keeps its errors and those of the owners for :meth:`raise_problem`: the other
        workers learn of errors when worker 0 has written the rest of the checkpoint.
        """
        tables = [item.param.table for item in self._tables]
        counts = counts_of(self._trainer.optimizer)
        self._updates = {item.name: int(counts.get(item.key, 0)) for item in self._tables}

        def write_all() -> None:
            with workers.busy():
                try:
                    self._write_all(open_writer(), delta, wait)
                except Exception as error:  # a full disk, no permission: all workers have to raise it
                    logger.debug('rows of dynamic tables cannot be saved', exc_info=True)
                    self._problem = error
        tables[0].at_rest(tables, write_all)

    def _write_all(self, writer: files.Writer, delta: bool, wait: bool) -> None:
        last: Optional[LastSave] = self._trainer.__dict__.get(_LAST_SAVE)
        self._marks = self._usable_marks(last) if delta and last is not None else {}
        if delta and not self._marks and speaks_for_all():
            logger.info('checkpoint.save: %s: this checkpoint has all rows of dynamic tables', self._why_whole)
        blind_hosts: Set[str] = set()
        for number, item in enumerate(self._tables):
            self._paths[item.name] = writer.make_directory(table_directory(number))
        with writer.token() as token:
            has_copies = not wait and self._write_copies(writer, token)
            for item in self._tables:
                if has_copies and item.param.table.is_in_memory:
                    continue
                path = self._paths[item.name]
                saved = item.param.table.save(path, self._marks.get(item.name), token)
                if len({part['whole'] for part in saved.parts.values()}) > 1:  # some owners had to write all rows
                    remove_parts(path)
                    saved = item.param.table.save(path, None, token)
                self._results[item.name] = saved.parts
                blind_hosts.update(saved.hosts)
        if blind_hosts:
            logger.info('checkpoint.save: the servers on %s do not see %s: rows of dynamic tables pass through '
                        'worker 0', ', '.join(sorted(blind_hosts)), self._directory)

    def _write_copies(self, writer: files.Writer, token: str) -> bool:
        """Let owners that have rows in memory write copies of them; return whether they do."""
        items = [item for item in self._tables if item.param.table.is_in_memory]
        if not items:
            return False
        results = writer.make_directory('results')  # in which owners of rows report the files that they have written
        awaited = items[0].param.table.save_copies(
            [item.param.table for item in items], [self._paths[item.name] for item in items],
            [self._marks.get(item.name) for item in items], token, results)
        self._awaited = [results] if awaited is None else awaited + [results]
        return awaited is not None

    def _await_copies(self) -> None:
        """Wait until the owners of rows have written their copies; CheckpointError if one cannot."""
        if not self._awaited:
            return
        problem, (*reports, directory) = '', self._awaited
        for report in reports:
            while not os.path.exists(report):
                if not os.path.isdir(directory):
                    raise CheckpointError('%s was removed while the checkpoint was written' % directory)
                time.sleep(_POLL_S)
            with open(report, 'rb') as file:
                written = json_text.parse(file.read() or b'{"error": "the disk is full"}')
            problem = problem or written.pop('error', '')
            for name, path in self._paths.items():
                self._results.setdefault(name, {}).update(written.get(path, {}))
        shutil.rmtree(directory)
        if problem:
            raise CheckpointError('rows of dynamic tables cannot be saved: %s' % problem)

    def _usable_marks(self, last: LastSave) -> Dict[str, Marks]:
        if last.directory != self._directory:
            return {}
        try:
            bases = remaining_bases(last.directory, last.identities)
        except CheckpointError:  # one was removed, or the last one is damaged
            return {}
        counts = last.files[:len(bases)]
        if sum(counts) + counts[0] > MOST_FILES:
            self._why_whole = 'the checkpoint before and its bases have %d files of tables' % sum(counts)
            return {}
        tables = {item.name: item.param.table for item in self._tables}
        marks = {name: mark for name, (table, mark) in last.marks.items()
                 if name in tables and table() is tables[name]}
        if marks:
            self.bases, self._files = bases, counts
        return marks

    def add(self, writer: files.Writer) -> None:
        """Add the tables to the checkpoint, once their files are written."""
        self._await_copies()
        deltas, files_written = [], 0
        for item in self._tables:
            results = self._results[item.name]
            parts = [{name: result[name] for name in ('rows', 'removed', 'files')} for _, result in
                     sorted((int(number), result) for number, result in results.items())]
            files_written += sum(len(part['files']) for part in parts)
            deltas.append(not any(result['whole'] for result in results.values()))
            if item.name in self._marks and not deltas[-1]:
                logger.info('checkpoint.save: this checkpoint has all rows of %s: not all changes since the one before '
                            'are known, because its optimizer state was dropped, or very many rows were removed',
                            item.name)
            writer.add_table(item.name, self._description(item, parts), deltas[-1], parts)
        if not any(deltas):
            self.bases = []
        self._files = (files_written, *self._files[:len(self.bases)])

    def raise_problem(self) -> None:
        """Raise the error of :meth:`write` in worker 0, if there was one."""
        if isinstance(self._problem, HybridError) and not isinstance(self._problem, InputError):
            raise CheckpointError(str(self._problem)) from self._problem
        if self._problem is not None:
            raise self._problem

    def _description(self, item: Item, parts: List[Dict[str, Any]]) -> TableDescription:
        param, widths = item.param, []
        slots = sum(name.startswith('state') for name in parts[0]['files'])
        for slot in range(slots):
            widths.append(npy_files.mapped(os.path.join(self._paths[item.name], '0', 'state%d.npy' % slot)).shape[1])
        return TableDescription(param.width, np.dtype(param.dtype).name, param.rows,
                                param.first_values._asdict(), dict(param.options),
                                self._updates[item.name], widths,
                                max(result['clock'] for result in self._results[item.name].values()))

    def remember(self, identity: Dict[str, str]) -> None:
        """Remember the checkpoint with this identity, on which the next one can build."""
        marks = {item.name: (weakref.ref(item.param.table),
                             {part: result['mark'] for part, result in self._results[item.name].items()})
                 for item in self._tables}
        if self._tables:
            self._trainer.__dict__[_LAST_SAVE] = LastSave(self._directory, (identity, *self.bases), self._files,
                                                           marks)


def stored_tables(checkpoint: Reader) -> Dict[str, Any]:
    """Return description and parts of each table of a checkpoint, as JSON: the paths of the parts, from old to new."""
    bases = checkpoint.bases()
    stored = {}
    for name, entry in checkpoint.tables.items():
        layers = checkpoint.layers(name, bases)
        stored[name] = {'description': TableDescription.from_json(entry)._asdict(),
                        'parts': [part.path for layer in reversed(layers) for part in layer]}
    return stored


def misfit_of_tables(trainer: Any, tables: List[Item], stored: Dict[str, Any]) -> str:
    """Return why the dynamic tables of a checkpoint do not fit the model, '' if they fit."""
    for item in tables:
        if item.name not in stored:
            return '%s is a dynamic table in the net, but not in the checkpoint: import its rows instead, see ' \
                   'mxhybrid.checkpoint.import_rows' % item.name
        param, description = item.param, TableDescription.from_json(stored[item.name]['description'])
        for option, stored_value, value in [('width', description.width, param.width),
                                            ('dtype', description.dtype, np.dtype(param.dtype).name),
                                            ('rows', description.rows, param.rows)]:
            if stored_value != value:
                return '%s has %s %s in the checkpoint, %s in the net: give the table the %s of the checkpoint' \
                       % (item.name, option, _in_words(stored_value), _in_words(value), option)
        first_values = FirstValues(**description.first_values)
        if param.is_served and first_values != param.first_values:
            return '%s has rows that begin with other values (%s) than in the checkpoint (%s): load it before the ' \
                   'first step, or give mx.random.seed the seed of the saved training' \
                   % (item.name, param.first_values, first_values)
        if description.state_widths:
            widths = state_widths(_maker(trainer, item, description), item.key, (1, param.width), param.dtype)
            if widths != description.state_widths:
                return 'the state of optimizer %r for %s has widths %s in the checkpoint, but should have %s: give ' \
                       'momentum and similar options the values that they had when it was saved' \
                       % (name_of(trainer.optimizer), item.name, description.state_widths, widths)
    names = {item.name for item in tables}
    surplus = [name for name in stored if name not in names]
    return '%s is a dynamic table in the checkpoint, but not in the net' % surplus[0] if surplus else ''


def _in_words(value: Any) -> str:
    return 'any' if value is None else str(value)


def _maker(trainer: Any, item: Item, description: TableDescription) -> Any:
    return maker_of([(1, width) for width in description.state_widths], trainer.optimizer,
                    lambda optimizer: state_shapes(optimizer, item.key, (1, item.param.width), item.param.dtype))


def take_first_values(tables: List[Item], stored: Dict[str, Any]) -> None:
    """Give the rows of tables that are not on the servers yet the first values of the checkpoint."""
    for item in tables:
        first_values = FirstValues(**stored[item.name]['description']['first_values'])
        if not item.param.is_served:
            item.param.take_first_values(first_values)


def put_tables(trainer: Any, tables: List[Item], stored: Dict[str, Any], workers: Any,
               reader: Callable[[], Reader], note: Callable[[str], None]) -> None:
    """Replace the rows of all tables by those of a checkpoint (collective).

    Worker 0 sends the rows if not all servers see the files.  It has the `reader`; ``note(problem)`` gets errors.
    """
    trainer.__dict__.pop(_LAST_SAVE, None)
    for item in tables:
        table, description = item.param.table, TableDescription.from_json(stored[item.name]['description'])
        try:
            table.load([], description.clock)  # state of another size is made for all rows that are there
        except HybridError as error:
            note(str(error))
        table.forget_optimizer()
        if description.state_widths:
            rates = rates_of(trainer.optimizer, item.key)
            table.set_optimizer(_maker(trainer, item, description), *rates, description.updates)
            table.expect_count(description.updates)
        parts, hosts = stored[item.name]['parts'], []
        if workers.rank == 0 and parts:
            hosts = table.hosts_without(os.path.join(reader().path, MANIFEST))
        is_seen = not workers.allgather_json(hosts, 'checkpoint.hosts')[0]
        try:
            table.load(parts if is_seen else [], description.clock)
            if not is_seen:
                _send_rows(item, description, workers, reader)
        except HybridError as error:
            note(str(error))


def _send_rows(item: Item, description: TableDescription, workers: Any, reader: Callable[[], Reader]) -> None:
    """Send the rows of a table, and all that belongs to them, from worker 0 to the servers, in pieces (collective)."""
    table = item.param.table
    piece_rows = max(1, min(table.max_batch_rows, _PIECE_BYTES // (table.width * table.dtype.itemsize)))
    slots = {'rows': -1, **{'state%d' % slot: slot for slot in range(len(description.state_widths))}, **MORE_SLOTS}
    for column, slot in slots.items():
        pieces = _rows_of(reader(), item.name, description, column, piece_rows) if workers.rank == 0 else iter(())
        assign_rows(workers, table, pieces, slot)


def _rows_of(reader: Reader, name: str, description: TableDescription, column: str,
             piece_rows: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Yield sorted keys and the bytes of a column, as wide as rows are, `piece_rows` at most at a time."""
    layers = reader.layers(name, reader.bases())
    for keys, columns in _waiting_in(layers[0]) if column == 'waiting' else merged(layers, description):
        for first in range(0, len(keys) if column in columns else 0, piece_rows):
            order = first + np.argsort(keys[first:first + piece_rows])
            values = columns[column][order]
            if column == 'rows':
                values = widened(values, description.dtype)
            rows = np.zeros((len(order), description.width), description.dtype)
            rows.view(np.uint8)[:, :values[0].nbytes] = values.reshape(len(order), -1).view(np.uint8)
            yield keys[order], rows


def _waiting_in(parts: Sequence[Part]) -> Iterator[Tuple[np.ndarray, Dict[str, np.ndarray]]]:
    """Yield the keys that wait for admission in each part, and their numbers."""
    for part in parts:
        paths = [os.path.join(part.path, file + '.npy') for file, _ in WAITING_FILES]
        if os.path.exists(paths[0]):
            keys, numbers = map(npy_files.mapped, paths)
            yield keys, {'waiting': numbers}
