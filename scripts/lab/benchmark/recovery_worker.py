"""The script of the workers of the workload `recovery`: weights and state of a size, of which half are a dynamic table.

Worker 0 writes the generation, the number and the time of each step.
"""
import os
import sys
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid

WIDTH, BATCH = 64, 2000


def main():
    """Train; the last argument is the number of steps from one commit to the next, 0 for no commits."""
    directory, megabytes, steps, every = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    store = mx.kv.create('hybrid')
    mx.random.seed(1)
    units = int(megabytes * 1e6 / 4 / 4 / WIDTH)  # a quarter each: dense weights, their momentum, rows, theirs
    net = gluon.nn.Sequential()
    table, dense = mxhybrid.nn.HashEmbedding(WIDTH), gluon.nn.Dense(units, in_units=WIDTH, use_bias=False)
    net.add(table, dense)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9}, kvstore=store)
    state = mxhybrid.elastic.State(net, trainer)
    while state.step < steps:
        random = np.random.RandomState(state.step * store.num_workers + store.rank)
        keys = random.randint(units, size=BATCH) if state.step else np.arange(store.rank, units, store.num_workers)
        with autograd.record():
            rows = table(keys)
            loss = (dense(rows[:32]) ** 2).sum() + rows.sum()
        loss.backward()
        trainer.step(BATCH)
        mx.nd.waitall()
        state.step += 1
        if store.rank == 0:
            with open(os.path.join(directory, 'steps'), 'a') as file:
                file.write('%d %d %.3f\n' % (state.generation, state.step, time.time()))
        if every:
            state.commit(every)


if __name__ == '__main__':
    main()
