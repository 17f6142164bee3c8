"""Pipelines of four workers, compared with one process that adds up the same micro-batches."""
import sys
import tempfile
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from lab.reports import computed_once, report
from lab.split_memory import Peak
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.kvstore.weight_shards import shard_of
from mxhybrid.parallel import pipeline
from mxhybrid.parallel.redistribution.redistribution_operator import RedistributionOperator
from tests.helpers.gluon_nets import Net, backward, in_turn, initialised, trainer_of
from tests.helpers.outcomes import relative_difference

WORDS, UNITS, TIMES, BATCH, STEPS = 12, 8, 5, 16, 3
#: The operators of each of four stages.
LAYERS = [['embedding*', 'layer0*'], 'layer1*', 'layer2*', 'decoder*']


def model(norm):
    """Return a network with its loss, whose first and last layers share a weight; the first stage has its last output.
    """
    def make():
        embedding = nn.Embedding(WORDS, UNITS, prefix='embedding_')
        layers = [embedding, nn.Dense(WORDS, in_units=UNITS, flatten=False, params=embedding.params, prefix='decoder_'),
                  gluon.loss.SoftmaxCrossEntropyLoss(prefix='loss_')]
        for at in range(3):
            layers.append(nn.Dense(UNITS, in_units=UNITS, flatten=False, activation='tanh', prefix='layer%d_' % at))
            if norm:
                layers.append(nn.BatchNorm(axis=2, in_channels=UNITS, prefix='norm%d_' % at))
        return layers

    def call(F, words, labels, embedding, decoder, loss, *layers):
        first = embedding(words)
        decoded = decoder(in_turn(F, first, *layers) + first)
        return loss(decoded, labels), F.argmax(decoded, axis=2), F.sum(first, axis=2)
    return Net(make, call, 'model_')


def build(seed, norm=True, dtype='float64'):
    """Return the network with values, which differ with the seed."""
    mx.random.seed(seed)
    net = initialised(model(norm), mx.init.Uniform(0.5), dtype=dtype)
    net(*batch(0, slice(None), dtype))
    return net


DATA = [np.random.RandomState(seed).randint(0, WORDS, (STEPS, BATCH, TIMES)) for seed in (1, 2)]


def batch(number, samples, dtype='float64'):
    """Return words and labels."""
    return [mx.nd.array(array[number][samples], dtype=dtype) for array in DATA]


def run(net, number, samples, dtype, scale, early_scale):
    """Make both passes, with a gradient of the first stage's output unless its scale is 0; return loss and output."""
    words, labels = batch(number, samples, dtype)
    with autograd.record():
        loss, best, early = net(words, labels)
        scaled = loss * scale
    if early_scale:
        autograd.backward([scaled, early], [mx.nd.ones_like(scaled), mx.nd.ones_like(early) * early_scale])
    else:
        scaled.backward()
    assert best.shape == words.shape
    return np.concatenate([loss.expand_dims(1).asnumpy(), early.asnumpy()], axis=1)


def train_alone(norm, micro_batches, scale, dtype, early_scale):
    """Train in one process; return losses and outputs of the first stage by step, and all parameters by name."""
    net, losses = build(1, norm, dtype), []
    for param in net.collect_params().values():
        param.grad_req = 'null' if param.grad_req == 'null' else 'add'
    trainer = trainer_of(net, 'adam', 'device', learning_rate=0.02)
    for number in range(STEPS):
        net.collect_params().zero_grad()
        losses.append(np.concatenate([run(net, number, micro_batch, dtype, scale, early_scale)
                                      for micro_batch in np.split(np.arange(BATCH), micro_batches)]))
        trainer.step(BATCH)
    return losses, {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def train(plan, micro_batches, store, norm=True, scale=1.0, dtype='float64', early_scale=0.0):
    """Train by a pipeline; return its report."""
    losses, expected = computed_once(store, lambda: train_alone(norm, micro_batches, scale, dtype, early_scale))
    net = mxhybrid.parallelize(build(1 + store.rank, norm, dtype), plan, [(BATCH, TIMES)] * 2, dtype=dtype)
    trainer, apart = trainer_of(net, 'adam', mxhybrid.create(), learning_rate=0.02), 0.0
    for number in range(STEPS):
        if number == 1:
            net(*batch(number, net.samples, dtype))  # neither recorded nor in training mode
        returned = run(net, number, net.samples, dtype, scale, early_scale)
        trainer.step(BATCH)
        apart = max(apart, float(np.abs(returned - losses[number][net.samples]).max()))
    params = net.collect_params()
    worst = relative_difference(net, [expected[name] for name in params])
    shard = next(shard_of(param) for name, param in params.items() if name.endswith('embedding_weight'))
    tied = None if shard is None else sorted(shard._boxes)
    return {'error': worst, 'losses': apart, 'alive': net._calls.most_alive, 'tied': tied,
            'report': net.report()}, net


def files(net):
    """Return whether the saved plan gives the same stages, and whether another batch has the same network's loss."""
    with tempfile.NamedTemporaryFile() as file:
        net.save_plan(file.name)
        again = mxhybrid.parallelize(build(1), file.name, [(BATCH, TIMES)] * 2, dtype='float64')
    other = again.for_data([(8, TIMES)] * 2)
    whole = build(1)(*batch(0, slice(8)))[0].asnumpy()
    apart = float(np.abs(other(*batch(0, other.samples))[0].asnumpy() - whole[other.samples]).max())
    return {'same': again._network.stages == net._network.stages, 'apart': apart}


def output_of_data(schedule):
    """Return how far outputs, of which one is of data alone, and the weight after a step are from exact ones."""
    net = initialised(Net(lambda: [nn.Dense(3, in_units=2, prefix='last_', weight_initializer='ones')],
                          lambda F, data, last: (last(data), F.square(data, name='square'))))
    net = mxhybrid.parallelize(net, pipeline({'square*': [0, 1], '*last*': [2, 3]}, 2, schedule), (4, 2))
    trainer = trainer_of(net, kvstore=mxhybrid.create())
    whole = np.arange(8, dtype='float32').reshape(4, 2)
    with autograd.record():
        sums, squares = net(mx.nd.array(whole[net.samples]))
    autograd.backward([sums, squares] if schedule == 'gpipe' else [sums])
    trainer.step(4)
    differences = [np.abs(sums.asnumpy() - whole[net.samples].sum(axis=1, keepdims=True)).max(),
                   np.abs(squares.asnumpy() - whole[net.samples] ** 2).max()]
    weight = net.collect_params()['net_last_weight']
    if weight.shape is not None and shard_of(weight).holds:
        differences.append(np.abs(weight.data().asnumpy() - (1 - whole.mean(axis=0))).max())
    return [float(difference) for difference in differences]


def overlap(store):
    """Return the number of transfers that stage 0 begins, two for each micro-batch.

    The last stage takes the first micro-batch once stage 0 has computed as many as there are stages, so that a step
    without overlap would never end.
    """
    counts, original, folder = [0], RedistributionOperator.forward, Path(sys.argv[1])

    def forward(self, *arrays):
        counts[0] += 1
        if store.rank == 0:
            (folder / ('sent-%d' % counts[0])).touch()
        if store.rank == store.num_workers - 1 and counts[0] == 1:
            while not (folder / ('sent-%d' % (2 * store.num_workers))).exists():
                time.sleep(0.01)
        original(self, *arrays)
    net = mxhybrid.parallelize(build(1, False), pipeline(LAYERS, 8), [(BATCH, TIMES)] * 2, dtype='float64')
    RedistributionOperator.forward = forward
    try:
        backward(lambda: net(*batch(0, net.samples))[0])
        mx.nd.waitall()
    finally:
        RedistributionOperator.forward = original
    return len(list(folder.glob('sent-*')))


def memory(schedule):
    """Return the bytes that a step of 16 micro-batches with large activations in the first stage needs in addition."""
    def call(F, data, first, last):
        hidden = first(data)
        for at in range(8):
            hidden = F.tanh(hidden, name='net_first_tanh%d' % at)
        return last(F.mean(hidden, axis=1, keepdims=True))

    net = initialised(Net(lambda: [nn.Dense(1 << 18, in_units=1, prefix='first_', weight_initializer='zeros'),
                                   nn.Dense(1, in_units=1, prefix='last_')], call))
    net = mxhybrid.parallelize(net, pipeline({'first*': [0], 'mean*': [0], 'last*': [1, 2, 3]}, 16, schedule), (16, 1))
    mx.nd.waitall()
    peak = Peak()
    backward(lambda: net(mx.nd.ones((4, 1))))
    mx.nd.waitall()
    return peak.size_bytes


def main():
    store = mxhybrid.create()
    results = {}
    results['1f1b'], net = train(pipeline(LAYERS, 8), 8, store)
    results['files'] = files(net)
    results['eager-1f1b'], _ = train(pipeline(LAYERS, 8, 'eager-1f1b'), 8, store)
    results['gpipe'], _ = train(pipeline(LAYERS, 8, 'gpipe'), 8, store, early_scale=0.5)
    for schedule in ('1f1b', 'eager-1f1b', 'gpipe'):
        recomputed = pipeline(LAYERS, 8, schedule).with_recompute(['layer*', 'norm*'])
        results['recomputed ' + schedule], _ = train(recomputed, 8, store)
    results['scaled'], _ = train(pipeline(4, 4), 4, store, scale=0.25)
    results['scaled gpipe'], _ = train(pipeline(4, 4, 'gpipe'), 4, store, scale=0.25)
    results['single samples'], _ = train(pipeline(2, 16), 16, store, norm=False)
    results['inside'], _ = train(pipeline(2, 4, inside={'layer*': {'channels': 2}}), 4, store)
    results['uneven'], _ = train(pipeline({'embedding*': [2], 'layer*': [0, 1, 3], 'decoder*': [0, 1, 3]}, 2), 2, store)
    results['float32'], _ = train(pipeline(LAYERS, 8), 8, store, norm=False, dtype='float32')
    report(store.rank, outcomes=results, sent=overlap(store),
           memory={schedule: memory(schedule) for schedule in ('1f1b', 'gpipe')},
           output_of_data={schedule: output_of_data(schedule) for schedule in ('1f1b', 'gpipe')})


main()
