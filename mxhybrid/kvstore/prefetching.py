"""Ask for embedding rows of the next batch before its forward pass needs them."""
from typing import Any, Callable, Dict, Iterable, Iterator, Union

from mxnet.gluon import Block
from mxnet.gluon.parameter import Parameter

from ..base.errors import InputError
from ..native.trainers import has_sparse_gradient, has_started, key_of, store_of, trainer_of
from .feeds import Feeds
from .hybrid import Hybrid


def prefetch(param: Any, row_ids: Any, after_step: bool = False) -> None:
    """Ask for the rows of a parameter with row_sparse gradients that the next forward pass will use.

    Call it when the next batch is known, before or after this batch's ``Trainer.step``: rows that the step changes
    are asked for once it has pushed its gradients.  They then travel while the script does other work.  Wrong
    guesses cost bytes, never correctness; where there is nothing to ask for, since no step was made yet or every
    worker has all rows, nothing happens.

    Parameters
    ----------
    param : mxnet.gluon.Parameter
        Of a Trainer with ``kvstore='hybrid'``.
    row_ids : NDArray or numpy.ndarray
        Row numbers, in any order, shape and number.
    after_step : bool, optional
        Wait for the next step in any case: the rows are not for the forward pass to come, but for the one after.

    Raises
    ------
    InputError
        `param` is no row_sparse parameter and has no row_sparse gradient, or a row does not exist.
    """
    if not isinstance(param, Parameter) or not has_sparse_gradient(param):
        raise InputError('prefetch: %r is not a row_sparse parameter and has no row_sparse gradient: only rows of such '
                         'parameters can be asked for' % (param,))
    trainer = trainer_of(param)
    if trainer is not None and has_started(trainer) and isinstance(store_of(trainer), Hybrid):
        key = key_of(trainer, param)
        store_of(trainer).prefetch(key, row_ids, -key, after_step)


def prefetching(batches: Iterable[Any], wanted: Union[Block, Callable[[Any], Dict[Any, Any]]]) -> Iterator[Any]:
    """Give batches one after the other, each with its successor's rows already asked for.

    ::

        for data, label in mxhybrid.prefetching(loader, net):
            ...
        for data, label in mxhybrid.prefetching(loader, lambda batch: {net.embedding.weight: batch[0]}):
            ...

    Parameters
    ----------
    batches : iterable
    wanted : mxnet.gluon.Block or callable
        A net, of which the first batches show which array of a batch feeds which embedding; or what gives the row
        ids of a batch by parameter, see :func:`prefetch`.

    Yields
    ------
    object
        The batches, unchanged and in order; one is read ahead.

    Raises
    ------
    InputError
        A net without embeddings whose rows can be asked for.
    """
    if isinstance(wanted, Block):
        return _learning(batches, wanted)
    return _ahead(batches, wanted)


def _learning(batches: Iterable[Any], net: Block) -> Iterator[Any]:
    feeds = Feeds(net)
    try:
        for batch in _ahead(batches, feeds.wanted):
            yield batch
            feeds.learn(batch)  # the loop has worked on it, now that it asks for another
    finally:
        feeds.close()


def _ahead(batches: Iterable[Any], wanted: Callable[[Any], Dict[Any, Any]]) -> Iterator[Any]:
    iterator = iter(batches)
    try:
        batch = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        for param, row_ids in wanted(following).items():
            prefetch(param, row_ids, after_step=True)
        yield batch
        batch = following
    yield batch
