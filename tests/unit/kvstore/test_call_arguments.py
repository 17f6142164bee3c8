"""Keys and values become routes and arrays, in all of MXNet's forms; other forms are refused."""
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.kvstore.call_arguments import CallArguments, one_value_each, pairs

from ...helpers.keyed_values import problem

A, B, C = (mx.nd.zeros(2) for _ in range(3))


@pytest.mark.parametrize('key, value, expected', [
    (3, A, [(3, [A])]), ('w', [A, B], [('w', [A, B])]), (np.int64(3), (A, B), [(3, [A, B])]),
    (['x', 'y'], [A, [B, C]], [('x', [A]), ('y', [B, C])]), ((1,), (A,), [(1, [A])]),
    (['x', 'y', 'x'], [A, B, C], [('x', [A, C]), ('y', [B])]), ([np.int64(3), 3], [A, A], [(3, [A, A])])],
    ids=['one array', 'a list', 'a tuple', 'lists of keys and of values', 'tuples of keys and of values',
         'a repeated key', "NumPy's and Python's integers"])
def test_values_are_collected_by_key(key, value, expected):
    assert pairs('push', key, value) == expected


def test_integers_of_numpy_become_those_of_python():
    (key, _), = pairs('init', np.int32(4), A)
    assert type(key) is int


@pytest.mark.parametrize('key', [None, True, 1.5, b'w', {}, object], ids=repr)
def test_other_keys_are_refused(key):
    text = problem(pairs, 'push', key, mx.nd.zeros(1))
    assert text.startswith('push: key %r is of type %s' % (key, type(key).__name__))
    assert 'int or str' in text


@pytest.mark.parametrize('value', [None, 3, np.zeros(1), [], [None], [np.zeros(1)], 'w'], ids=repr)
def test_other_values_are_refused(value):
    text = problem(pairs, 'pull', 'w', value)
    assert text.startswith("pull: the value of key 'w' is of type") and type(value).__name__ in text


@pytest.mark.parametrize('values', [None, [], 1, [A]], ids=['None', 'none', 'a number', 'one'])
def test_keys_and_values_must_be_equally_many(values):
    text = problem(pairs, 'init', ['x', 'y'], values)
    assert text.startswith('init: the values do not match the 2 keys: give a list of 2 values')
    assert 'do not match the 1 keys' in problem(pairs, 'init', ['x'], A)


def test_a_wrong_key_inside_a_list_is_named():
    assert 'key 1.5 is of type float' in problem(pairs, 'init', ['x', 1.5], [A, A])


@pytest.mark.parametrize('keys, values', [('w', [A, B]), (['w', 'v', 'w'], [A, B, C]), ([3], [[A, B]])],
                         ids=['one key', 'a repeated key', 'a list of one key'])
def test_several_initial_values_of_a_key_are_refused(keys, values):
    values_by_key = pairs('init', keys, values)
    text = problem(one_value_each, 'init', values_by_key)
    assert text.startswith('init: key %r gets 2 values' % values_by_key[0][0]) and 'once' in text


def route(key, sparse=False):
    """Return a route with the attributes that the arguments read."""
    return SimpleNamespace(key=key, name=str(key), shape=(2,), dtype=np.dtype('float32'), sparse=sparse, rows=2)


def test_a_repeated_pushpull_is_not_checked_again():
    backend = SimpleNamespace(routes={0: route(0), 1: route(1)})
    arguments = CallArguments(backend, True)
    work = arguments.pushpull([0, 1], [[A], [B]], None)
    assert [(one.key, arrays, outs) for one, arrays, outs in work] == [(0, [A], [A]), (1, [B], [B])]
    assert arguments.pushpull([0, 1], [[A], [B]], None) is work
    assert arguments.pushpull([0, 1], [A, B], None) is work
    with_outputs = arguments.pushpull([0, 1], [[A], [B]], [[C], [C]])
    assert [outs for _, _, outs in with_outputs] == [[C], [C]]
    assert arguments.pushpull([0, 1], [[A], [B]], [C, C]) is with_outputs
    backend.routes[1] = route(1)
    again = arguments.pushpull([0, 1], [[A], [B]], [C, C])
    assert again is not with_outputs and again[1][0] is backend.routes[1]
    backend.routes[1] = route(1, sparse=True)
    assert 'use push and row_sparse_pull' in problem(arguments.pushpull, [0, 1], [[A], [B]], [C, C])
    assert 'do not match the 2 keys: give a list of 2 values' in problem(arguments.pushpull, [0, 1], A, None)


def test_a_pushpull_of_one_key_is_checked_each_time():
    arguments = CallArguments(SimpleNamespace(routes={0: route(0)}), True)
    assert arguments.pushpull(0, A, None) is not arguments.pushpull(0, A, None)
