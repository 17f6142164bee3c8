"""A worker of the workload `tables`; `tables` starts it, as a script, with a JSON object as its argument.

The word `part` of that object names one of these functions:

==============  ================================================================================================
``start``       train a table for a moment, and report the seconds until then and the memory of processes
``turns``       train two nets of dynamic tables by turns
``memory``      touch rows, and report the memory of servers
``checkpoint``  touch rows, and save whole checkpoints and deltas, in turn with ``dd``
``alone``       train one table in one process, as `table_torch` does
==============  ================================================================================================
"""
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid
from lab.benchmark.measuring import cpu_seconds
from lab.benchmark.table_steps import BATCHES, BLOCKS, FEATURES, FREQUENT_BATCHES, WIDTH, draw, draw_frequent, timed
from lab.processes import MARKER, find_processes
from lab.reports import report
from lab.split_memory import Peak

#: Ids are below it, so that tables of any number of rows get the same.
DISTINCT = 10 ** 6
_SETTINGS = {'learning_rate': 0.05}
_MIB = 1 << 20


def mixed(ids: np.ndarray) -> np.ndarray:
    """Return a 64-bit key for each id, by the finalizer of splitmix64, which is a bijection."""
    bits = ids.astype(np.int64).view(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))).view(np.int64)


class Training:
    """A net of dynamic tables, its Trainer, and the ids of its batches."""

    def __init__(self, net: Any, look_up: Callable[[Any], List[Any]], batches: Sequence[Any],
                 optimizer: str = 'adagrad'):
        self.net, self._look_up, self._batches, self._steps = net, look_up, batches, 0
        net.initialize(mx.init.Uniform(0.1))
        self.trainer = gluon.Trainer(net.collect_params(), optimizer, _SETTINGS, kvstore='hybrid')

    def step(self) -> None:
        """Look a batch up, and update its rows with gradients that are all 1."""
        self.train(self._batches[self._steps % len(self._batches)])
        self._steps += 1

    def train(self, ids: Any) -> None:
        """Look ids up, and update their rows."""
        with autograd.record():
            rows = self._look_up(ids)
        autograd.backward(rows)
        self.trainer.step(1)

    @property
    def rows(self) -> int:
        """The number of rows of all tables; only worker 0 may ask."""
        return sum(param.table.statistics()['rows'] for param in self.net.collect_params().values())

    def flush(self) -> None:
        """Wait until the servers have made the updates: a pull comes after the pushes of this worker."""
        for rows in self._look_up(self._batches[0]):
            rows.wait_to_read()
        mx.nd.waitall()


def of_table(table: Any, batches: Sequence[Any]) -> Training:
    """Return the training of one table."""
    return Training(table, lambda ids: [table(ids)], batches)


def of_collection(samples: int, rank: int, in_one_call: bool) -> Training:
    """Return the training of a table for each feature, which are looked up in one call, or each by itself."""
    names = ['feature%d' % number for number in range(FEATURES)]
    net = mxhybrid.nn.EmbeddingCollection({name: mxhybrid.nn.Embedding(DISTINCT, WIDTH, prefix=name + '_')
                                           for name in names}, prefix='one_' if in_one_call else 'each_')
    batches = [dict(zip(names, draw(rank, batch, samples, DISTINCT).T.copy())) for batch in range(BATCHES)]
    if in_one_call:
        return Training(net, lambda ids: list(net(ids).values()), batches)
    return Training(net, lambda ids: [net[name](ids[name]) for name in names], batches)


def memory_of(pid: Any) -> Dict[str, int]:
    """Return the resident bytes of a process: `anonymous` memory, and memory that it shares with other processes."""
    fields = {'RssAnon:': 'anonymous', 'RssShmem:': 'shared'}
    sizes = dict.fromkeys(fields.values(), 0)
    with open('/proc/%s/status' % pid, encoding='ascii') as status:
        for line in status:
            name = fields.get(line.split()[0])
            if name:
                sizes[name] = int(line.split()[1]) * 1024
    return sizes


def memory_of_servers() -> Dict[str, int]:
    """Return the sums over all servers of this worker's job."""
    total = {'anonymous': 0, 'shared': 0}
    for process in find_processes(os.environ[MARKER]):
        if process.role == 'server':
            for name, size_bytes in memory_of(process.pid).items():
                total[name] += size_bytes
    return total


def start(spec: Dict[str, Any]) -> None:
    """Train a table for a moment; `started` is the time at which the job was launched."""
    store = mxhybrid.create()
    batches = [draw(store.rank, batch, spec['ids'], DISTINCT) for batch in range(BATCHES)]
    training = of_table(mxhybrid.nn.Embedding(spec['rows'], WIDTH, prefix='table_'), batches)
    training.step()
    training.flush()
    store.backend.barrier()
    start_s, start_cpu_s = time.time() - spec['started'], cpu_seconds(os.environ[MARKER])
    store.backend.barrier()
    for _ in range(spec['warmup'] + spec['steps']):
        training.step()
    training.flush()
    store.backend.barrier()
    report(store.rank, start_s=start_s, start_cpu_s=start_cpu_s, worker=memory_of('self'),
           servers=memory_of_servers() if store.rank == 0 else None)
    store.backend.barrier()


def _pair(pair: str, samples: int, rank: int, touched: int) -> List[Training]:
    """Return the two nets that are compared, the second one being the base of the ratio."""
    if pair == 'files':  # the settings select the storage by the prefix
        batches = draw_frequent(rank, FREQUENT_BATCHES, samples, touched)
        return [of_table(mxhybrid.nn.Embedding(touched, WIDTH, prefix=prefix), batches)
                for prefix in ('files_', 'memory_')]
    batches = [draw(rank, batch, samples, DISTINCT) for batch in range(BATCHES)]
    if pair == 'rows':
        return [of_table(mxhybrid.nn.Embedding(rows, WIDTH, prefix='rows%d_' % rows), batches)
                for rows in (2 * 10 ** 9, DISTINCT)]
    if pair == 'hash':
        return [of_table(mxhybrid.nn.HashEmbedding(WIDTH, prefix='hash_'), [mixed(batch) for batch in batches]),
                of_table(mxhybrid.nn.Embedding(DISTINCT, WIDTH, prefix='rows_'), batches)]
    return [of_collection(samples, rank, in_one_call) for in_one_call in (True, False)]


def turns(spec: Dict[str, Any]) -> None:
    """Train two nets in turn, a block of steps each; report the seconds and CPU seconds of a step in each block."""
    store = mxhybrid.create()
    pair = _pair(spec['pair'], spec['ids'], store.rank, spec['touched'])

    def block(training: Training, steps: int) -> List[float]:
        store.backend.barrier()
        cpu_s, started = cpu_seconds(os.environ[MARKER]), time.perf_counter()
        for _ in range(steps):
            training.step()
        training.flush()
        store.backend.barrier()
        elapsed_s = time.perf_counter() - started
        return [elapsed_s / steps, (cpu_seconds(os.environ[MARKER]) - cpu_s) / steps]

    for training in pair:
        _touch(training, store, spec['touched'])
        block(training, max(spec['warmup'], BATCHES))
    blocks = []
    for number in range(BLOCKS * spec['rounds']):
        readings = {which: block(pair[which], spec['steps']) for which in ((0, 1) if number % 2 else (1, 0))}
        blocks.append([readings[0], readings[1]])
    report(store.rank, blocks=blocks, rows=[training.rows for training in pair] if store.rank == 0 else None)
    store.backend.barrier()


def _touch(training: Training, store: Any, rows: int) -> None:
    """Update the first `rows` rows; a step updates at most 50,000 rows of each worker, and all workers take it."""
    step_rows = 50000 * store.num_workers
    for first in range(0, rows, step_rows):
        ids = np.arange(first, min(first + step_rows, rows))
        share = np.array_split(ids, store.num_workers)[store.rank]
        if len(share):
            training.train(share)
        else:
            training.trainer.step(1)


def _touched(store: Any, rows: int) -> Training:
    """Return a table of 2 x 10^9 rows of which `rows` rows were touched."""
    training = of_table(mxhybrid.nn.Embedding(2 * 10 ** 9, WIDTH, prefix='table_'), [np.arange(1)])
    _touch(training, store, rows)
    training.flush()
    store.backend.barrier()
    return training


def memory(spec: Dict[str, Any]) -> None:
    """Touch rows; report how much memory the servers have taken for them."""
    store = mxhybrid.create()
    store.backend.barrier()
    before = memory_of_servers()
    training = _touched(store, spec['touched'])
    if store.rank == 0:
        after = memory_of_servers()
        report(0, grown={name: after[name] - before[name] for name in after}, rows=training.rows)
    store.backend.barrier()


def _size(directory: str) -> int:
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(directory)
               for name in names)


def write_by_dd(path: str, size_bytes: int) -> float:
    """Write zeros to a new file by ``dd conv=fsync``, and remove it; return the seconds."""
    mebibytes = max(1, round(size_bytes / _MIB))
    started = time.perf_counter()
    subprocess.run(['dd', 'if=/dev/zero', 'of=' + path, 'bs=1M', 'count=%d' % mebibytes, 'conv=fsync'], check=True,
                   stderr=subprocess.DEVNULL)
    elapsed_s = time.perf_counter() - started
    os.remove(path)
    return elapsed_s * size_bytes / (mebibytes * _MIB)


def checkpoint(spec: Dict[str, Any]) -> None:
    """Save whole checkpoints and deltas of a hundredth of the rows, in turn with ``dd``."""
    store = mxhybrid.create()
    training = _touched(store, spec['touched'])
    rounds = []

    def save(directory: str, step: int, delta: bool) -> Dict[str, Any]:
        os.sync()
        store.backend.barrier()
        size_bytes = _size(directory) if step else 0
        peak, started, cpu_s = Peak(), time.perf_counter(), cpu_seconds(os.environ[MARKER])
        mxhybrid.checkpoint.save(directory, training.net, training.trainer, step, delta=delta)
        store.backend.barrier()
        return {'seconds': time.perf_counter() - started, 'cpu_s': cpu_seconds(os.environ[MARKER]) - cpu_s,
                'worker_bytes': peak.size_bytes, 'bytes': _size(directory) - size_bytes}

    for number in range(spec['rounds']):
        directory = os.path.join(spec['directory'], str(number))
        whole = save(directory, 0, False)
        if store.rank == 0:
            whole['dd_s'] = write_by_dd(os.path.join(spec['directory'], 'dd'), whole['bytes'])
        store.backend.barrier()
        _touch(training, store, max(1, spec['touched'] // 100))
        training.flush()
        rounds.append({'whole': whole, 'delta': save(directory, 1, True)})
        store.backend.barrier()
        if store.rank == 0:
            shutil.rmtree(directory)
    report(store.rank, rounds=rounds)


def alone(spec: Dict[str, Any]) -> None:
    """Train one table in this process, with bags of FEATURES ids; report a step's seconds and CPU seconds.

    All rows are touched before, so that there are as many as in PyTorch's table.
    """
    batches = [draw(0, batch, spec['ids'], spec['rows']) for batch in range(BATCHES)]
    table = mxhybrid.nn.Embedding(spec['rows'], WIDTH)
    training = Training(table, lambda ids: [table(ids, None, 'sum')], batches, spec['optimizer'])
    for first in range(0, spec['rows'], 100000):
        training.train(np.arange(first, min(first + 100000, spec['rows']))[None])
    report(0, rows=training.rows, **timed(training.step, training.flush, spec))


if __name__ == '__main__':
    SPEC = json.loads(sys.argv[1])
    {'start': start, 'turns': turns, 'memory': memory, 'checkpoint': checkpoint, 'alone': alone}[SPEC['part']](SPEC)
