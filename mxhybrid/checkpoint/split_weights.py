"""Stores sharded weights and their optimizer state as whole arrays, as those of an unsplit network.

Worker 0 has at most a piece of a whole array at a time.  All workers take part, see
:class:`mxhybrid.parallel.runtime.sharded_parameters.ShardedWeight`.  The state of whole weights may be sharded, too, by
:mod:`mxhybrid.kvstore.sharded_updates`.
"""
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from ..base.errors import CheckpointError, InputError
from ..kvstore.trainer_step import hooks_of
from ..kvstore.weight_shards import shard_of
from ..native import trainers
from ..native.arrays import array_digest, host_view
from ..native.optimizer_state import counts_of, drop_state, maker_of, put_state, state_arrays
from ..native.optimizers import name_of


class WholeArray(NamedTuple):
    """Shape and type of a whole array."""

    shape: Tuple[int, ...]
    dtype: np.dtype


class Gathering:
    """Collects the shards of all sharded weights of `items` on worker 0 (collective).

    All workers make it, and call :meth:`finish` in the end.  Before that worker 0 may read the pieces of `arrays`, in
    their order.
    """

    def __init__(self, trainer: Any, items: List[Any], workers: Any):
        optimizer = trainer.optimizer
        #: Number of updates of the optimizer, the largest of all workers.
        self.num_update = int(optimizer.num_update)
        #: Number of updates of the sharded weights by name, None before the first.
        self.counts: Dict[str, Optional[int]] = {}
        #: The sharded states by the name of the weight, None before the first update.
        self.states: Dict[str, Optional[List[WholeArray]]] = {}
        #: The name of each array, and its pieces (worker 0 only).
        self.arrays: List[Tuple[str, WholeArray, Iterator[np.ndarray]]] = []
        self._add_sharded_states(trainer, items)
        items = [item for item in items if shard_of(item.param) is not None]
        if not items:
            return
        records_here = [_shard_record(trainer, item) for item in items]
        everyone = workers.allgather_json([self.num_update, records_here], 'checkpoint.shards')
        self.num_update = max(num_update for num_update, _ in everyone)
        for item, *records in zip(items, *(worker_records for _, worker_records in everyone)):
            self._add(trainer, item, [record for record in records if record is not None])

    def _add(self, trainer: Any, item: Any, records: List[Dict[str, Any]]) -> None:
        shard: Any = shard_of(item.param)
        self.counts[item.name], shapes = combined(item.name, name_of(trainer.optimizer), records)
        weight, state = WholeArray(tuple(shard.whole_shape), np.dtype(item.param.dtype)), _state(trainer, item)
        self.arrays.append((item.name + '/weight', weight, shard.gather(_value(item), weight.shape, weight.dtype)))
        self.states[item.name] = None if shapes is None else [
            WholeArray(tuple(shape), np.dtype(dtype)) for shape, dtype in shapes]
        for slot, whole in enumerate(self.states[item.name] or []):
            array = None if state is None else state[slot]
            self.arrays.append(('%s/state%d' % (item.name, slot), whole,
                                shard.gather(array, whole.shape, whole.dtype)))

    def _add_sharded_states(self, trainer: Any, items: List[Any]) -> None:
        trainer_hooks = hooks_of(trainer)
        sharding = None if trainer_hooks is None else trainer_hooks.sharding
        if sharding is None:
            return
        items = [item for item in items if item.key is not None and sharding.is_sharded(item.key)]
        records = sharding.records([item.key for item in items])
        for item in items:
            record = records[item.key]
            self.states[item.name] = None if record is None else [
                WholeArray(tuple(shape), np.dtype(dtype)) for shape, dtype in record['arrays']]
            for slot, whole in enumerate(self.states[item.name] or []):
                self.arrays.append(('%s/state%d' % (item.name, slot), whole,
                                    sharding.gather(item.key, slot, whole.shape, whole.dtype)))

    def finish(self) -> None:
        """Take part in worker 0's reads; worker 0 reads the pieces that are left, so that the other workers go on."""
        for _, _, pieces in self.arrays:
            for _ in pieces:
                pass


def _value(item: Any) -> Any:
    shard: Any = shard_of(item.param)
    return trainers.arrays_of(item.param)[0] if shard.holds else None


def _state(trainer: Any, item: Any) -> Optional[List[Any]]:
    states, shard = trainers.updaters_of(trainer)[0].states, shard_of(item.param)
    return state_arrays(states[item.key]) if shard.holds and item.key in states else None


def _shard_record(trainer: Any, item: Any) -> Optional[Dict[str, Any]]:
    """Return a JSON value about this worker's shard of a weight and its state, None if it has none."""
    shard: Any = shard_of(item.param)
    if not shard.holds:
        return None
    state, arrays = _state(trainer, item), []
    for array in state or []:
        if not hasattr(array, 'stype'):
            return {'problem': 'keeps a %s: checkpoints hold arrays only' % type(array).__name__}
        try:
            shape, ranges = shard.whole_of(tuple(array.shape))
        except InputError as error:
            return {'problem': 'keeps state that cannot be put together: %s' % error}
        # An array that is no larger than a column of the weight may be an average over the shard, which the whole
        # weight does not have.
        digest = '' if shape == tuple(shard.whole_shape) else array_digest(host_view(array)).hex()
        arrays.append([list(shape), np.dtype(array.dtype).name, ranges, digest])
    return {'count': counts_of(trainer.optimizer).get(item.key), 'state': None if state is None else arrays}


def combined(name: str, optimizer: str, records: List[Dict[str, Any]]) -> Tuple[Optional[int], Optional[List[Any]]]:
    """Return the number of updates, and shape and dtype of each whole array of state, from the records of all shards.

    InputError if the states of the shards are not parts of a whole.
    """
    problem = next((record['problem'] for record in records if 'problem' in record), '')
    if not problem:
        states = [record['state'] for record in records]
        shapes = [None if state is None else [[shape, dtype] for shape, dtype, _, _ in state] for state in states]
        if any(shapes_of_shard != shapes[0] for shapes_of_shard in shapes):
            problem = 'has different state on some workers: %s' % shapes
        digests: Dict[str, str] = {}
        for state in states:
            for slot, (shape, _, ranges, digest) in enumerate(state or []):
                if digests.setdefault('%d %s' % (slot, ranges), digest) != digest:
                    problem = 'keeps state of shape %s that differs between shards of the weight' % shape
    if problem:
        raise InputError('optimizer %r for %s, which is split, %s' % (optimizer, name, problem))
    return max((record['count'] for record in records if record['count'] is not None), default=None), shapes[0]


def put_weight(item: Any, shape: Tuple[int, ...], rows: Callable[[int, int], np.ndarray]) -> None:
    """Give all workers their shards of a weight of which worker 0 has the `rows` (collective)."""
    shard: Any = shard_of(item.param)
    shard.scatter(rows, _value(item), shape, item.param.dtype)


def put_states(trainer: Any, work: List[Tuple[Any, Optional[Dict[str, WholeArray]]]],
               rows: Callable[[str, WholeArray], Callable[[int, int], np.ndarray]], workers: Any) -> None:
    """Give all workers their shards of state (collective).

    `work` has items, and the whole arrays of their state by name, None for no state; ``rows(name, whole)`` returns the
    rows on worker 0.  CheckpointError on all workers if the optimizer keeps other state.
    """
    if not work:
        return
    updater = trainers.updaters_of(trainer)[0]
    for item, _ in work:
        drop_state(updater, item.key)
    templates = {item.name: _template(trainer, item, list(state.values())) for item, state in work if state is not None}
    first_problem = next((problem for problem, _ in templates.values() if problem), '')
    problems = [problem for problem in workers.allgather_json(first_problem, 'checkpoint.fits') if problem]
    if problems:
        raise CheckpointError(problems[0])
    for item, state in work:
        shard = shard_of(item.param)
        if shard is None or state is None:
            continue
        _, template = templates[item.name]
        arrays = [None] * len(state) if not shard.holds else state_arrays(template)
        for (name, whole), array in zip(state.items(), arrays):
            shard.scatter(rows(name, whole), array, whole.shape, whole.dtype)
        if shard.holds:
            put_state(updater, item.key, template, arrays)


def _template(trainer: Any, item: Any, wholes: List[WholeArray]) -> Tuple[str, Any]:
    """Return why the optimizer keeps no state of these shapes, or '', and the state that it makes for this shard."""
    shard, optimizer = shard_of(item.param), trainer.optimizer
    if shard is None or not shard.holds:
        return '', None
    weight = _value(item)

    def whole_shapes(state: Any) -> List[Tuple[int, ...]]:
        return [shard.whole_of(tuple(array.shape))[0] for array in state_arrays(state)]

    def shapes_by(maker: Any) -> List[Tuple[int, ...]]:
        return whole_shapes(maker.create_state_multi_precision(item.key, weight))

    stored_shapes = [whole.shape for whole in wholes]
    template = maker_of(stored_shapes, optimizer, shapes_by).create_state_multi_precision(item.key, weight)
    shapes, types = whole_shapes(template), [np.dtype(array.dtype) for array in state_arrays(template)]
    if shapes == stored_shapes and types == [whole.dtype for whole in wholes]:
        return '', template
    return misfit_of_state(optimizer, item.name, stored_shapes, shapes), None


def misfit_of_state(optimizer: Any, name: str, stored_shapes: List[Tuple[int, ...]], shapes: List[Tuple[int, ...]]
                    ) -> str:
    """Return the error about stored state of other shapes than those that the optimizer makes."""
    return ('the state of optimizer %r for %s has shapes %s in the checkpoint, but should have %s: give momentum, '
            'centered and similar options the values that they had when it was saved'
            % (name_of(optimizer), name, stored_shapes, shapes))
