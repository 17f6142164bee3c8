"""A small job that checks its own results: ``horovodrun -np 4 -H hostA:2,hostB:2 python -m mxhybrid.commands.sanity``.

Every worker trains the same net, with Gluon's Trainer and kvstore 'hybrid', on its share of each batch: a row_sparse
weight, an Embedding with row_sparse gradients, and a dense layer, in several partitions, first with sgd, then with
adam.  The loss is linear, so that NumPy can compute the gradients and the expected weights.  Each worker compares all
weights with these.  ``mxhybrid selftest`` runs the job through every launcher.
"""
import argparse
import json
import os
import socket
import struct
import sys
from typing import Any, Dict, List

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid

from ..job.join import current
from ..native.trainers import is_row_sparse
from .selftest import TOLERANCE

WORDS, BINS, WIDTH, INPUTS, OUTPUTS = 1000, 300, 16, 12, 5
BATCH, STEPS, RATE = 48, 6, 0.05
PARTITIONS = {'*words*': 5, '*': 2}
OPTIMIZERS = ('sgd', 'adam')
#: Offset of tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info (linux/tcp.h), and bytes to ask for.
_BYTES_AT, _INFO_BYTES = 120, 256


class Net(gluon.Block):
    """A table of each kind, and a dense layer."""

    def __init__(self):
        super().__init__(prefix='sanity_')
        with self.name_scope():
            self.words = gluon.contrib.nn.SparseEmbedding(WORDS, WIDTH, prefix='words_')
            self.bins = gluon.nn.Embedding(BINS, WIDTH, sparse_grad=True, prefix='bins_')
            self.score = gluon.nn.Dense(OUTPUTS, in_units=INPUTS, prefix='score_')

    def forward(self, words, bins, inputs, factors, weights):
        return ((self.words(words) + self.bins(bins)) * factors).sum() + (self.score(inputs) * weights).sum()


class FixedValues(mx.init.Initializer):
    """An initializer that writes the given values."""

    def __init__(self, values: np.ndarray):
        super().__init__()
        self._values = values

    def _init_weight(self, name, array):
        array[:] = mx.nd.array(self._values)


def batches() -> List[Dict[str, np.ndarray]]:
    """Return the joint batches, the same on all workers."""
    random = np.random.RandomState(5)
    return [{'words': np.minimum(random.zipf(1.3, BATCH) - 1, WORDS - 1), 'bins': random.randint(0, BINS, BATCH),
             'inputs': random.normal(size=(BATCH, INPUTS)), 'factors': random.normal(size=(BATCH, WIDTH)),
             'weights': random.normal(size=(BATCH, OUTPUTS))} for _ in range(STEPS)]


def initial() -> Dict[str, np.ndarray]:
    """Return the weights before the first step, by the suffix of the parameter's name."""
    random = np.random.RandomState(6)
    shapes = {'words_weight': (WORDS, WIDTH), 'bins_weight': (BINS, WIDTH), 'score_weight': (OUTPUTS, INPUTS),
              'score_bias': (OUTPUTS,)}
    return {name: random.uniform(-0.5, 0.5, size=shape) for name, shape in shapes.items()}


def gradients(batch: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Return the gradients of the loss, divided by the batch size."""
    words, bins = np.zeros((WORDS, WIDTH)), np.zeros((BINS, WIDTH))
    np.add.at(words, batch['words'], batch['factors'])
    np.add.at(bins, batch['bins'], batch['factors'])
    sums = {'words_weight': words, 'bins_weight': bins, 'score_weight': batch['weights'].T @ batch['inputs'],
            'score_bias': batch['weights'].sum(axis=0)}
    return {name: gradient / BATCH for name, gradient in sums.items()}


def expected(optimizer: str) -> Dict[str, np.ndarray]:
    """Return the weights after the last step, computed by NumPy in float64.

    MXNet's adam (python/mxnet/optimizer/optimizer.py, src/operator/optimizer_op-inl.h) applies the bias correction of
    its means to the rate; rows without a gradient keep their weight and means in that step.
    """
    weights = initial()
    means = {name: np.zeros_like(weight) for name, weight in weights.items()}
    squares = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step, batch in enumerate(batches(), 1):
        for name, gradient in gradients(batch).items():
            rows = np.arange(len(gradient))
            if name in ('words_weight', 'bins_weight'):
                rows = np.unique(batch[name.partition('_')[0]])
            if optimizer == 'sgd':
                weights[name][rows] -= RATE * gradient[rows]
                continue
            means[name][rows] = 0.9 * means[name][rows] + 0.1 * gradient[rows]
            squares[name][rows] = 0.999 * squares[name][rows] + 0.001 * gradient[rows] ** 2
            rate = RATE * np.sqrt(1 - 0.999 ** step) / (1 - 0.9 ** step)
            weights[name][rows] -= rate * means[name][rows] / (np.sqrt(squares[name][rows]) + 1e-8)
    return weights


def train(optimizer: str) -> Any:
    """Train with one optimizer; returns the store, and the weights by the suffix of the parameter's name."""
    store = mxhybrid.create(partitions=PARTITIONS)
    net = Net()
    parameters = net.collect_params()
    for name, parameter in parameters.items():
        # Worker 0 must broadcast its values: with those of the others the comparison fails.
        value = initial()[name.replace('sanity_', '')]
        parameter.initialize(FixedValues(value if store.rank == 0 else np.full_like(value, 9.0)))
    trainer = gluon.Trainer(parameters, optimizer, {'learning_rate': RATE, 'wd': 0.0}, kvstore=store)
    for batch in batches():
        share = {name: mx.nd.array(array[store.rank::store.num_workers]) for name, array in batch.items()}
        with autograd.record():
            loss = net(*(share[name] for name in ('words', 'bins', 'inputs', 'factors', 'weights')))
        loss.backward()
        trainer.step(BATCH)
    return store, {name.replace('sanity_', ''): (parameter.row_sparse_data(mx.nd.arange(WORDS)).data
                                                 if is_row_sparse(parameter) else parameter.data()).asnumpy()
                   for name, parameter in parameters.items()}


def counted_bytes() -> Dict[str, int]:
    """Return the bytes that the kernel has sent and received over this process's open TCP connections."""
    totals = {'sent': 0, 'received': 0}
    for name in os.listdir('/proc/self/fd'):
        try:
            if not os.readlink('/proc/self/fd/' + name).startswith('socket:'):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            acked, received = struct.unpack_from('QQ', info, _BYTES_AT)
        except (OSError, struct.error):
            continue
        totals['sent'] += acked
        totals['received'] += received
    return totals


def fewest_bytes(workers: int) -> int:
    """Return the minimal bytes of values that all workers together send to servers: each row of a step once."""
    rows = sum(len(np.unique(batch[table])) for batch in batches() for table in ('words', 'bins'))
    return len(OPTIMIZERS) * rows * WIDTH * 4 if workers > 1 else 0


def main() -> None:
    """Train, compare, and write the result."""
    parser = argparse.ArgumentParser(prog='python -m mxhybrid.commands.sanity', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', metavar='DIRECTORY', help='write the result of each worker there, as JSON')
    options = parser.parse_args()
    errors = {}
    for optimizer in OPTIMIZERS:
        store, weights = train(optimizer)
        for name, values in expected(optimizer).items():
            error = float(np.abs(weights[name] - values).max())
            errors['%s of %s' % (name, optimizer)] = error if np.isfinite(error) else 1e30
    job = current()
    assert job is not None
    result = {'rank': store.rank, 'workers': store.num_workers, 'servers': job.num_servers, 'hosts': job.topology.hosts,
              'errors': errors, 'bytes': counted_bytes(), 'fewest': fewest_bytes(store.num_workers)}
    if options.out:
        with open(os.path.join(options.out, 'rank%d.json' % store.rank), 'w') as handle:
            json.dump(result, handle)
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > TOLERANCE:
        sys.exit('worker %d: %s is off by %.3g, more than %g' % (store.rank, worst, errors[worst], TOLERANCE))
    if store.rank == 0:
        sys.stdout.write('%d workers, %d servers: all weights equal those of NumPy within %.1g\n'
                         % (store.num_workers, result['servers'], TOLERANCE))


if __name__ == '__main__':
    main()
