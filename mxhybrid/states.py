"""Optimizer state in one ordinary MXNet states file, wherever the state lives.

The file is what ``mxnet.optimizer.Updater.get_states`` makes: a pickle of ``{index: state}``, with the optimizer
if asked for.  So it can be loaded onto any number of workers, servers and partitions, and in one process.

A pickle can run any code when it is read, and MXNet defines the file as one: load only files that you trust.  All
workers read what worker 0 sends them of it over Horovod.
"""
import pickle
from typing import Any, Callable, Dict, List

import mxnet as mx
import numpy as np

from .arrays import host_view, make_row_sparse
from .collective import Collective
from .errors import InputError
from .files import write_atomically
from .optimizers import replace_arrays, state_arrays
from .routes import rows_of

#: Bytes that travel in one broadcast; MXNet refuses arrays of 2^31 - 1 elements and more (``src/ndarray/ndarray.cc``).
BROADCAST_CHUNK_BYTES = 64 << 20


def _template(route: Any, optimizer: Any, dense: bool = False) -> Any:
    """The state that `optimizer` keeps for a table, all zeros, as one process would; `dense` takes its memory."""
    weight = (mx.nd.zeros(route.shape, dtype=route.dtype) if dense
              else mx.nd.sparse.zeros('row_sparse', route.shape, dtype=route.dtype))
    return optimizer.create_state_multi_precision(route.key, weight)


def _row_state(route: Any, optimizer: Any) -> List[Any]:
    """Arrays of the state of one row; some optimizers make dense ones, which for all rows could exceed the memory."""
    row = mx.nd.sparse.zeros('row_sparse', (1,) + tuple(route.shape[1:]), dtype=route.dtype)
    return state_arrays(optimizer.create_state_multi_precision(route.key, row))


def slot_widths(route: Any, optimizer: Any) -> List[int]:
    """Elements per row of each array of a table's state."""
    return [int(np.prod(array.shape[1:])) for array in _row_state(route, optimizer)]


def _read(route: Any, optimizer: Any) -> Any:
    """Fetch the state of a table from the servers."""
    template = _template(route, optimizer, dense=not route.sparse)
    fetched = []
    for slot, array in enumerate(state_arrays(template)):
        rows = route.table.read(slot, int(np.prod(array.shape[1:])))
        if array.stype == 'row_sparse':
            fetched.append(make_row_sparse(np.arange(array.shape[0], dtype=np.int64), rows, array.shape))
        else:
            fetched.append(mx.nd.array(rows.reshape(array.shape), dtype=array.dtype))
    return replace_arrays(template, fetched)


def save(fname: str, updater: Any, routes: List[Any], dump_optimizer: bool) -> None:
    """Write the state of `updater` and of the tables `routes` (rank 0 only)."""
    optimizer = updater.optimizer
    states: Dict[Any, Any] = dict(updater.states)
    for route in routes:
        # New values for the weights drop the state, but not the count.
        if route.key in optimizer._index_update_count and route.table.has_optimizer:
            states[route.key] = _read(route, optimizer)
    write_atomically(fname, pickle.dumps((states, optimizer) if dump_optimizer else states))


def broadcast_bytes(data: bytes, collective: Collective, tag: str) -> bytes:
    """Give all workers rank 0's bytes."""
    length = int(collective.gather(np.array([len(data)], np.int64), tag + '.length', np.int64)[0][0])
    parts = []
    for start in range(0, length, BROADCAST_CHUNK_BYTES):
        size = min(BROADCAST_CHUNK_BYTES, length - start)
        chunk = mx.nd.zeros(size, dtype=np.uint8)
        if collective.rank == 0:
            host_view(chunk)[:] = np.frombuffer(data, np.uint8, size, start)
        collective.broadcast_(chunk, tag)
        parts.append(host_view(chunk).tobytes())
    return b''.join(parts)


def read_on_root(fname: str, collective: Collective, tag: str) -> bytes:
    """Read a file on rank 0; an error there is raised on every rank.

    Returns
    -------
    bytes
        The contents on rank 0, nothing on the others.
    """
    data, problem = b'', ''
    if collective.rank == 0:
        try:
            with open(fname, 'rb') as handle:
                data = handle.read()
        except OSError as error:
            problem = str(error)
    problem = collective.exchange(problem, tag + '.problem')[0]
    if problem:
        raise InputError('load_states: worker 0 cannot read %r: %s' % (fname, problem))
    return data


def load(fname: str, updater: Any, routes: List[Any], collective: Collective, prefix: str) -> None:
    """Read a states file on rank 0 and spread it (collective).

    Raises
    ------
    InputError
        On every rank, when rank 0 cannot read the file or a state in it does not fit its table.
    """
    tag = prefix + '.states'
    data = read_on_root(fname, collective, tag)
    tables: Dict[Any, Any] = {}
    problem = ''
    if collective.rank == 0:
        try:
            content = pickle.loads(data)
            states = content[0] if isinstance(content, tuple) else content
            tables = {route.key: states.pop(route.key) for route in routes if route.key in states}
            optimizer = content[1] if isinstance(content, tuple) else updater.optimizer
            problem = _misfit(tables, routes, optimizer)
            data = pickle.dumps(content)
        except Exception as error:  # pickle raises anything on a damaged file
            problem = '%s: %s' % (type(error).__name__, error)
    problem = collective.exchange(problem, tag + '.problem')[0]
    if problem:
        raise InputError('load_states: %r is not a states file for this model: %s' % (fname, problem))
    updater.set_states(broadcast_bytes(data, collective, tag))
    filled = collective.exchange([route.key in tables for route in routes], tag + '.tables')[0]
    for route, has_state in zip(routes, filled):
        route.table.forget_optimizer()
        if not has_state:
            continue
        optimizer = updater.optimizer
        count = optimizer._index_update_count.get(route.key, optimizer.begin_num_update)
        route.table.set_optimizer(optimizer, optimizer.learning_rate, optimizer.wd, count)
        route.table.expect_count(count)
        arrays = state_arrays(tables[route.key]) if collective.rank == 0 else []
        for slot in range(len(slot_widths(route, optimizer))):
            route.table.assign(padded_rows(arrays[slot], route) if arrays else _nothing, slot)


def _misfit(tables: Dict[Any, Any], routes: List[Any], optimizer: Any) -> str:
    for route in routes:
        if route.key in tables:
            wanted = [(route.rows,) + tuple(array.shape[1:]) for array in _row_state(route, optimizer)]
            found = [tuple(array.shape) for array in state_arrays(tables[route.key])]
            if wanted != found:
                return 'the state of %s has shapes %s, not %s' % (route.name, found, wanted)
    return ''


def _nothing(ids: np.ndarray) -> np.ndarray:
    raise AssertionError('only rank 0 gives values')


def padded_rows(array: Any, route: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A function that gives rows of a state array by id, as wide as the rows of its table."""
    narrow = (rows_of(array) if array.stype == 'row_sparse'
              else host_view(array).reshape(route.rows, -1).__getitem__)

    def values(ids: np.ndarray) -> np.ndarray:
        rows = narrow(ids)
        wide = np.zeros((len(ids), int(np.prod(route.shape[1:]))), route.dtype)
        wide[:, :rows.shape[1]] = rows
        return wide

    return values
