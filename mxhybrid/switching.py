"""Who holds the weight of an ``nn.Embedding``: all workers, or the servers, so that workers pull their own rows.

A parameter changes over after :data:`OBSERVED_STEPS` steps on the servers if all workers find that

* its value was read by forward passes of ``nn.Embedding`` only, called with arrays: no hybridized block around it,
  no tied layer, no ``param.data()``, ever (:mod:`mxhybrid.own_rows`);
* ``Trainer.step`` makes the steps, without AMP's loss scaler;
* the optimizer changes touched rows only (:func:`mxhybrid.serving.objection`).

Before each step the workers vote whether to go back: where the value was handed out or set, all of them do.  They
also go back when ``allreduce_grads()`` or ``load_states()`` is called.
"""
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

import mxnet as mx
from mxnet.gluon.parameter import Parameter

from .log import get_logger
from .optimizers import replace_arrays, state_arrays
from .own_rows import Served, ServedParameter, Watch, watch_of
from .routes import Dense
from .serving import objection

logger = get_logger(__name__)

#: Steps of a table on the servers in which the uses of its value are observed.
OBSERVED_STEPS = 3


class Switch:
    """Decides for the parameters of one Trainer, on all workers alike, who holds them.

    Parameters
    ----------
    trainer : gluon.Trainer
        With a store of several workers.
    """

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._store, self._backend = trainer._kvstore, trainer._kvstore.backend
        self.served: Dict[int, Served] = {}
        # Steps since the route of each candidate was chosen.
        self._steps = {key: 0 for key, param in enumerate(trainer._params)
                       if watch_of(param) is not None and param.grad_req != 'null'}

    # -- in every step -----------------------------------------------------------------------------------------

    def before_push(self, by_hand: bool) -> None:
        """Before the row_sparse gradients of a step are pushed (collective): change over what is to."""
        if by_hand:
            self.stop('gradients are exchanged or applied by hand')
        elif getattr(self._trainer, '_amp_loss_scaler', None) is not None:
            self.stop("AMP's loss scaler needs the sums of gradients")
        if self.served:
            held = list(self.served)
            for key, leaves in zip(held, self._backend.votes([self._leaves(key) for key in held])):
                if leaves:
                    self._go_back(key)
        if self._steps:
            self._decide()

    def _leaves(self, key: int) -> bool:
        return self.served[key].leaves or bool(self._objection(key))

    def stop(self, reason: str) -> None:
        """Go back with everything, for good (collective)."""
        for key in list(self.served):
            self._go_back(key)
        for key in list(self._steps):
            self._refuse(key, reason)

    def go_back(self) -> None:
        """Go back with everything (collective); it may change over again after a while."""
        for key in list(self.served):
            self._go_back(key)

    def abandon(self) -> None:
        """The Trainer gives its store up and will fill another from this worker's copies."""
        for key, served in self.served.items():
            served.complete()
            self._release(key)
            self._backend.routes[key].own.forget()
        self.served.clear()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around an update in the workers: the servers get the gradients of what they hold."""
        trainer, kept = self._trainer, {}  # type: ignore[var-annotated]
        updaters = trainer._updaters
        trainer._updaters = [_KeepsServed(updater, self.served, kept) for updater in updaters]
        try:
            yield
        finally:
            trainer._updaters = updaters
        devices = [context.device_id for context in trainer._contexts]
        for key, gradients in kept.items():
            self._store.push_own(key, gradients, trainer._optimizer, -key, devices)
            self.served[key].pushed()

    # -- changing over -----------------------------------------------------------------------------------------

    def _decide(self) -> None:
        due = []
        for key in list(self._steps):
            route = self._backend.routes.get(key)
            if not isinstance(route, Dense) or route.choice is None:
                continue
            self._steps[key] += 1
            if route.choice.way != 'servers':
                self._refuse(key, 'it goes by allreduce')
            elif self._steps[key] > OBSERVED_STEPS:
                due.append(key)
            else:
                self._backend.unsettled.add(key)
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

    def _watch(self, key: int) -> Watch:
        watch = watch_of(self._trainer._params[key])
        assert watch is not None
        return watch

    def _objection(self, key: int) -> str:
        param, route = self._trainer._params[key], self._backend.routes[key]
        if type(param) not in (Parameter, ServedParameter):
            return 'it is of a class of its own, %s' % type(param).__name__
        if param._trainer is not self._trainer:
            return 'it has another Trainer'
        if param.grad_req == 'null':
            return 'it is frozen'
        if self._watch(key).read:
            return 'something else than nn.Embedding reads its value'
        return objection(self._trainer._optimizer, route)

    def _refuse(self, key: int, reason: str) -> None:
        del self._steps[key]
        self._backend.unsettled.discard(key)
        if self._store.rank == 0:
            logger.debug('%s: no own rows: %s', self._trainer._params[key].name, reason)

    def _updaters(self) -> List[Any]:
        return [self._backend.updater] if self._trainer._update_on_kvstore else self._trainer._updaters

    def _change_over(self, key: int) -> None:
        del self._steps[key]
        self._backend.unsettled.discard(key)
        param, updaters = self._trainer._params[key], self._updaters()
        self._backend.serve(self._backend.routes[key], param._data[0], updaters[0].states.get(key),
                            self._trainer._optimizer)
        for updater in updaters:
            updater.states.pop(key, None)
            updater.states_synced.pop(key, None)
        self.served[key] = self._watch(key).served = Served(self._trainer, key)
        param.__class__ = ServedParameter
        if self._store.rank == 0:
            logger.info('%s: servers update it from now on, and every worker pulls its own rows', param.name)

    def _release(self, key: int) -> None:
        self._trainer._params[key].__class__ = Parameter
        watch = self._watch(key)
        watch.served, watch.forwards = None, 0

    def _go_back(self, key: int) -> None:
        served, param, optimizer = self.served[key], self._trainer._params[key], self._trainer._optimizer
        served.complete()
        del self.served[key]
        self._release(key)
        route = self._backend.routes[key]
        found = route.own.give_back(optimizer)
        if self._trainer._update_on_kvstore:
            route.stored = param._data[0].copy()
        for updater, array in zip(self._updaters(), param._data):
            template = optimizer.create_state_multi_precision(key, array)
            arrays = [mx.nd.array(rows.reshape(like.shape), ctx=array.context, dtype=like.dtype)
                      for rows, like in zip(found, state_arrays(template))]
            updater.states[key], updater.states_synced[key] = replace_arrays(template, arrays), True
        self._steps[key] = 0
        if self._store.rank == 0:
            logger.info('%s: workers pull the rows that anyone touched, and update them', param.name)


class _KeepsServed:
    """Stands in for an Updater: updates the others, and keeps the gradients of parameters that servers hold."""

    def __init__(self, updater: Any, served: Dict[int, Served], kept: Dict[int, List[Any]]):
        self._updater, self._served, self._kept = updater, served, kept

    def __call__(self, keys: Any, gradients: Any, arrays: Any) -> None:
        others = []
        for key, gradient, array in zip(keys, gradients, arrays):
            if key in self._served:
                self._kept.setdefault(key, []).append(gradient)
            else:
                others.append((key, gradient, array))
        if others:
            self._updater(*zip(*others))


def switch_of(trainer: Any) -> Optional[Switch]:
    """What decides for the parameters of a Trainer, if anything does."""
    return trainer.__dict__.get('_mxhybrid_switch')


def attach(trainer: Any) -> None:
    """Begin to observe the parameters of a Trainer whose store was made."""
    trainer._mxhybrid_switch = None
    backend = trainer._kvstore.backend
    if getattr(backend, 'own_rows', False) and trainer._contains_sparse_grad:
        trainer._mxhybrid_switch = Switch(trainer)
