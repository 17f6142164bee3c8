"""Updates of dense weights in this worker by compiled kernels, in the place of MXNet's operators.

MXNet's operators for sgd and adam take 1.5 to 5 ns of CPU time for each weight, and the kernels of
:mod:`mxhybrid.kernels` about 0.5 ns.  Both give the same bits.  All else stays with MXNet: other optimizers, other
types, row_sparse arrays, GPUs, and the first update of a weight, in which MXNet makes its state.

In a step of a job of several workers, an update reads the sums of a bucket where the lane has computed them, and writes
them to the gradients on the way.
"""
from typing import Any, Callable, Collection, ContextManager, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..kernels.library import compiled
from ..lane.gradient_bucket import DenseUpdate, GradientBucket
from ..native.arrays import is_same
from ..native.dense_rules import (
    Update,
    begin_update,
    calls_of,
    count_and_rates,
    has_kernel,
    rule_of,
    settings_of,
)
from ..native.optimizer_state import counts_on, has_schedule, state_arrays, use_device
from ..native.storage import layout_function
from ..native.trainers import device_of, with_updaters
from ..routes.dense_buckets import PendingSums

#: Bytes of weights that are updated by one operation of MXNet's engine, unless one weight has more.  Several operations
#: can run at the same time.
OPERATION_BYTES = 2 << 20

#: The number of different operations from which on they are forgotten.  A call with other weights makes others.
MOST_OPERATIONS = 1000


class _Weight(NamedTuple):
    """A weight with its arrays, and their properties, which MXNet takes long to return."""

    weight: Any
    gradient: Any
    state: Any
    dtype: Any
    size_bytes: int
    is_sparse: bool
    #: Whether a compiled kernel can update the weight.
    is_plain: bool


class _Started(NamedTuple):
    """A weight whose update was counted, with its rates."""

    known: _Weight
    update: Update
    lr: float
    wd: float

    @property
    def kind(self) -> Any:
        """A value that is the same for weights that one operation can update."""
        return self.known.dtype, self.update.rule, self.update.settings, self.update.in_lists


class StandIn(str):
    """A key without a weight of its own: its row_sparse gradient of no rows only makes MXNet choose other kernels."""


class _Call(NamedTuple):
    """A call of MXNet's optimizer: the keys that compiled kernels update, and the positions that MXNet updates."""

    dense_keys: List[Any]
    by_mxnet: List[int]
    #: Whether MXNet would update the dense weights by one operator.
    together: bool
    rule: str


class _Operation(NamedTuple):
    """An operation of the engine, with the keys of its weights."""

    update: DenseUpdate
    keys: List[Any]
    priority: int
    bucket: Optional[GradientBucket]
    rule: str
    in_lists: bool


class _Repeated:
    """An update that the next step repeats, with other rates, if all that it depends on has stayed the same object."""

    def __init__(self, updater: Any, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any],
                 pending: List[PendingSums], calls: List[_Call], operations: List[Union[_Operation, PendingSums]]):
        self._updater, self._optimizer = updater, updater.optimizer
        self._keys, self._calls, self._operations = list(keys), calls, operations
        self._joint_calls = _joint(calls)
        self._gradients, self._weights, self._pending = list(gradients), list(weights), pending
        self._with_state = [key for key in keys if not isinstance(key, StandIn)]
        self._device = weights[0].context.device_id
        self._dependencies = self._look()
        self._names = set(vars(self._optimizer))

    def _look(self) -> List[Any]:
        """Return the objects from which the operations follow."""
        updater, optimizer = self._updater, self._optimizer
        return [type(updater), type(optimizer), updater.aggregate_updates, optimizer.aggregate_num,
                *map(updater.states.get, self._with_state)]

    def is_current(self, updater: Any, gradients: Sequence[Any], weights: Sequence[Any], pending: List[PendingSums]
                   ) -> bool:
        """Return whether an update of the same keys makes the same operations."""
        optimizer = self._optimizer
        return (updater is self._updater and updater.optimizer is optimizer
                and is_same(pending, self._pending) and is_same(gradients, self._gradients)
                and is_same(weights, self._weights) and is_same(self._look(), self._dependencies)
                and all(map(updater.states.__contains__, self._with_state))
                and all(map(updater.states_synced.get, self._with_state))
                # Another attribute may be a method that takes the place of MXNet's.
                and vars(optimizer).keys() == self._names
                and all(rule_of(optimizer, call.together) == call.rule for call in self._calls if call.dense_keys))

    def run(self, by_mxnet: Callable[[List[int]], None]) -> None:
        """Count the update, and push its operations to the engine; `by_mxnet` updates the weights at some positions."""
        optimizer = self._optimizer
        lrs: Dict[Any, float] = {}
        wds: Dict[Any, float] = {}
        # A schedule sees the number of updates at each call of MXNet's.
        for call in self._calls if has_schedule(optimizer) else self._joint_calls:
            use_device(optimizer, self._device)
            sparse_first = _are_first(optimizer, self._device, [self._keys[i] for i in call.by_mxnet], call.dense_keys)
            if sparse_first:
                by_mxnet(call.by_mxnet)
                use_device(optimizer, self._device)
            if call.dense_keys:
                call_lrs, call_wds = count_and_rates(optimizer, call.dense_keys)
                lrs.update(zip(call.dense_keys, call_lrs))
                wds.update(zip(call.dense_keys, call_wds))
            if call.by_mxnet and not sparse_first:
                by_mxnet(call.by_mxnet)
        settings = settings_of(optimizer)
        for operation in self._operations:
            if isinstance(operation, PendingSums):
                operation.write()
                continue
            rates = [lrs[key] for key in operation.keys], [wds[key] for key in operation.keys]
            operation.update.start(Update(operation.rule, settings, [], rates, operation.in_lists), operation.priority,
                                   operation.bucket)


def _joint(calls: List[_Call]) -> List[_Call]:
    """Return fewer calls that count the same updates in the same order."""
    joint: List[_Call] = []
    for call in calls:
        if joint and not joint[-1].by_mxnet and not call.by_mxnet:
            joint[-1] = joint[-1]._replace(dense_keys=joint[-1].dense_keys + call.dense_keys)
        else:
            joint.append(call)
    return joint


def _are_first(optimizer: Any, device: int, keys: List[Any], other_keys: List[Any]) -> bool:
    """Return whether weights must be updated before others of the same call.

    MXNet counts all updates of a call before it asks for learning rates.  The schedule of the largest count holds for
    all of them.
    """
    if not keys:
        return False
    counts = counts_on(optimizer, device)
    return max(counts.get(key, 0) for key in keys) > max((counts.get(key, 0) for key in other_keys), default=0)


class CompiledUpdates:
    """The compiled updates of one Trainer."""

    def __init__(self) -> None:
        #: Weights by device and key, and operations by device and keys.
        self._weights: Dict[Tuple[Any, ...], _Weight] = {}
        self._operations: Dict[Tuple[Any, ...], Tuple[List[_Weight], DenseUpdate]] = {}
        #: Updates that were made by compiled kernels as far as possible, by their keys.
        self._repeated: Dict[Tuple[Any, ...], _Repeated] = {}
        # The operations of the update that is under way, and sums that were written to their gradients.
        self._new_operations: List[Union[_Operation, PendingSums]] = []
        #: Sums of this step that the gradients have not received.
        self._pending: List[PendingSums] = []

    def take_sums(self, pending: List[PendingSums]) -> None:
        """Let the update of this step write sums to their gradients."""
        self.write_sums()
        self._pending = pending

    def write_sums(self, keys: Optional[Collection[Any]] = None) -> None:
        """Write pending sums to their gradients, by default all, otherwise those of buckets with one of some keys."""
        pending, self._pending = self._pending, []
        for sums in pending:
            if keys is None or not set(keys).isdisjoint(sums.keys):
                sums.write()
            else:
                self._pending.append(sums)

    def release_arrays(self) -> None:
        """Release the arrays of earlier updates: a former optimizer state would be kept beside one that is loaded."""
        self._weights.clear()
        self._repeated.clear()
        self._operations.clear()

    def updating(self, trainer: Any) -> ContextManager[None]:
        """Surround an update in this worker."""
        return with_updaters(trainer, lambda updater: _CompiledUpdater(updater, self))

    def update(self, updater: Any, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        """Update as MXNet's `updater` does, given lists of keys and of arrays on one device."""
        def by_mxnet(positions: List[int]) -> None:
            self.write_sums([keys[i] for i in positions])
            updater([keys[i] for i in positions], [gradients[i] for i in positions], [weights[i] for i in positions])

        name = updater, *keys
        repeated = self._repeated.get(name)
        if repeated is not None:
            if repeated.is_current(updater, gradients, weights, self._pending):
                repeated.run(by_mxnet)
                self._pending = []
                return
            del self._repeated[name]
        if not weights or not has_kernel(updater) or layout_function() is None or compiled() is None:
            self.write_sums(keys)
            updater(keys, gradients, weights)
            return
        context = weights[0].context
        device = device_of(context)
        known = [self._weight_of(updater, device, *item) for item in zip(keys, gradients, weights)]
        started: Dict[Any, _Started] = {}
        calls: List[_Call] = []
        pending, self._new_operations = list(self._pending), []
        can_repeat = True
        for positions in calls_of(updater, [weight.dtype for weight in known]):
            sparse = [i for i in positions if known[i].is_sparse]
            dense = [i for i in positions if not known[i].is_sparse]
            if not dense or not all(known[i].is_plain for i in dense):
                by_mxnet(positions)
                calls.append(_Call([], positions, False, ''))
                continue
            dense_keys = [keys[i] for i in dense]
            sparse_weights = [i for i in sparse if not isinstance(keys[i], StandIn)]
            sparse_first = _are_first(updater.optimizer, context.device_id, [keys[i] for i in sparse_weights],
                                      dense_keys)
            if sparse_first:
                by_mxnet(sparse)
            update = begin_update(updater, dense_keys, context, known[dense[0]].dtype, together=not sparse)
            if update is None:
                by_mxnet(dense if sparse_first else positions)
                can_repeat = False
                continue
            calls.append(_Call(dense_keys, sparse_weights, not sparse, update.rule))
            for index, i in enumerate(dense):
                started[keys[i]] = _Started(known[i], update, update.rates[0][index], update.rates[1][index])
            if sparse_weights and not sparse_first:
                by_mxnet(sparse_weights)
        if self._run(device, started) and can_repeat and started:
            if len(self._repeated) >= MOST_OPERATIONS:
                self._repeated.clear()
            self._repeated[name] = _Repeated(updater, keys, gradients, weights, pending, calls, self._new_operations)
        self._new_operations = []

    def _weight_of(self, updater: Any, device: Tuple[int, int], key: Any, gradient: Any, weight: Any) -> _Weight:
        name = (*device, key)
        known, state = self._weights.get(name), updater.states.get(key)
        if (known is not None and known.weight is weight and known.gradient is gradient and known.state is state
                and key in updater.states):
            return known
        is_sparse = weight.stype != 'default' or gradient.stype != 'default'
        known = _Weight(weight, gradient, state, weight.dtype, weight.size * np.dtype(weight.dtype).itemsize, is_sparse,
                        not is_sparse and _is_plain(weight, [gradient, *state_arrays(state)]))
        self._weights[name] = known
        return known

    def _run(self, device: Tuple[int, int], started: Dict[Any, _Started]) -> bool:
        """Push updates of weights, by key, to the engine, several of them in one operation.

        Return whether no sums are pending any more.
        """
        used_all = True
        pending, self._pending = self._pending, []
        for sums in pending:
            selected = {key: started[key] for key in sums.keys if key in started}
            items = list(selected.values())
            if (len(items) == len(sums.keys) and is_same([item.known.gradient for item in items], sums.gradients)
                    and all(item.kind == items[0].kind for item in items)):
                self._start(device, selected, sums.priority, sums.bucket)
                started = {key: item for key, item in started.items() if key not in selected}
            elif items:
                sums.write()
                self._new_operations.append(sums)
            else:
                used_all = False
                self._pending.append(sums)
        operations: List[Dict[Any, _Started]] = []
        room_bytes, last_kind = 0, None
        for key, item in started.items():
            if item.known.size_bytes > room_bytes or item.kind != last_kind:
                operations.append({})
                room_bytes, last_kind = OPERATION_BYTES, item.kind
            operations[-1][key] = item
            room_bytes -= item.known.size_bytes
        for index, items_by_key in enumerate(operations):
            self._start(device, items_by_key, -index)
        return used_all

    def _start(self, device: Tuple[int, int], items_by_key: Dict[Any, _Started], priority: int,
               bucket: Optional[GradientBucket] = None) -> None:
        items = list(items_by_key.values())
        name, weights = (*device, *items_by_key), [item.known for item in items]
        last_weights, operation = self._operations.get(name, ((), None))
        if operation is None or not is_same(last_weights, weights):
            if len(self._operations) >= MOST_OPERATIONS:
                self._operations.clear()
            states = [array for weight in weights for array in (*state_arrays(weight.state), None, None)[:2]]
            operation = DenseUpdate([weight.weight for weight in weights], states,
                                    [weight.gradient for weight in weights])
            self._operations[name] = weights, operation
        rates = [item.lr for item in items], [item.wd for item in items]
        update = items[0].update._replace(rates=rates)
        operation.start(update, priority, bucket)
        self._new_operations.append(_Operation(operation, list(items_by_key), priority, bucket, update.rule,
                                               update.in_lists))


def _is_plain(weight: Any, others: Sequence[Any]) -> bool:
    """Return whether a weight and its other arrays are dense arrays on the CPU that are alike."""
    return bool(weight.size) and weight.context.device_type == 'cpu' and all(
        (other.stype, other.context, other.dtype, other.shape) == (
            'default', weight.context, weight.dtype, weight.shape) for other in others)


class _CompiledUpdater:
    """A stand-in for MXNet's ``Updater``."""

    def __init__(self, updater: Any, compiled_updates: CompiledUpdates):
        self._updater, self._compiled_updates = updater, compiled_updates

    def __call__(self, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        self._compiled_updates.update(self._updater, keys, gradients, weights)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._updater, name)
