"""Tables that the chooser has not decided yet, and the context that the routes of a store share."""
from types import SimpleNamespace

import numpy as np
import pytest

from mxhybrid.routes.chooser import MEASURED_STEPS, Chooser
from mxhybrid.routes.route import Route

from .alone import context


def route(key, rows):
    """A table on the servers, as far as the chooser looks at it before it decides."""
    like = SimpleNamespace(shape=(rows, 16), dtype=np.dtype('float32'))
    return Route(key, str(key), like, context())


@pytest.fixture
def push():
    """A function that pushes to a route, and says whether the chooser has another decision to wait for."""
    chooser = Chooser(context(), ['a'], [[0]], {})

    def one(to):
        waits = chooser.waits(to.key)
        chooser.before_push(to, None)
        chooser.after_push(to, np.arange(3))
        return waits

    return one


def test_small_tables_are_not_waited_for(push):
    small = route('small', 100)
    assert not any(push(small) for _ in range(3))


def test_a_large_table_that_is_pushed_is_waited_for(push):
    large, small = route('large', 1 << 20), route('small', 100)
    push(large)
    for _ in range(MEASURED_STEPS - 1):
        assert push(small) and push(large)


def test_a_table_whose_pushes_stop_is_not_awaited(push):
    large, small, dense = route('large', 1 << 20), route('small', 100), route('dense', 1)
    for _ in range(2):
        push(large)
    waits = [push(to) for _ in range(2 * MEASURED_STEPS) for to in (small, dense)]
    assert waits == [True] * 2 * MEASURED_STEPS + [False] * 2 * MEASURED_STEPS
    assert push(large) and push(small)


def test_keys_that_look_alike_are_told_apart():
    keys = [(3, '3'), ('3', '3'), (0, 'net_weight'), (1, 'net_weight'), ('0.net_weight', '0.net_weight'),
            ('any', 'any')]
    shared = context(prefix='hybrid0')
    tags = [shared.tag(key, name) for key, name in keys]
    assert len({*tags, 'hybrid0.any'}) == len(keys) + 1  # which Distributed uses for itself
    assert tags[3] == 'hybrid0.1.net_weight'
