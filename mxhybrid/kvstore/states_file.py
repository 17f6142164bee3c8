"""Optimizer state in one ordinary MXNet states file, wherever the state lives.

The file is what ``mxnet.optimizer.Updater.get_states`` makes: a pickle of ``{index: state}``, with the optimizer
if asked for.  So it can be loaded onto any number of workers, servers and partitions, and in one process.

A pickle can run any code when it is read, and MXNet defines the file as one: load only files that you trust.  All
workers read what worker 0 sends them of it over Horovod.
"""
import pickle
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.files import write_atomically
from ..comm.collective import Collective
from ..native.arrays import host_view, make_row_sparse, padded_row_reader
from ..native.optimizer_state import maker_of, rates_of, replace_arrays, state_arrays, was_updated
from ..native.optimizers import check_for_table

#: Bytes that travel in one broadcast; MXNet refuses arrays of 2^31 - 1 elements and more (``src/ndarray/ndarray.cc``).
BROADCAST_CHUNK_BYTES = 64 << 20


def _template(route: Any, optimizer: Any, dense: bool = False) -> Any:
    """The state that `optimizer` keeps for a table, all zeros, as one process would; `dense` takes its memory."""
    weight = (mx.nd.zeros(route.shape, dtype=route.dtype, ctx=mx.cpu()) if dense
              else mx.nd.sparse.zeros('row_sparse', route.shape, dtype=route.dtype, ctx=mx.cpu()))
    return optimizer.create_state_multi_precision(route.key, weight)


def _maker(route: Any, optimizer: Any, found: List[Tuple[int, ...]]) -> Any:
    return maker_of(found, optimizer, route.state_shapes)


def _shapes_of(state: Any) -> List[Tuple[int, ...]]:
    return [tuple(array.shape) for array in state_arrays(state)]


def _read(route: Any) -> Any:
    """Fetch the state of a table from the servers."""
    template = _template(route, route.state_maker(), dense=not route.sparse)
    fetched = []
    for slot, array in enumerate(state_arrays(template)):
        rows = route.read_state(slot, int(np.prod(array.shape[1:])), 0, route.rows)
        if array.stype == 'row_sparse':
            fetched.append(make_row_sparse(np.arange(array.shape[0], dtype=np.int64), rows, array.shape))
        else:
            fetched.append(mx.nd.array(rows.reshape(array.shape), dtype=array.dtype, ctx=mx.cpu()))
    return replace_arrays(template, fetched)


def save(fname: str, updater: Any, routes: List[Any], dump_optimizer: bool) -> None:
    """Write the state of `updater` and of the tables `routes` (worker 0 only)."""
    optimizer = updater.optimizer
    states: Dict[Any, Any] = dict(updater.states)
    for route in routes:
        # New values for the weights drop the state, but not the count.
        if was_updated(optimizer, route.key) and route.has_state:
            states[route.key] = _read(route)
    write_atomically(fname, pickle.dumps((states, optimizer) if dump_optimizer else states))


def broadcast_bytes(data: bytes, collective: Collective, tag: str) -> bytes:
    """Give all workers worker 0's bytes."""
    length = int(collective.gather(np.array([len(data)], np.int64), tag + '.length', np.int64)[0][0])
    parts = []
    for start in range(0, length, BROADCAST_CHUNK_BYTES):
        size = min(BROADCAST_CHUNK_BYTES, length - start)
        chunk = mx.nd.zeros(size, dtype=np.uint8, ctx=mx.cpu())
        if collective.rank == 0:
            host_view(chunk)[:] = np.frombuffer(data, np.uint8, size, start)
        collective.broadcast_(chunk, tag)
        parts.append(host_view(chunk).tobytes())
    return b''.join(parts)


def read_on_root(fname: str, collective: Collective, tag: str) -> bytes:
    """The contents of a file on worker 0, nothing on the others; an error is raised on every rank."""
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
    """Read a states file in worker 0 and spread it (collective); every rank refuses one that does not fit."""
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
    filled = collective.exchange([_shapes_of(tables[route.key]) if route.key in tables else None for route in routes],
                                 tag + '.tables')[0]
    for route, found in zip(routes, filled):
        route.forget_optimizer()
        if found is None:
            continue
        maker = _maker(route, updater.optimizer, [tuple(shape) for shape in found])
        slots: List[Any] = [_no_values for _ in found]
        if collective.rank == 0:
            slots = [padded_row_reader(array, route.width, route.dtype) for array in state_arrays(tables[route.key])]
        route.write_state(maker, updater.optimizer, slots)


def _misfit(tables: Dict[Any, Any], routes: List[Any], optimizer: Any) -> str:
    for route in routes:
        if route.key in tables:
            check_for_table(optimizer, route.name, route.dtype, rates_of(optimizer, route.key)[1])
            found = _shapes_of(tables[route.key])
            wanted = route.state_shapes(_maker(route, optimizer, found))
            if wanted != found:
                return 'the state of %s has shapes %s, not %s' % (route.name, found, wanted)
    return ''


def _no_values(ids: np.ndarray) -> np.ndarray:
    raise AssertionError('only worker 0 gives values')
