"""Arguments of the store's calls: keys and values become routes and arrays here, once for each call.

===================================  ==============================================================================
a call has                           which stands for
===================================  ==============================================================================
a key and an array                   one parameter, on one device
a key and a list of arrays           one parameter, an array for each device
a list of keys and a list of values  several parameters, each value in one of the forms above
===================================  ==============================================================================

Errors are raised here, before anything is sent.
"""
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..native.arrays import is_same
from ..native.storage import storage_of
from ..routes import checks

#: A route, and the arrays that a call has for it, one for each device.
Routed = Tuple[Any, List[Any]]
#: A route, the arrays to push, and the arrays to pull into.
RoutedPushpull = Tuple[Any, List[Any], List[Any]]


def pairs(call: str, key: Any, value: Any) -> List[Tuple[Any, List[Any]]]:
    """Return keys and values, in any of MXNet's forms, as ``[(key, [array per device]), …]``; refuse other forms."""
    if isinstance(key, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(key):
            raise InputError('%s: the values do not match the %d keys: give a list of %d values, one for each key'
                             % (call, len(key), len(key)))
        arrays_by_key: Dict[Any, List[Any]] = {}
        for one_key, one_value in zip(key, value):
            for checked_key, arrays in pairs(call, one_key, one_value):
                arrays_by_key.setdefault(checked_key, []).extend(arrays)
        return list(arrays_by_key.items())
    if isinstance(key, bool) or not isinstance(key, (int, str, np.integer)):
        raise InputError('%s: key %r is of type %s: use int or str' % (call, key, type(key).__name__))
    arrays = list(value) if isinstance(value, (list, tuple)) else [value]
    if not arrays or not all(isinstance(array, mx.nd.NDArray) for array in arrays):
        raise InputError('%s: the value of key %r is of type %s: give an NDArray or a list of NDArrays'
                         % (call, key, type(value).__name__))
    # Arrays of the NumPy interface share their memory with classic ones, but refuse to be copied to or from them.
    return [(key if isinstance(key, str) else int(key), [array.as_nd_ndarray() for array in arrays])]


def one_value_each(call: str, keyed_arrays: List[Tuple[Any, List[Any]]]) -> List[Tuple[Any, Any]]:
    """Return each key with its one array; refuse several values for a key, of which only the first would count."""
    for key, arrays in keyed_arrays:
        if len(arrays) > 1:
            raise InputError('%s: key %r gets %d values, but a key has one initial value: give each key once, with one '
                             'array' % (call, key, len(arrays)))
    return [(key, arrays[0]) for key, arrays in keyed_arrays]


def separate(inputs: List[List[Any]], outputs: List[List[Any]]) -> List[List[Any]]:
    """Return the inputs of each key, with copies of arrays that are also outputs of other keys.

    All inputs of a call are then read before an output is written, as in MXNet's store.
    """
    writers: Dict[Any, int] = {}
    for index, arrays in enumerate(outputs):
        for array in arrays:
            memory = storage_of(array)
            writers[memory] = index if writers.get(memory, index) == index else -1
    return [[array if writers.get(storage_of(array), index) == index else array.copy() for array in arrays]
            for index, arrays in enumerate(inputs)]


class CallArguments:
    """Finds the routes of keys in a store's `backend`, and checks the arrays of its calls.

    With `separates` a pushpull gets copies of arrays that keys share.
    """

    def __init__(self, backend: Any, separates: bool):
        self._backend, self._separates = backend, separates
        # The last pushpull of several keys.  A Trainer repeats it with the same arrays in every step.
        self._keys: List[Any] = []
        self._arrays: List[Any] = []
        self._work: List[RoutedPushpull] = []

    def route(self, call: str, key: Any) -> Any:
        """Return the route of a key; InputError if the key was never initialised."""
        routes = self._backend.routes
        if key not in routes:
            raise InputError('%s: key %r was never initialised: call init or broadcast with it first; known keys are %s'
                             % (call, key, ', '.join(map(repr, list(routes)[:10])) or 'none yet'))
        return routes[key]

    def _routed(self, call: str, key: Any, value: Any) -> List[Routed]:
        """Return routes and arrays; InputError if an array does not have the key's shape."""
        work = []
        for one_key, arrays in pairs(call, key, value):
            route = self.route(call, one_key)
            checks.shapes(call, route.name, arrays, route.shape)
            work.append((route, arrays))
        return work

    def gradients(self, key: Any, value: Any) -> List[Routed]:
        """Return the routes and arrays of a push."""
        work = self._routed('push', key, value)
        for route, arrays in work:
            checks.dtypes('push', route.name, arrays, route.dtype)
            checks.gradient(route, arrays)
        return work

    def outputs(self, key: Any, out: Any) -> List[Routed]:
        """Return the routes and output arrays of a pull."""
        work = self._routed('pull', key, out)
        for route, outs in work:
            if route.sparse:
                checks.stypes('pull', route.name, outs, ('row_sparse',), 'or use row_sparse_pull')
        return work

    def pushpull(self, key: Any, value: Any, out: Any) -> List[RoutedPushpull]:
        """Return the routes, the arrays to push and the arrays to pull into.

        A call of several keys that repeats the last one, with the same arrays, is not checked again.
        """
        several = isinstance(key, (list, tuple)) and len(key) > 1
        if several and self._repeats_the_last(key, value, out):
            return self._work
        pushed = self._routed('pushpull', key, value)
        for route, arrays in pushed:
            checks.dtypes('pushpull', route.name, arrays, route.dtype)
        pulled = pushed if out is None else self._routed('pushpull', key, out)
        for route, arrays in pushed + pulled:
            checks.stypes('pushpull', route.name, arrays, ('default',), 'use push and row_sparse_pull')
            if route.sparse:
                raise InputError('pushpull: %s is row_sparse: use push and row_sparse_pull' % route.name)
        given = [arrays for _, arrays in pushed]
        read = separate(given, [outs for _, outs in pulled]) if several and self._separates else given
        work = [(route, arrays, outs) for (route, _), arrays, (_, outs) in zip(pushed, read, pulled)]
        if several and all(map(is_same, read, given)):
            self._keys, self._arrays, self._work = list(key), _flat(value, out), work
        return work

    def _repeats_the_last(self, keys: Any, values: Any, outs: Any) -> bool:
        """Return whether a call has the keys and arrays of the last one, and the keys still have the same routes."""
        if not all(isinstance(arrays, (list, tuple)) for arrays in (values, [] if outs is None else outs)):
            return False  # which is an error
        routes = self._backend.routes
        return (list(keys) == self._keys and all(routes.get(route.key) is route for route, _, _ in self._work)
                and is_same(_flat(values, outs), self._arrays))

    def rows(self, key: Any, out: Any, row_ids: Any) -> List[Tuple[Any, List[Any], List[np.ndarray]]]:
        """Return the routes, output arrays and row ids of a row_sparse_pull.

        There is one array of ids for all outputs of a key, or one for each output.
        """
        call = 'row_sparse_pull'
        if isinstance(key, (list, tuple)):
            row_ids = [row_ids] if len(key) == 1 and isinstance(row_ids, mx.nd.NDArray) else row_ids
            if not all(isinstance(values, (list, tuple)) and len(values) == len(key) for values in (out, row_ids)):
                raise InputError('row_sparse_pull: out or row_ids do not match the %d keys: give lists of %d outputs '
                                 'and %d row_ids, one for each key' % (len(key), len(key), len(key)))
            if len(set(key)) != len(key):
                raise InputError('row_sparse_pull: a key occurs twice in %r: give it several outputs instead' % (key,))
            ids_by_key = list(row_ids)
        else:
            ids_by_key = [row_ids]
        work = []
        for (route, outs), ids in zip(self._routed(call, key, out), ids_by_key):
            if not route.sparse:
                raise InputError('row_sparse_pull: %s is dense: use pull' % route.name)
            checks.stypes(call, route.name, outs, ('row_sparse',), 'rows need a row_sparse output')
            id_arrays = list(ids) if isinstance(ids, (list, tuple)) else [ids]
            if len(id_arrays) not in (1, len(outs)):
                raise InputError('row_sparse_pull: %s has %d outputs but %d arrays of row ids: give one array, or one '
                                 'for each output' % (route.name, len(outs), len(id_arrays)))
            work.append((route, outs, [checks.wanted_rows(call, route.name, array, route.rows) for array in id_arrays]))
        return work


def _flat(values: Any, outs: Any) -> List[Any]:
    """Return all arrays of a call in one list; elements may be no arrays."""
    return [array for value in [*values, *(outs or ())]
            for array in (value if isinstance(value, (list, tuple)) else (value,))]
