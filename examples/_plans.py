"""Code that the examples of split networks share: flags, plans as text, and the same training in one process."""
import functools

from _cli import positive
from mxnet import autograd, gluon

import mxhybrid

KINDS = {'data_parallel': mxhybrid.parallel.data_parallel, 'one_weird_trick': mxhybrid.parallel.one_weird_trick,
         'grid': mxhybrid.parallel.grid, 'megatron': mxhybrid.parallel.megatron,
         'sequence': functools.partial(mxhybrid.parallel.megatron, sequence=True),
         'pipeline': mxhybrid.parallel.pipeline}


def add_plan_arguments(parser, plan, steps, batch_size, lr, optimizer='sgd'):
    """Add the flags that every example of a split network has; `plan` describes the default plan."""
    parser.add_argument('--plan', default=None, metavar='PLAN',
                        help='data_parallel, one_weird_trick, a grid as grid:model=2,batch=2 or grid:domain=2x2, '
                             'megatron:model=2,batch=2 or sequence:model=2,batch=2 for Transformers, '
                             'pipeline:stages=2,micro_batches=4 where the network returns a loss, a JSON file with a '
                             'plan, or auto, which searches for one (default: %s)' % plan)
    parser.add_argument('--cluster', metavar='FILE', default=None,
                        help='what mxhybrid calibrate has written; for --plan auto')
    parser.add_argument('--search-seconds', type=float, default=5, metavar='S',
                        help='of --plan auto, once operators have been timed (default %(default)s)')
    parser.add_argument('--steps', type=positive, default=steps, help='default %(default)s')
    parser.add_argument('--batch-size', type=positive, default=batch_size,
                        help='of all workers together; may be below their number (default %(default)s)')
    parser.add_argument('--lr', type=float, default=lr, help='learning rate of %s (default %%(default)s)' % optimizer)
    parser.add_argument('--seed', type=int, default=1, help='the same in all workers (default %(default)s)')
    parser.add_argument('--save', metavar='FILE', default=None,
                        help='write the whole network there in the end, as save_parameters does in one process')


def plan_of(text):
    """The plan that a text says, for :func:`mxhybrid.parallelize`: a plan, ``'auto'`` or the name of a file."""
    kind, _, factors = text.partition(':')
    if kind not in KINDS:
        return text
    try:
        given = {}
        for name, sizes in [one.split('=') for one in factors.split(',') if one]:
            found = [int(size) for size in sizes.split('x')]
            given[name] = found[0] if len(found) == 1 and name != 'domain' else found
        return KINDS[kind](**given)
    except (TypeError, ValueError) as error:  # InputError is a ValueError
        raise SystemExit('--plan %s: %s; give grid:model=2,batch=2 or megatron:model=2,batch=2, for example'
                         % (text, error)) from error


def split(args, net, plan, shape, named=None):
    """Split the network over all workers, by the plan of the flags or by `plan`; `shape` is that of the joint batch,
    `named` has this example's plans by name.
    """
    chosen = plan if args.plan is None else (named or {}).get(args.plan) or plan_of(args.plan)
    if args.cluster is not None and chosen != 'auto':
        raise SystemExit('--cluster %s works only with --plan auto: give --plan auto, too' % args.cluster)
    try:
        return mxhybrid.parallelize(net, chosen, shape, cluster=args.cluster, search_seconds=args.search_seconds,
                                   recompute=getattr(args, 'recompute', None))
    except mxhybrid.InputError as error:
        raise SystemExit('--plan %s: %s' % (args.plan or plan.name, error)) from error


class OneProcess:
    """Training on joint batches from the same weights, in worker 0 alone.

    Parameters
    ----------
    net : gluon.HybridBlock
        With values, before it is split.
    another : gluon.HybridBlock
        Made by the same function.
    optimizer : str
    settings : dict
    store : mxhybrid.Hybrid
    loss_of : callable, optional
        Makes the loss from outputs and labels; by default the cross-entropy.
    """

    def __init__(self, net, another, optimizer, settings, store, loss_of=None):
        self._here = store.rank == 0
        if not self._here:
            return
        another.initialize()
        for own, other in zip(another.collect_params().values(), net.collect_params().values()):
            own.shape = other.shape
            own.set_data(other.data().copy())
        self._net, self._loss_of = another, loss_of or gluon.loss.SoftmaxCrossEntropyLoss()
        self._trainer = gluon.Trainer(another.collect_params(), optimizer, dict(settings), kvstore=None)

    def step(self, images, labels):
        """Train on a joint batch; the loss of each sample, None on other workers."""
        if not self._here:
            return None
        with autograd.record():
            loss = self._loss_of(self._net(images), labels)
        loss.backward()
        self._trainer.step(len(images))
        return loss

    @staticmethod
    def joint(trainer, net, loss, alone):
        """Return the mean loss of the joint batch, from the samples of each worker, and the loss of one process
        (collective).
        """
        found = mxhybrid.checkpoint.allgather(trainer, [
            net.samples.start, loss.asnumpy().tolist(), None if alone is None else alone.mean().asscalar().item()])
        # If there are fewer samples than workers, several workers have the same sample.
        of_sample = {first + at: one for first, losses, _ in found for at, one in enumerate(losses)}
        return sum(of_sample.values()) / len(of_sample), found[0][2]
