"""Requests the embedding rows of the next batch before its forward pass needs them."""
from typing import Any, Callable, Dict, Iterable, Iterator, Union

from mxnet.gluon import Block
from mxnet.gluon.parameter import Parameter

from ..base.errors import InputError
from ..native.trainers import has_sparse_gradient, has_started, key_of, store_of, trainer_of
from .embedding_inputs import EmbeddingInputs
from .hybrid import Hybrid
from .table_parameter import TableParameter


def prefetch(param: Any, row_ids: Any, after_step: bool = False) -> None:
    """Request the rows that the next forward pass will use, of a parameter with row_sparse gradients or of a dynamic
    table.

    Call it when the next batch is known, before or after this batch's ``Trainer.step``.  Rows that the step changes are
    requested when it has pushed its gradients.  The rows travel while the script does other work.  Rows that are
    requested but not used cost bytes, and never change a result.  The call does nothing before the first step, or if
    every worker has all rows.

    Parameters
    ----------
    param : mxnet.gluon.Parameter
        A parameter of a Trainer with ``kvstore='hybrid'``; for a dynamic table the `weight` of its Block.
    row_ids : NDArray or numpy.ndarray
        Row numbers or keys, in any order, shape and number.
    after_step : bool, optional
        Wait for the next step in any case: the rows are for the forward pass after that step.

    Raises
    ------
    InputError
        `param` is neither a row_sparse parameter nor a dynamic table and has no row_sparse gradient, or a row does not
        exist.
    """
    if isinstance(param, TableParameter):
        param.prefetch(row_ids, after_step)
        return
    if not isinstance(param, Parameter) or not has_sparse_gradient(param):
        raise InputError('prefetch: %r is not a row_sparse parameter, has no row_sparse gradient and is no dynamic '
                         'table: give one of these' % (param,))
    trainer = trainer_of(param)
    if trainer is not None and has_started(trainer) and isinstance(store_of(trainer), Hybrid):
        key = key_of(trainer, param)
        store_of(trainer).prefetch(key, row_ids, -key, after_step)


def prefetching(batches: Iterable[Any], row_ids_of: Union[Block, Callable[[Any], Dict[Any, Any]]]) -> Iterator[Any]:
    """Yield batches; request the rows of each batch before the previous batch is yielded.

    ::

        for data, label in mxhybrid.prefetching(loader, net):
            ...
        for data, label in mxhybrid.prefetching(loader, lambda batch: {net.embedding.weight: batch[0]}):
            ...

    Parameters
    ----------
    batches : iterable
    row_ids_of : mxnet.gluon.Block or callable
        A net, whose first batches show which array of a batch is the input of which embedding; or a function that
        returns the row ids of a batch by parameter, see :func:`prefetch`.

    Yields
    ------
    object
        The batches, unchanged and in order; one is read ahead.

    Raises
    ------
    InputError
        The net has no embedding whose rows can be requested.
    """
    if isinstance(row_ids_of, Block):
        return _learning(batches, row_ids_of)
    return _ahead(batches, row_ids_of)


def _learning(batches: Iterable[Any], net: Block) -> Iterator[Any]:
    inputs = EmbeddingInputs(net)
    try:
        for batch in _ahead(batches, inputs.row_ids_in):
            yield batch
            inputs.learn(batch)  # the loop has computed with it, now that it asks for another
    finally:
        inputs.close()


def _ahead(batches: Iterable[Any], row_ids_of: Callable[[Any], Dict[Any, Any]]) -> Iterator[Any]:
    iterator = iter(batches)
    try:
        batch = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        for param, row_ids in row_ids_of(following).items():
            prefetch(param, row_ids, after_step=True)
        yield batch
        batch = following
    yield batch
