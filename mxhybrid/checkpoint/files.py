"""Checkpoints as files: written completely or not at all, and verified when they are read.

A checkpoint is a directory with a manifest, and shards of at most :data:`SHARD_BYTES` in the safetensors format::

    checkpoints/
        00000001-step-200/
            manifest.json
            00000.safetensors
            00001.safetensors
        00000002-step-400/

The first number counts the checkpoints of a directory: the highest is the newest, even if a job went back to an earlier
step.  The manifest says, for each array, which shard has which elements, counted in C order.  It has a digest of every
shard and of itself.  Nothing in a checkpoint is code, and nothing in it is unpickled.  Dynamic tables have files of
their own, see :mod:`mxhybrid.checkpoint.table_files`.

A checkpoint is written under another name, flushed to the disk with its directory, and then renamed; so a directory
with a checkpoint's name is complete, unless something damaged it later.  An old checkpoint is renamed before it is
removed.  The temporary names are ``.writing`` and ``.removing``, with a number if the name exists; the next save
removes such directories.  A file that cannot be removed is left, with a warning, and does not prevent a save.
"""
import errno
import json
import os
import re
import shutil
import stat
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Type

import numpy as np

from ..base.errors import CheckpointError, InputError, SettingError
from ..base.files import sync_directory
from ..base.log import get_logger
from . import folder, leftovers, manifest, table_files
from .folder import names
from .npy_files import FormatError

logger = get_logger(__name__)

#: Version of the layout, raised when older readers would misread it: the first one has no dynamic tables.
FORMAT, FORMAT_WITHOUT_TABLES = 2, 1
#: Bytes of arrays in a shard; writing and reading take a small multiple of them as memory.
SHARD_BYTES = 32 << 20
#: Largest size of a manifest, in bytes, that a reader accepts.
MAXMANIFEST_BYTES = 256 << 20

MANIFEST = 'manifest.json'
_WRITING, _REMOVING, COMPACTING = '.writing', '.removing', '.compacting'
_ASIDE = re.compile(r'\.(writing|removing|compacting)(-\d+)?')
#: Errors of a damaged disk or an interrupted copy.  Other errors, such as a lack of permission, end the load.
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.ENXIO, errno.EINVAL)


class Damaged(CheckpointError):
    """The content of a checkpoint differs from what was written."""


def safetensors() -> Any:
    """Return the package that reads and writes shards; SettingError if it is not installed."""
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise SettingError('checkpoints need the package safetensors (%s): pip install safetensors' % error) from error
    return safetensors


def _write(path: str, data: bytes) -> None:
    with open(path, 'wb') as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


class Writer:
    """Writes one checkpoint into a directory that is :func:`~mxhybrid.checkpoint.folder.locked`.

    A context manager, which removes the unfinished checkpoint unless :meth:`commit` was reached.  With the temporary
    name :data:`COMPACTING`, the directory needs to be locked only at the beginning and for the commit.
    """

    def __init__(self, directory: str, aside: str = _WRITING):
        self._directory = directory
        self._aside_name, self._aside = aside, ''
        self._locks = ExitStack()
        self._arrays: Dict[str, Any] = {}
        self._tables: Dict[str, Any] = {}
        self._shards: List[Dict[str, Any]] = []
        self._pending: List[Tuple[str, np.ndarray]] = []
        self._pending_bytes = 0
        self._tensors = safetensors().numpy
        #: The :attr:`Reader.identity` of the checkpoint, after :meth:`commit`.
        self.identity: Dict[str, str] = {}

    def __enter__(self) -> 'Writer':
        for name in filter(_ASIDE.fullmatch, os.listdir(self._directory)):
            path = os.path.join(self._directory, name)
            with leftovers.tried(path):
                if not self._is_compacting(path):
                    leftovers.delete(path)
        self._aside = leftovers.free_name(self._directory, self._aside_name)
        os.mkdir(self._aside)
        self._locks.enter_context(folder.shared(self._aside))
        return self

    @staticmethod
    def _is_compacting(path: str) -> bool:
        """Return whether another process writes a compacted checkpoint there."""
        if not os.path.basename(path).startswith(COMPACTING) or os.path.islink(path):
            return False
        handle = folder.open_at_once(path)
        try:
            return folder.is_read_by_others(handle)
        finally:
            os.close(handle)

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self._pending = []
        self._locks.close()
        if self._aside:
            shutil.rmtree(self._aside, ignore_errors=True)

    def add(self, name: str, shape: Tuple[int, ...], dtype: Any, pieces: Iterable[np.ndarray]) -> None:
        """Write an array; `pieces` are read until :meth:`commit`, and yield its elements in C order, cut anywhere."""
        dtype = np.dtype(dtype)
        if dtype.name not in manifest.DTYPES:
            raise InputError('%s is %s: checkpoints hold %s' % (name, dtype, ', '.join(manifest.DTYPES)))
        entry: Dict[str, Any] = {'dtype': dtype.name, 'shape': list(shape), 'pieces': []}
        self._arrays[name] = entry
        step, position = max(1, SHARD_BYTES // dtype.itemsize), 0
        for piece in pieces:
            flat = np.ascontiguousarray(piece, dtype).reshape(-1)
            for start in range(0, len(flat), step):
                elements = flat[start:start + step]
                if self._pending_bytes + elements.nbytes > SHARD_BYTES:
                    self._flush()
                entry['pieces'].append([len(self._shards), position, position + len(elements)])
                self._pending.append((shard_key(name, position), elements))
                self._pending_bytes += elements.nbytes
                position += len(elements)
        size = manifest.size(shape)
        if position != size:
            raise CheckpointError('%s has %d elements, not the %d of its shape %s' % (name, position, size, shape))

    def make_table_directory(self, number: int) -> str:
        """Make the directory below which the parts of the next dynamic table are written, numbered in this order."""
        path = os.path.join(self._aside, table_files.table_directory(number))
        os.mkdir(path)
        return path

    def add_table(self, name: str, description: table_files.TableDescription, delta: bool,
                  parts: List[Dict[str, Any]]) -> None:
        """Add a dynamic table of which the parts have these entries; their files are written and on the disk."""
        directory = table_files.table_directory(len(self._tables))
        self._tables[name] = dict(description.as_json(), directory=directory, delta=delta, parts=parts)
        sync_directory(os.path.join(self._aside, directory))

    def _flush(self) -> None:
        if not self._pending:
            return
        data = self._tensors.save(dict(self._pending))
        self._pending, self._pending_bytes = [], 0
        _write(os.path.join(self._aside, shard_file(len(self._shards))), data)
        self._shards.append({'bytes': len(data), 'blake2b': manifest.digest(data)})

    def commit(self, step: int, content: Dict[str, Any], keep: int,
               bases: Sequence[Dict[str, str]] = ()) -> str:
        """Make the checkpoint the newest of its directory, and remove all but the newest `keep`; returns its path.

        `bases` are the :attr:`Reader.identity` of the checkpoints that a delta builds on, from new to old.  Checkpoints
        that others build on stay.  The number of manifests that are read does not depend on the number of bases.
        """
        if bases:
            content = dict(content, base=bases[0], oldest_base=bases[-1]['name'])
        digest = self._write_manifest(step, content)
        others = names(self._directory)
        name = '%08d-step-%d' % (folder.number_of(others[0]) + 1 if others else 1, step)
        path = self._publish(name)
        self.identity = {'name': name, 'blake2b': digest}
        self._remove_old(others[keep - 1:], [name] + others[:keep - 1])
        return path

    def commit_in_place_of(self, source: 'Reader', content: Dict[str, Any]) -> str:
        """Make the checkpoint the one that counts instead of `source`, which stays; returns its path."""
        self._write_manifest(source.content['step'], dict(content, replaces=source.identity['blake2b']))
        return self._publish(os.path.basename(source.path) + folder.COMPACTED)

    def _write_manifest(self, step: int, content: Dict[str, Any]) -> str:
        """Write the manifest; return its digest."""
        self._flush()
        content = dict(content, format=FORMAT_WITHOUT_TABLES, step=step, arrays=self._arrays, shards=self._shards)
        if self._tables:
            content.update(format=FORMAT, dynamic_tables=self._tables)
        content = manifest.plain(content, 'the content of a checkpoint')
        digest = manifest.digest(manifest.canonical(content))
        text = json.dumps({'blake2b': digest, 'content': content}, indent=1).encode()
        if len(text) > MAXMANIFEST_BYTES:
            raise CheckpointError('the manifest would have %d bytes, but at most %d are read: put less into extra'
                                  % (len(text), MAXMANIFEST_BYTES))
        _write(os.path.join(self._aside, MANIFEST), text)
        sync_directory(self._aside)
        return digest

    def _publish(self, name: str) -> str:
        path = os.path.join(self._directory, name)
        os.rename(self._aside, path)
        try:
            sync_directory(self._directory)
        except OSError:
            os.rename(path, self._aside)  # a name that is not on the disk must not be found
            raise
        self._locks.close()
        self._aside = ''
        return path

    def _remove_old(self, old: List[str], remaining: List[str]) -> None:
        """Remove `old` checkpoints, except those that the `remaining` ones may build on.

        A manifest names the oldest base of its checkpoint.  All its bases have numbers from that one to its own.
        """
        spans = []
        for name in remaining if old else []:
            with suppress(CheckpointError):  # a damaged checkpoint needs no other one
                oldest = Reader(os.path.join(self._directory, name)).oldest_base()
                spans.append(range(folder.number_of(oldest), folder.number_of(name)))
        for name in old:
            if not any(folder.number_of(name) in span for span in spans):
                self._remove(name)

    def remove_unneeded(self, old: List[str], remaining: List[str]) -> None:
        """Remove `old` checkpoints, except those that the `remaining` ones build on, whose manifests are all read."""
        needed: Set[str] = set()
        for name in remaining if old else []:
            with suppress(CheckpointError):  # a damaged checkpoint needs no other one
                bases = Reader(os.path.join(self._directory, name)).bases()
                needed.update(os.path.basename(base.path) for base in bases)
        for name in old:
            if name not in needed:
                self._remove(name)

    def _remove(self, name: str) -> None:
        path = os.path.join(self._directory, name)
        with leftovers.tried(path):
            handle = None if os.path.islink(path) and not os.path.exists(path) else folder.open_at_once(path)
            try:
                if handle is not None and folder.is_read_by_others(handle):
                    logger.info('another process reads the old checkpoint %s: a later save removes it', path)
                    return
                leftovers.refuse_mounts(path)
                # Renamed first, so that a checkpoint that is half removed has no checkpoint's name.
                aside = leftovers.free_name(self._directory, _REMOVING)
                os.rename(path, aside)
            finally:
                if handle is not None:
                    os.close(handle)
            with leftovers.tried(aside):
                leftovers.delete(aside)


class Reader:
    """Reads one checkpoint, whose manifest is verified; arrays are read in pieces.

    `content` is what the writer stored, with 'step', 'arrays' and 'shards'.  Raises Damaged if the manifest differs
    from what was written, CheckpointError if it cannot be read or has a later format.
    """

    def __init__(self, path: str):
        self.path = path
        self._last: Tuple[int, Dict[str, np.ndarray]] = (-1, {})
        data = self._read(MANIFEST, MAXMANIFEST_BYTES)
        try:
            outer = manifest.read_json(data)
        except ValueError as error:
            raise self._damaged(MANIFEST, 'is not JSON: %s' % error) from error
        if not isinstance(outer, dict) or not isinstance(outer.get('content'), dict):
            raise self._damaged(MANIFEST, 'has no content')
        self.content: Dict[str, Any] = outer['content']
        digest = manifest.digest(manifest.canonical(self.content))
        if outer.get('blake2b') != digest:
            raise self._damaged(MANIFEST, 'does not match its digest')
        if self.content.get('format') not in (FORMAT, FORMAT_WITHOUT_TABLES):
            raise CheckpointError('%s has format %r, written by mxhybrid %s; this version reads formats %d and %d'
                                  % (path, self.content.get('format'), self.content.get('mxhybrid'),
                                     FORMAT_WITHOUT_TABLES, FORMAT))
        #: Name and digest, by which a delta refers to this checkpoint.
        self.identity = {'name': os.path.basename(path), 'blake2b': digest}
        #: Entries of the dynamic tables by name.
        self.tables: Dict[str, Any] = self.content.get('dynamic_tables', {})
        problem = manifest.flaw(self.content) or table_files.flaw_of_tables(self.tables)
        if problem:
            raise self._damaged(MANIFEST, problem)

    def _damaged(self, file: str, problem: str) -> Damaged:
        return Damaged('%s %s' % (os.path.join(self.path, file), problem))

    def _read(self, file: str, limit: int) -> bytes:
        path = os.path.join(self.path, file)
        try:
            # Opening a pipe must not wait for a writer.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, 'rb') as stream:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    raise self._damaged(file, 'is not a regular file')
                if status.st_size > limit:
                    raise self._damaged(file, 'has %d bytes, more than %d' % (status.st_size, limit))
                return stream.read(limit + 1)
        except OSError as error:
            if error.errno in _DAMAGE:
                raise self._damaged(file, 'cannot be read: %s' % os.strerror(error.errno or 0)) from error
            raise CheckpointError('cannot read %s: %s' % (path, error)) from error

    def verify(self) -> None:
        """Read all shards once and compare the digests; Damaged, with the name of the file, if they differ."""
        pieces: List[List[Tuple[str, str, int]]] = [[] for _ in self.content['shards']]
        for name, entry in self.content['arrays'].items():
            for shard, start, stop in entry['pieces']:
                pieces[shard].append((shard_key(name, start), entry['dtype'], stop - start))
        for number, shard_pieces in enumerate(pieces):
            tensors = self._shard(number)
            for key, dtype, count in shard_pieces:
                if key not in tensors or tensors[key].dtype.name != dtype or tensors[key].shape != (count,):
                    raise self._damaged(shard_file(number), 'lacks the %d elements of %s' % (count, key))
        self.verify_tables()

    def verify_tables(self) -> None:
        """Read the files of all dynamic tables once and compare the digests; Damaged if they differ."""
        with _table_damage():
            table_files.verify(self.path, self.tables)

    def bases(self) -> List['Reader']:
        """Return the checkpoints that a delta builds on, from new to old; none if this one is whole.

        Damaged if one of them is missing.
        """
        readers: List[Reader] = []
        base = self.content.get('base')
        while base:
            try:
                reader = find(os.path.dirname(self.path), base)
            except Damaged as error:
                raise self._damaged(MANIFEST, 'is that of a delta without its base: %s' % error) from error
            readers.append(reader)
            base = reader.content.get('base')
        return readers

    def oldest_base(self) -> str:
        """Return the name of the whole checkpoint with which the bases of this one begin, its own if it is whole."""
        if not self.content.get('base'):
            return os.path.basename(self.path)
        oldest: str = self.content.get('oldest_base') or os.path.basename(self.bases()[-1].path)  # earlier versions
        return oldest

    def layers(self, name: str, bases: List['Reader']) -> List[List[table_files.Part]]:
        """Return the parts of a dynamic table in this checkpoint and in its `bases`, from new to old.

        Damaged if a file does not fit the manifest.
        """
        layers: List[List[table_files.Part]] = []
        for reader in [self] + bases:
            entry = reader.tables.get(name)
            if entry is None:
                raise reader._damaged(MANIFEST, 'lacks the table %s, of which %s is a delta' % (name, self.path))
            description = table_files.TableDescription.from_json(entry)
            with _table_damage():
                layers.append([table_files.Part(path, part, description)
                               for path, part in table_files.parts_of(reader.path, entry)])
            if not entry['delta']:
                return layers
        raise self._damaged(MANIFEST, 'has a delta of %s without a base' % name)

    def _shard(self, number: int) -> Dict[str, np.ndarray]:
        if self._last[0] == number:
            return self._last[1]
        self._last = (-1, {})  # at most one shard in memory
        deserialize = safetensors().numpy.load
        entry, file = self.content['shards'][number], shard_file(number)
        data = self._read(file, entry['bytes'])
        if len(data) != entry['bytes']:
            raise self._damaged(file, 'has %d of its %d bytes' % (len(data), entry['bytes']))
        if manifest.digest(data) != entry['blake2b']:
            raise self._damaged(file, 'does not match its digest')
        try:
            tensors = deserialize(data)
        except Exception as error:  # the native library may raise anything
            raise self._damaged(file, 'is not a safetensors file: %s' % error) from error
        self._last = (number, tensors)
        return tensors

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return elements ``start:stop`` of an array, in C order, flat."""
        entry = self.content['arrays'][name]
        result = np.empty(stop - start, entry['dtype'])
        for shard, first, last in entry['pieces']:
            low, high = max(start, first), min(stop, last)
            if low < high:
                elements = self._shard(shard).get(shard_key(name, first))
                if elements is None or elements.shape != (last - first,):
                    raise self._damaged(shard_file(shard), 'lacks elements of %s' % name)
                result[low - start:high - start] = elements[low - first:high - first]
        return result


def remaining_bases(directory: str, bases: Sequence[Dict[str, str]]) -> List[Dict[str, str]]:
    """Return the identities of the checkpoints that a delta needs, of these `bases`, which are given from new to old.

    A compacted checkpoint needs no other one.  Only the manifests of the first and of compacted ones are read.  Damaged
    if one is missing.
    """
    present, needed = set(names(directory)), []
    for number, identity in enumerate(bases):
        name = identity['name']
        needed.append(identity)
        if number == 0 or name + folder.COMPACTED in present:
            if os.path.basename(find(directory, identity).path) != name:
                break
        elif name not in present:
            raise Damaged('%s does not exist' % os.path.join(directory, name))
    return needed


def find(directory: str, identity: Dict[str, str]) -> Reader:
    """Return the checkpoint of a directory with an identity, or the compacted one that replaces it.

    Damaged if it is missing.
    """
    path = os.path.join(directory, os.path.basename(identity['name']))
    with suppress(Damaged):
        compacted = Reader(path + folder.COMPACTED)
        if compacted.content.get('replaces') == identity['blake2b']:
            return compacted
    reader = Reader(path)
    if reader.identity != identity:
        raise Damaged('%s is another checkpoint of the same name' % path)
    return reader


@contextmanager
def _table_damage() -> Iterator[None]:
    """Surround reads of files of dynamic tables: errors become Damaged or CheckpointError, which name the file."""
    try:
        yield
    except FormatError as error:
        raise Damaged(str(error)) from error
    except OSError as error:
        if error.errno in _DAMAGE:
            raise Damaged('%s cannot be read: %s' % (error.filename, os.strerror(error.errno or 0))) from error
        raise CheckpointError('cannot read %s: %s' % (error.filename, error)) from error


def shard_file(number: int) -> str:
    """Return the name of the file of a shard."""
    return '%05d.safetensors' % number


def shard_key(name: str, start: int) -> str:
    """Return the name that the elements of an array from `start` have in their shard."""
    return '%s@%d' % (name, start)
