"""How right the planner is: steps of several plans of several networks, predicted and measured.

For each number of hosts and rate of links: calibrate there, predict all plans, then launch every one of them in turn,
`--rounds` times, with data parallelism first and last in each round.  A round in which that has moved by more than 5 %
is told, since then the machine has changed and not the plan.  A plan that the planner finds is measured, too.
"""
import argparse
import itertools
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from . import launching, report
from .asking import ask
from .contender_job import ContenderJob
from .interruption import Signals
from .limits import Limited
from .places import Loopback

NAME = 'plans'
#: Networks, by their names in `plan_cases`.
CASES = ('alexnet', 'resnet18', 'language', 'recommender')

#: First and last in each round.
_ANCHOR, _AGAIN = 'data', 'data again'
#: What is found by searching.
_FOUND = 'found'
_SEARCH_S = 10.0
#: Plans that differ by less are ties.
_TIE = 0.05
_ANCHOR_MOVED = 0.05
_PREDICT_S = 1800.0


class Plans:
    """What `cli` runs.

    Parameters
    ----------
    args : argparse.Namespace
        The command line.
    signals : Signals
        They may ask for an end while jobs run.
    say : callable
        Tells the person at the terminal.
    """

    def __init__(self, args: argparse.Namespace, signals: Signals, say: Callable[[str], None]):
        self._args, self._signals, self._say = args, signals, say

    def runs(self) -> Iterator[Dict[str, Any]]:
        """Figures of each network on each cluster, as they come."""
        runs = []
        for hosts, mbit in itertools.product(self._args.hosts, self._args.mbit):
            with self._signals.deferred(), Loopback() if mbit is None else Limited(
                    hosts, mbit, self._args.tcp) as place:
                for case in self._args.cases:
                    runs.append(dict(self._case(place, hosts, case), hosts=hosts, mbit=mbit,
                                     workers=self._args.workers))
                    print(table(runs[-1]), flush=True)
                    yield runs[-1]
        print('\n' + summary(runs), flush=True)

    def _case(self, place: Any, hosts: int, case: str) -> Dict[str, Any]:
        args, size = self._args, hosts * self._args.workers
        with tempfile.TemporaryDirectory() as directory:
            cluster = str(Path(directory) / 'cluster.json')
            self._job(place, hosts, ['-m', 'mxhybrid', 'calibrate', cluster], {}, [])
            spec = {'case': case, 'cluster': cluster, 'profiles': args.profiles}
            found = self._planner(dict(spec, seconds=_SEARCH_S))
            plans = {**self._planner_plans(case, size), _FOUND: found['plan']}
            predicted = self._planner(dict(spec, plans=plans))
        measured: Dict[str, List[float]] = {name: [] for name in [*plans, _AGAIN]}
        for number in range(args.rounds):
            for name in [*plans, _AGAIN]:
                plan = plans[_ANCHOR if name == _AGAIN else name]
                took = self._job(place, hosts, launching.WORKER, {
                    'workload': NAME, 'case': case, 'contender': 'hybrid', 'plan': plan, 'hosts': hosts,
                    'workers': args.workers, 'warmup': args.warmup, 'steps': args.steps, 'interface': None},
                    measured[name])
                self._say('%s, %d x %d, round %d of %d, %s: %.4f s/step, predicted %.4f' % (
                    case, hosts, args.workers, number + 1, args.rounds, name, took, predicted[
                        _ANCHOR if name == _AGAIN else name]))
            moved = measured[_AGAIN][-1] / measured[_ANCHOR][-1] - 1
            if abs(moved) > _ANCHOR_MOVED:
                self._say('%s: %s has moved by %.0f %% within this round' % (case, _ANCHOR, 100 * moved))
        again = measured.pop(_AGAIN)
        measured[_ANCHOR] += again
        return {'case': case, 'predicted': predicted, 'measured': {name: median(one) for name, one in measured.items()},
                'rounds': measured, 'found': found['name']}

    def _planner_plans(self, case: str, size: int) -> Dict[str, Any]:
        return self._planner({'case': case, 'ranks': size})

    def _planner(self, spec: Dict[str, Any]) -> Dict[str, Any]:
        return ask('plan_training', spec, _PREDICT_S, self._signals.check)

    def _job(self, place: Any, hosts: int, argv: Sequence[str], spec: Dict[str, Any], times: List[float]) -> float:
        """Seconds of a step; 0 for a job that makes none."""
        args = self._args
        with ContenderJob(place, hosts, args.workers, args.timeout, dict(args.env),
                          self._signals.check) as job:
            given = dict(spec, directory=str(job.directory))
            launching.start(job, 'hybrid', list(argv), launching.worker_environment(given))
            job.wait()
            if not spec:
                return 0.0
            times.append(report.one_round(job.readings(), args.steps)['step_s'])
            job.wait_for_helpers()
        return times[-1]


def error_of(run: Dict[str, Any], name: str) -> float:
    """By how much a plan's step was predicted otherwise than measured, as a share of that."""
    return run['predicted'][name] / run['measured'][name] - 1


def tau_of(run: Dict[str, Any]) -> Optional[float]:
    """Kendall's tau between predicted and measured times, over pairs that differ in measured ones."""
    agreed = differing = 0
    for one, other in itertools.combinations(run['measured'], 2):
        a, b = run['measured'][one], run['measured'][other]
        if max(a, b) / min(a, b) - 1 > _TIE:
            differing += 1
            agreed += 1 if (a < b) == (run['predicted'][one] < run['predicted'][other]) else -1
    return agreed / differing if differing else None


def table(run: Dict[str, Any]) -> str:
    """Of a network on a cluster: each plan, from the fastest."""
    lines = [['plan', 'predicted s', 'measured s', 'error']]
    lines += [[name, '%.4f' % run['predicted'][name], '%.4f' % run['measured'][name], '%+.1f %%' % (
        100 * error_of(run, name))] for name in sorted(run['measured'], key=lambda one: run['measured'][one])]
    tau = tau_of(run)
    return '\n%s on %d hosts x %d workers, %s; %s is from %s; tau %s\n%s' % (
        run['case'], run['hosts'], run['workers'],
        'no network' if run['mbit'] is None else '%g Mbit/s' % run['mbit'], _FOUND, run['found'],
        '-' if tau is None else '%.2f' % tau, report.align(lines))


def summary(runs: List[Dict[str, Any]]) -> str:
    """Of all: errors, and what is found beside data parallelism."""
    errors = sorted(abs(error_of(run, name)) for run in runs for name in run['measured'])
    gains = ['%s %d x %d %.2f' % (run['case'], run['hosts'], run['workers'],
                                  run['measured'][_ANCHOR] / run['measured'][_FOUND]) for run in runs]
    return ('%d plans: median error %.1f %%, 90 %% of them at most %.1f %%\nthe plan that is found beside data '
            'parallelism, measured: %s' % (len(errors), 100 * median(errors),
                                           100 * errors[min(len(errors) - 1, int(0.9 * len(errors)))],
                                           ', '.join(gains)))
