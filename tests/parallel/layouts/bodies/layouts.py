"""Trains networks under several plans, and compares all weights with training in one process; args: JSON, by name.

A network has a ``net`` (a function of nets.py), ``plans`` (as JSON, or a number: a drawn one), ``steps``, ``batch``,
``optimizer``, ``settings``, and what else is named in OPTIONS.  Reports for each plan the worst error, relative to the
largest weight, the number of redistributions, and the shards of each worker.
"""
import json
import os
import signal
import sys

import mxnet as mx
import nets
import numpy as np
from lab.reports import computed_once, report
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.sharding import sum_steps
from mxhybrid.parallel.sharding.split import Split
from tests.helpers.gluon_nets import initialised
from tests.helpers.outcomes import relative_difference

OPTIONS = {'steps': 5, 'batch': 8, 'optimizer': 'sgd', 'settings': {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 1e-3},
           'dtype': 'float64', 'grad_req': 'write', 'accumulate': 1, 'plans': [], 'kill': None, 'end': None,
           'clip': None, 'update_on_kvstore': None, 'two_steps': False}
MIN_SAVED_BYTES = sum_steps.MIN_SAVED_BYTES
#: The options of the network that is trained now.
GIVEN = {}


def drawn(seed):
    """A plan in which every operator is split at random, on ranks at random."""
    class Drawn(mxhybrid.parallel.Plan):
        def resolve(self, graph, dimensions, ranks):
            resolved = super().resolve(graph, dimensions, ranks)
            draw = np.random.RandomState(seed)
            for operator in graph.computing:
                limits = rule_of(operator).limits(graph, operator)
                left, degrees, partials = draw.randint(1, ranks + 1), [1] * len(limits), 1
                for dimension in draw.permutation(len(limits) + 1):
                    if dimension == len(limits):
                        partials = min(left, rule_of(operator).partials(graph, operator)) if draw.rand() < 0.5 else 1
                        left //= partials
                    else:
                        degrees[dimension] = min(left, limits[dimension])
                        left //= degrees[dimension]
                count = int(np.prod(degrees)) * partials
                resolved.splits[operator.number] = Split(degrees, draw.permutation(ranks)[:count], partials)
            return resolved
    return Drawn()


def train(net, store, samples, data):
    """Make all steps; return the losses of this worker's samples."""
    for param in net.collect_params().values():
        if param.grad_req != 'null':
            param.grad_req = GIVEN['grad_req']
    trainer = gluon.Trainer(net.collect_params(), GIVEN['optimizer'], dict(GIVEN['settings']), kvstore=store,
                            update_on_kvstore=GIVEN['update_on_kvstore'] if store else None)
    loss_of, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for step in range(GIVEN['steps']):
        if GIVEN['end'] == [step, getattr(store, 'rank', None)]:
            sys.exit()  # the others wait in the next redistribution, and no call of the store comes before it
        for _ in range(GIVEN['accumulate']):
            arrays = [mx.nd.array(one[step][samples], dtype=GIVEN['dtype']) for one in data]
            with autograd.record():
                loss = net(*arrays) if nets.has_loss(GIVEN['net']) else loss_of(net(arrays[0]), arrays[1])
            if GIVEN['kill'] == [step, getattr(store, 'rank', None)]:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
        if GIVEN['clip'] is None:
            trainer.step(GIVEN['batch'] * GIVEN['accumulate'])
        else:
            trainer.allreduce_grads()
            gradients = [param.grad() for param in net.collect_params().values() if param.grad_req != 'null']
            norm = gluon.utils.clip_global_norm(gradients, GIVEN['clip'])
            assert norm > GIVEN['clip']
            trainer.update(GIVEN['batch'])
        if GIVEN['grad_req'] == 'add':
            net.collect_params().zero_grad()
        losses.append(loss.asnumpy())
    return losses


def build(seed, inputs):
    """The network with values, which differ with the seed."""
    mx.random.seed(seed)
    net = initialised(getattr(nets, GIVEN['net'])(), mx.init.Xavier(), dtype=GIVEN['dtype'])
    net(*[mx.nd.array(array[0], dtype=GIVEN['dtype']) for array in inputs])
    return net


def train_alone(data, inputs):
    """Train in one process; return losses, and the values of all parameters by name."""
    net = build(1, inputs)
    losses = train(net, None, slice(None), data)
    return losses, {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def compare_plans(first):
    """Return the results of each plan of a network; `first` is the first store of the job."""
    data = nets.data_of(GIVEN['net'], GIVEN['steps'], GIVEN['batch'])
    inputs = data if nets.has_loss(GIVEN['net']) else data[:1]
    # Clipping by the norm asks the other workers, once a network is split: whether a gradient is a shard.
    losses, expected = train_alone(data, inputs) if GIVEN['clip'] else computed_once(
        first, lambda: train_alone(data, inputs))
    store, outcomes = mxhybrid.create(), []
    # The arrays of tests are small: by default their sums are made in one step.
    sum_steps.MIN_SAVED_BYTES = 1 if GIVEN['two_steps'] else MIN_SAVED_BYTES
    for plan in GIVEN['plans']:
        chosen = drawn(plan) if isinstance(plan, int) else from_json(plan) if 'plan' in plan else plan
        net = mxhybrid.parallelize(build(1 + store.rank, inputs), chosen, [array.shape[1:] for array in inputs],
                                   dtype=GIVEN['dtype'])
        mine = train(net, mxhybrid.create() if outcomes else store, net.samples, data)
        apart = max(float(np.abs(array - other[net.samples]).max()) for array, other in zip(mine, losses))
        held = sum(int(np.prod(param.shape)) for param in net.collect_params().values())
        outcomes.append({'error': relative_difference(net, [expected[name] for name in net.collect_params()]),
                         'losses': apart, 'held': held, 'redistributions': net.redistributions,
                         'pooling': sum(sum(array.bytes)
                                        for array in net._programs[True].redistributions if 'pool' in array.label)})
        # The next stores and Trainers begin with a garbage collection, which takes longer the more objects there are.
        net.release()
    return outcomes


def main():
    first = mxhybrid.create()
    found = {}
    for name, given in json.loads(sys.argv[1]).items():
        GIVEN.update({**OPTIONS, **given})
        found[name] = compare_plans(first)
    report(first.rank, outcomes=found)


main()
