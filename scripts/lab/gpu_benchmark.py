"""Words per second of examples/word_lm.py on GPUs, by the transport of gradients and rows; scripts/gpu runs it.

    python -m lab.gpu_benchmark                   # as many workers as there are GPUs, at least two
    python -m lab.gpu_benchmark --cpus --epochs 1 --max-tokens 60000   # the same jobs without GPUs

Every job trains the same model on the same batches, so the perplexity in the table is the same in each row, up to
rounding: a row with another one has not computed the same, and the exit status is 1.
"""
import argparse
import json
import re
import sys
from collections import namedtuple

import horovod.mxnet as hvd
import mxnet as mx

from .jobs import run_job
from .launchers import REPOSITORY
from .processes import JobFailed

EXAMPLE = REPOSITORY / 'examples' / 'word_lm.py'
#: Relative difference of perplexities that is rounding.
TOLERANCE = 0.02

Contender = namedtuple('Contender', 'name launcher workers kvstore env')
Row = namedtuple('Row', 'name workers words perplexity')


def contenders(workers, carrier):
    """Return the contenders; `carrier` is the library by which Horovod sums, empty if there is none."""
    compared = [Contender("MXNet's device, one process", 'none', 1, 'device', {}),
                Contender('mxhybrid, one process', 'none', 1, 'hybrid', {}),
                Contender('mxhybrid, dense sums on the host', 'horovodrun', workers, 'hybrid',
                          {'MXHYBRID_DENSE_TRANSPORT': 'lane'}),
                Contender("MXNet's dist_sync", 'launch.py', workers, 'dist_sync', {})]
    if carrier:
        compared += [Contender("mxhybrid, dense sums by Horovod's " + carrier, 'horovodrun', workers, 'hybrid',
                               {'MXHYBRID_DENSE_TRANSPORT': 'horovod'}),
                     Contender("Horovod's DistributedTrainer, dense tables, " + carrier, 'horovodrun', workers,
                               'horovod', {})]
    return compared


def measure(contender, flags, timeout):
    """Row: one job; JobFailed or AssertionError where it fails."""
    result = run_job(EXAMPLE, contender.launcher, workers=contender.workers,
                     args=['--kvstore', contender.kvstore] + flags, env=dict(contender.env), timeout=timeout).ok()
    # The last epoch: the first one includes work that is done once.
    words = re.findall(r'([\d,]+) words/s', result.output)[-1]
    perplexity, = re.findall(r'final test perplexity ([\d.]+)', result.output)
    return Row(contender.name, contender.workers, int(words.replace(',', '')), float(perplexity))


def lines_of(rows):
    """list of str: a table."""
    return (['| way | workers | words/s | test perplexity |', '|---|---|---|---|']
            + ['| %s | %d | %s | %.1f |' % (row.name, row.workers, format(row.words, ','), row.perplexity)
               for row in rows])


def main():
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--workers', type=int, default=0, help='default: one for each GPU, at least two')
    parser.add_argument('--cpus', action='store_true', help='compute on CPUs, to try the jobs')
    parser.add_argument('--timeout', type=float, default=1800, help='seconds for each job (default %(default)s)')
    parser.add_argument('--json', metavar='FILE', help='also write the rows to FILE')
    options, flags = parser.parse_known_args()
    gpus = mx.context.num_gpus()
    if not gpus and not options.cpus:
        raise SystemExit('ERROR: MXNet finds no GPU: nothing was measured')
    workers = options.workers or max(2, gpus)
    nccl = bool(hvd.nccl_built())
    # NCCL takes one worker for each GPU.
    carrier = 'Gloo' if options.cpus else 'NCCL' if nccl and workers <= gpus else ''
    if not carrier:
        why = 'Horovod was built without NCCL' if not nccl else '%d workers share %d GPU(s)' % (workers, gpus)
        print("Not measured, since %s: dense sums by NCCL, Horovod's DistributedTrainer" % why, flush=True)
    rows, failed = [], False
    for contender in contenders(workers, carrier):
        try:
            rows.append(measure(contender, flags + ([] if options.cpus else ['--gpus']), options.timeout))
            print(lines_of(rows[-1:])[-1], flush=True)
        except (JobFailed, AssertionError) as error:
            failed = True
            print('FAILED: %s\n%s' % (contender.name, error), flush=True)
    print('\n'.join([''] + lines_of(rows)))
    if options.json:
        with open(options.json, 'w') as handle:
            json.dump([row._asdict() for row in rows], handle, indent=1)
    expected = rows[0].perplexity if rows else 0
    differ = [row.name for row in rows if abs(row.perplexity - expected) > TOLERANCE * expected]
    if differ:
        print('FAILED: another perplexity than %s has: %s' % (rows[0].name, ', '.join(differ)))
    sys.exit(1 if failed or differ else 0)


if __name__ == '__main__':
    main()
