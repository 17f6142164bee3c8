"""Training workloads: each contender trains the same network on the same batches, and must have the same losses."""
import argparse
import sys
from statistics import mean
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from lab.launchers import SCRIPTS
from lab.processes import JobFailed

from . import launching, report
from .comparison import Comparison
from .model_steps import TASKS, task_of
from .worker import GATE, OPENED

#: The tolerated difference between the losses of two contenders, and the last steps whose mean is compared.
_TOLERANCE, _LAST = 0.02, 5
#: Contenders that only time an exchange, or another way to call the store.
_EXCHANGE_ONLY = ('hybrid_prefetch', 'hybrid_stale')


def _load(corpus: str, words: int) -> Tuple[Optional[np.ndarray], List[int]]:
    """Return the data of a corpus, and the number of values of each field.

    The data has word ids of shape (words,), or a click and 26 values of shape (samples, 27).
    """
    if not corpus:
        return None, []
    sys.path.insert(0, str(SCRIPTS.parent / 'examples'))
    from _data import crossed_fields, load_corpus

    if corpus != 'movielens':
        return load_corpus(corpus, words).train, []
    fields, stars = crossed_fields()
    values = [np.unique(column, return_inverse=True) for column in fields.values()]
    columns = [stars >= 4] + [places.reshape(-1) for _, places in values]
    return np.stack(columns, axis=1).astype(np.int64), [len(names) for names, _ in values]


def compare(contender: str, losses: List[float], others: List[float]) -> None:
    """Raise JobFailed if the losses of a contender end elsewhere than those of a contender before it."""
    ended, expected = mean(losses[-_LAST:]), mean(others[-_LAST:])
    if not abs(ended / expected - 1) <= _TOLERANCE:  # also if it is not a number
        raise JobFailed('%s ends with loss %.4f, a contender before it with %.4f' % (contender, ended, expected))


class Models(Comparison):
    """The benchmark of training."""

    def __init__(self, args: argparse.Namespace):
        super().__init__(args)
        task = TASKS[args.workload]
        self._data, rows = _load(task.corpus, task.shrunk(args.shrink).words)
        self._spec = {'workload': args.workload, 'shrink': args.shrink, 'rows': rows, 'warmup': args.warmup,
                      'steps': args.steps, 'trains': True, 'gated': args.share is not None}
        self._task = task_of(self._spec)
        self.unit, self.worker_units = self._task.unit, self._task.units
        self._losses: Dict[int, List[float]] = {}

    def describe(self) -> str:
        task = self._task
        tables = ', %d tables of %s rows' % (len(task.tables), '{:,}'.format(sum(rows for _, rows, _ in task.tables)))
        return '%s, %d wide%s; %d %s a worker and step, %s' % (
            task.kind, task.width, tables * bool(task.tables), task.units, task.unit, task.optimizer)

    def told(self, contenders: Dict[str, Dict[str, Any]]) -> List[str]:
        return ['%s: loss %.4f in the first step, %.4f in step %d' % (name, losses[0], losses[-1], len(losses))
                for name, losses in ((name, figures['rounds'][0]['losses']) for name, figures in contenders.items())]

    def skipped(self, hosts: int) -> Dict[str, str]:
        reasons = dict.fromkeys(_EXCHANGE_ONLY, 'it only times an exchange')
        if not self._task.tables:
            reasons['horovod_gather'] = 'without tables it is the same as horovod_dense'
        if self._task.kind == 'resnet50':
            # "We can't generate TBlob for MKLDNN data"
            reasons['horovod_dense'] = 'Horovod cannot read gradients of convolutions in the layout of oneDNN'
        if not self._args.torch_python:
            reasons['torch_sharded'] = 'no --torch-python was given'
        if self._task.kind != 'dlrm':
            reasons['torchrec'] = launching.FOR_RECOMMENDERS
        elif 'torchrec' in self._args.contenders:
            missing = launching.torch_missing(self._args.torch_python, 'torchrec')
            if missing:
                reasons['torchrec'] = missing
        return reasons

    def run(self, testbed: Any, hosts: int, contender: str, check: Callable[[], None]) -> Dict[str, Any]:
        is_limited = self._args.share is not None

        def limit_warm_workers() -> None:
            if is_limited:
                job.wait_for_file(GATE)
                testbed.limit(True)
                (job.directory / OPENED).touch()

        with self._job(testbed, hosts, check) as job:
            data = ''
            if self._data is not None:
                data = str(job.directory / 'data.npy')
                np.save(data, self._data)
            if is_limited:
                testbed.limit(False)  # starting is not measured
            readings = launching.measure(job, contender, dict(self._spec, data=data), self._args.torch_python,
                                         limit_warm_workers)
        losses = [sum(parts) for parts in zip(*(reading['sums']['losses'] for reading in readings))]
        compare(contender, losses, self._losses.setdefault(hosts, losses))
        return dict(report.one_round(readings, self._args.steps), losses=losses)
