"""Workloads that exchange gradients and compute nothing: run a job, check its sums, take its figures."""
import argparse
import runpy
from collections import Counter
from typing import Any, Callable, Dict, List, Optional

from lab.launchers import SCRIPTS
from lab.processes import JobFailed

from . import launching, links, report
from .bounds import lower_bound
from .comparison import Comparison
from .gradients import ROUNDOFF, Expected, differences
from .worker import make_workload
from .workloads import BATCHES, WORKLOADS, Workload, step_batch

#: Share of the memory that is free which Horovod's dense tables may take.
_MEMORY_SHARE = 0.5

#: The widths that are tried, and the share of the memory that is free which a job may take.
_WIDTHS, _JOB_SHARE = (1, 1 / 2, 1 / 4, 1 / 8), 0.8
#: Bytes of a worker without arrays, the copies of a dense parameter in a worker, and those of tables in a job:
#: dist_sync sends a table whole, from worker 0 to the servers.
_WORKER_BYTES, _DENSE_COPIES, _TABLE_COPIES = 300e6, 6, 3

# By its path: the package would bring MXNet, and its threads, into this process.
available_bytes = runpy.run_path(str(SCRIPTS.parent / 'mxhybrid' / 'base' / 'machine.py'))['available_bytes']


def widest(workload: Workload, workers: int, free: int) -> float:
    """Return the largest width for which the job of any contender fits into the memory that is free.

    - `workload`: at its published width.
    - `workers`: of all hosts.
    - `free`: bytes.
    """
    def job_bytes(width: float) -> float:
        scaled = workload.scaled(width)
        rows = BATCHES * sum(table.row_bytes * (table.zipf + table.candidates) for table in scaled.tables)
        return (_TABLE_COPIES * scaled.table_bytes
                + workers * (_WORKER_BYTES + rows + _DENSE_COPIES * scaled.dense_bytes))

    return next((width for width in _WIDTHS if job_bytes(width) <= _JOB_SHARE * free), _WIDTHS[-1])


class Exchange(Comparison):
    """The benchmark of an exchange of gradients."""

    def __init__(self, args: argparse.Namespace):
        super().__init__(args)
        # One width for all numbers of hosts: a curve compares equal models.
        self.width = getattr(args, 'width_scale', None) or widest(
            WORKLOADS[args.workload].shrunk(args.shrink), max(args.hosts) * args.workers, available_bytes())
        self._spec = {'workload': args.workload, 'shrink': args.shrink, 'width_scale': self.width,
                      'warmup': args.warmup, 'steps': args.steps}
        self._workload = make_workload(self._spec)
        self.unit, self.worker_units = self._workload.unit, self._workload.units

    def describe(self) -> str:
        return 'an exchange without training; width %g of the published model, dense %.1f MB, tables %.0f MB' % (
            self.width, self._workload.dense_bytes / report.MB, self._workload.table_bytes / report.MB)

    def bound(self, hosts: int, mbit: Optional[float]) -> Optional[Dict[str, Any]]:
        bound = lower_bound(self._workload, hosts, self._args.workers, mbit)
        return report.bound_row(bound, self.units(hosts))

    def skipped(self, hosts: int) -> Dict[str, str]:
        reasons = {'torchrec': launching.FOR_RECOMMENDERS}
        workload, size = self._workload, hosts * self._args.workers
        if not workload.tables:
            reasons['horovod_dense'] = 'without tables it is the same as horovod_gather'
        else:
            # Each worker holds the dense gradient of every table, and Horovod as much again to fuse them.
            needed, free = 2 * workload.table_bytes * size, available_bytes()
            if needed > _MEMORY_SHARE * free:
                reasons['horovod_dense'] = ('dense gradients of the tables need %.1f GB of memory, %.1f GB are free '
                                            'on this machine; lower --width-scale' % (needed / 1e9, free / 1e9))
        if not self._args.torch_python:
            reasons['torch_sharded'] = 'no --torch-python was given'
        return reasons

    def run(self, testbed: Any, hosts: int, contender: str, check: Callable[[], None]) -> Dict[str, Any]:
        args = self._args
        with self._job(testbed, hosts, check) as job:
            if args.links:
                job.start_sampler()
            readings = launching.measure(job, contender, self._spec, args.torch_python)
            samples = job.samples() if args.links else None
        self._check(hosts * args.workers, contender, readings)
        figures = report.one_round(readings, args.steps)
        if samples is not None:
            ends = [0.0] + readings[0]['ends']
            step = links.median_step(readings[0]['ends'])
            start, end = (readings[0]['started'] + ends[at] for at in (step, step + 1))
            figures['links'] = links.use_of_step(samples, start, end, testbed.mbit)
        return figures

    def _check(self, size: int, contender: str, readings: List[Dict[str, Any]]) -> None:
        done = self._args.warmup + self._args.steps
        last = step_batch(done)
        expected = {'step': Expected(self._workload, size, {last: 1}),
                    'past': Expected(self._workload, size, Counter(step_batch(step) for step in range(done)))}
        rounded: Dict[str, List[Expected]] = {'step': [], 'past': []}
        roundoff = ROUNDOFF.get(launching.ROUNDED.get(contender, ''), 0.0)
        if roundoff:
            # Each gradient on its way to the servers, and each weight on its way back, before and after the step.
            rounded = {'past': [expected['past']] * 2, 'step': [expected['past'], expected['step']] * 2}
        wrong = [text for reading in readings for when, sums in reading['sums'].items()
                 for text in differences(self._workload, expected[when], reading['rank'], last, sums, rounded[when],
                                         roundoff)]
        if wrong:
            raise JobFailed('%s did not sum the gradients: %s%s'
                            % (contender, wrong[0], ', and %d more' % (len(wrong) - 1) if wrong[1:] else ''))
