"""A table of numbered rows that no process can hold."""
from typing import Any, Optional

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
                 prefix: Optional[str] = None, params: Any = None):
        super().__init__(rows, width, dtype, weight_initializer, {}, prefix, params)
