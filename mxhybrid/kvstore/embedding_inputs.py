"""Learns from the first batches which array of a batch is the input of which embedding.

While the script computes with a batch, forward pre-hooks note the row ids that each embedding is called with, and the
parameters of dynamic tables note the keys of their requests.  Then the batch is searched for the same array, or for an
array with the same set of values, since training loops transpose, cast and split batches.  An array that matches in all
of the first batches is taken for the input of the embedding.
"""
from functools import partial
from typing import Any, Dict, Iterator, List, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

from ..base.errors import InputError
from ..base.log import get_logger, speaks_for_all
from ..native.arrays import host_view
from ..native.trainers import has_sparse_gradient
from .table_parameter import TableParameter

logger = get_logger(__name__)

#: Number of batches from which the inputs are learned.
LESSON_BATCHES = 2

#: Attribute of a parameter whose unknown input was logged.
_LOGGED = '_mxhybrid_input_unknown'

Path = Tuple[Any, ...]


def _values(array: Any) -> np.ndarray:
    return host_view(array) if isinstance(array, mx.nd.NDArray) else array


def _arrays_in(batch: Any, path: Path = ()) -> Iterator[Tuple[Path, Any]]:
    """Yield the numeric dense arrays anywhere in a batch, with their paths."""
    if isinstance(batch, (list, tuple)):
        for index, part in enumerate(batch):
            yield from _arrays_in(part, path + (index,))
    elif isinstance(batch, dict):
        for index, part in batch.items():
            yield from _arrays_in(part, path + (index,))
    elif (isinstance(batch, mx.nd.NDArray) and batch.stype == 'default'
          or isinstance(batch, np.ndarray) and np.issubdtype(batch.dtype, np.number)) and batch.size:
        yield path, batch


class EmbeddingInputs:
    """The embeddings of a net and their inputs; InputError if there is no embedding whose rows can be requested."""

    def __init__(self, net: Any):
        found: List[Any] = []
        net.apply(found.append)
        blocks = [block for block in dict.fromkeys(found) if isinstance(block, (nn.Embedding, SparseEmbedding))
                  and has_sparse_gradient(block.weight)]
        self._tables = [param for param in net.collect_params().values() if isinstance(param, TableParameter)]
        if not blocks and not self._tables:
            raise InputError('prefetching: %s has no SparseEmbedding, no nn.Embedding with sparse_grad=True and no '
                             'dynamic table, whose rows could be requested: leave prefetching out'
                             % type(net).__name__)
        self._params = [*dict.fromkeys(block.weight for block in blocks), *self._tables]
        self._paths: Dict[str, Set[Path]] = {}
        self._calls: Dict[str, List[Any]] = {}
        self._lessons = 0
        self._hooks = [block.register_forward_pre_hook(self._note) for block in blocks]
        for table in self._tables:
            table.observer = partial(self._note_keys, table.name)

    def _note(self, block: Any, inputs: Any) -> None:
        if isinstance(inputs[0], mx.nd.NDArray):  # else the block is traced, for a hybridized block around it
            self._calls.setdefault(block.weight.name, []).append(inputs[0])

    def _note_keys(self, name: str, keys: np.ndarray) -> None:
        self._calls.setdefault(name, []).append(keys)

    def learn(self, batch: Any) -> None:
        """Search `batch`, which the script has computed with, for the inputs of the embeddings."""
        if self._lessons == LESSON_BATCHES:
            return
        calls, self._calls = self._calls, {}
        for name, inputs in calls.items():
            paths = {path for path, array in _arrays_in(batch) if _is_input(array, inputs)}
            self._paths[name] = self._paths.get(name, paths) & paths
        self._lessons += 1
        if self._lessons == LESSON_BATCHES:
            self.close()
            for param in self._params:
                if not self._paths.get(param.name) and not param.__dict__.get(_LOGGED):
                    param.__dict__[_LOGGED] = True
                    if speaks_for_all():
                        logger.info('prefetching: no array of a batch has the row ids of %s: its rows are not '
                                    'prefetched; pass a function in place of the net to name them', param.name)

    def close(self) -> None:
        """Remove the hooks from the net."""
        for hook in self._hooks:
            hook.detach()
        for table in self._tables:  # once: later a table may have another observer
            table.observer = None
        self._hooks, self._tables = [], []

    def row_ids_in(self, batch: Any) -> Dict[Any, np.ndarray]:
        """Return the row ids in a batch by parameter, for the parameters whose input is known."""
        row_ids, arrays = {}, dict(_arrays_in(batch))
        for param in self._params:
            path = min(self._paths.get(param.name, ()), key=repr, default=None)
            if path in arrays:
                ids = np.unique(_values(arrays[path])).astype(np.int64)
                if not (isinstance(param, TableParameter) and param.rows is None):  # else any integer is a key
                    ids = ids[(ids >= 0) & (ids < param.shape[0])]
                if len(ids):
                    row_ids[param] = ids
        return row_ids


def _is_input(array: Any, calls: List[Any]) -> bool:
    """Return whether an array has the ids of one call, or of all calls together."""
    if any(array is ids for ids in calls):
        return True
    values = np.unique(_values(array))
    ids_of_calls = [np.unique(_values(ids)) for ids in calls]
    return any(np.array_equal(values, ids) for ids in ids_of_calls + [np.unique(np.concatenate(ids_of_calls))])
