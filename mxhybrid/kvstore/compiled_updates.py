"""Updates of dense weights in this worker by compiled kernels, in the place of MXNet's operators.

MXNet's operators for sgd and adam take 1.5 to 5 ns of CPU time for each weight, and the kernels of
:mod:`mxhybrid.lane` about 0.5 ns.  Both give the same bits.  All else stays with MXNet: other
optimizers, other types, row_sparse arrays, GPUs, and the first update of a weight, in which MXNet makes its state.

In a step of a job of several workers, an update reads the sums of a bucket where the lane has computed them, and writes
them to the gradients on the way.
"""
from typing import Any, Collection, ContextManager, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..lane.gradient_bucket import GradientBucket, LocalUpdate
from ..lane.kernels import compiled
from ..native.arrays import is_same
from ..native.dense_rules import Update, begin_update, calls_of, has_kernel
from ..native.optimizer_state import counts_on, state_arrays
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


class CompiledUpdates:
    """The compiled updates of one Trainer."""

    def __init__(self) -> None:
        #: Weights by device and key, and operations by device and keys.
        self._weights: Dict[Tuple[Any, ...], _Weight] = {}
        self._operations: Dict[Tuple[Any, ...], Tuple[List[_Weight], LocalUpdate]] = {}
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
        self._operations.clear()

    def updating(self, trainer: Any) -> ContextManager[None]:
        """Surround an update in this worker."""
        return with_updaters(trainer, lambda updater: _CompiledUpdater(updater, self))

    def update(self, updater: Any, keys: Sequence[Any], gradients: Sequence[Any], weights: Sequence[Any]) -> None:
        """Update as MXNet's `updater` does, given lists of keys and of arrays on one device."""
        if not weights or not has_kernel(updater) or layout_function() is None or compiled() is None:
            self.write_sums(keys)
            updater(keys, gradients, weights)
            return
        context = weights[0].context
        device = device_of(context)
        known = [self._weight_of(updater, device, *item) for item in zip(keys, gradients, weights)]

        def by_mxnet(positions: List[int]) -> None:
            self.write_sums([keys[i] for i in positions])
            updater([keys[i] for i in positions], [gradients[i] for i in positions], [weights[i] for i in positions])

        started: Dict[Any, _Started] = {}
        for positions in calls_of(updater, [weight.dtype for weight in known]):
            sparse = [i for i in positions if known[i].is_sparse]
            dense = [i for i in positions if not known[i].is_sparse]
            if not dense or not all(known[i].is_plain for i in dense):
                by_mxnet(positions)
                continue
            dense_keys = [keys[i] for i in dense]
            # MXNet counts all updates of a call before it asks for learning rates.  The schedule of the largest count
            # holds for all of them.
            counts = counts_on(updater.optimizer, context.device_id)
            sparse_first = bool(sparse) and (max(counts.get(keys[i], 0) for i in sparse)
                                             > max(counts.get(key, 0) for key in dense_keys))
            if sparse_first:
                by_mxnet(sparse)
            update = begin_update(updater, dense_keys, context, known[dense[0]].dtype, together=not sparse)
            if update is None:
                by_mxnet(dense if sparse_first else positions)
                continue
            for index, i in enumerate(dense):
                started[keys[i]] = _Started(known[i], update, update.rates[0][index], update.rates[1][index])
            if sparse and not sparse_first:
                by_mxnet(sparse)
        self._run(device, started)

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

    def _run(self, device: Tuple[int, int], started: Dict[Any, _Started]) -> None:
        """Push updates of weights, by key, to the engine, several of them in one operation."""
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
            else:
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

    def _start(self, device: Tuple[int, int], items_by_key: Dict[Any, _Started], priority: int,
               bucket: Optional[GradientBucket] = None) -> None:
        items = list(items_by_key.values())
        name, weights = (*device, *items_by_key), [item.known for item in items]
        last_weights, operation = self._operations.get(name, ((), None))
        if operation is None or not is_same(last_weights, weights):
            if len(self._operations) >= MOST_OPERATIONS:
                self._operations.clear()
            operation = LocalUpdate([weight.weight for weight in weights], [weight.gradient for weight in weights],
                                    [state_arrays(weight.state) for weight in weights])
            self._operations[name] = weights, operation
        rates = [item.lr for item in items], [item.wd for item in items]
        operation.start(items[0].update._replace(rates=rates), priority, bucket)


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
