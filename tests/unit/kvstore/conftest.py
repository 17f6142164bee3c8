"""Fixtures of the tests of stores."""
import pytest

import mxhybrid

from ...helpers.keyed_values import dense, sparse


@pytest.fixture
def store():
    """A store with a dense key 0 and a row_sparse key 1."""
    new_store = mxhybrid.create()
    new_store.init([0, 1], [dense(2), sparse(range(6), 2)])
    return new_store
