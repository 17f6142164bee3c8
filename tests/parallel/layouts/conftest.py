"""Processes over which tests split networks without a job."""
import contextlib
import functools

import pytest

from ...helpers.split_networks import Ranks


@pytest.fixture(scope='module')
def ranks_of():
    """A function that returns a number of such processes; they end with the tests of the module."""
    with contextlib.ExitStack() as stack:
        yield functools.lru_cache(maxsize=None)(lambda count: stack.enter_context(contextlib.closing(Ranks(count))))
