"""Who holds the weight of an ``nn.Embedding``: all workers, or the servers, so that workers pull their own rows.

A parameter changes over after :data:`OBSERVED_STEPS` steps on the servers if all workers find that

* its value was read by forward passes of ``nn.Embedding`` only, called with arrays: no hybridized block around it,
  no tied layer, no ``param.data()``, ever (:mod:`mxhybrid.kvstore.own_rows_copy`);
* ``Trainer.step`` makes the steps, without AMP's loss scaler;
* the optimizer changes touched rows only (:func:`mxhybrid.routes.own_rows.objection`).

Before each step the workers vote whether to go back: where the value was handed out or set, all of them do.  They
also go back when ``allreduce_grads()`` or ``load_states()`` is called, or ``update()`` without an exchange before it.
"""
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

import mxnet as mx
from mxnet.gluon.parameter import Parameter

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import variable
from ..native.optimizer_state import drop_state, put_state, state_arrays
from ..native.trainers import device_numbers, loss_scaler_of, updaters_of, with_updaters
from .own_rows_copy import OwnRowsParameter, ValueWatch, WorkerCopy, watch_of

logger = get_logger(__name__)

_LOCAL_UPDATE = 'update() without allreduce_grads(), for which servers have to give back the weights of embeddings'
#: Steps of a table on the servers in which the uses of its value are observed.
OBSERVED_STEPS = 3


class OwnRowsSwitch:
    """Decides who holds the parameters of one Trainer with a store of several workers, on all of them alike."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._store, self._backend = trainer._kvstore, trainer._kvstore.backend
        self.copies: Dict[int, WorkerCopy] = {}
        # Whether this worker has ever updated by itself, so that its weights are not the others'.
        self._local = False
        # Steps since the route of each candidate was chosen.
        self._steps = {key: 0 for key, param in enumerate(trainer._params)
                       if watch_of(param) is not None and param.grad_req != 'null'}

    def before_push(self, by_hand: bool) -> None:
        """Before the row_sparse gradients of a step are pushed (collective): change over what is to."""
        reason = ''
        if by_hand:
            reason = 'gradients are exchanged or applied by hand'
        elif loss_scaler_of(self._trainer) is not None:
            reason = "AMP's loss scaler needs the sums of gradients"
        self._vote(bool(reason))
        if reason:
            for key in list(self._steps):
                self._refuse(key, reason)
        elif self._steps:
            self._decide()

    def before_local_update(self) -> None:
        """Before this worker updates with its own gradients: it needs weights and state of its own, and keeps them.
        Collective while servers hold any.
        """
        self._local = True
        self._vote(True, local=True)

    def _vote(self, all_leave: bool, local: bool = False) -> None:
        """Go back with what any worker wants back (collective while servers hold anything)."""
        if not self.copies:
            return
        held = list(self.copies)
        votes = self._backend.votes([all_leave or self._leaves(key) for key in held] + [local, not local],
                                    _LOCAL_UPDATE if local else '')
        if votes[-1] and votes[-2]:
            # Those in a step have sent dense gradients, which nobody can take back.
            raise InputError('%s: some workers call it while others make a step. While servers hold them, all workers '
                             'have to call it together: set %s=0' % (_LOCAL_UPDATE, variable('own_rows')))
        for key, leaves in zip(held, votes):
            if leaves:
                self._go_back(key)

    def _leaves(self, key: int) -> bool:
        return self.copies[key].leaves or bool(self._objection(key))

    def go_back(self) -> None:
        """Go back with everything (collective); it may change over again after a while."""
        for key in list(self.copies):
            self._go_back(key)

    def abandon(self) -> None:
        """The Trainer gives its store up and will fill another from this worker's copies."""
        for key, copy in self.copies.items():
            copy.complete()
            self._release(key, copy)
            self._backend.stop_serving(key)
        self.copies.clear()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around an update in the workers: the servers get the gradients of what they hold."""
        trainer, kept = self._trainer, {}  # type: ignore[var-annotated]
        with with_updaters(trainer, lambda updater: _KeepsGradients(updater, self.copies, kept)):
            yield
        for key, gradients in kept.items():
            self._store.push_own(key, gradients, trainer.optimizer, -key, device_numbers(trainer))
            self.copies[key].pushed()

    def _decide(self) -> None:
        due = []
        for key in list(self._steps):
            route = self._backend.routes.get(key)
            if route is None or route.choice is None:
                continue
            self._steps[key] += 1
            if route.choice.way != 'servers':
                self._refuse(key, 'it goes by allreduce')
            elif self._steps[key] > OBSERVED_STEPS:
                due.append(key)
            else:
                self._backend.pause_tuning(key)
        if not due:
            return
        everyone = self._backend.exchange([[self._objection(key), self._watch(key).forwards] for key in due],
                                          'own_rows')
        for key, *found in zip(due, *everyone):
            objections = [reason for reason, _ in found if reason]
            if objections or not any(forwards for _, forwards in found):
                self._refuse(key, objections[0] if objections else 'no nn.Embedding reads it')
            else:
                self._change_over(key)

    def _watch(self, key: int) -> ValueWatch:
        watch = watch_of(self._trainer._params[key])
        assert watch is not None
        return watch

    def _objection(self, key: int) -> str:
        param, route = self._trainer._params[key], self._backend.routes[key]
        if type(param) not in (Parameter, OwnRowsParameter):
            return 'it is of a class of its own, %s' % type(param).__name__
        if param._trainer is not self._trainer:
            return 'it has another Trainer'
        if param.grad_req == 'null':
            return 'it is frozen'
        if self._local:
            return 'a worker has updated it without the others'
        if self._watch(key).read:
            return 'something else than nn.Embedding reads its value'
        return route.objection(self._optimizer, updaters_of(self._trainer)[0].states.get(key))

    def _refuse(self, key: int, reason: str) -> None:
        del self._steps[key]
        self._backend.resume_tuning(key)
        if self._store.rank == 0:
            logger.debug('%s: no own rows: %s', self._trainer._params[key].name, reason)

    @property
    def _optimizer(self) -> Any:
        """What updates; the store may have been given another one than the Trainer's."""
        return updaters_of(self._trainer)[0].optimizer

    def _change_over(self, key: int) -> None:
        del self._steps[key]
        self._backend.resume_tuning(key)
        param, updaters = self._trainer._params[key], updaters_of(self._trainer)
        self._backend.serve(key, param._data[0], updaters[0].states.get(key), self._optimizer)
        for updater in updaters:
            drop_state(updater, key)
        self.copies[key] = WorkerCopy(self._trainer, key)
        self._watch(key).held_by_servers(self.copies[key])
        param.__class__ = OwnRowsParameter
        if self._store.rank == 0:
            logger.info('%s: servers update it from now on, and every worker pulls its own rows', param.name)

    def _release(self, key: int, copy: WorkerCopy) -> None:
        watch = self._watch(key)
        if watch.copy is copy:  # and no other Trainer's
            self._trainer._params[key].__class__ = Parameter
            watch.back_in_the_worker()

    def _go_back(self, key: int) -> None:
        copy, param = self.copies[key], self._trainer._params[key]
        copy.complete()
        del self.copies[key]
        self._release(key, copy)
        maker, found = self._backend.take_back(key, param._data[0] if self._trainer._update_on_kvstore else None)
        for updater, array in zip(updaters_of(self._trainer) if maker is not None else (), param._data):
            template = maker.create_state_multi_precision(key, array)
            arrays = [mx.nd.array(rows.reshape(like.shape), ctx=array.context, dtype=like.dtype)
                      for rows, like in zip(found, state_arrays(template))]
            put_state(updater, key, template, arrays)
        self._steps[key] = 0
        if self._store.rank == 0:
            logger.info('%s: workers pull the rows that anyone touched, and update them', param.name)


class _KeepsGradients:
    """Stands in for an Updater: updates the others, and keeps the gradients of parameters that servers hold."""

    def __init__(self, updater: Any, copies: Dict[int, WorkerCopy], kept: Dict[int, List[Any]]):
        self._updater, self._copies, self._kept = updater, copies, kept

    def __call__(self, keys: Any, gradients: Any, arrays: Any) -> None:
        others, stand_ins = [], []
        for key, gradient, array in zip(keys, gradients, arrays):
            if key not in self._copies:
                others.append((key, gradient, array))
                continue
            self._kept.setdefault(key, []).append(gradient)
            if self._updater.aggregate_updates:
                # MXNet's sgd updates several weights in one call, by kernels that leave the state alone while there is
                # no momentum, but not together with a row_sparse gradient: without rows, it changes nothing itself.
                stand_ins.append('stands in for %r' % (key,))
                others.append((stand_ins[-1], mx.nd.sparse.zeros('row_sparse', (1, 1), array.context, array.dtype),
                               mx.nd.zeros((1, 1), array.context, array.dtype)))
        if len(others) > len(stand_ins):
            self._updater(*zip(*others))
        for stand_in in stand_ins:
            for known in (self._updater.states, self._updater.states_synced,
                          self._updater.optimizer._index_update_count):
                known.pop(stand_in, None)


def switch_for(trainer: Any) -> Optional[OwnRowsSwitch]:
    """What decides for the parameters of a Trainer whose store was made; None where nothing can change over."""
    if trainer._kvstore.backend.own_rows and trainer._contains_sparse_grad:
        return OwnRowsSwitch(trainer)
    return None
