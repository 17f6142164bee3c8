"""Keys and values become routes and arrays, in all of MXNet's forms; other forms are refused."""
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.kvstore.call_arguments import CallArguments, one_value_each, pairs


def problem(function, *args):
    """Return the message of the InputError that a call raises."""
    with pytest.raises(InputError) as caught:
        function(*args)
    return str(caught.value)


def test_one_key_takes_an_array_or_a_list():
    a, b = mx.nd.zeros(1), mx.nd.zeros(1)
    assert pairs('push', 3, a) == [(3, [a])]
    assert pairs('push', 'w', [a, b]) == [('w', [a, b])]
    assert pairs('push', np.int64(3), (a, b)) == [(3, [a, b])]


def test_keys_take_a_value_or_a_list_each():
    a, b, c = mx.nd.zeros(1), mx.nd.zeros(1), mx.nd.zeros(1)
    assert pairs('push', ['x', 'y'], [a, [b, c]]) == [('x', [a]), ('y', [b, c])]
    assert pairs('push', (1,), (a,)) == [(1, [a])]


def test_a_repeated_key_collects_its_values_in_order():
    a, b, c = mx.nd.zeros(1), mx.nd.zeros(1), mx.nd.zeros(1)
    assert pairs('push', ['x', 'y', 'x'], [a, b, c]) == [('x', [a, c]), ('y', [b])]


@pytest.mark.parametrize('key', [None, True, 1.5, b'w', {}, object], ids=repr)
def test_other_keys_are_refused(key):
    text = problem(pairs, 'push', key, mx.nd.zeros(1))
    assert text.startswith('push: key %r is of type %s' % (key, type(key).__name__))
    assert 'int or str' in text


@pytest.mark.parametrize('value', [None, 3, np.zeros(1), [], [None], [np.zeros(1)], 'w'], ids=repr)
def test_other_values_are_refused(value):
    text = problem(pairs, 'pull', 'w', value)
    assert text.startswith("pull: the value of key 'w' is of type") and type(value).__name__ in text


@pytest.mark.parametrize('values', [None, [], 1], ids=repr)
def test_keys_and_values_must_be_equally_many(values):
    text = problem(pairs, 'init', ['x', 'y'], values)
    assert text.startswith('init: the values do not match the 2 keys: give a list of 2 values')
    assert 'do not match the 2 keys' in problem(pairs, 'init', ['x', 'y'], [mx.nd.zeros(1)])
    assert 'do not match the 1 keys' in problem(pairs, 'init', ['x'], mx.nd.zeros(1))


def test_a_wrong_key_inside_a_list_is_named():
    assert 'key 1.5 is of type float' in problem(pairs, 'init', ['x', 1.5], [mx.nd.zeros(1)] * 2)


def test_numpys_whole_numbers_are_keys_as_pythons_are():
    one, = mx.nd.zeros(1),
    assert pairs('push', [np.int64(3), 3], [one, one]) == [(3, [one, one])]
    (key, _), = pairs('init', np.int32(4), one)
    assert type(key) is int


@pytest.mark.parametrize('keys, values', [('w', [1, 2]), (['w', 'v', 'w'], [1, 2, 3]), ([3], [[1, 2]])], ids=repr)
def test_several_initial_values_of_a_key_are_refused(keys, values):
    def arrays(value):
        return list(map(arrays, value)) if isinstance(value, list) else mx.nd.full(1, value)

    found = pairs('init', keys, arrays(values))
    text = problem(one_value_each, 'init', found)
    assert text.startswith('init: key %r gets 2 values' % found[0][0]) and 'once' in text


def route(key, sparse=False):
    """Return a route with the attributes that the arguments read."""
    return SimpleNamespace(key=key, name=str(key), shape=(2,), dtype=np.dtype('float32'), sparse=sparse, rows=2)


def test_a_repeated_pushpull_is_not_checked_again():
    backend = SimpleNamespace(routes={0: route(0), 1: route(1)})
    arguments = CallArguments(backend, True)
    a, b, c = mx.nd.zeros(2), mx.nd.zeros(2), mx.nd.zeros(2)
    work = arguments.pushpull([0, 1], [[a], [b]], None)
    assert [(one.key, arrays, outs) for one, arrays, outs in work] == [(0, [a], [a]), (1, [b], [b])]
    assert arguments.pushpull([0, 1], [[a], [b]], None) is work
    assert arguments.pushpull([0, 1], [a, b], None) is work
    with_outputs = arguments.pushpull([0, 1], [[a], [b]], [[c], [c]])
    assert [outs for _, _, outs in with_outputs] == [[c], [c]]
    assert arguments.pushpull([0, 1], [[a], [b]], [c, c]) is with_outputs
    backend.routes[1] = route(1)
    again = arguments.pushpull([0, 1], [[a], [b]], [c, c])
    assert again is not with_outputs and again[1][0] is backend.routes[1]
    backend.routes[1] = route(1, sparse=True)
    assert 'use push and row_sparse_pull' in problem(arguments.pushpull, [0, 1], [[a], [b]], [c, c])
    assert 'do not match the 2 keys: give a list of 2 values' in problem(arguments.pushpull, [0, 1], a, None)


def test_a_pushpull_of_one_key_is_checked_each_time():
    arguments = CallArguments(SimpleNamespace(routes={0: route(0)}), True)
    array = mx.nd.zeros(2)
    assert arguments.pushpull(0, array, None) is not arguments.pushpull(0, array, None)
