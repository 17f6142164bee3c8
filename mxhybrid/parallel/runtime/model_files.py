"""Files of the whole network, as if it were not split: those of gluon's save_parameters, load_parameters and export.

Worker 0 writes and reads them.  It holds a split weight one piece at a time.
"""
import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

import mxnet as mx
import numpy as np

from ...base.errors import CheckpointError, InputError
from ...base.files import write_atomically, written_aside
from ...base.log import get_logger
from ...base.text import listed
from ...native import trainers
from ...native.arrays import host_view
from ...native.params_file import ParamsReader, ParamsWriter, StoredArray
from ..redistribution.worker_group import WorkerGroup
from .sharded_parameters import ShardedParameters

logger = get_logger(__name__)


class FileMisfitError(InputError, AssertionError):
    """A file of another network; gluon raises an AssertionError or a ValueError in the same case."""


class ModelFiles:
    """The files of one network.

    - `paths`: names of parameters by their paths in the network, as in files of gluon.
    - `prefix`: the prefix of its parameters' names, which files of older versions leave out.
    """

    def __init__(self, workers: WorkerGroup, params: ShardedParameters, paths: Dict[str, str], symbol: Any,
                 prefix: str):
        self._workers, self._params, self._symbol, self._prefix = workers, params, symbol, prefix
        self.paths = {path: name for path, name in paths.items() if name in params.by_name}

    # -- writing ---------------------------------------------------------------------------------------------------

    def save(self, filename: Any, deduplicate: bool) -> None:
        """Write the file of gluon's ``save_parameters`` (collective)."""
        names = dict(self.paths)
        if deduplicate:
            names = {path: name for name, path in {name: path for path, name in names.items()}.items()}
        self._workers.allgather(None, 'save_parameters')
        self._write('save_parameters', os.fspath(filename), names)

    def export(self, path: Any, epoch: int, remove_amp_cast: bool) -> None:
        """Write the files of gluon's ``export`` (collective)."""
        self._workers.allgather(None, 'export')
        path, used = os.fspath(path), self._symbol
        self._on_worker_0('export', lambda: write_atomically(
            '%s-symbol.json' % path, used.tojson(remove_amp_cast=remove_amp_cast).encode()))
        params = self._params.by_name
        names = {'arg:' + name: name for name in used.list_arguments() if name in params}
        names.update({'aux:' + name: name for name in used.list_auxiliary_states() if name in params})
        self._write('export', '%s-%04d.params' % (path, epoch), names)

    def _write(self, call: str, filename: str, names: Dict[str, str]) -> None:
        """Write parameters under other names."""
        gathered = {stored_name: self._gather(name)
                    for stored_name, name in names.items() if name in self._params.shards}

        def write() -> None:
            with written_aside(filename) as handle:
                writer = ParamsWriter(handle, len(names))
                for stored_name, name in names.items():
                    param = self._params.by_name[name]
                    if stored_name in gathered:
                        writer.add(stored_name, self._params.shards[name].whole_shape, param.dtype,
                                   gathered[stored_name])
                    else:
                        writer.add_array(stored_name, trainers.whole_values(param))
                writer.end()

        def finish() -> None:
            for pieces in gathered.values():
                for _ in pieces:
                    pass
        self._on_worker_0(call, write, finish)

    def _gather(self, name: str) -> Iterator[np.ndarray]:
        shard, param = self._params.shards[name], self._params.by_name[name]
        return shard.gather(param.data() if shard.holds else None, shard.whole_shape, param.dtype)

    # -- reading ---------------------------------------------------------------------------------------------------

    def load(self, filename: Any, ctx: Any, allow_missing: bool, ignore_extra: bool, cast_dtype: bool,
             dtype_source: str) -> None:
        """Read as gluon's ``load_parameters`` (collective), but change nothing unless everything fits."""
        self._workers.allgather(None, 'load_parameters')
        source, filename = _ParamsSource(), os.fspath(filename)

        def begin() -> List[Any]:
            reader = source.open(filename)
            fitting = self._fitting(filename, reader.arrays, allow_missing, ignore_extra)
            for name, stored_name in fitting.items():
                self._check(name, reader.arrays[stored_name], cast_dtype, dtype_source)
            return [[names.index(name), stored_name, list(reader.arrays[stored_name].shape),
                     reader.arrays[stored_name].dtype.name]
                    for name, stored_name in fitting.items()]
        names = list(self._params.by_name)  # names may differ between workers, but not their order
        try:
            for number, stored_name, shape, dtype in self._on_worker_0('load_parameters', begin):
                name = names[number]
                param, shard = self._params.by_name[name], self._params.shards.get(name)
                if shard is not None:
                    shard.scatter(source.rows(stored_name), param.data() if shard.holds else None, shard.whole_shape,
                                  param.dtype)
                    continue
                values = mx.nd.zeros(shape, dtype=dtype, ctx=mx.cpu())
                if self._workers.rank == 0:
                    host_view(values)[...] = source.rows(stored_name)(0, shape[0])
                self._workers.broadcast_(values, 'load_parameters.%d' % number)
                trainers.load_values(param, values, ctx, cast_dtype, dtype_source)
            self._on_worker_0('load_parameters', source.end)
        finally:
            source.close()

    def _fitting(self, filename: str, stored: Dict[str, StoredArray], allow_missing: bool, ignore_extra: bool
                 ) -> Dict[str, str]:
        """Return names in the file by the names of parameters."""
        known, paths = self.paths, {stored_name: stored_name for stored_name in stored}
        # plain names: files of older versions and of single layers
        if not any('.' in stored_name for stored_name in stored):
            known = {name[len(self._prefix):]: name for name in self._params.by_name if name.startswith(self._prefix)}
            paths = {stored_name: stored_name[4:] if stored_name[:4] in ('arg:', 'aux:') else stored_name
                     for stored_name in stored}
        fitting = {known[path]: stored_name for stored_name, path in paths.items() if path in known}
        missing = [path for path, name in known.items() if name not in fitting]
        if missing and not allow_missing:
            raise FileMisfitError("Parameter '%s' is missing in file '%s', which contains parameters: %s. Set "
                                  'allow_missing=True to ignore missing parameters.'
                                  % (missing[0], filename, _brief(stored)))
        extra = [stored_name for stored_name, path in paths.items() if path not in known]
        if extra and not ignore_extra:
            raise FileMisfitError("Parameter '%s' loaded from file '%s' is not present in the network, which contains "
                                  'parameters %s. Set ignore_extra=True to ignore.'
                                  % (extra[0], filename, _brief(known)))
        return fitting

    def _check(self, name: str, stored: StoredArray, cast_dtype: bool, dtype_source: str) -> None:
        """Raise FileMisfitError for an array that does not fit the parameter."""
        shard, param = self._params.shards.get(name), self._params.by_name[name]
        shape = param.shape if shard is None else shard.whole_shape
        if shape is not None and (len(shape) != len(stored.shape) or any(
                length not in (0, -1, stored_length) for length, stored_length in zip(shape, stored.shape))):
            raise FileMisfitError("Failed loading Parameter '%s' from saved params: shape incompatible expected %s vs "
                                  'saved %s' % (name, tuple(shape), stored.shape))
        if np.dtype(param.dtype) == stored.dtype:
            return
        if not cast_dtype:
            raise FileMisfitError("Failed loading Parameter '%s' from saved params: dtype incompatible expected %s vs "
                                  'saved %s. Set cast_dtype=True to cast the dtype of saved params.'
                                  % (name, np.dtype(param.dtype), stored.dtype))
        if dtype_source != 'current':
            raise FileMisfitError('load_parameters: dtype_source=%r: a split network keeps its types, and '
                                  "%s is %s: give 'current'" % (dtype_source, name, np.dtype(param.dtype)))

    # -- both ------------------------------------------------------------------------------------------------------

    def _on_worker_0(self, call: str, work: Callable[[], Any], finish: Callable[[], None] = lambda: None) -> Any:
        """Run `work` on worker 0, then ``finish()`` on all workers, which return its result or raise its error."""
        outcome: Dict[str, Any] = {}
        if self._workers.rank == 0:
            try:
                with self._workers.busy():
                    outcome['value'] = work()
            except FileMisfitError as error:
                outcome['misfit'] = str(error)
            except Exception as error:  # a full disk, no permission, no memory: all workers raise it
                outcome['problem'] = '%s: %s' % (type(error).__name__, error)
                logger.debug('%s failed', call, exc_info=True)
        finish()
        outcome = self._workers.allgather(outcome, call)[0]
        if 'misfit' in outcome:
            raise FileMisfitError(outcome['misfit'])
        if 'problem' in outcome:
            raise CheckpointError('%s failed on worker 0: %s' % (call, outcome['problem']))
        return outcome['value']


class _ParamsSource:
    """A file that worker 0 reads; after a failure it returns zeros, so that the workers stay in step."""

    def __init__(self) -> None:
        self._reader: Optional[ParamsReader] = None
        self._handle: Any = None
        self._problem = ''

    def open(self, filename: str) -> ParamsReader:
        self._handle = open(filename, 'rb')
        self._reader = ParamsReader(self._handle, filename)
        return self._reader

    def rows(self, name: str) -> Callable[[int, int], np.ndarray]:
        """Return a function that reads the rows of an array from a first one to a last one, which is not included."""
        def read(first: int, last: int) -> np.ndarray:
            assert self._reader is not None
            if not self._problem:
                try:
                    return self._reader.read(name, first, last)
                except (OSError, EOFError, MemoryError) as error:
                    self._problem = '%s: %s' % (type(error).__name__, error)
            shape, dtype, _ = self._reader.arrays[name]
            return np.zeros((last - first,) + shape[1:], dtype)
        return read

    def end(self) -> None:
        """Raise CheckpointError if reading has failed."""
        if self._problem:
            raise CheckpointError('%s while reading: some weights are those of the file, others are not: load a '
                                  'whole file before the next step' % self._problem)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()


def _brief(names: Iterable[str]) -> str:
    return listed(map("'%s'".__mod__, sorted(names)), 5)
