"""Weights of which each worker has a part, and their optimizer state: whole in a checkpoint, as of an unsplit network.

Worker 0 has a piece of a whole array at a time, and no more.  All workers take part, see
:class:`mxhybrid.kvstore.weight_shards.WeightShard`.
"""
import hashlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from ..base.errors import CheckpointError, InputError
from ..kvstore.weight_shards import shard_of
from ..native import trainers
from ..native.arrays import host_view
from ..native.optimizer_state import counts_of, drop_state, maker_of, put_state, state_arrays
from ..native.optimizers import name_of

#: Gives every worker the JSON values of all: ``exchange(value, what)``.
Exchange = Callable[[Any, str], List[Any]]


class WholeArray(NamedTuple):
    """Shape and type of a whole array, and this worker's part of it, None for nothing."""

    shape: Tuple[int, ...]
    dtype: np.dtype
    mine: Any


class Gathering:
    """Brings the parts of all `items` that have some to worker 0 (collective).

    All workers make it, and in the end call :meth:`finish`; before that worker 0 may read :meth:`pieces`, in the order
    of `items`, their weights before their state.
    """

    def __init__(self, trainer: Any, items: List[Any], exchange: Exchange):
        optimizer = trainer.optimizer
        #: Updates of the optimizer, the most that any worker has counted.
        self.num_update = int(optimizer.num_update)
        #: By name: updates, None before the first one.
        self.counts: Dict[str, Optional[int]] = {}
        #: By name: the weight, and its state, None before the first update.
        self.weights: Dict[str, WholeArray] = {}
        self.states: Dict[str, Optional[List[WholeArray]]] = {}
        self._pieces: Dict[Any, Iterator[np.ndarray]] = {}
        items = [item for item in items if shard_of(item.param) is not None]
        if not items:
            return
        told = exchange([self.num_update, [_told(trainer, item) for item in items]], 'checkpoint.parts')
        self.num_update = max(one for one, _ in told)
        for item, *theirs in zip(items, *(one for _, one in told)):
            self._add(trainer, item, [one for one in theirs if one is not None])

    def _add(self, trainer: Any, item: Any, told: List[Dict[str, Any]]) -> None:
        part: Any = shard_of(item.param)
        count, shapes = joined(item.name, name_of(trainer.optimizer), told)
        self.counts[item.name] = count
        self.weights[item.name] = WholeArray(tuple(part.whole_shape), np.dtype(item.param.dtype), _value(item))
        mine = _state(trainer, item)
        self.states[item.name] = None if shapes is None else [
            WholeArray(tuple(shape), np.dtype(dtype), None if mine is None else mine[slot])
            for slot, (shape, dtype) in enumerate(shapes)]
        for slot, one in enumerate([self.weights[item.name]] + (self.states[item.name] or [])):
            self._pieces[item.name, slot] = part.gather(one.mine, one.shape, one.dtype)

    def pieces(self, name: str, slot: int) -> Iterator[np.ndarray]:
        """On worker 0: of the weight, `slot` 0, or of its state."""
        return self._pieces[name, slot]

    def finish(self) -> None:
        """Take part in what worker 0 reads; there, in what it has left unread, so that the others go on."""
        for pieces in self._pieces.values():
            for _ in pieces:
                pass


def _value(item: Any) -> Any:
    part: Any = shard_of(item.param)
    return trainers.arrays_of(item.param)[0] if part.holds else None


def _state(trainer: Any, item: Any) -> Optional[List[Any]]:
    states, part = trainers.updaters_of(trainer)[0].states, shard_of(item.param)
    assert part is not None
    return state_arrays(states[item.key]) if part.holds and item.key in states else None


def _told(trainer: Any, item: Any) -> Optional[Dict[str, Any]]:
    """What this worker tells of a weight; None where it has nothing of it."""
    part: Any = shard_of(item.param)
    if not part.holds:
        return None
    mine, told = _state(trainer, item), []
    for array in mine or []:
        if not hasattr(array, 'stype'):
            return {'problem': 'keeps a %s: checkpoints hold arrays only' % type(array).__name__}
        try:
            shape, place = part.whole_of(tuple(array.shape))
        except InputError as error:
            return {'problem': 'keeps what cannot be put together: %s' % error}
        # What is no bigger than a column of the weight may be an average over the part, which the whole has not.
        digest = '' if shape == tuple(part.whole_shape) else hashlib.blake2b(
            np.ascontiguousarray(host_view(array)).data, digest_size=8).hexdigest()
        told.append([list(shape), np.dtype(array.dtype).name, place, digest])
    return {'count': counts_of(trainer.optimizer).get(item.key), 'state': None if mine is None else told}


def joined(name: str, optimizer: str, told: List[Dict[str, Any]]) -> Tuple[Optional[int], Optional[List[Any]]]:
    """Updates, and shape and dtype of each whole array of state, from what those tell who have parts of a weight;
    InputError where their state is none of the whole.
    """
    problem = next((one['problem'] for one in told if 'problem' in one), '')
    if not problem:
        states = [one['state'] for one in told]
        shapes = [None if state is None else [[shape, dtype] for shape, dtype, _, _ in state] for state in states]
        if any(one != shapes[0] for one in shapes):
            problem = 'has other state on some workers: %s' % shapes
        digests: Dict[str, str] = {}
        for state in states:
            for slot, (shape, _, place, digest) in enumerate(state or []):
                if digests.setdefault('%d %s' % (slot, place), digest) != digest:
                    problem = 'keeps state of shape %s that differs between parts of the weight' % shape
    if problem:
        raise InputError('optimizer %r for %s, which is split, %s' % (optimizer, name, problem))
    return max((one['count'] for one in told if one['count'] is not None), default=None), shapes[0]


def put_weight(item: Any, shape: Tuple[int, ...], rows: Callable[[int, int], np.ndarray]) -> None:
    """Give all workers their parts of a weight of which worker 0 has the `rows` (collective)."""
    part: Any = shard_of(item.param)
    part.scatter(rows, _value(item), shape, item.param.dtype)


def put_states(trainer: Any, work: List[Tuple[Any, Optional[List[WholeArray]]]],
               rows: Callable[[Any, int, WholeArray], Callable[[int, int], np.ndarray]], exchange: Exchange) -> None:
    """Give all workers their parts of state (collective).

    `work` has items, and shapes and types of the whole arrays of their state, None for no state; ``rows(item, slot,
    whole)`` gives the rows on worker 0.  CheckpointError on all workers if the optimizer keeps other state.
    """
    if not work:
        return
    updater = trainers.updaters_of(trainer)[0]
    for item, _ in work:
        drop_state(updater, item.key)
    made = {item.name: _template(trainer, item, wholes) for item, wholes in work if wholes is not None}
    problems = [problem for problem in exchange(next((one for one, _ in made.values() if one), ''), 'checkpoint.fits')
                if problem]
    if problems:
        raise CheckpointError(problems[0])
    for item, wholes in work:
        part = shard_of(item.param)
        if part is None or wholes is None:
            continue
        _, template = made[item.name]
        arrays = [None] * len(wholes) if not part.holds else state_arrays(template)
        for slot, (whole, array) in enumerate(zip(wholes, arrays)):
            part.scatter(rows(item, slot, whole), array, whole.shape, whole.dtype)
        if part.holds:
            put_state(updater, item.key, template, arrays)


def _template(trainer: Any, item: Any, wholes: List[WholeArray]) -> Tuple[str, Any]:
    """Why state of these shapes is not this worker's optimizer's, and what it makes for its part."""
    part, optimizer = shard_of(item.param), trainer.optimizer
    if part is None or not part.holds:
        return '', None
    weight = _value(item)

    def shapes(one: Any) -> List[Tuple[int, ...]]:
        return [part.whole_of(tuple(array.shape))[0]
                for array in state_arrays(one.create_state_multi_precision(item.key, weight))]
    found = [whole.shape for whole in wholes]
    template = maker_of(found, optimizer, shapes).create_state_multi_precision(item.key, weight)
    arrays = state_arrays(template)
    wanted = [part.whole_of(tuple(array.shape))[0] for array in arrays]
    types = [np.dtype(array.dtype) for array in arrays]
    if wanted == found and types == [whole.dtype for whole in wholes]:
        return '', template
    return ('the state of optimizer %r for %s has shapes %s in the checkpoint, but should have %s: set momentum, '
            'centered and the like as when it was written' % (name_of(optimizer), item.name, found, wanted)), None
