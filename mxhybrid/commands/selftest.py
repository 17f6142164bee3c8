"""Run small jobs through every launcher on this host, and check their results.

Each job trains tables and a dense layer with sgd and with adam, in several partitions, and compares all weights with
those that NumPy computes; see mxhybrid.commands.sanity.  The kernel's counters of its connections show that the workers
really communicated.  The jobs use the default settings and take well under a minute together.

  mxhybrid selftest -np 2
  mxhybrid selftest -np 4 --launcher horovodrun

All jobs run on this host.  To check several hosts, start the same job yourself:

  horovodrun -np 4 -H hostA:2,hostB:2 --network-interface e0 python -m mxhybrid.commands.sanity

The exit status is 0 if the results of all jobs were right, else 1.
"""
import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ..base.text import size_text
from . import console
from .launching import LAUNCHERS, handled, run_job
from .main import run_alone

_JOB = ['-m', 'mxhybrid.commands.sanity']
#: Number of lines that are shown of a failed job's output, and seconds that a job may take.
_TAIL, _TIMEOUT_S = 25, 120.0
#: Maximal difference of float32 values that are summed in different orders; weights are below 1.
TOLERANCE = 2e-5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('-np', '--num-proc', type=int, default=2, metavar='N',
                        help='number of workers (default %(default)s)')
    parser.add_argument('--launcher', choices=['all', *LAUNCHERS], default='all',
                        help='launcher to try (default: all); python is one process without a launcher')
    parser.add_argument('--timeout', type=float, default=_TIMEOUT_S, metavar='S',
                        help='seconds that each job may take (default %(default)g)')
    parser.add_argument('--verbose', action='store_true', help='show all output of the jobs')


def judge(results: List[Dict[str, Any]], workers: int) -> Tuple[bool, str]:
    """Return whether the results that the workers of a successful job wrote are right, and the reason if not."""
    ranks = sorted(result['rank'] for result in results)
    if ranks != list(range(workers)) or any(result['workers'] != workers for result in results):
        return False, '%d workers were started, but those that answered have the ranks %s of %s' % (
            workers, ranks, sorted({result['workers'] for result in results}))
    worst = max((error, name, result['rank']) for result in results for name, error in result['errors'].items())
    if not worst[0] <= TOLERANCE:
        return False, '%s in worker %d is off by %.3g' % (worst[1], worst[2], worst[0])
    compared = 'all weights equal those of NumPy within %.1g' % worst[0]
    if workers == 1:
        return True, compared
    sent = sum(result['bytes']['sent'] for result in results)
    received = sum(result['bytes']['received'] for result in results)
    fewest = results[0]['fewest']
    if min(sent, received) < fewest:
        return False, ('%s, but the workers sent %s and received %s, less than the %s of the rows: they did not train '
                       'together' % (compared, size_text(sent), size_text(received), size_text(fewest)))
    return True, '%s; %s sent, %s received' % (compared, size_text(sent), size_text(received))


def try_launcher(launcher: str, workers: int, seconds: float, verbose: bool) -> bool:
    """Run the job through one launcher and print the outcome; returns True if the results were right."""
    workers = 1 if launcher == 'python' else workers
    with tempfile.TemporaryDirectory(prefix='mxhybrid-selftest-') as directory:
        began = time.monotonic()
        log = Path(directory, 'log')
        problem = run_job(launcher, _JOB + ['--out', directory], workers, seconds, str(log))
        elapsed_s = time.monotonic() - began
        right, text = False, problem
        if not problem:
            right, text = judge([json.loads(path.read_text()) for path in log.parent.glob('rank*.json')], workers)
        output = log.read_text(errors='replace').splitlines()
    console.write('    [%s] %-10s  %d worker%s, %4.1f s: %s' % ('X' if right else ' ', launcher, workers,
                                                                's' * (workers != 1), elapsed_s, text))
    if verbose or not right:
        for line in output[-(len(output) if verbose else _TAIL):]:
            console.write('        | ' + line)
    return right


def run(options: argparse.Namespace) -> int:
    if options.num_proc < 1:
        sys.stderr.write('mxhybrid selftest: -np %d: give a number of workers of at least 1\n' % options.num_proc)
        return 2
    names = list(LAUNCHERS) if options.launcher == 'all' else [options.launcher]
    console.write('mxhybrid: selftest on %d core%s' % (len(os.sched_getaffinity(0)),
                                                     's' * (len(os.sched_getaffinity(0)) != 1)))
    # SIGTERM and SIGHUP end the jobs by an exception, as Ctrl-C does.
    with handled((signal.SIGTERM, signal.SIGHUP), lambda number, frame: sys.exit(128 + number)):
        right = [try_launcher(name, options.num_proc, options.timeout, options.verbose) for name in names]
    if all(right):
        console.write('the results of all jobs are right')
        return 0
    console.write('%d of %d jobs failed: run mxhybrid doctor to look for causes' % (right.count(False), len(right)))
    return 1


if __name__ == '__main__':
    sys.exit(run_alone('selftest'))
