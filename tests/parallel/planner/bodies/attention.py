"""Trains Transformers by the plan that a search finds, and by plans of a folder, and compares them with one process;
args: the folder, which has a cluster file and for each network a file of plans.

Reports how far weights are from those of one process, by network and plan.
"""
import json
import os
import sys

import mxnet as mx
import numpy as np
from lab.benchmark.transformers import Bert, Gpt
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.parallel.plans.plan_json import from_json

BATCH, TIMES, WORDS, STEPS = 4, 8, 30, 2
#: MXNet's interleaved products compute as float32 alone on CPUs.
TYPES = {'bert': 'float32', 'gpt': 'float64'}


def network(name):
    """Return a network, and its inputs for the joint batch."""
    mx.random.seed(3)
    net = {'bert': Bert, 'gpt': Gpt}[name](2, 16, 2, WORDS, TIMES)
    net.cast(TYPES[name])
    net.initialize(mx.init.Xavier(magnitude=2))
    draw = np.random.RandomState(1)
    ids, labels = (draw.randint(0, WORDS, (BATCH, TIMES)) for _ in range(2))
    if name == 'gpt':
        return net, [ids, labels]
    return net, [ids, draw.randint(0, 2, (BATCH, TIMES)), draw.randint(1, TIMES + 1, BATCH), draw.randint(0, 2, BATCH)]


def train(net, store, samples, arrays, dtype):
    """Train on the samples of some arrays."""
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9}, kvstore=store)
    inputs = [mx.nd.array(array[samples], dtype=dtype) for array in arrays]
    for _ in range(STEPS):
        with autograd.record():
            loss = net(*inputs)
        loss.backward()
        trainer.step(BATCH)
    mx.nd.waitall()


def apart(name, plan, folder, **settings):
    """Return how far weights after a training by a plan are from those of one process."""
    alone, arrays = network(name)
    train(alone, None, slice(None), arrays, TYPES[name])
    split = mxhybrid.parallelize(network(name)[0], plan, [array.shape for array in arrays], dtype=TYPES[name],
                                 **settings)
    store = mxhybrid.create()  # one for each Trainer
    train(split, store, split.samples, arrays, TYPES[name])
    path = os.path.join(folder, 'trained.params')
    split.save_parameters(path)
    found = mx.nd.load(path)
    # Biases of keys have no gradient but that of rounding: softmax is the same whatever is added to all scores.
    distances = [np.abs(found[place].asnumpy() - param.data().asnumpy()).max()
                 / max(0.1, np.abs(param.data().asnumpy()).max())
                 for place, param in alone._collect_params_with_prefix().items() if param.grad_req != 'null']
    store.backend.barrier()  # before the next file
    return float(max(distances))


def main():
    """Train each network by each plan."""
    folder, store = sys.argv[1], mxhybrid.create()
    distances = {}
    for name in ('bert', 'gpt'):
        with open(os.path.join(folder, '%s.json' % name)) as file:
            plans = json.load(file)
        distances[name] = {plan: apart(name, from_json(value), folder) for plan, value in plans.items()}
        distances[name]['auto'] = apart(name, 'auto', folder, search_seconds=2,
                                        cluster=os.path.join(folder, 'cluster.json'))
    report(store.rank, apart=distances)


if __name__ == '__main__':
    main()
