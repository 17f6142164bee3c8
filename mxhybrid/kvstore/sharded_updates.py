"""Sharded updates of a Trainer: each worker updates rows of the dense weights, and keeps optimizer state for them only.

The setting ``shard_updates`` asks for them, see docs/memory.md.  ``Trainer.step`` scatters sums: afterwards
``param.grad()`` is still this worker's gradient.  A script that calls ``allreduce_grads()`` and ``update()`` itself, or
uses AMP's loss scaler, gets whole sums before the update, because it may read or change them.

Files have whole states, as without sharding.  All workers take part when they are written or read.
"""
from functools import partial
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.text import size_text
from ..native import trainers
from ..native.arrays import host_view
from ..native.optimizer_state import count_update, drop_state, put_state, replace_arrays, state_arrays
from ..native.optimizers import name_of
from .weight_shards import check_optimizer, shard_of

logger = get_logger(__name__)

#: Bytes of a whole array of state that are gathered at a time.
PIECE_BYTES = 8 << 20


def sharding_for(trainer: Any) -> Optional['ShardedUpdates']:
    """Return the sharded updates of a Trainer whose store asks for them; None, with a line in the log, where they are
    not possible.  InputError for an optimizer that does not update element by element.
    """
    store = trainers.store_of(trainer)
    if not store.distributed or not store.backend.shards_updates:
        return None
    check_optimizer(trainer.optimizer, 'leave shard_updates out')
    reason = store.backend.unshardable_reason
    if trainers.updates_on_store(trainer):
        reason = 'the store updates the weights (update_on_kvstore=True)'
    elif trainers.device_kinds(trainer) != 'cpu' or len(trainers.device_numbers(trainer)) > 1:
        reason = 'the Trainer has %d devices (%s), not one CPU' % (len(trainers.device_numbers(trainer)),
                                                                  trainers.device_kinds(trainer))
    if reason:
        if store.rank == 0:
            logger.warning('shard_updates=1 has no effect: %s; every worker updates all of its weights', reason)
        return None
    return ShardedUpdates(trainer)


class ShardedUpdates:
    """The sharded weights of a Trainer: dense whole weights with dense gradients, from their first sum on."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._buckets: List[Any] = []
        # The bucket of each sharded key.
        self._bucket_of: Dict[Any, Any] = {}
        # Keys whose state was read from a file and is still whole.
        self._whole_states: Set[Any] = set()

    @property
    def _backend(self) -> Any:
        return trainers.store_of(self._trainer).backend

    @property
    def _updater(self) -> Any:
        return trainers.updaters_of(self._trainer)[0]

    def _weight(self, key: Any) -> Any:
        return trainers.arrays_of(trainers.params_of(self._trainer)[key])[0]

    # -- steps -------------------------------------------------------------------------------------------------

    def prepare(self, keys: Sequence[Any]) -> List[Any]:
        """Shard the weights of keys that are not sharded yet; return the sharded keys among them (on all workers)."""
        params = trainers.params_of(self._trainer)
        new_keys = [key for key in keys if key not in self._bucket_of and shard_of(params[key]) is None
                    and not trainers.is_row_sparse(params[key]) and not trainers.has_sparse_gradient(params[key])]
        for bucket in self._backend.sharded_buckets(new_keys):
            self._buckets.append(bucket)
            self._bucket_of.update(dict.fromkeys(bucket.keys, bucket))
        for key in new_keys:
            self._shard_state(key)
        return [key for key in keys if key in self._bucket_of]

    def sum(self, work: List[Tuple[Any, Any]], whole: bool) -> Set[Any]:
        """Sum gradients, given as keys and parameters; return the keys that are sharded, whose sums were started.

        Each worker gets the sums of its shards only, unless sums must be `whole`.
        """
        keys = self.prepare([key for key, _ in work])
        gradients = {key: param.list_grad()[0] for key, param in work if key in self._bucket_of}
        if keys:
            trainers.store_of(self._trainer).sum_sharded(keys, lambda: self._start_sums(gradients, whole, -keys[0]))
        return set(keys)

    def _start_sums(self, gradients: Dict[Any, Any], whole: bool, priority: int) -> None:
        for index, bucket in enumerate(self._buckets):
            selected = {key: gradients[key] for key in bucket.keys if key in gradients}
            if selected:
                self._settle(bucket)
                bucket.sum(selected, not whole, priority - index)

    def _settle(self, bucket: Any) -> None:
        """Gather weights if the last step has scattered sums and updated nothing: rounds alternate on all workers."""
        if bucket.is_scattered:
            bucket.gather({key: self._weight(key) for key in bucket.shards})

    def updating(self, updater: Any) -> ContextManager[None]:
        """Surround MXNet's update in this worker, which comes after :meth:`sum`; `updater` is MXNet's."""
        return trainers.with_updaters(self._trainer, lambda others: partial(self._update_all, updater, others))

    def _update_all(self, updater: Any, others: Any, keys: Sequence[Any], gradients: Sequence[Any],
                    weights: Sequence[Any]) -> None:
        """Update the sharded weights of some keys by `updater`, and the other weights by `others`."""
        sharded: List[Any] = []
        whole: List[Any] = []
        for item in zip(keys, gradients, weights):
            (sharded if item[0] in self._bucket_of else whole).append(item)
        if sharded:
            self._update(updater, *map(list, zip(*sharded)))
        if whole:
            others(*map(list, zip(*whole)))

    def _update(self, updater: Any, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        optimizer, device = updater.optimizer, weights[0].context.device_id
        own = {key for key in keys if key in self._bucket_of[key].shards}
        # Schedules follow the number of updates, on workers without a shard, too.
        for key in keys:
            if key not in own:
                count_update(optimizer, key, [device])
        by_key = dict(zip(keys, zip(gradients, weights)))
        for bucket in self._buckets:
            selected = [key for key in bucket.keys if key in by_key]
            if selected:
                bucket.update(updater, {key: by_key[key][0] for key in selected},
                              {key: by_key[key][1] for key in selected})
        for bucket in self._buckets:
            self._settle(bucket)

    # -- state -------------------------------------------------------------------------------------------------

    def note_whole_states(self, keys: Sequence[Any]) -> None:
        """Shard the states of these keys, which were read from a file: at once, or when their weights are sharded."""
        for key in keys:
            if key in self._updater.states:
                self._whole_states.add(key)
                self._shard_state(key)
            else:
                self._whole_states.discard(key)

    def _shard_state(self, key: Any) -> None:
        """Replace a whole state by the rows of this worker's shard, or by none."""
        if key not in self._whole_states or key not in self._bucket_of:
            return
        self._whole_states.discard(key)
        shard, shape = self._bucket_of[key].shards.get(key), tuple(self._weight(key).shape)
        state = self._updater.states[key]
        if shard is None:
            drop_state(self._updater, key)
            return
        arrays = [array[shard.first:shard.last].copy() if tuple(array.shape) == shape else array
                  for array in state_arrays(state)]
        put_state(self._updater, key, state, arrays)

    def is_sharded(self, key: Any) -> bool:
        """Return whether the updates of a key are sharded."""
        return key in self._bucket_of

    def _record(self, key: Any) -> Any:
        """Return a JSON value about this worker's state of a sharded key, None if it has none."""
        if key not in self._bucket_of[key].shards or key not in self._updater.states:
            return None
        state = self._updater.states[key]
        arrays = state_arrays(state)
        if any(not isinstance(array, mx.nd.NDArray) for array in arrays):
            return {'problem': 'optimizer %r keeps a value that is not an array for %s: leave '
                    'shard_updates out, or save no optimizer state' % (name_of(self._trainer.optimizer),
                                           trainers.params_of(self._trainer)[key].name)}
        shard = self._bucket_of[key].shards[key]
        shape = tuple(self._weight(key).shape)
        return {'structure': _structure(state), 'arrays': [
            [list(shape if tuple(array.shape) == tuple(shard.weight.shape) else array.shape),
             np.dtype(array.dtype).name] for array in arrays]}

    def gather(self, key: Any, slot: int, shape: Sequence[int], dtype: Any) -> Iterator[np.ndarray]:
        """Yield the rows of a whole array of state, piece by piece, on worker 0; all workers iterate to the end."""
        shard, rank = self._bucket_of[key].shards.get(key), trainers.store_of(self._trainer).rank
        array = None
        if shard is not None and key in self._updater.states:
            array = host_view(state_arrays(self._updater.states[key])[slot])
        by_rows = tuple(shape) == tuple(self._weight(key).shape)
        if not by_rows and not (shard is not None and shard.first == 0):
            array = None  # such an array is the same on all workers
        dtype, rows = np.dtype(dtype), int(shape[0]) if shape else 1
        width = int(np.prod(shape[1:]))
        step = max(1, PIECE_BYTES // max(1, width * dtype.itemsize))
        for first in range(0, rows, step):
            last = min(first + step, rows)
            piece = np.zeros((last - first,) + tuple(shape[1:]), dtype)
            if array is not None:
                start = shard.first if by_rows and shard is not None else 0
                low, high = max(first, start), min(last, start + len(array))
                if low < high:
                    piece[low - first:high - first] = array[low - start:high - start]
            gathered = self._backend.add_bytes(piece)
            if rank == 0:
                yield gathered

    def whole_states(self) -> Dict[Any, Any]:
        """Return the whole states of the sharded keys on worker 0, nothing on the other workers (collective)."""
        keys = sorted(self._bucket_of)
        records = self.records(keys)
        states = {}
        for key in keys:
            record = records[key]
            if record is None:
                continue
            arrays = []
            for slot, (shape, dtype) in enumerate(record['arrays']):
                pieces = list(self.gather(key, slot, shape, dtype))
                if pieces:
                    arrays.append(mx.nd.array(np.concatenate(pieces), dtype=dtype, ctx=mx.cpu()))
            if trainers.store_of(self._trainer).rank == 0:
                states[key] = replace_arrays(_from_structure(record['structure']), arrays)
        return states

    def records(self, keys: Sequence[Any]) -> Dict[Any, Any]:
        """Return JSON values about the states of sharded keys, None for no state (collective).

        InputError on all workers if a state cannot be gathered.
        """
        everyone = self._backend.allgather_json([self._record(key) for key in keys], 'sharded_states')
        records = {key: next((record for record in worker_records if record is not None), None)
                   for key, worker_records in zip(keys, zip(*everyone))}
        for record in records.values():
            if record is not None and 'problem' in record:
                raise InputError(record['problem'])
        return records

    # -- reports -----------------------------------------------------------------------------------------------

    def report_line(self) -> str:
        """Return a line of text about the memory of optimizer state on this worker."""
        states = [array for key in self._bucket_of if key in self._updater.states
                  for array in state_arrays(self._updater.states[key]) if isinstance(array, mx.nd.NDArray)]
        weights = [self._weight(key) for key in self._bucket_of]
        shards = [shard.weight for bucket in self._buckets for shard in bucket.shards.values()]
        return 'sharded updates: this worker updates %s of %s of weights, with %s of optimizer state' % (
            size_text(_bytes_of(shards)), size_text(_bytes_of(weights)), size_text(_bytes_of(states)))


def _structure(state: Any) -> Any:
    """Return the structure of a state as a JSON value: None, 0 for an array, or a list."""
    if state is None:
        return None
    return [_structure(item) for item in state] if isinstance(state, (list, tuple)) else 0


def _from_structure(structure: Any) -> Any:
    return tuple(map(_from_structure, structure)) if isinstance(structure, list) else structure


def _bytes_of(arrays: Sequence[Any]) -> int:
    return sum(int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize for array in arrays)
