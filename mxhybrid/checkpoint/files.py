"""Checkpoints as files: written completely or not at all; :mod:`mxhybrid.checkpoint.reader` reads and verifies them.

A checkpoint is a directory with a manifest, and shards of at most :data:`SHARD_BYTES` in the safetensors format::

    checkpoints/
        00000001-step-200/
            manifest.json
            00000.safetensors
            00001.safetensors
        00000002-step-400/

The first number counts the checkpoints of a directory: the highest is the newest, even if a job went back to an earlier
step.  The manifest says, for each array, which shard has which elements, counted in C order.  It has a digest of every
shard, see :mod:`mxhybrid.base.file_digest`, and of itself.  Nothing in a checkpoint is code, and nothing in it is
unpickled.  Dynamic tables have files of their own, see :mod:`mxhybrid.checkpoint.table_files`.

A checkpoint is written under another name, flushed to the disk with its directory, and then renamed; so a directory
with a checkpoint's name is complete, unless something damaged it later.  An old checkpoint is renamed before it is
removed.  The temporary names are ``.writing`` and ``.removing``, with a number if the name exists; the next save
removes such directories.  A file that cannot be removed is left, with a warning, and does not prevent a save.
"""
import json
import math
import os
import re
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Set, Tuple

import numpy as np

from ..base.errors import CheckpointError, InputError
from ..base.file_digest import FileDigest
from ..base.files import sync_directory
from ..base.log import get_logger
from . import folder, leftovers, manifest, table_files
from .reader import FORMAT, MANIFEST, MAX_MANIFEST_BYTES, Reader, safetensors, shard_file, shard_key

logger = get_logger(__name__)

#: Bytes of arrays in a shard; writing and reading take a small multiple of them as memory.
SHARD_BYTES = 32 << 20

_WRITING, _REMOVING, COMPACTING = '.writing', '.removing', '.compacting'
_ASIDE = re.compile(r'\.(writing|removing|compacting)(-\d+)?')


def _write(path: str, data: bytes) -> None:
    with open(path, 'wb') as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


class Writer:
    """Writes one checkpoint into a directory that is :func:`~mxhybrid.checkpoint.folder.locked`.

    A context manager, which removes the unfinished checkpoint unless :meth:`commit` was reached.  The directory needs
    to be locked only at the beginning and for the commit.
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
                # A compaction, or a save in the background, may write a checkpoint there.
                if os.path.islink(path) or not os.path.isdir(path) or not folder.is_in_use(path):
                    leftovers.delete(path)
        self._aside = leftovers.free_name(self._directory, self._aside_name)
        os.mkdir(self._aside)
        self._locks.enter_context(folder.shared(self._aside))
        return self

    def __exit__(self, *exception: Any) -> None:
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
        size = math.prod(shape)
        if position != size:
            raise CheckpointError('%s has %d elements, not the %d of its shape %s' % (name, position, size, shape))

    def make_directory(self, name: str) -> str:
        """Make a directory in the checkpoint, such as that of the next dynamic table, and return its path."""
        path = os.path.join(self._aside, name)
        os.mkdir(path)
        return path

    @contextmanager
    def token(self) -> Iterator[str]:
        """Yield the path of a file in the checkpoint, by whose random content a host knows that it sees the directory.
        """
        path = os.path.join(self._aside, 'token')
        with open(path, 'w') as file:
            file.write(os.urandom(16).hex())
        try:
            yield path
        finally:
            os.remove(path)

    def add_table(self, name: str, description: table_files.TableDescription, delta: bool,
                  parts: List[Dict[str, Any]]) -> None:
        """Add a dynamic table of which the parts have these entries; their files are written and on the disk."""
        directory = table_files.table_directory(len(self._tables))
        self._tables[name] = dict(description._asdict(), directory=directory, delta=delta, parts=parts)
        sync_directory(os.path.join(self._aside, directory))

    def _flush(self) -> None:
        if not self._pending:
            return
        data = self._tensors.save(dict(self._pending))
        self._pending, self._pending_bytes = [], 0
        _write(os.path.join(self._aside, shard_file(len(self._shards))), data)
        digest = FileDigest()
        digest.update(data)
        self._shards.append(digest.record())

    def commit(self, step: int, content: Dict[str, Any], keep: int,
               bases: Sequence[Dict[str, str]] = ()) -> str:
        """Make the checkpoint the newest of its directory, and remove all but the newest `keep`; returns its path.

        `bases` are the :attr:`Reader.identity` of the checkpoints that a delta builds on, from new to old.  Checkpoints
        that others build on stay.  The number of manifests that are read does not depend on the number of bases.
        """
        if bases:
            content = dict(content, base=bases[0], oldest_base=bases[-1]['name'])
        digest = self._write_manifest(step, content)
        others = folder.names(self._directory)
        name = '%08d-step-%d' % (folder.number_of(others[0]) + 1 if others else 1, step)
        path = self._publish(name)
        self.identity = {'name': name, 'blake2b': digest}
        old = others[keep - 1:]

        def may_need(reader: Reader) -> List[str]:
            # A manifest names the oldest base of its checkpoint.  All its bases have numbers from that one to its own.
            numbers = range(folder.number_of(reader.oldest_base()), folder.number_of(os.path.basename(reader.path)))
            return [other for other in old if folder.number_of(other) in numbers]

        self.remove_unneeded(old, [name] + others[:keep - 1], may_need)
        return path

    def commit_in_place_of(self, source: Reader, content: Dict[str, Any]) -> str:
        """Make the checkpoint the one that counts instead of `source`, which stays; returns its path."""
        self._write_manifest(source.content['step'], dict(content, replaces=source.identity['blake2b']))
        return self._publish(os.path.basename(source.path) + folder.COMPACTED)

    def _write_manifest(self, step: int, content: Dict[str, Any]) -> str:
        """Write the manifest; return its digest."""
        self._flush()
        content = dict({'saved_at': time.time(), **content}, format=FORMAT, step=step, arrays=self._arrays,
                       shards=self._shards)
        if self._tables:
            content.update(dynamic_tables=self._tables)
        content = manifest.plain(content, 'the content of a checkpoint')
        digest = manifest.digest(content)
        text = json.dumps({'blake2b': digest, 'content': content}, indent=1).encode()
        if len(text) > MAX_MANIFEST_BYTES:
            raise CheckpointError('the manifest would have %d bytes, but at most %d are read: put less into extra'
                                  % (len(text), MAX_MANIFEST_BYTES))
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

    def remove_unneeded(self, old: List[str], remaining: List[str], bases_of: Callable[[Reader], Iterable[str]]
                        ) -> None:
        """Remove `old` checkpoints, from new to old, except those that the `remaining` ones build on.

        `bases_of` returns the names of the bases of a checkpoint.
        """
        needed: Set[str] = set()

        def keep_bases(name: str) -> None:
            with suppress(CheckpointError):  # a damaged checkpoint needs no other one
                needed.update(bases_of(Reader(os.path.join(self._directory, name))))

        for name in remaining if old else []:
            keep_bases(name)
        for name in old:
            if name not in needed and not self._remove(name):
                keep_bases(name)

    def _remove(self, name: str) -> bool:
        """Remove a checkpoint; return False if another process reads it."""
        path = os.path.join(self._directory, name)
        with leftovers.tried(path):
            handle = None if os.path.islink(path) and not os.path.exists(path) else folder.open_at_once(path)
            try:
                if handle is not None and folder.is_read_by_others(handle):
                    logger.info('another process reads the old checkpoint %s: a later save removes it', path)
                    return False
                leftovers.refuse_mounts(path)
                # Renamed first, so that a checkpoint that is half removed has no checkpoint's name.
                aside = leftovers.free_name(self._directory, _REMOVING)
                os.rename(path, aside)
            finally:
                if handle is not None:
                    os.close(handle)
            with leftovers.tried(aside):
                leftovers.delete(aside)
        return True
