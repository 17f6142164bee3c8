"""Optimizer state in one ordinary MXNet states file, wherever the state lives.

The file has the format of ``mxnet.optimizer.Updater.get_states``: a pickle of ``{index: state}``, with the optimizer
on request.  So it can be loaded onto any number of workers, servers and partitions, and in one process.

MXNet defines the file as a pickle, and a pickle can run any code when it is read: load only files that you trust.
Worker 0 reads the file and sends it to all workers.
"""
import pickle
from typing import Any, Dict, List, Mapping, Tuple

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


def _template(route: Any, optimizer: Any) -> Any:
    """Return the state that `optimizer` would keep for a weight in one process, all zeros."""
    stype = 'row_sparse' if route.sparse else 'default'
    weight = mx.nd.sparse.zeros(stype, route.shape, dtype=route.dtype, ctx=mx.cpu())
    return optimizer.create_state_multi_precision(route.key, weight)


def _shapes_of(state: Any) -> List[Tuple[int, ...]]:
    return [tuple(array.shape) for array in state_arrays(state)]


def _read(route: Any) -> Any:
    """Fetch the state of a table from the servers."""
    template = _template(route, route.state_maker())
    fetched = []
    for slot, array in enumerate(state_arrays(template)):
        rows = route.read_state(slot, int(np.prod(array.shape[1:])), 0, route.rows)
        if array.stype == 'row_sparse':
            fetched.append(make_row_sparse(np.arange(array.shape[0], dtype=np.int64), rows, array.shape))
        else:
            fetched.append(mx.nd.array(rows.reshape(array.shape), dtype=array.dtype, ctx=mx.cpu()))
    return replace_arrays(template, fetched)


def save(fname: str, updater: Any, routes: List[Any], dump_optimizer: bool,
         sharded_states: Mapping[Any, Any] = {}) -> None:
    """Write the state of `updater` and of the tables `routes` (worker 0 only).

    `sharded_states` has the whole states of keys of which `updater` has shards.
    """
    optimizer = updater.optimizer
    states: Dict[Any, Any] = {**updater.states, **sharded_states}
    for route in routes:
        # New values for the weights drop the state, but not the count.
        if was_updated(optimizer, route.key) and route.has_state:
            states[route.key] = _read(route)
    write_atomically(fname, pickle.dumps((states, optimizer) if dump_optimizer else states))


def broadcast_bytes(data: bytes, collective: Collective, tag: str) -> bytes:
    """Return worker 0's bytes on all workers."""
    length = int(collective.allgather(np.array([len(data)], np.int64), tag + '.length', np.int64)[0][0])
    chunks = []
    for start in range(0, length, BROADCAST_CHUNK_BYTES):
        size = min(BROADCAST_CHUNK_BYTES, length - start)
        chunk = mx.nd.zeros(size, dtype=np.uint8, ctx=mx.cpu())
        if collective.rank == 0:
            host_view(chunk)[:] = np.frombuffer(data, np.uint8, size, start)
        collective.broadcast_(chunk, tag)
        chunks.append(host_view(chunk).tobytes())
    return b''.join(chunks)


def read_on_root(fname: str, collective: Collective, tag: str) -> bytes:
    """Return the contents of a file on worker 0, b'' on other workers; an error is raised on all of them."""
    data, problem = b'', ''
    if collective.rank == 0:
        try:
            with open(fname, 'rb') as handle:
                data = handle.read()
        except OSError as error:
            problem = str(error)
    problem = collective.allgather_json(problem, tag + '.problem')[0]
    if problem:
        raise InputError('load_states: worker 0 cannot read %r: %s: give a file on its host that save_states has '
                         'written' % (fname, problem))
    return data


def load(fname: str, updater: Any, routes: List[Any], collective: Collective, prefix: str) -> None:
    """Read a states file on worker 0 and broadcast it (collective); all workers refuse a file that does not fit."""
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
    problem = collective.allgather_json(problem, tag + '.problem')[0]
    if problem:
        raise InputError('load_states: %r is not a states file for this model: %s: give a file that save_states of a '
                         'Trainer of the same model has written' % (fname, problem))
    updater.set_states(broadcast_bytes(data, collective, tag))
    shapes_by_table = collective.allgather_json(
        [_shapes_of(tables[route.key]) if route.key in tables else None for route in routes], tag + '.tables')[0]
    for route, shapes in zip(routes, shapes_by_table):
        route.forget_optimizer()
        if shapes is None:
            continue
        maker = maker_of([tuple(shape) for shape in shapes], updater.optimizer, route.state_shapes)
        slots: List[Any] = [None for _ in shapes]
        if collective.rank == 0:  # the others give no values
            slots = [padded_row_reader(array, route.width, route.dtype) for array in state_arrays(tables[route.key])]
        route.write_state(maker, updater.optimizer, slots)


def _misfit(tables: Dict[Any, Any], routes: List[Any], optimizer: Any) -> str:
    for route in routes:
        if route.key in tables:
            check_for_table(optimizer, route.name, route.dtype, rates_of(optimizer, route.key)[1])
            shapes = _shapes_of(tables[route.key])
            expected_shapes = route.state_shapes(maker_of(shapes, optimizer, route.state_shapes))
            if expected_shapes != shapes:
                return 'the state of %s has shapes %s, not %s' % (route.name, shapes, expected_shapes)
    return ''
