"""Measure the cluster that a job runs on, for the planner.

Start it as a training is started, on the same hosts and with the same number of workers on each; nothing else should
run there.  Worker 0 writes the file, which docs/planner.md explains:

  horovodrun -np 4 -H hostA:2,hostB:2 mxhybrid calibrate cluster.json
  python scripts/launch.py -n 4 -s 2 --launcher local mxhybrid calibrate cluster.json

It takes about 45 seconds.  The exit status is 0 if the file was written, else 1.
"""
import argparse
import dataclasses
import datetime
import logging
import sys
import time
from typing import Any, List

from .. import __version__
from ..base import launcher
from ..base.errors import InputError
from ..base.files import cannot_write
from . import console
from .main import run_alone

#: Number of parts of a calibration, for the progress bar.
_PARTS = 10
#: Seconds of the command, joining the job included, and minimal seconds of the measurements.
_SECONDS, _LEAST_S = 46.0, 31.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('file', metavar='FILE',
                        help='file to write, on the host of worker 0; an existing file is replaced')


def lines_of(cluster: Any) -> List[str]:
    """Return a cluster as text."""
    link, memory = cluster.link, cluster.memory
    lines = ['%-12s %5s %6s %6s %9s' % ('host', 'ranks', 'cores', 'speed', 'memory')]
    lines += ['%-12s %5d %6.3g %6.2f %6.1f GB' % (host.name, host.ranks, host.cores, host.speed,
                                               (host.memory_bytes or 0) / 1e9) for host in cluster.hosts]
    lines += ['%-12s speed of a core with 1, 2 and so on busy: %s' % (host.name, ', '.join(
        '%.2f' % speed for speed in host.speeds)) for host in cluster.hosts if host.speeds]
    lines += ['%-12s the same for work that is bound by memory: %s' % (host.name, ', '.join(
        '%.2f' % speed for speed in host.memory_speeds)) for host in cluster.hosts if host.memory_speeds]
    lines.append('')
    for name, bucket, latency_s in (('link', link, cluster.link_latency_s),
                                    ('memory', memory, cluster.memory_latency_s)):
        burst = ', first %.0f kB at %.0f MB/s' % (bucket.burst / 1e3, bucket.peak / 1e6) if bucket.burst else ''
        lines.append('%-12s %.1f MB/s%s, latency %.0f us' % (name, bucket.rate / 1e6, burst, 1e6 * latency_s))
    lines += ['', '%-16s %9s %9s %9s %10s' % ('cost of a core', 'ms', 'ms/item', 'ms/MB', 'latency')]
    lines += ['%-16s %9.3f %9.4f %9.3f %7.2f ms' % (kind, 1e3 * cost.fixed_s, 1e3 * cost.per_item_s,
                                                    1e9 * cost.per_byte_s, 1e3 * cost.latency_s)
              for kind, cost in cluster.costs.items()]
    return lines


def _measure(options: argparse.Namespace) -> Any:
    """Return the cluster and this worker's rank; an InputError is raised by all workers."""
    began = time.monotonic()
    # Imported here: other subcommands work without MXNet.
    import mxnet
    from tqdm import tqdm

    from ..job.join import member
    from ..planner import Calibration

    if (launcher.read().workers or 2) < 2 or launcher.read().launcher == 'none':
        raise InputError('the job has 1 worker, but at least 2 are needed to measure messages between workers: start '
                         'it on all hosts of the cluster like a training, for example horovodrun -np 4 -H '
                         'hostA:2,hostB:2 mxhybrid calibrate %s' % options.file)
    job = member()
    # Hide the messages of the Trainers and tables that are timed.
    logging.getLogger('mxhybrid.kvstore').setLevel(logging.WARNING)
    assert job.collective is not None
    problem = job.collective.allgather_json(cannot_write(options.file) if job.rank == 0 else '',
                                            'mxhybrid.calibrate.file')[0]
    if problem:
        raise InputError(problem)
    with tqdm(total=_PARTS, desc='calibrate', disable=None if job.rank == 0 else True) as bar:
        def progress(part: str) -> None:
            bar.set_postfix_str(part)
            bar.update()

        calibration = Calibration(job, progress, max(_LEAST_S, _SECONDS - (time.monotonic() - began)))
        cluster = calibration.measure()
    now = datetime.datetime.now(datetime.timezone.utc)
    measured = '%s UTC, mxhybrid %s, MXNet %s, %d workers of %s: mxhybrid calibrate %s' % (
        now.strftime('%Y-%m-%d %H:%M'), __version__, mxnet.__version__, job.num_workers, job.launcher, options.file)
    return dataclasses.replace(cluster, measured=measured), job.rank


def run(options: argparse.Namespace) -> int:
    from ..planner import save_cluster

    cluster, rank = _measure(options)
    if rank == 0:
        save_cluster(options.file, cluster)
        console.write('\n'.join(lines_of(cluster) + ['', 'written to ' + options.file]))
    return 0


if __name__ == '__main__':
    sys.exit(run_alone('calibrate'))
