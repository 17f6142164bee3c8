"""Train a Transformer under a memory limit that is a third of what one process needs, split over four workers.

``python -m lab.memory_limit`` in ``scripts/``, as root: each worker moves itself to a memory cgroup (version 1 or 2),
whose limit and peak count the memory that it allocates from then on.  First one process trains without a limit; its
peak consists of weights, gradients, optimizer state and activations.  Then one process, and four workers by
``megatron(4, sequence=True)`` with recomputation and sharded updates, have a third of this peak.  ``--compare`` adds
the four workers without a limit, with and without recomputation.
"""
import argparse
import json
import os
from pathlib import Path
from typing import Any, Dict, Optional

from lab.split_memory import WORKERS, train

#: The sizes of the network and of the joint batch.
SIZES = {'words': 8000, 'layers': 16, 'units': 512, 'heads': 8, 'times': 256, 'batch': 16, 'steps': 2}
_ROOT = Path('/sys/fs/cgroup')


class MemoryGroup:
    """A memory cgroup of this process, on hosts with version 1 or 2 of cgroups.

    Parameters
    ----------
    limit_bytes : int
        0 for no limit.
    """

    def __init__(self, limit_bytes: int):
        is_first = (_ROOT / 'memory').is_dir()
        self._folder = (_ROOT / 'memory' if is_first else _ROOT) / ('mxhybrid-memory-%d' % os.getpid())
        self._folder.mkdir()
        self._peak = self._folder / ('memory.max_usage_in_bytes' if is_first else 'memory.peak')
        if limit_bytes:
            (self._folder / ('memory.limit_in_bytes' if is_first else 'memory.max')).write_text(str(limit_bytes))
        (self._folder / 'cgroup.procs').write_text(str(os.getpid()))

    @property
    def peak_bytes(self) -> int:
        """The highest usage so far."""
        return int(self._peak.read_text())


def _remove_groups() -> None:
    """Remove the groups of workers that have ended."""
    for folder in list(_ROOT.glob('mxhybrid-memory-*')) + list(_ROOT.glob('memory/mxhybrid-memory-*')):
        try:
            folder.rmdir()
        except OSError:
            pass  # a worker of another run is in it


def work(case: Dict[str, Any]) -> None:
    """Train as a worker, and report the peak."""
    import mxnet as mx

    import mxhybrid
    from lab.reports import report
    store = mxhybrid.create() if case['workers'] > 1 else None
    mx.nd.waitall()
    group, peaks = MemoryGroup(case['limit']), []

    def note() -> None:
        peaks.append(group.peak_bytes)
    trained = train(case['sizes'], store, {'plan': 'megatron', 'model': WORKERS, 'sequence': True},
                    case['recompute'], note, note)
    report(0 if store is None else store.rank, peaks=peaks, losses=sum(trained['losses'], []),
           held=trained['held'], whole=trained['whole'])


def measure(sizes: Dict[str, int], workers: int, recompute: Optional[str], limit_bytes: int
            ) -> Optional[Dict[int, Any]]:
    """Return the reports of all workers by rank; None if the job failed."""
    from lab.jobs import run_job
    case = {'sizes': sizes, 'workers': workers, 'recompute': recompute, 'limit': limit_bytes}
    result = run_job(Path(__file__), 'horovodrun' if workers > 1 else 'none', workers=workers, timeout=600,
                     args=['--work', json.dumps(case)], env={'MXHYBRID_SHARD_UPDATES': str(int(workers > 1))})
    _remove_groups()
    return None if result.returncode or len(result.results) != workers else result.results


def _line(name: str, limit_bytes: int, results: Optional[Dict[int, Any]], batch: int) -> str:
    limit = 'limit of %.0f MB' % (limit_bytes / 1e6) if limit_bytes else 'no limit'
    if results is None:
        return '%s, %s: fails' % (name, limit)
    workers = list(results.values())
    peaks = ['%.0f MB' % (max(values) / 1e6) for values in zip(*(worker['peaks'] for worker in workers))]
    losses = [value for worker in workers for value in worker['losses'][-batch // len(workers):]]
    return '%s, %s: trains, at most %s until the start, %s in all; last loss %.5f; weights %.1f of %.1f MB' % (
        name, limit, peaks[0], peaks[-1], sum(losses) / len(losses),
        max(worker['held'] for worker in workers) * 4 / 1e6, workers[0]['whole'] * 4 / 1e6)


def main() -> None:
    """Measure, and print a line for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--work', help=argparse.SUPPRESS)
    parser.add_argument('--compare', action='store_true', help='also train without a limit, and without recomputation')
    for name, value in SIZES.items():
        parser.add_argument('--' + name, type=int, default=value, help='default %(default)s')
    arguments = parser.parse_args()
    if arguments.work:
        work(json.loads(arguments.work))
        return
    sizes = {name: getattr(arguments, name) for name in SIZES}

    def show(workers: int, recompute: Optional[str], limit_bytes: int) -> Optional[Dict[int, Any]]:
        name = 'one process' if workers == 1 else '%d workers%s' % (workers, ', recompute' * bool(recompute))
        results = measure(sizes, workers, recompute, limit_bytes)
        print(_line(name, limit_bytes, results, sizes['batch']), flush=True)
        return results

    alone = show(1, None, 0)
    if alone is None:
        parser.error('the training in one process failed')
    limit_bytes = max(alone[0]['peaks']) // 3
    show(1, None, limit_bytes)
    show(WORKERS, 'layer*', limit_bytes)
    for recompute in ('layer*', None) if arguments.compare else ():
        show(WORKERS, recompute, 0)


if __name__ == '__main__':
    main()
