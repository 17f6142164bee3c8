"""What the examples share: common flags, the choice of the store, and a worker's share of a batch."""
import mxnet as mx

import mxhybrid


def add_common_arguments(parser, epochs, batch_size, lr):
    """Add the flags that every example has, with this example's defaults."""
    parser.add_argument('--epochs', type=positive, default=epochs, help='passes over the data (default %(default)s)')
    parser.add_argument('--batch-size', type=positive, default=batch_size,
                        help='of all workers together, a multiple of their number (default %(default)s)')
    parser.add_argument('--lr', type=float, default=lr, help='learning rate of adagrad (default %(default)s)')
    parser.add_argument('--kvstore', choices=['hybrid', 'dist_sync', 'local', 'none'], default='hybrid',
                        help="hybrid: this project's; dist_sync: MXNet's parameter servers, needs launch.py; "
                             "local: MXNet's store for one process; none: the same as local, because row_sparse "
                             'weights cannot be trained without a store (default %(default)s)')
    parser.add_argument('--partitions', type=positive, default=None,
                        help='pieces to cut each table into, hybrid only (default: the store decides)')
    parser.add_argument('--seed', type=int, default=1, help='the same in all workers (default %(default)s)')
    parser.add_argument('--data-dir', default=None,
                        help='where the data is kept (default: $MXHYBRID_DATA, else ~/.cache/mxhybrid)')


def positive(text):
    """Parse an integer above zero, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def make_store(args):
    """Return the ``mx.kvstore.KVStore`` that ``--kvstore`` and ``--partitions`` ask for."""
    if args.kvstore == 'hybrid':
        return mx.kv.create('hybrid') if args.partitions is None else mxhybrid.create(partitions=args.partitions)
    if args.partitions is not None:
        raise SystemExit('--partitions {} needs --kvstore hybrid, got {}'.format(args.partitions, args.kvstore))
    return mx.kv.create('local' if args.kvstore == 'none' else args.kvstore)


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


def print_report(store):
    """Print on rank 0 what the store has moved so far and which way, where the store can tell."""
    if store.rank == 0 and store.num_workers > 1 and hasattr(store, 'report'):
        print(store.report(), flush=True)
