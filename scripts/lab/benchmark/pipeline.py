"""A pipeline on emulated hosts: its efficiency, compared with m / (m + s - 1) for m micro-batches and s stages.

Each worker is a stage, with a layer of a GPT.  The contender `alone` makes the same passes without a pipeline: each
worker trains the layers of its stage on all micro-batches by itself, all workers at the same time, on its share of the
processors.  If the slowest stage takes T seconds for that, a pipeline cannot take less than T (m + s - 1) / m: the
slowest stage is idle until the first micro-batch comes to it, and after the last one has left.
"""
import argparse
from statistics import median
from typing import Any, Callable, Dict, List

from . import report
from .layers import SplitBenchmark

NAME = 'pipeline'
#: The contender without a pipeline.
ALONE = 'alone'
#: Contenders: the first one has no pipeline, the others are schedules of the pipeline.
CONTENDERS = (ALONE, '1f1b', 'eager-1f1b', 'gpipe')
SAMPLES = 16

#: The tolerated difference between the losses of two schedules, which round alike.
_TOLERANCE = 1e-4


class Pipeline(SplitBenchmark):
    """The benchmark of a pipeline."""

    def __init__(self, args: argparse.Namespace):
        super().__init__(args, CONTENDERS)
        #: The seconds of a step of each worker by itself, for each round.
        self._alone: List[List[float]] = []

    def units(self, hosts: int) -> int:
        return SAMPLES

    def describe(self) -> str:
        return ('a GPT with a layer for each worker, 512 wide, 8 heads, 1,000 words, on %d samples of 128 words in %d '
                'micro-batches' % (SAMPLES, self._args.micro_batches))

    def run(self, testbed: Any, hosts: int, contender: str, check: Callable[[], None]) -> Dict[str, Any]:
        args = self._args
        readings = self._train(testbed, hosts, contender, check, {'samples': SAMPLES,
                                                                  'micro_batches': args.micro_batches})
        if contender == ALONE:
            self._alone.append([reading['ends'][-1] / args.steps for reading in readings])
        else:
            self._compare(hosts, contender, 'schedule', readings, _TOLERANCE)
        return report.one_round(readings, args.steps)

    def told(self, contenders: Dict[str, Dict[str, Any]]) -> List[str]:
        """Return the efficiency of each schedule, and forget the stages by themselves: other hosts are next."""
        stages, self._alone = [median(seconds) for seconds in zip(*self._alone)], []
        return [efficiency_sentence(name, contenders[name]['step_s'], stages, self._args.micro_batches)
                for name in CONTENDERS if name != ALONE]


def efficiency(step_s: float, stages: List[float], micro_batches: int) -> float:
    """Return the time of the slowest stage by itself, stretched by the ideal (m + s - 1) / m, divided by the time of a
    step.
    """
    return max(stages) * (micro_batches + len(stages) - 1) / micro_batches / step_s


def efficiency_sentence(schedule: str, step_s: float, stages: List[float], micro_batches: int) -> str:
    """Compare the step of a schedule with the ideal one."""
    ideal = micro_batches / (micro_batches + len(stages) - 1)
    reached = efficiency(step_s, stages, micro_batches)
    return ('%s: its %d stages take %s s alone; the slowest one computes in %.2f of a step of %.3f s, and in %.2f '
            'at best (m / (m + s - 1)): efficiency %.2f of that' % (
                schedule, len(stages), ', '.join('%.3f' % seconds for seconds in stages), reached * ideal, step_s,
                ideal, reached))
