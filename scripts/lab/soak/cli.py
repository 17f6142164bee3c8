"""The command line: runs the job, looks at its processes again and again, judges."""
import argparse
import collections
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from lab.jobs import start_job

from . import growth

BODY = Path(__file__).resolve().parent / 'body.py'
EXPIRY_BODY = BODY.with_name('expiry_body.py')

#: Samples of each process, however long it takes; the first samples, in which it still allocates memory, do not count.
SAMPLES = 60
#: Samples without which the job does not end.
_LEAST_SAMPLES = 12

#: Seconds that the job may take beyond the time asked for.
_BEYOND_S = 1800.0


def parse(argv: Optional[List[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog='scripts/soak', formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description='Run a job of random steps for long: every step is compared with NumPy, and no process may come '
                    'to hold more memory, descriptors, threads or shared memory.')
    add = parser.add_argument
    add('--minutes', type=float, default=60.0, help='least duration')
    add('--steps', type=int, default=10000, help='least number of steps')
    add('--workers', type=int, default=2)
    add('--servers', type=int, default=2)
    add('--expiry', action='store_true', help='dynamic tables whose keys appear and expire, in place of tables of '
                                              'fixed size')
    add('--launcher', choices=('horovodrun', 'launch.py'), default='horovodrun')
    return parser.parse_args(argv)


def soak(launcher: str, workers: int, servers: int, seconds: float, steps: int, interval: float,
         expiry: bool = False) -> Dict[str, Any]:
    """Run a job to its end, and take samples of its processes at an `interval` in seconds.

    The job makes at least these `steps` in at least these `seconds`, and lasts until every process has some samples.
    With `expiry`, dynamic tables whose keys appear and expire take the place of tables of fixed size.  Return the
    number of ``steps``, the ``judgement`` of :func:`lab.soak.growth.judge`, and the ``results`` of the workers.
    """
    samples: Dict[str, List[growth.Sample]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory(prefix='mxhybrid-soak-') as directory, start_job(
            EXPIRY_BODY if expiry else BODY, launcher, workers=workers, servers=servers,
            args=[seconds, steps, directory]) as job:
        job.wait_for_output('soak: 100 steps', timeout=300)
        deadline, rounds = time.monotonic() + seconds + _BEYOND_S, 0
        while job.poll() is None and time.monotonic() < deadline:
            for process in job.processes():
                sample = growth.sample(process.pid) if process.role != 'launcher' else None
                if sample is not None:
                    name = process.role if process.rank is None else '%s %d' % (process.role, process.rank)
                    samples['%s (%d)' % (name, process.pid)].append(sample)
            rounds += 1
            if rounds == _LEAST_SAMPLES:
                (Path(directory) / 'sampled').touch()
            time.sleep(interval)
        result = job.wait(timeout=60).ok()
    # Processes that were seen from beginning to end: a process that starts another one looks like it for a moment.
    most = max(map(len, samples.values()))
    samples = {name: of_process[:-1] for name, of_process in samples.items() if len(of_process) > most / 2}
    step_counts = {each['steps'] for each in result.results.values()}
    if len(step_counts) != 1 or sorted(result.results) != list(range(workers)):
        raise RuntimeError('workers made different numbers of steps: %s' % result.results)
    by_pid = {each['pid']: each['requests'] for each in result.results.values()}
    requests = {name: by_pid[pid] for name in samples for pid in by_pid if name.endswith('(%d)' % pid)}
    judgement = growth.judge(samples, requests, interval)
    return {'steps': step_counts.pop(), 'judgement': judgement, 'results': result.results}


def main(argv: Optional[List[str]] = None) -> int:
    """Run the soak; return the exit status."""
    args = parse(argv)
    seconds, began = 60 * args.minutes, time.monotonic()
    outcome = soak(args.launcher, args.workers, args.servers, seconds, args.steps, max(1.0, seconds / SAMPLES),
                   args.expiry)
    print('%d steps in %.0f min, each equal to %s' % (outcome['steps'], (time.monotonic() - began) / 60,
                                                      'tables in the process' if args.expiry else 'NumPy'))
    for name, rows in outcome['results'][0].get('rows', {}).items():
        print('table %s: %d rows at the end, %d removed' % (name, rows, outcome['results'][0]['expired'][name]))
    print(growth.table(outcome['judgement']))
    grew = [row['process'] for row in outcome['judgement'] if row['grew']]
    if grew:
        sys.stderr.write('soak: grew: %s\n' % ', '.join(grew))
    return int(bool(grew))
