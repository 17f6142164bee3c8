"""Decides whether workers or servers hold the weight of an ``nn.Embedding``; from servers, workers pull rows on demand.

A parameter moves to the servers after :data:`OBSERVED_STEPS` steps in which servers sum its gradients, if on all
workers

* only forward passes of ``nn.Embedding`` have read its value, called with arrays: no hybridized block around it, no
  tied layer, no ``param.data()``, ever (:mod:`mxhybrid.kvstore.on_demand_copy`);
* ``Trainer.step`` makes the steps, without AMP's loss scaler;
* the optimizer changes touched rows only (:func:`mxhybrid.routes.on_demand_rows.unsupported_reason`).

Before each step the workers vote whether to take weights back: if the script of any worker got or set a value, all
workers take it back.  They also take weights back when ``allreduce_grads()`` or ``load_states()`` is called, or
``update()`` without ``allreduce_grads()`` before it.
"""
import functools
from typing import Any, ContextManager, Dict, List, Tuple

import mxnet as mx
from mxnet.gluon.parameter import Parameter

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import variable
from ..native.optimizer_state import drop_state, put_state, state_arrays
from ..native.trainers import device_numbers, loss_scaler_of, updaters_of, with_updaters
from ..routes.on_demand_rows import unsupported_reason
from .compiled_updates import StandIn
from .on_demand_copy import OnDemandParameter, ValueWatch, WorkerCopy, watch_of

logger = get_logger(__name__)

_LOCAL_UPDATE = 'update() without allreduce_grads(), for which servers have to give back the weights of embeddings'
#: Number of steps of a table on the servers in which the reads of its value are observed.
OBSERVED_STEPS = 3


class OnDemandSwitch:
    """Decides where the embeddings of one Trainer in a job of several workers are held; all workers decide the same."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._store, self._backend = trainer._kvstore, trainer._kvstore.backend
        #: This worker's copies of the parameters that servers hold, by key.
        self.copies: Dict[int, WorkerCopy] = {}
        # Whether this worker has ever updated alone, so that its weights differ from those of other workers.
        self._local = False
        # The stand-ins of the last update, with the arrays whose places they take.
        self._stand_ins: Dict[StandIn, Tuple[Any, Any, Any]] = {}
        # The gradients of weights on servers, by key, in the update that is under way.
        self._gradients: Dict[int, List[Any]] = {}
        # Steps since the route of each candidate was chosen.
        self._steps = {key: 0 for key, param in enumerate(trainer._params)
                       if watch_of(param) is not None and param.grad_req != 'null'}

    def before_push(self, by_hand: bool) -> None:
        """Move parameters to servers or back, before the row_sparse gradients of a step are pushed (collective)."""
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
        """Take all weights and states back for good, before this worker updates with its own gradients.

        Collective while servers hold any.
        """
        self._local = True
        self._vote(True, local=True)

    def _vote(self, all_leave: bool, local: bool = False) -> None:
        """Take back the weights that any worker needs back (collective while servers hold any)."""
        if not self.copies:
            return
        keys = list(self.copies)
        votes = self._backend.any_of([all_leave or self.copies[key].leaves or bool(self._unsupported_reason(key))
                                      for key in keys] + [local, not local], _LOCAL_UPDATE if local else '')
        if votes[-1] and votes[-2]:
            # Workers that make a step have sent dense gradients, which cannot be withdrawn.
            raise InputError('%s: some workers call it while others make a step. All workers have to call it together '
                             'while servers hold the weights: do so, or set %s=0' % (_LOCAL_UPDATE,
                                                                                    variable('on_demand_rows')))
        for key, leaves in zip(keys, votes):
            if leaves:
                self.take_back(key)

    def abandon(self) -> None:
        """Complete this worker's copies: the Trainer gives its store up and fills another one from them."""
        for key in list(self.copies):
            self._release(key)
            self._backend.routes[key] = self._backend.routes[key].give_up()

    def updating(self) -> ContextManager[None]:
        """Surround an update in the workers; :meth:`push_gradients` then sends the gradients of weights on servers."""
        self._gradients = {}
        return with_updaters(self._trainer, lambda updater: functools.partial(self._update_others, updater))

    def _update_others(self, updater: Any, keys: Any, gradients: Any, arrays: Any) -> None:
        """Put the gradients of parameters on servers aside, and update with all others."""
        others: List[Any] = []
        stand_ins: List[StandIn] = []
        for key, gradient, array in zip(keys, gradients, arrays):
            if key not in self.copies:
                others.append((key, gradient, array))
                continue
            self._gradients.setdefault(key, []).append(gradient)
            if updater.aggregate_updates:
                # MXNet's sgd updates several weights in one call.  If a gradient of the call is row_sparse, it uses
                # other kernels, which do not leave the state alone while there is no momentum.  A row_sparse stand-in
                # without rows keeps that choice of kernels, and changes nothing itself.
                stand_in = StandIn('stands in for %r' % (key,))
                stand_ins.append(stand_in)
                if stand_in not in self._stand_ins or self._stand_ins[stand_in][0] is not array:
                    self._stand_ins[stand_in] = (
                        array, mx.nd.sparse.zeros('row_sparse', (1, 1), array.context, array.dtype),
                        mx.nd.zeros((1, 1), array.context, array.dtype))
                others.append((stand_in, *self._stand_ins[stand_in][1:]))
        if len(others) > len(stand_ins):
            updater(*zip(*others))
        for stand_in in stand_ins:
            for by_key in (updater.states, updater.states_synced, updater.optimizer._index_update_count):
                by_key.pop(stand_in, None)

    def push_gradients(self) -> None:
        """Give the servers the gradients of the weights that they hold, after an update."""
        gradients_by_key, self._gradients = self._gradients, {}
        for key, gradients in gradients_by_key.items():
            self._store.push_on_demand(key, gradients, self._trainer.optimizer, -key, device_numbers(self._trainer))
            self.copies[key].pushed()

    def _decide(self) -> None:
        due = []
        for key in list(self._steps):
            route = self._backend.routes.get(key)
            if route is None or route.choice is None:
                continue
            self._steps[key] += 1
            if route.choice.route != 'servers':
                self._refuse(key, 'it travels by allreduce')
            elif self._steps[key] > OBSERVED_STEPS:
                due.append(key)
            else:
                self._backend.unsettled.add(key)
        if not due:
            return
        everyone = self._backend.allgather_json(
            [[self._unsupported_reason(key), self._watch(key).forwards] for key in due], 'on_demand')
        for key, *votes in zip(due, *everyone):
            reasons = [reason for reason, _ in votes if reason]
            if reasons or not any(forwards for _, forwards in votes):
                self._refuse(key, reasons[0] if reasons else 'no nn.Embedding reads it')
            else:
                self._move_to_servers(key)

    def _watch(self, key: int) -> ValueWatch:
        watch = watch_of(self._trainer._params[key])
        assert watch is not None
        return watch

    def _unsupported_reason(self, key: int) -> str:
        """Return why servers cannot hold a parameter, '' if they can."""
        param, route = self._trainer._params[key], self._backend.routes[key]
        if type(param) not in (Parameter, OnDemandParameter):
            return 'its class is not Parameter, but %s' % type(param).__name__
        if param._trainer is not self._trainer:
            return 'it has another Trainer'
        if param.grad_req == 'null':
            return 'it is frozen'
        if self._local:
            return 'a worker has updated it without the others'
        if self._watch(key).read:
            return 'something other than nn.Embedding reads its value'
        updater = updaters_of(self._trainer)[0]
        return unsupported_reason(route, updater.optimizer, updater.states.get(key))

    def _refuse(self, key: int, reason: str) -> None:
        del self._steps[key]
        self._backend.unsettled.discard(key)
        if self._store.rank == 0:
            logger.debug('%s: no rows on demand: %s', self._trainer._params[key].name, reason)

    def _move_to_servers(self, key: int) -> None:
        del self._steps[key]
        self._backend.unsettled.discard(key)
        param, updaters = self._trainer._params[key], updaters_of(self._trainer)
        self._backend.serve(key, param._data[0], updaters[0].states.get(key), updaters[0].optimizer)
        for updater in updaters:
            drop_state(updater, key)
        self.copies[key] = WorkerCopy(self._trainer, key)
        self._watch(key).copy = self.copies[key]
        param.__class__ = OnDemandParameter
        if self._store.rank == 0:
            logger.info('%s: servers update it from now on, and every worker pulls the rows that it needs', param.name)

    def _release(self, key: int) -> None:
        """Complete this worker's copy of a parameter, which is the parameter's value from now on."""
        copy, watch = self.copies[key], self._watch(key)
        copy.complete()
        del self.copies[key]
        if watch.copy is copy:  # and not another Trainer's
            self._trainer._params[key].__class__ = Parameter
            watch.note_move_to_worker()

    def take_back(self, key: int) -> None:
        """Take a weight back (collective); it may move to the servers again after some steps."""
        param = self._trainer._params[key]
        self._release(key)
        maker, states = self._backend.take_back(key, param._data[0] if self._trainer._update_on_kvstore else None)
        for updater, array in zip(updaters_of(self._trainer) if maker is not None else (), param._data):
            template = maker.create_state_multi_precision(key, array)
            arrays = [mx.nd.array(rows.reshape(like.shape), ctx=array.context, dtype=like.dtype)
                      for rows, like in zip(states, state_arrays(template))]
            put_state(updater, key, template, arrays)
        self._steps[key] = 0
        if self._store.rank == 0:
            logger.info('%s: workers pull the rows that any worker touched, and update them', param.name)
