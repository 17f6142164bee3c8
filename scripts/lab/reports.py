"""Results of workers: a body reports values under names, and the test that started its job reads them by rank.

Bodies import this module, so it imports neither mxnet nor horovod.  They import it after mxnet, and it freezes the
objects of the modules that were imported until then: each store and each Trainer begins with a full garbage collection,
which scans 60,000 objects of MXNet's modules in 35 ms otherwise.
"""
import gc
import os
import pickle
from pathlib import Path

from .files import replace_file

#: Environment variable with the directory that takes the reports of a job.
DIRECTORY = 'MXHYBRID_LAB_REPORTS'

if DIRECTORY in os.environ:  # in a body
    gc.freeze()


def report(rank, **values):
    """Hand results from a body to the test that started its job; call it in a worker, repeatedly if need be.

    Values are NumPy arrays, MXNet arrays, numbers, strings, None, and lists, tuples and dicts of them.  A later value
    of a name replaces an earlier one.
    """
    path = Path(os.environ[DIRECTORY]) / f'rank{rank}.pickle'
    merged = pickle.loads(path.read_bytes()) if path.exists() else {}
    merged.update({name: _plain(value, name) for name, value in values.items()})
    replace_file(path, pickle.dumps(merged))


def computed_once(store, compute):
    """Return the result that a function has on worker 0, on all workers; all workers call it.

    A reference of one process takes as long as the training that is compared with it: it need not be computed by each
    worker.
    """
    path = Path(os.environ[DIRECTORY]) / 'computed_once.pickle'
    if store.rank == 0:
        path.write_bytes(pickle.dumps(compute(), protocol=4))
    store._barrier()
    value = pickle.loads(path.read_bytes())
    store._barrier()  # the file is written again for the next value
    return value


def _plain(value, name):
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, dict):
        return {key: _plain(item, f'{name}[{key!r}]') for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(item, f'{name}[{i}]') for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if hasattr(value, 'asnumpy'):
        return value.asnumpy()
    if type(value).__module__ == 'numpy':
        return value
    raise TypeError(f'report({name}=...): cannot send a {type(value).__name__}; '
                    'convert it to NumPy or plain Python')


def read_reports(directory):
    """Return the reports of all workers, by rank."""
    return {int(path.stem[len('rank'):]): pickle.loads(path.read_bytes())
            for path in directory.glob('rank*.pickle')}
