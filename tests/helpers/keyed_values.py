"""Values of stores for tests, and the errors of calls with wrong ones."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.native.arrays import make_row_sparse

TABLE = (6, 2)


def problem(function, *args, **keywords):
    """The message of the InputError that the call raises."""
    with pytest.raises(InputError) as caught:
        function(*args, **keywords)
    return str(caught.value)


def dense(value, shape=(2, 3), dtype='float32'):
    """A dense array of one value."""
    return mx.nd.full(shape, value, dtype=dtype)


def sparse(ids=(), value=1.0, dtype='float32'):
    """A row_sparse array of shape TABLE in which these rows have one value."""
    return make_row_sparse(np.array(ids, np.int64), np.full((len(ids), TABLE[1]), value, dtype), TABLE)
