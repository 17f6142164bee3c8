"""Ways in which scripts use a split network: how far weights are from those of one process, and errors, by name."""
import tempfile

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from tests.helpers.gluon_nets import Net, backward, initialised, step, trainer_of
from tests.helpers.outcomes import error_of, relative_difference, values_of

BATCH, SHAPE, STEPS = 8, (3, 8, 8), 4
store = mxhybrid.create()
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
draw = np.random.RandomState(0)
IMAGES, LABELS = draw.uniform(-1, 1, (STEPS + 2, BATCH) + SHAPE), draw.randint(0, 10, (STEPS + 2, BATCH))
GRID, STRIPS = parallel.grid(model=2, batch=store.num_workers // 2), parallel.grid(domain=(store.num_workers,))


def build(norm=True):
    mx.random.seed(1)
    return initialised(Net(lambda: [
        nn.Conv2D(8, 3, padding=1, in_channels=3), *[nn.BatchNorm(in_channels=8)] * norm, nn.Activation('relu'),
        nn.MaxPool2D(2, 2), nn.Flatten(), nn.Dense(16, activation='tanh', in_units=128), nn.Dense(10, in_units=16)]),
        mx.init.Xavier(), dtype='float64')


def split(net, plan=GRID, **settings):
    return mxhybrid.parallelize(net, plan, (BATCH,) + SHAPE, dtype='float64', **settings)


def batch(number, net=None, count=BATCH):
    """Return images and labels of a batch: the samples of a network's worker, if it is split."""
    samples = net.samples if isinstance(net, parallel.ParallelBlock) else slice(None)
    return [mx.nd.array(array[number][:count][samples], dtype='float64') for array in (IMAGES, LABELS)]


def loss_on(net, number, count=BATCH):
    data, labels = batch(number, net, count)
    return loss_of(net(data), labels)


def twice_in_a_step(net, trainer):
    for number in range(STEPS):
        (one, labels), (other, _), (third, _) = (batch(number + more, net) for more in range(3))
        with autograd.record():
            loss = loss_of(net(one) + 2 * net(other) - net(third), labels)
        loss.backward()
        trainer.step(BATCH)


def two_losses(net, trainer):
    for number in range(STEPS):
        step(trainer, lambda number=number: [loss_on(net, number), loss_on(net, number + 1)], BATCH)


def calls_that_are_given_up(net, trainer):
    kept = []
    for number in range(STEPS):
        kept += [recorded(net, batch(number, net)[0]) for _ in range(number)]
        net(batch(number, net)[0])  # and one that is not recorded
        step(trainer, lambda number=number: loss_on(net, number + 1), BATCH)


def inference_between_the_passes(net, trainer):
    for number in range(STEPS):
        other, _ = batch(number + 1, net)
        with autograd.record():
            loss = loss_on(net, number)
        net(other)
        loss.backward()
        net(other)
        trainer.step(BATCH)


def batches_of_other_sizes(net, trainer):
    for number, count in enumerate([BATCH, 5, 7, 5]):
        here = net.for_data((count,) + SHAPE) if isinstance(net, parallel.ParallelBlock) else net
        backward(lambda here=here, number=number, count=count: loss_on(here, number, count))
        trainer.step(count)


def rates_and_multipliers(net, trainer):
    params = list(net.collect_params('.*weight').values())
    params[1].lr_mult, params[2].wd_mult = 0.3, 0.0
    for number in range(STEPS):
        step(trainer, lambda number=number: loss_on(net, number), BATCH)
        if number == 1:
            trainer.set_learning_rate(0.02)


def apart(train, plan):
    """Return the largest difference of weights from those of one process, relative to the largest weight."""
    return apart_from((build(), split(build(), plan)), train)


def apart_from(nets, train):
    """Return the distance for a network that is not split and the same one split, with weights matched by place."""
    for net, kvstore in zip(nets, (None, mxhybrid.create())):
        train(net, trainer_of(net, kvstore=kvstore, learning_rate=0.1, momentum=0.9, wd=1e-2))
    return relative_difference(nets[1], values_of(nets[0]))


def counted():
    """A network whose names depend on the blocks that the process made before."""
    mx.random.seed(1)
    return initialised(Net(lambda: [
        nn.Conv2D(8, 3, padding=1, in_channels=3), nn.Flatten(), nn.Dense(16, activation='tanh', in_units=512),
        nn.Dense(10, in_units=16)], prefix=None, in_scope=False), mx.init.Xavier(), dtype='float64')


def uninitialised():
    """A network with layers whose input widths are known, and layers whose widths are not, without values."""
    net = Net(lambda: [nn.Conv2D(8, 3, padding=1), nn.BatchNorm(in_channels=8), nn.Activation('relu'), nn.Flatten(),
                       nn.Dense(16, activation='tanh', in_units=512), nn.Dense(16), nn.Dense(10, in_units=16)])
    net.cast('float64')
    return net


def values_that_parallelize_draws(plan):
    whole, net = uninitialised(), uninitialised()
    mx.random.seed(1)
    whole.initialize(mx.init.Xavier())
    whole(batch(0)[0])
    mx.random.seed(1 + store.rank)
    return apart_from((whole, split(net, plan, init=mx.init.Xavier())), rates_and_multipliers)


def other_names_on_each_worker():
    for _ in range(store.rank):
        nn.Dense(1)
    whole, split_net = counted(), split(counted())
    with tempfile.TemporaryDirectory() as folder:
        split_net.save_parameters(folder + '/values')
        for param in split_net.collect_params().values():
            param.set_data(mx.nd.zeros(param.shape, dtype='float64'))
        split_net.load_parameters(folder + '/values')
        differences = apart_from((whole, split_net), batches_of_other_sizes)
        trainer = gluon.Trainer(split_net.collect_params(), 'sgd', kvstore=mxhybrid.create())
        mxhybrid.checkpoint.save(folder + '/whole', split_net, trainer, 1)
        mxhybrid.checkpoint.load(folder + '/whole', split_net, trainer)
    return differences


def recorded(net, data):
    with autograd.record():
        return net(data)


def computed(net, data):
    with autograd.record():
        net(2 * data)


def in_another_order(net):
    """Backward passes of calls, the first one last."""
    data, _ = batch(0, net)
    # MXNet refuses several of them through the same array, or through running averages.
    first, second = recorded(net, data.copy()), recorded(net, data.copy())
    second.backward()
    recorded(net, data.copy()).backward()
    first.backward()
    net(data)


def second_pass_after_a_call(net):
    data, _ = batch(0, net)
    first = recorded(net, data.copy())
    first.backward(retain_graph=True)
    second = recorded(net, data.copy())
    first.backward()
    second.backward()
    net(data)


def errors():
    net, former = split(build()), build()
    before = gluon.Trainer(former.collect_params(), 'sgd', kvstore=mxhybrid.create())
    split(former)
    wanting, (data, _) = mx.nd.zeros((BATCH,) + SHAPE, dtype='float64')[net.samples], batch(0, net)
    wanting.attach_grad()
    alone = split(build())
    gluon.Trainer(alone.collect_params(), 'sgd')
    return {
        'input_grad': error_of(lambda: recorded(net, wanting)),
        'input_grad of what is computed': error_of(lambda: computed(net, wanting)),
        'another store': error_of(lambda: recorded(alone, data)),
        'a Trainer of before': error_of(lambda: before.step(BATCH)),
        'the whole network': error_of(lambda: former(data)),
        'split twice': error_of(lambda: split(former)),
        'cast': error_of(lambda: net.cast('float32')),
        'another type': error_of(lambda: net(data.astype('float32'))),
        'no NDArray': error_of(lambda: net(data.asnumpy())),
        'another shape': error_of(lambda: net(data[:0])),
        'too few samples': error_of(lambda: net.for_data((1,) + SHAPE)),
        'other weights': error_of(lambda: net.for_data((BATCH, 3, 16, 16))),
        'no shape': error_of(lambda: net.for_data(5)),
        'a second pass': error_of(lambda: second_pass_after_a_call(split(build(norm=False)))),
        'another order': error_of(lambda: in_another_order(split(build(norm=False)))),
    }


def redistribution_line():
    kvstore = mxhybrid.create()
    net = split(build(), STRIPS)
    rates_and_multipliers(net, gluon.Trainer(net.collect_params(), 'sgd', kvstore=kvstore))
    return kvstore.report().split('\n')[-1]


TRAININGS = (twice_in_a_step, two_losses, calls_that_are_given_up, batches_of_other_sizes)
differences = {train.__name__: max(apart(train, plan) for plan in (GRID, STRIPS))
               for train in (*TRAININGS, rates_and_multipliers)}
differences.update({'recomputed: ' + train.__name__: apart(train, GRID.with_recompute(['dense*', 'conv*']))
                    for train in (*TRAININGS, inference_between_the_passes)})
differences['values that parallelize draws'] = max(values_that_parallelize_draws(plan) for plan in (GRID, STRIPS))
differences['other names on each worker'] = other_names_on_each_worker()
net = split(build())
with tempfile.NamedTemporaryFile() as file:
    net.save_plan(file.name)
    differences['sizes, by a file'] = apart(batches_of_other_sizes, file.name)
other = net.for_data((BATCH - 1,) + SHAPE)
differences['one build for each shape'] = float(not (
    net.for_data([BATCH - 1] + list(SHAPE)) is other
    and net is net.for_data((BATCH,) + SHAPE) is other.for_data((BATCH,) + SHAPE)))
report(store.rank, differences=differences, errors=errors(), report_line=redistribution_line())
