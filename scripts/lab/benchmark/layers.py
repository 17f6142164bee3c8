"""Real training steps of networks whose layers are split by one plan or another: the plans are the contenders.

Each job trains the same network on the same data; after one update their losses must be the same.
"""
import argparse
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from lab.processes import JobFailed

from . import launching, report
from .asking import ask
from .comparison import Comparison

#: The tolerated difference between the losses of two plans, which round differently.
_TOLERANCE = 1e-3

#: The workload, and its plans, whose gains formulas predict; data parallelism comes first.
_BY_FORMULA, _DATA, _SPLIT = 'layers_dense', 'data', ('grid', 'trick')
_FORMULA_S = 300.0

#: Contenders that are no plans: by samples, and each worker with all samples by itself, at its share of the machine.
WITHOUT_PLAN = ('plain', 'alone')


class Case(NamedTuple):
    """A network and the plans that it is trained with."""

    text: str
    #: Samples of the joint batch; a number a worker if negative.
    batch: int
    plans: Tuple[str, ...]


CASES = {
    'layers_dense': Case('convolutions, then dense layers of 16.8 and 4.1 million weights', -4,
                         ('data', 'grid', 'trick')),
    'layers_softmax': Case('a softmax over 30,000 words of width 512', -16, ('data', 'vocabulary')),
    'layers_images': Case('resnet18 on images of 224 x 224', -1, ('data', 'height', 'height_sharded')),
    'layers_image': Case('resnet18 on one image of 224 x 224; alone: on each worker', 1,
                         ('alone', 'height', 'height_sharded')),
    'layers_plain': Case('resnet18 on images of 64 x 64', -4, ('plain', 'data')),
    'layers_bert': Case('BERT of 2 layers, 128 wide, 8 heads, on 16 sentences of 64 words', 16, ('plain', 'data')),
}


class SplitBenchmark(Comparison):
    """A benchmark whose contenders train one network in several ways."""

    def __init__(self, args: argparse.Namespace, contenders: Sequence[str]):
        super().__init__(args)
        args.contenders = list(contenders)
        self._losses: Dict[Any, float] = {}

    def _train(self, testbed: Any, hosts: int, contender: str, check: Callable[[], None], task: Dict[str, Any]
               ) -> List[Dict[str, Any]]:
        """Run the job of a contender, and return the readings of its workers."""
        args = self._args
        with self._job(testbed, hosts, check) as job:
            return launching.measure(job, 'hybrid', dict(task, workload=args.workload, contender=contender,
                                                         warmup=args.warmup, steps=args.steps))

    def _compare(self, key: Any, name: str, kind: str, readings: List[Dict[str, Any]], tolerance: float) -> None:
        """Raise JobFailed if the loss differs from the one before it with the same key."""
        loss = sum(reading['sums']['loss'] for reading in readings) / len(readings)
        first = self._losses.setdefault(key, loss)
        if abs(loss / first - 1) > tolerance:
            raise JobFailed('%s has a loss of %r after an update, a %s before it has %r' % (name, loss, kind, first))


class Layers(SplitBenchmark):
    """The benchmark of split layers."""

    def __init__(self, args: argparse.Namespace):
        self._case = CASES[args.workload]
        super().__init__(args, self._case.plans)
        # The latency and bandwidth of the hosts and links at hand, for formulas.
        self._formula: Optional[Dict[str, float]] = None

    def units(self, hosts: int) -> int:
        batch = self._case.batch
        return batch if batch > 0 else -batch * hosts * self._args.workers

    def describe(self) -> str:
        return self._case.text + ', forward and backward passes included'

    def run(self, testbed: Any, hosts: int, contender: str, check: Callable[[], None]) -> Dict[str, Any]:
        args = self._args
        if args.workload == _BY_FORMULA and self._formula is None:
            self._formula = self._calibrated(testbed, hosts, check)
        readings = self._train(testbed, hosts, contender, check, {'batch': self.units(hosts)})
        # Without a plan, weights that wait for their shapes draw in another order.
        self._compare((hosts, contender in WITHOUT_PLAN), contender, 'plan', readings, _TOLERANCE)
        return report.one_round(readings, args.steps)

    def _calibrated(self, testbed: Any, hosts: int, check: Callable[[], None]) -> Dict[str, float]:
        """Return the communication time by formulas, with the latency and bandwidth measured on these hosts."""
        with tempfile.TemporaryDirectory() as directory:
            cluster = str(Path(directory) / 'cluster.json')
            with self._job(testbed, hosts, check) as job:
                launching.start(job, 'hybrid', ['-m', 'mxhybrid', 'calibrate', cluster], {})
                job.wait()
            question = {'workload': self._args.workload, 'batch': self.units(hosts), 'cluster': cluster}
            return ask('layers_formula', question, _FORMULA_S, check)

    def told(self, contenders: Dict[str, Dict[str, Any]]) -> List[str]:
        """Return the measured and the predicted gains of plans, and clear them for the next hosts."""
        formula, self._formula = self._formula, None
        if formula is None:
            return []
        cores = os.cpu_count() or 1
        return [gain_sentence(name, contenders[_DATA], contenders[name], formula, cores) for name in _SPLIT]


def gain_sentence(name: str, data: Dict[str, Any], split: Dict[str, Any], formula: Dict[str, float], cores: int) -> str:
    """Compare the speedup of a plan over data parallelism with the speedup that formulas predict.

    They count no computing.  All hosts share this machine's cores, so a step takes as long as these cores need for the
    CPU seconds of all processes, transfers included.
    """
    computing = [figures['cpu_s'] / cores for figures in (data, split)]
    predicted = (formula['data'] + computing[0]) / (formula['split'] + computing[1])
    measured = data['step_s'] / split['step_s']
    return ('%s is %.1f times as fast as %s; by the formulas of Gholami et al., with %.3g ms a message and %.3g MB/s '
            'as measured, communication takes %.3f s instead of %.3f s, and with computing, %.3f s instead of %.3f s '
            "of this machine's cores, a step gains %.1f times: measured is %.0f %% of that" % (
                name, measured, _DATA, 1000 * formula['alpha_s'], formula['bytes_per_s'] / report.MB,
                formula['split'], formula['data'], computing[1], computing[0], predicted,
                100 * measured / predicted))
