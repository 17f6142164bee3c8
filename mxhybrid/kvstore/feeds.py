"""Which array of a batch feeds which embedding, learned from the first batches.

While a batch is worked on, forward pre-hooks note the row ids that each embedding is called with.  Afterwards these
are looked for among the arrays of the batch: the same array, or one with the same set of values, since loops
transpose, cast and split batches.  What fits in all batches of the lesson is taken to feed the embedding.
"""
from typing import Any, Dict, Iterator, List, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

from ..base.errors import InputError
from ..base.log import get_logger, speaks_for_all
from ..native.arrays import host_view
from ..native.trainers import has_sparse_gradient

logger = get_logger(__name__)

#: Batches from which is learned.
LESSON_BATCHES = 2

_TOLD = '_mxhybrid_feed_unknown'

Path = Tuple[Any, ...]


def _values(array: Any) -> np.ndarray:
    return host_view(array) if isinstance(array, mx.nd.NDArray) else array


def _arrays_in(batch: Any, path: Path = ()) -> Iterator[Tuple[Path, Any]]:
    """Numeric dense arrays anywhere in a batch, with the way to them."""
    if isinstance(batch, (list, tuple)):
        for index, part in enumerate(batch):
            yield from _arrays_in(part, path + (index,))
    elif isinstance(batch, dict):
        for index, part in batch.items():
            yield from _arrays_in(part, path + (index,))
    elif (isinstance(batch, mx.nd.NDArray) and batch.stype == 'default'
          or isinstance(batch, np.ndarray) and np.issubdtype(batch.dtype, np.number)) and batch.size:
        yield path, batch


def _embeddings(net: Any) -> List[Any]:
    """All blocks of a net whose rows can be asked for, each once."""
    blocks: List[Any] = []
    net.apply(blocks.append)
    return list({id(block): block for block in blocks if isinstance(block, (nn.Embedding, SparseEmbedding))
                 and has_sparse_gradient(block.weight)}.values())


class Feeds:
    """The embeddings of a net and what feeds them; InputError if it has none whose rows could be asked for."""

    def __init__(self, net: Any):
        blocks = _embeddings(net)
        if not blocks:
            raise InputError('prefetching: %s has no SparseEmbedding and no nn.Embedding with sparse_grad=True: there '
                             'are no rows to ask for' % type(net).__name__)
        self._params = list({id(block.weight): block.weight for block in blocks}.values())
        self._paths: Dict[str, Set[Path]] = {}
        self._calls: Dict[str, List[Any]] = {}
        self._lessons = 0
        self._hooks = [block.register_forward_pre_hook(self._note) for block in blocks]

    def _note(self, block: Any, inputs: Any) -> None:
        if isinstance(inputs[0], mx.nd.NDArray):  # else it is traced, for a hybridized block around it
            self._calls.setdefault(block.weight.name, []).append(inputs[0])

    def learn(self, batch: Any) -> None:
        """Look for what the embeddings were called with in `batch`, which was worked on."""
        if not self._hooks:
            return
        calls, self._calls = self._calls, {}
        for name, seen in calls.items():
            found = {path for path, array in _arrays_in(batch) if _feeds(array, seen)}
            self._paths[name] = self._paths.get(name, found) & found
        self._lessons += 1
        if self._lessons == LESSON_BATCHES:
            self.close()
            for param in self._params:
                if not self._paths.get(param.name) and not param.__dict__.get(_TOLD):
                    param.__dict__[_TOLD] = True
                    if speaks_for_all():
                        logger.info('prefetching: no array of a batch has the row ids of %s: its rows are not asked '
                                    'for ahead; a function in place of the net can name them', param.name)

    def close(self) -> None:
        """Take the hooks out of the net."""
        for hook in self._hooks:
            hook.detach()
        self._hooks = []

    def wanted(self, batch: Any) -> Dict[Any, np.ndarray]:
        """Row ids of a batch by parameter, as far as is known."""
        found, arrays = {}, dict(_arrays_in(batch))
        for param in self._params:
            path = min(self._paths.get(param.name, ()), key=repr, default=None)
            if path in arrays:
                ids = np.unique(_values(arrays[path])).astype(np.int64)
                ids = ids[(ids >= 0) & (ids < param.shape[0])]
                if len(ids):
                    found[param] = ids
        return found


def _feeds(array: Any, calls: List[Any]) -> bool:
    """Whether an array has the ids of one call, or of all together."""
    if any(array is ids for ids in calls):
        return True
    mine = np.unique(_values(array))
    each = [np.unique(host_view(ids)) for ids in calls]
    return any(np.array_equal(mine, ids) for ids in each + [np.unique(np.concatenate(each))])
