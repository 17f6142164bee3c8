"""The workload `recovery`: the cost of commits in memory, and the seconds from a kill to the first repeated step.

An elastic job trains with a worker and a server on each emulated host.  It runs without commits, with a commit every
`EVERY` steps, and then with a kill of a worker, of a server and of all processes of a host in its middle; of a worker
and of a server also while the next generation stands by.
"""
import argparse
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any, Callable, Dict, List, Optional

from lab.cluster import EmulatedCluster
from lab.processes import send_signal

from . import report

NAME = 'recovery'
EVERY = 10
CASES = ('no commits', 'commits', 'worker killed', 'server killed', 'host killed', 'worker killed, standby',
         'server killed, standby')
_BODY = Path(__file__).resolve().parent / 'recovery_worker.py'
_MEGABYTES = 100.0


def _steps(directory: str) -> List[List[float]]:
    """Return generation, number and time of the steps so far."""
    path = Path(directory) / 'steps'
    return [list(map(float, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def _kill(cluster: Any, job: Any, case: str) -> None:
    """Kill the second host's worker, its server, or all of its processes."""
    host = cluster.hosts[1].namespace
    pids = cluster.pids(host)
    if not case.startswith('host'):
        role = case.split()[0]
        pids = [process.pid for process in job.processes(role) if process.pid in pids][:1]
    for pid in pids:
        send_signal(pid, signal.SIGKILL)


def measure(args: argparse.Namespace, case: str, hosts: int) -> Dict[str, Any]:
    """Run a job; return the figures of a case."""
    kills, stands_by = 'killed' in case, case.endswith('standby')
    steps = args.warmup + EVERY * max(12 if stands_by else 2, args.steps // EVERY)
    with tempfile.TemporaryDirectory() as directory, EmulatedCluster(hosts, args.mbit[0]) as cluster:
        names = ','.join(host.name + ':1' for host in cluster.hosts)
        command = [sys.executable, '-m', 'mxhybrid', 'run', '-np', str(hosts), '--min-np', str(hosts - 1), '-H', names,
                   '--network-interface', 'e0', *(['--standby'] if stands_by else []), sys.executable, str(_BODY),
                   directory, str(_MEGABYTES / args.shrink), str(steps), str(0 if case == 'no commits' else EVERY)]
        with cluster.start(0, command, env=dict(args.env), body=_BODY) as job:
            killed_s: Optional[float] = None
            if kills:
                if stands_by:
                    job.wait_for_output('generation 1 stands by', args.timeout)
                committed_step = max(len(_steps(directory)), args.warmup + EVERY) // EVERY * EVERY
                job.wait_until(lambda: len(_steps(directory)) > committed_step + EVERY // 2, args.timeout, 'steps')
                killed_s = time.time()
                _kill(cluster, job, case)
            output = job.wait(args.timeout).ok().output
        if stands_by and 'which stood by' not in output:
            raise RuntimeError('the generation that stood by did not take over:\n' + output[-4000:])
        steps_made = _steps(directory)
    times = [after[2] - before[2] for before, after in zip(steps_made[args.warmup:], steps_made[args.warmup + 1:])
             if before[0] == after[0]]
    figures: Dict[str, Any] = {'case': case, 'step_s': mean(times), 'longest_s': max(times)}
    commits = re.search(r'after (\d+) commits of (.*)', output)
    if commits is not None:
        figures.update(commits=int(commits.group(1)), committed=commits.group(2))
    if killed_s is not None:
        last, again = (steps_made[[step[0] for step in steps_made].index(1) + offset] for offset in (-1, 0))
        figures.update(recovery_s=again[2] - killed_s, lost=int(last[1] - again[1] + 1))
    return figures


def run(args: argparse.Namespace, say: Callable[[str], None]) -> List[Dict[str, Any]]:
    """Measure all cases, and print the table; returns the figures for the JSON file."""
    hosts = args.hosts[0]
    print('%d hosts of a worker and a server each, %g Mbit/s, %g MB of weights and state'
          % (hosts, args.mbit[0], _MEGABYTES / args.shrink), flush=True)
    runs, cells = [], [['', 's/step', 'longest', 'commits', 'bytes', 'to the first repeated step: s', 'steps lost']]
    for case in CASES:
        runs.append(measure(args, case, hosts))
        say('%s: %s' % (case, runs[-1]))
        values = runs[-1]
        cells.append([case, '%.3f' % values['step_s'], '%.3f' % values['longest_s'], str(values.get('commits', '-')),
                      str(values.get('committed', '-')),
                      '%.1f' % values['recovery_s'] if 'recovery_s' in values else '-', str(values.get('lost', '-'))])
    print(report.align(cells), flush=True)
    return runs
