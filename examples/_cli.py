"""Code that the examples share: common flags, the choice of the store, and a worker's share of a batch."""
import json
from collections import namedtuple

import mxnet as mx
from mxnet import gluon

import mxhybrid

STORES = ['hybrid', 'dist_sync', 'device', 'local', 'none']

# In the place of a store, where Horovod's Trainer needs none.
Workers = namedtuple('Workers', 'rank num_workers local_rank')


def add_common_arguments(parser, epochs, batch_size, lr, stores=()):
    """Add the flags that every example has, with this example's defaults and the stores that it has besides."""
    parser.add_argument('--epochs', type=positive, default=epochs, help='passes over the data (default %(default)s)')
    parser.add_argument('--batch-size', type=positive, default=batch_size,
                        help='of all workers together, a multiple of their number (default %(default)s)')
    parser.add_argument('--lr', type=float, default=lr, help='learning rate of adagrad (default %(default)s)')
    parser.add_argument('--kvstore', choices=STORES + list(stores), default='hybrid',
                        help="hybrid: this project's; dist_sync: MXNet's parameter servers, needs launch.py; "
                             "local, device: MXNet's stores for one process; none: the same as local, because "
                             'row_sparse weights cannot be trained without a store; horovod, where there is that '
                             "choice: Horovod's DistributedTrainer, with dense tables (default %(default)s)")
    parser.add_argument('--gpus', action='store_true',
                        help='compute on GPUs: each worker on that of its number on its host')
    parser.add_argument('--partitions', type=positive, default=None,
                        help='pieces to cut each table into, hybrid only (default: the store decides)')
    parser.add_argument('--seed', type=int, default=1, help='the same in all workers (default %(default)s)')
    parser.add_argument('--checkpoint', metavar='DIR', default=None,
                        help='save checkpoints there; seen by rank 0 only (default: none)')
    parser.add_argument('--save-every', type=positive, metavar='N', default=100,
                        help='steps between checkpoints (default %(default)s)')
    parser.add_argument('--resume', action='store_true',
                        help='go on from the newest checkpoint, if there is one')
    parser.add_argument('--elastic', action='store_true',
                        help='commit to memory every --save-every steps and go on from the last commit, under '
                             'mxhybrid run')
    parser.add_argument('--losses', metavar='FILE', default=None,
                        help='rank 0 appends the loss of each step to this file, as JSON lines')
    parser.add_argument('--data-dir', default=None,
                        help='where the data is kept (default: $MXHYBRID_DATA, else ~/.cache/mxhybrid)')


def positive(text):
    """Parse an integer above zero, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def make_store(args):
    """Return the ``mx.kvstore.KVStore`` that the flags ask for; for Horovod's Trainer, an object with rank and size."""
    if args.kvstore == 'hybrid':
        return mx.kv.create('hybrid') if args.partitions is None else mxhybrid.create(partitions=args.partitions)
    if args.partitions is not None:
        raise SystemExit('--partitions {} needs --kvstore hybrid, got {}'.format(args.partitions, args.kvstore))
    if args.kvstore == 'horovod':
        if args.checkpoint is not None:
            raise SystemExit('--checkpoint needs a store, got --kvstore horovod')
        import horovod.mxnet as hvd
        hvd.init()
        return Workers(hvd.rank(), hvd.size(), hvd.local_rank())
    return mx.kv.create('local' if args.kvstore == 'none' else args.kvstore)


def make_trainer(args, params, options, store):
    """Return the Trainer for a store of :func:`make_store`; divided by :func:`divisor`, gradients are summed."""
    if args.kvstore != 'horovod':
        return gluon.Trainer(params, 'adagrad', options, kvstore=store)
    import horovod.mxnet as hvd
    hvd.broadcast_parameters(params)
    return hvd.DistributedTrainer(params, 'adagrad', options)


def divisor(args, store):
    """Return the batch size for ``step()``: Horovod averages gradients over workers, stores add them up."""
    return 1 / store.num_workers if args.kvstore == 'horovod' else 1


def choose_device(args, store):
    """Return where this worker computes; dist_sync knows no hosts, so its workers are on one."""
    if not args.gpus:
        return mx.cpu()
    found = mx.context.num_gpus()
    if not found:
        raise SystemExit('--gpus: MXNet finds no GPU here; mxhybrid doctor may say why')
    return mx.gpu(getattr(store, 'local_rank', store.rank) % found)


def share(total, rank, num_workers):
    """Return this worker's slice of a global batch of `total` samples; the slices of all ranks join to the whole.

    Raises
    ------
    ValueError
        `total` is not a multiple of the number of workers.
    """
    if total % num_workers:
        raise ValueError('--batch-size {} is not a multiple of the {} workers; use {}'.format(
            total, num_workers, total + -total % num_workers))
    local = total // num_workers
    return slice(rank * local, (rank + 1) * local)


class Checkpoints:
    """The checkpoints of a model and its Trainer, as the flags say.

    Attributes
    ----------
    step : int
        Steps that were done before: 0, or those of the checkpoint that was loaded.
    extra : JSON value
        What :meth:`save` was given then, else None.
    """

    def __init__(self, args, net, trainer):
        if args.resume and args.checkpoint is None:
            raise SystemExit('--resume needs --checkpoint, the directory to resume from')
        self._args, self._net, self._trainer = args, net, trainer
        self._losses = args.losses
        self._state = None
        if args.elastic:
            self._state = mxhybrid.elastic.State(net, trainer, args.checkpoint, extra=None)
            self.step, self.extra = self._state.step, self._state.extra
            return
        found = mxhybrid.checkpoint.load(args.checkpoint, net, trainer) if args.resume else None
        self.step, self.extra = (found.step, found.extra) if found else (0, None)

    def due(self, step):
        """Return whether to save after this step."""
        return (self._args.checkpoint or self._args.elastic) and step % self._args.save_every == 0

    def allgather(self, value):
        """The JSON value of every worker, in rank order."""
        return mxhybrid.checkpoint.allgather(self._trainer, value)

    def save(self, step, extra, **options):
        """Save, on all workers; rank 0's `extra` counts."""
        if self._state is not None:
            self._state.step, self._state.extra = step, extra
            self._state.commit()
            return
        mxhybrid.checkpoint.save(self._args.checkpoint, self._net, self._trainer, step, extra, **options)

    def log_loss(self, store, step, loss):
        """Append the loss (NDArray of one element) of a step to the file, if one is wanted."""
        if self._losses is not None and store.rank == 0:
            with open(self._losses, 'a') as handle:
                handle.write(json.dumps({'step': step, 'loss': loss.asscalar().item()}) + '\n')
