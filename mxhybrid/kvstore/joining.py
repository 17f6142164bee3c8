"""Steps of workers that have no more batches: they take part with zeros until no worker has any.

The small sum with which the workers of a Trainer compare their steps also has a flag of each worker, so steps cost no
more if no worker ever joins.  A worker that has joined waits for the sum, takes the batch size of the other workers
from it, and sees when all have joined (:mod:`mxhybrid.kvstore.step_consistency`).
"""
from typing import Any

from ..base.errors import InputError
from ..native import trainers
from .step_consistency import AllJoined
from .trainer_step import hooks_of
from .weight_shards import NETWORK_CALL, shard_of


def join(trainer: Any) -> int:
    """Take part in the steps of the other workers, with zeros as gradients, until all workers have joined (collective).

    A worker calls it when it has no more batches::

        for data, label in loader:                             # not equally many on all workers
            ...                                                # forward, backward
            trainer.step(joint_batch)
            step += 1
        step += mxhybrid.join(trainer)

    All workers return after the same number of steps, with the same weights.  A step sums the gradients of the workers
    that have not joined, and divides the sum by the batch size that these give, as in Horovod: if it shall be a mean
    over fewer samples, give ``step()`` the number of samples that are left, which must be the same on these workers.

    Tables, optimizers on the store, sharded updates, `staleness` and every `wire_dtype` are possible.  Learning rates
    and other settings must not change before all workers have joined, except by a schedule.  Statistics of BatchNorm
    stay as the worker's last batch left them.

    Parameters
    ----------
    trainer : gluon.Trainer
        A Trainer with a hybrid store.

    Returns
    -------
    int
        The number of steps with zeros that this worker has made: 0 for a worker that is the last to join, and in a job
        of one process.

    Raises
    ------
    InputError
        The store is another one, a parameter has no values yet, a network is split by `mxhybrid.parallelize`, or AMP
        scales the loss.  The other workers raise it, too, if one of them calls ``allreduce_grads()`` and ``update()``
        while a worker has joined.
    """
    trainer_hooks = hooks_of(trainer)
    if trainer_hooks is None:
        raise InputError("join: the Trainer has no hybrid store: give it kvstore='hybrid'")
    for param in trainers.params_of(trainer):
        if param.grad_req != 'null' and not trainers.has_values(param):
            raise InputError('join: %s has no values yet: call net.initialize(), and make a forward pass if the shape '
                             'of its input is not given' % param.name)
    if trainers.loss_scaler_of(trainer) is not None:
        raise InputError('join: AMP scales the loss, and this worker cannot know by how much without a loss: give all '
                         'workers equally many batches, for example by mxhybrid.elastic.Samples')
    trainers.start(trainer)
    store, steps = trainers.store_of(trainer), 0
    if store is None or not store.distributed:
        return 0
    if store.backend.call_count(NETWORK_CALL) or any(map(shard_of, trainers.params_of(trainer))):
        raise InputError('join: a network is split by mxhybrid.parallelize, and each call of it needs all workers: '
                         'give all workers equally many batches, for example by mxhybrid.elastic.Samples with '
                         "last_batch='rollover'")
    with trainer_hooks.consistency.joined():
        while True:
            trainer_hooks.drop_gradients()
            try:
                trainer.step(1, ignore_stale_grad=True)
            except AllJoined:
                break
            steps += 1
    return steps
