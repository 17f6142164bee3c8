"""Reads checkpoints, whose files :mod:`mxhybrid.checkpoint.files` describes, and verifies them."""
import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import CheckpointError, SettingError
from ..base.file_digest import FileDigest
from ..base.log import get_logger
from . import folder, manifest, table_files
from .npy_files import FormatError

logger = get_logger(__name__)

#: The number of the layout of a checkpoint; a reader refuses all others.
FORMAT = 3
#: Largest size of a manifest, in bytes, that a reader accepts.
MAX_MANIFEST_BYTES = 256 << 20
MANIFEST = 'manifest.json'
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


class Reader:
    """Reads one checkpoint, whose manifest is verified; arrays are read in pieces.

    `content` is what the writer stored, with 'step', 'arrays' and 'shards'.  Raises Damaged if the manifest differs
    from what was written, CheckpointError if it cannot be read or has another format.
    """

    def __init__(self, path: str):
        self.path = path
        self._last: Tuple[int, Dict[str, np.ndarray]] = (-1, {})
        data = self._read(MANIFEST, MAX_MANIFEST_BYTES)
        try:
            outer = manifest.read_json(data)
        except ValueError as error:
            raise self._damaged(MANIFEST, 'is not JSON: %s' % error) from error
        if not isinstance(outer, dict) or not isinstance(outer.get('content'), dict):
            raise self._damaged(MANIFEST, 'has no content')
        self.content: Dict[str, Any] = outer['content']
        digest = manifest.digest(self.content)
        if outer.get('blake2b') != digest:
            raise self._damaged(MANIFEST, 'does not match its digest')
        if self.content.get('format') != FORMAT:
            raise CheckpointError('%s has format %r, but this version of mxhybrid reads format %d: load it with '
                                  'mxhybrid %s, which wrote it, or save into another directory'
                                  % (os.path.join(path, MANIFEST), self.content.get('format'), FORMAT,
                                     self.content.get('mxhybrid')))
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
        with _damage(path):
            handle = folder.open_at_once(path)
            with os.fdopen(handle, 'rb') as stream:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    raise self._damaged(file, 'is not a regular file')
                if status.st_size > limit:
                    raise self._damaged(file, 'has %d bytes, more than %d' % (status.st_size, limit))
                return stream.read(limit + 1)

    def verify(self) -> None:
        """Read all shards, and the tables of the bases, too, and compare the digests.

        Damaged, with the name of the file, if they differ or a base is missing.
        """
        pieces: List[List[Tuple[str, str, int]]] = [[] for _ in self.content['shards']]
        for name, entry in self.content['arrays'].items():
            for shard, start, stop in entry['pieces']:
                pieces[shard].append((shard_key(name, start), entry['dtype'], stop - start))
        for number, shard_pieces in enumerate(pieces):
            tensors = self._shard(number)
            for key, dtype, count in shard_pieces:
                if key not in tensors or tensors[key].dtype.name != dtype or tensors[key].shape != (count,):
                    raise self._damaged(shard_file(number), 'lacks the %d elements of %s' % (count, key))
        for reader in [self] + self.bases():
            with _damage():
                table_files.verify(reader.path, reader.tables)

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
                raise self._damaged(MANIFEST, 'belongs to a delta, whose base is missing: %s' % error) from error
            readers.append(reader)
            base = reader.content.get('base')
        return readers

    def oldest_base(self) -> str:
        """Return the name of the whole checkpoint with which the bases of this one begin, its own if it is whole."""
        return str(self.content['oldest_base'] if self.content.get('base') else os.path.basename(self.path))

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
            with _damage():
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
        digest = FileDigest()
        digest.update(data)
        if digest.record() != entry:
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
                elements = self._shard(shard)[shard_key(name, first)]
                result[low - start:high - start] = elements[low - first:high - first]
        return result


def newest(directory: str, among: Optional[Sequence[str]] = None) -> Optional[Reader]:
    """Return the newest whole checkpoint of a directory, or `among` these names; None if there is no checkpoint.

    Raises CheckpointError if the directory cannot be read, or if all its checkpoints are damaged.
    """
    problems = []
    for name in folder.names(directory) if among is None else among:
        try:
            reader = Reader(os.path.join(directory, name))
            reader.verify()
            return reader
        except Damaged as problem:
            problems.append(str(problem))
            logger.warning('damaged checkpoint: %s; trying the one before', problem)
    if problems:
        raise CheckpointError('no checkpoint in %s is whole: %s. Remove the directory to start again'
                              % (directory, '; '.join(problems)))
    return None


def remaining_bases(directory: str, bases: Sequence[Dict[str, str]]) -> List[Dict[str, str]]:
    """Return the identities of the checkpoints that a delta needs, of these `bases`, which are given from new to old.

    A compacted checkpoint needs no other one.  Only the manifests of the first and of compacted ones are read.  Damaged
    if one is missing.
    """
    present, needed = set(folder.names(directory)), []
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
def _damage(path: str = '') -> Iterator[None]:
    """Surround reads: errors become Damaged or CheckpointError, which name `path`, or the file that the error has."""
    try:
        yield
    except FormatError as error:
        raise Damaged(str(error)) from error
    except OSError as error:
        file = path or error.filename
        if error.errno in _DAMAGE:
            raise Damaged('%s cannot be read: %s' % (file, os.strerror(error.errno or 0))) from error
        raise CheckpointError('cannot read %s: %s' % (file, error)) from error


def shard_file(number: int) -> str:
    """Return the name of the file of a shard."""
    return '%05d.safetensors' % number


def shard_key(name: str, start: int) -> str:
    """Return the name that the elements of an array from `start` have in their shard."""
    return '%s@%d' % (name, start)
