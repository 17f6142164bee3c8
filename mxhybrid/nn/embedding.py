"""Tables that no process can hold: of numbered rows, and of rows with any int64 as key."""
from typing import Any, Dict, Optional

from .table_block import TableBlock


class Embedding(TableBlock):
    """A dynamic table of rows by number: only rows that were touched exist, on the servers.

    Parameters
    ----------
    rows : int
        Number of rows, up to 2^63 - 1.
    width : int
        Number of elements of a row.
    dtype : {'float32', 'float64'}, default 'float32'
    weight_initializer : mxnet.initializer.Initializer or str, optional
        Zero, One, Constant of a number, Uniform, Normal or Xavier, for which the width is the number of inputs and of
        outputs.  Default: that of ``net.initialize``.
    prefix : str, optional
    params : ParameterDict, optional
        The `params` of another Block, with which this one shares the rows.
    row_dtype : {'', 'float16', 'bfloat16'}, default ''
        The type of rows of float32 on servers and in checkpoints, which halves them.  The optimizer reads a row as
        float32, and its result is rounded to nearest; optimizer state stays float32.

    Notes
    -----
    A row begins with a value that depends on the table's seed and on the row's number only; ``initialize`` draws the
    seed from MXNet's generator, so ``mx.random.seed`` decides.  A row exists from its first update on.  Optimizers are
    those with a compiled kernel for rows: sgd, adam, adagrad, groupadagrad, ftrl.

    Examples
    --------
    >>> net.items = mxhybrid.nn.Embedding(2_000_000_000, 16, weight_initializer=mx.init.Normal(0.01))
    >>> rows = net.items(ids)
    """

    def __init__(self, rows: int, width: int, dtype: Any = 'float32', weight_initializer: Any = None,
                 prefix: Optional[str] = None, params: Any = None, row_dtype: str = ''):
        options = {'row_dtype': row_dtype} if row_dtype else {}
        super().__init__(rows, width, dtype, weight_initializer, options, prefix, params)


class HashEmbedding(TableBlock):
    """A dynamic table of rows by any 64-bit key.

    Parameters
    ----------
    width : int
        Number of elements of a row.
    dtype : {'float32', 'float64'}, default 'float32'
    weight_initializer : mxnet.initializer.Initializer or str, optional
        As for :class:`Embedding`.
    admit : int, default 1
        A key gets a row in the step with this number of sightings.  A sighting is a step in which any worker has a
        gradient for the key.  Before that, the key reads a default row, and its gradients are dropped.  At most 32767.
    capacity : int, default 0
        The most rows after a step; 0: no limit.  It is divided among the partitions of the table.
    expire_after : int, default 0
        Rows without an update in this number of steps are removed; 0: never.
    evict : {'lru', 'rarest'}, default 'lru'
        The rows that leave a table that exceeds its capacity: those that were not updated for the longest time, or
        those with the fewest updates.
    prefix : str, optional
    params : ParameterDict, optional
        The `params` of another Block, with which this one shares the rows.
    row_dtype : {'', 'float16', 'bfloat16'}, default ''
        As for :class:`Embedding`.

    Notes
    -----
    :func:`mxhybrid.nn.hash_key` makes keys of strings and tuples.  Two values with the same key share a row.
    """

    def __init__(self, width: int, dtype: Any = 'float32', weight_initializer: Any = None,  # noqa: PLR0913
                 admit: int = 1, capacity: int = 0, expire_after: int = 0, evict: str = 'lru',
                 prefix: Optional[str] = None, params: Any = None, row_dtype: str = ''):
        options: Dict[str, Any] = {'admit': admit, 'capacity': capacity, 'expire_after': expire_after, 'evict': evict}
        if row_dtype:
            options['row_dtype'] = row_dtype
        super().__init__(None, width, dtype, weight_initializer, options, prefix, params)
