"""Compares the planner's predictions with measurements: steps of several plans of several networks.

For each number of hosts and rate of links, `--rounds` times: for each network calibrate there, predict its plans, then
launch every one of them in turn, with the one weird trick, a short step, first and last.  Where that has moved by more
than 5 % within a round the machine has changed: the round does not count, if others do, and neither does one whose
calibration found a busy machine.  A plan that the planner finds is measured, too.  The workers of a single host are
bound to its processors.
"""
import argparse
import itertools
import json
import math
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import launching, report
from .asking import ask
from .contender_job import ContenderJob
from .interruption import Signals
from .testbeds import Limited, Loopback

NAME = 'plans'
#: Networks, by their names in `plan_cases`.
CASES = ('alexnet', 'resnet18', 'convolutions', 'normalized', 'language', 'gpt', 'recommender')

#: First and last in each round, a short step, which shows best whether the machine changes.
_ANCHOR, _AGAIN = 'trick', 'trick again'
#: The plan with which others are compared.
_BASE = 'data'
#: The plan that the search finds.
_FOUND = 'found'
_SEARCH_S = 10.0
#: Plans that differ by less are ties.
_TIE = 0.05
_ANCHOR_MOVED = 0.05
#: Short steps are measured in several windows, of which the median counts: other virtual machines on the same hardware
#: may delay a window.
_WINDOW_S, _WINDOWS = 0.5, 5
_PREDICT_S = 1800.0


class Plans:
    """The benchmark of plans, which `cli` runs; `say` tells the person at the terminal."""

    def __init__(self, args: argparse.Namespace, signals: Signals, say: Callable[[str], None]):
        self._args, self._signals, self._say = args, signals, say

    def runs(self) -> Iterator[Dict[str, Any]]:
        """Figures of each network on each cluster, once all its rounds are made."""
        runs: List[Dict[str, Any]] = []
        for hosts, mbit in itertools.product(self._args.hosts, self._args.mbit):
            with self._signals.deferred(), Loopback() if mbit is None else Limited(
                    hosts, mbit, self._args.tcp) as testbed:
                cases = {name: _Case(name) for name in self._args.cases}
                for number in range(self._args.rounds):
                    self._round(testbed, hosts, number, cases)
            for case in cases.values():
                runs.append(dict(case.figures(), hosts=hosts, mbit=mbit, workers=self._args.workers))
                print(table(runs[-1]), flush=True)
                yield runs[-1]
        print('\n' + summary(runs), flush=True)

    def _round(self, testbed: Any, hosts: int, number: int, cases: Dict[str, '_Case']) -> None:
        """Calibrate, predict and measure."""
        args = self._args
        with tempfile.TemporaryDirectory() as directory:
            cluster = str(Path(directory) / 'cluster.json')
            for name, case in cases.items():
                # Calibrate in each round: the speed of a machine that others use, too, changes within minutes.
                with self._job(testbed, hosts) as job:
                    launching.start(job, 'hybrid', ['-m', 'mxhybrid', 'calibrate', cluster], {})
                    job.wait()
                busy = json.loads(Path(cluster).read_text()).get('busy', '')
                if busy:
                    self._say('%s: calibrated on a busy machine, %s: this round does not count, if others do'
                              % (name, busy))
                spec = {'case': name, 'cluster': cluster, 'profiles': args.profiles}
                if not case.plans or case.busy_search:
                    search_result = self._planner(dict(spec, seconds=_SEARCH_S))
                    case.origin, case.busy_search = search_result['name'], bool(busy)
                    # Without its cluster, which is calibrated in each round.
                    case.plans = {**self._planner({'case': name, 'ranks': hosts * args.workers}),
                                  _FOUND: dict(search_result['plan'], cluster=None)}
                predicted, measured = self._planner(dict(spec, plans=case.plans)), {}
                for plan in [_ANCHOR] + [other for other in case.plans if other != _ANCHOR] + [_AGAIN]:
                    known_plan = _ANCHOR if plan == _AGAIN else plan
                    steps, windows = lengths(predicted[known_plan], args.steps)
                    with self._job(testbed, hosts) as job:
                        readings = launching.measure(job, 'hybrid', {
                            'workload': NAME, 'case': name, 'plan': case.plans[known_plan],
                            'warmup': max(args.warmup, steps // 5), 'steps': steps, 'windows': windows,
                            'interface': None})
                    measured[plan] = report.one_round(readings, steps)['step_s']
                    self._say('%s, %d x %d, round %d of %d, %s: %.4f s/step, predicted %.4f' % (
                        name, hosts, args.workers, number + 1, args.rounds, plan, measured[plan],
                        predicted[known_plan]))
                moved = case.add(predicted, measured, bool(busy))
                if abs(moved) > _ANCHOR_MOVED:
                    self._say('%s: %s has moved by %.0f %% within this round, which does not count, if others do'
                              % (name, _ANCHOR, 100 * moved))

    def _planner(self, spec: Dict[str, Any]) -> Dict[str, Any]:
        return ask('plan_training', spec, _PREDICT_S, self._signals.check)

    def _job(self, testbed: Any, hosts: int) -> ContenderJob:
        """Return a job that has no processes yet.  The workers of one host have processors of their own, as several
        hosts do, or share them equally.
        """
        args, processors = self._args, len(os.sched_getaffinity(0))
        binds = hosts == 1 and (args.workers <= processors or args.workers % processors == 0)
        env = dict({'MXHYBRID_BIND_TO_CORES': '1'} if binds else {}, **dict(args.env))
        return ContenderJob(testbed, hosts, args.workers, args.timeout, env, self._signals.check)


class _Case:
    """A network, and the results of its rounds."""

    def __init__(self, name: str):
        self._name = name
        #: Plans by name.
        self.plans: Dict[str, Any] = {}
        #: The name of the plan that the search found or returned from its start.
        self.origin = ''
        #: Whether it was found with a calibration of a busy machine: then a later round searches again.
        self.busy_search = False
        self._rounds: List[Dict[str, Any]] = []

    def add(self, predicted: Dict[str, float], measured: Dict[str, float], busy: bool = False) -> float:
        """Add a round, in which the calibration found a busy machine or not; return by which share the anchor has
        moved in it.
        """
        again = measured.pop(_AGAIN)
        moved = again / measured[_ANCHOR] - 1
        measured[_ANCHOR] = (measured[_ANCHOR] + again) / 2
        self._rounds.append({'predicted': predicted, 'measured': measured, 'moved': moved, 'busy': busy})
        return moved

    def figures(self) -> Dict[str, Any]:
        """Medians of the rounds that count."""
        counted = [run_round for run_round in self._rounds
                   if abs(run_round['moved']) <= _ANCHOR_MOVED and not run_round['busy']] or self._rounds
        return {'case': self._name, 'origin': self.origin, 'rounds': self._rounds, 'counted': len(counted),
                **{what: {name: median(run_round[what][name] for run_round in counted) for name in self.plans}
                   for what in ('predicted', 'measured')}}


def lengths(predicted_s: float, least_steps: int) -> Tuple[int, int]:
    """Return the steps of a window, and the windows, in which steps of a predicted time are measured."""
    steps = max(least_steps, math.ceil(_WINDOW_S / predicted_s))
    return steps, max(1, min(_WINDOWS, round(_WINDOWS * _WINDOW_S / (steps * predicted_s))))


def error_of(run: Dict[str, Any], name: str) -> float:
    """Return the relative error of a predicted step: its difference from the measured one, divided by that."""
    return run['predicted'][name] / run['measured'][name] - 1


def tau_of(run: Dict[str, Any]) -> Optional[float]:
    """Kendall's tau between predicted and measured times, over pairs whose measured times differ."""
    agreed = differing = 0
    for plan, other in itertools.combinations(run['measured'], 2):
        a, b = run['measured'][plan], run['measured'][other]
        if max(a, b) / min(a, b) - 1 > _TIE:
            differing += 1
            agreed += 1 if (a < b) == (run['predicted'][plan] < run['predicted'][other]) else -1
    return agreed / differing if differing else None


def table(run: Dict[str, Any]) -> str:
    """Return a line for each plan of a network on a cluster, the fastest first."""
    lines = [['plan', 'predicted s', 'measured s', 'error']]
    lines += [[name, '%.4f' % run['predicted'][name], '%.4f' % run['measured'][name], '%+.1f %%' % (
        100 * error_of(run, name))] for name in sorted(run['measured'], key=run['measured'].get)]
    tau = tau_of(run)
    network = 'no network' if run['mbit'] is None else '%g Mbit/s' % run['mbit']
    return '\n%s on %d hosts x %d workers, %s; %d of %d rounds count; %s is from %s; tau %s\n%s' % (
        run['case'], run['hosts'], run['workers'], network, run['counted'], len(run['rounds']), _FOUND, run['origin'],
        '-' if tau is None else '%.2f' % tau, report.align(lines))


def summary(runs: List[Dict[str, Any]]) -> str:
    """Summarize all results: errors, and the plans that were found beside data parallelism."""
    errors = sorted(abs(error_of(run, name)) for run in runs for name in run['measured'])
    gains = ['%s %d x %d %.2f' % (run['case'], run['hosts'], run['workers'],
                                  run['measured'][_BASE] / run['measured'][_FOUND]) for run in runs]
    return ('%d plans: median error %.1f %%, 90 %% of them at most %.1f %%\nthe plan that is found beside data '
            'parallelism, measured: %s' % (len(errors), 100 * median(errors),
                                           100 * errors[min(len(errors) - 1, int(0.9 * len(errors)))],
                                           ', '.join(gains)))
