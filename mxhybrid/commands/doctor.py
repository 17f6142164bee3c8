"""Look for whatever would keep a job from working, and say what to do about it.

By itself it looks at this host.  Started as a job is, it looks at all hosts of that job: every worker checks its own,
all join the job as a training script would, and worker 0 reports for everybody:

  mxhybrid doctor
  horovodrun -np 4 -H hostA:2,hostB:2 --network-interface e0 mxhybrid doctor
  python scripts/launch.py -n 4 -s 2 --launcher local mxhybrid doctor

[X] is as it should be, [ ] is in the way of a job, [-] is worth a thought.  The exit status is 1 if there is any [ ],
else 0.
"""
import argparse
import json
import os
import signal
import socket
import sys
import textwrap
import time
from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

from .. import __version__
from ..base import launcher
from ..base.launcher import Launch
from ..base.rendezvous import NoticeBoard
from ..base.settings import DECLARED, variable
from ..job.children import program_of_child
from ..job.launch_py_processes import end_processes_of_job
from . import console
from .checks import hosts as host_checks, settings as setting_checks, software, tasks as task_checks
from .checks.comparison import GROUP, Report, SharedFinding, compare, merge_findings
from .checks.findings import ADVICE, FAILED, FINE, Finding
from .checks.processes import call_process, interpreter, package_environment

#: Seconds that an import or an answer may take; the doctor as a whole takes a small multiple of it at most.
DEFAULT_TIMEOUT_S = 60.0
#: Seconds beyond the meeting's own deadline, for it to say what it waited for.
_LAST_WORDS_S = 15.0

_BOXES = {FINE: '[X]', FAILED: '[ ]', ADVICE: '[-]'}
#: Of its values on horovodrun's notice board.
_SCOPE = 'mxhybrid.doctor'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--json', metavar='FILE', help='also write everything as JSON into FILE; - writes it to '
                                                       'standard output in place of the text')
    parser.add_argument('--timeout', type=float, default=DEFAULT_TIMEOUT_S, metavar='S',
                        help='seconds that each import and each answer may take, %(default)g by default')


# ------------------------------------------------------------------------------------------------------ showing

def lines_of(shared: List[SharedFinding], width: int) -> List[str]:
    """Findings in words, by group."""
    lines: List[str] = []
    group = ''
    for one in shared:
        if one.finding.group != group:
            group = one.finding.group
            lines += ['', group]
        text = '%s%s' % (one.finding.text, ' (%s)' % one.where if one.where else '')
        for start, content in (('    %s ' % _BOXES[one.finding.level], text),
                               ('        -> ', one.finding.remedy if one.finding.level != FINE else '')):
            if content:
                lines += textwrap.wrap(content, max(60, width), initial_indent=start, break_long_words=False,
                                       subsequent_indent=' ' * len(start), break_on_hyphens=False)
    return lines


def _title(launch: Launch, reports: List[Report]) -> str:
    hosts = list(dict.fromkeys(report.host for report in reports))
    if launch.launcher == 'none':
        return 'mxhybrid: doctor %s on %s' % (__version__, hosts[0])
    workers = launch.workers or len(reports)
    return 'mxhybrid: doctor %s, %d worker%s of %s on %s' % (__version__, workers, 's' * (workers != 1),
                                                             launch.launcher, ', '.join(hosts))


def show(title: str, launch: Launch, reports: List[Report], more: List[Finding], output: Optional[str]) -> bool:
    """Write the report; returns whether nothing failed."""
    shared = merge_findings(reports) + [SharedFinding(one, '', []) for one in more]
    failed = sum(one.finding.level == FAILED for one in shared)
    if output != '-':
        verdict = '%d thing%s in the way of a job' % (failed, 's are' if failed != 1 else ' is')
        lines = [title] + lines_of(shared, console.columns())
        lines += ['', verdict if failed else 'nothing is in the way of a job']
        if not failed and launch.launcher == 'none':
            lines[-1] += '; mxhybrid selftest runs some'
        console.write('\n'.join(lines))
    if output:
        _write_json(output, {'mxhybrid': __version__, 'launcher': launch.launcher,
                             'workers': launch.workers or len(reports),
                             'hosts': list(dict.fromkeys(report.host for report in reports)), 'ok': not failed,
                             'findings': [dict(one.finding.as_json(), workers=one.ranks) for one in shared],
                             'reports': [report.as_json() for report in reports]})
    return not failed


def _write_json(path: str, content: Dict[str, Any]) -> None:
    text = json.dumps(content, indent=1)
    if path == '-':
        sys.stdout.write(text + '\n')
        return
    try:
        with open(path, 'w') as handle:
            handle.write(text + '\n')
    except OSError as error:
        sys.stderr.write('mxhybrid doctor: --json %s cannot be written: %s\n' % (path, error.strerror))


# ---------------------------------------------------------------------------------------------------- examining

def examine(launch: Launch, seconds: float) -> Report:
    """Everything that this process finds by itself.  The first worker of a host looks at it for all workers there,
    unless findings travel only once all have joined.
    """
    findings = setting_checks.check(launch, os.environ)
    if not launch.local_rank or launch.rendezvous is None:
        packages = software.check(seconds)
        has_mpi = next((one.data.get('mpi') for one in packages if one.name == 'horovod'), None)
        findings = packages + findings + task_checks.check(launch, has_mpi)
        findings += host_checks.check(launch, min(seconds, 20.0))
    return Report(launch.rank, socket.gethostname(), findings)


def meet(report: Report, seconds: float) -> Tuple[Optional[Dict[str, Any]], str]:
    """Join the job in another process; returns its answer, in worker 0, and the problem, empty if all went well."""
    env = package_environment()
    for name, one in DECLARED.items():
        if one.is_output:
            env.pop(variable(name), None)
    env.update({'MXHYBRID_PARENT': str(os.getpid()), variable('timeout'): '%g' % seconds,
                variable('log_level'): 'WARNING'})
    limit = seconds + _LAST_WORDS_S
    program = program_of_child('mxhybrid.commands.checks.try_joining')
    ended = call_process(interpreter() + ['-c', program], limit, env, json.dumps(report.as_json()))
    marked = [line for line in ended.output.splitlines() if line.startswith('mxhybrid-answer ')]
    if ended.status != 0:
        problem = 'joining the job %s' % ended.how(limit)
        return None, '%s: %s' % (problem, ended.last_words()) if ended.last_words() else problem
    return (json.loads(marked[-1].partition(' ')[2]) if marked else None), ''


def _joining_failed(problem: str) -> Finding:
    return Finding(GROUP, 'joining', FAILED, problem, 'see docs/troubleshooting.md for what the message says')


class _Told:
    """Has this worker say what it found should its launcher end it: another worker's failure ends all others."""

    def __init__(self, launch: Launch):
        self._launch = launch
        self._report: Optional[Report] = None
        signal.signal(signal.SIGTERM, self._end)

    def found(self, report: Report) -> None:
        """This is what it found."""
        self._report = report

    def _end(self, number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._report is not None:
            self.say('ended by its launcher; by itself it found')
        else:
            sys.stderr.write('mxhybrid doctor: worker %d: ended by its launcher before it had looked at everything\n'
                             % self._launch.rank)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + number)

    def say(self, why: str) -> None:
        """Show what failed here, on standard error."""
        assert self._report is not None
        failed = [one for one in self._report.findings if one.level == FAILED]
        lines = ['mxhybrid doctor: worker %d on %s: %s' % (self._launch.rank, self._report.host, why)]
        lines += lines_of([SharedFinding(one, '', []) for one in failed], console.columns()) or ['    nothing wrong']
        sys.stderr.write('\n'.join(lines) + '\n')
        sys.stderr.flush()


# ------------------------------------------------------------------------------------------------ jobs of several

def _by_board(launch: Launch, board: NoticeBoard, report: Report, given: argparse.Namespace) -> int:
    """Under horovodrun: findings travel by the launcher's own store, so that a broken Horovod is a finding, too."""
    assert launch.workers is not None
    everybody = range(launch.workers)
    deadline = time.monotonic() + 3 * given.timeout
    board.put('report%d' % launch.rank, report.as_json())
    if launch.rank:
        verdict = board.wait(['verdict'], deadline + given.timeout).get('verdict')
        if verdict == 'meet':
            board.put('meeting%d' % launch.rank, meet(report, given.timeout)[1])
        # Worker 0 ends last, and with the status: a launcher ends all others when one ends with another than 0.
        return 0 if verdict is not None else 1
    arrived = board.wait(['report%d' % rank for rank in everybody], deadline)
    reports = [Report.from_json(value) for _, value in sorted(arrived.items(), key=lambda item: int(item[0][6:]))]
    answer, problems = None, {}
    may_meet = len(reports) == launch.workers and all(_can_join(one) for one in reports)
    board.put('verdict', 'meet' if may_meet else 'stay')
    if may_meet:
        answer, problems[0] = meet(report, given.timeout)
        others = board.wait(['meeting%d' % rank for rank in everybody if rank], time.monotonic() + given.timeout)
        problems.update((int(name[7:]), problem) for name, problem in others.items())
    more = compare(reports, launch.workers, answer)
    said = {problem: rank for rank, problem in sorted(problems.items(), reverse=True) if problem}
    for problem, rank in sorted(said.items(), key=lambda item: item[1]):
        more.append(_joining_failed('worker %d on %s: %s' % (rank, reports[rank].host, problem)))
    if not may_meet:
        more.append(Finding(GROUP, 'joining', ADVICE, 'joining a job was not tried', 'mend what is named above first'))
    return 0 if show(_title(launch, reports), launch, reports, more, given.json) else 1


def _can_join(report: Report) -> bool:
    """Whether joining the job can be tried at all."""
    hinders = ('numpy', 'mxnet', 'horovod', 'mxhybrid', 'settings', 'engine', 'launcher', 'name', 'interfaces',
               'ports')
    return all(one.level != FAILED or one.name not in hinders for one in report.findings)


def _by_meeting(launch: Launch, told: _Told, report: Report, given: argparse.Namespace) -> int:
    """Under launch.py, or MPI: findings travel by the job itself."""
    answer, problem = None, 'joining a job was not tried: mend what is named above first'
    if _can_join(report):
        answer, problem = meet(report, given.timeout)
    if problem:
        if launch.scheduler is not None:
            # Nobody else would under MXNet's own launcher: without this worker they wait for ever.
            end_processes_of_job(launch.scheduler, ('scheduler', 'server'))
        if not launch.rank:
            show(_title(launch, [report]), launch, [report], [_joining_failed(problem)], given.json)
        else:
            told.say(problem)
        return 1
    if answer is None:  # worker 0, by the ranks of the job, has it
        return 0
    reports = [replace(Report.from_json(value), rank=rank) for rank, value in enumerate(answer['reports'])]
    more = compare(reports, answer['workers'], answer)
    return 0 if show(_title(launch, reports), launch, reports, more, given.json) else 1


def run(given: argparse.Namespace) -> int:
    """Examine and report; returns the exit status."""
    launch = launcher.read()
    if launch.launcher == 'none' or launch.workers == 1:
        report = examine(launch, given.timeout)
        tasks = launcher.several_tasks()
        if tasks is not None and tasks.certain and tasks.rank:  # task 0 shows all of it
            told = _Told(launch)
            told.found(report)
            told.say('task %d of %d, by itself it found' % (tasks.rank, tasks.count))
            return 1
        return 0 if show(_title(launch, [report]), launch, [report], [], given.json) else 1
    told = _Told(launch)
    report = examine(launch, given.timeout)
    told.found(report)
    if launch.rendezvous is None:
        return _by_meeting(launch, told, report, given)
    try:
        return _by_board(launch, NoticeBoard(launch.rendezvous, _SCOPE), report, given)
    except OSError as error:
        told.say('horovodrun at %s:%d cannot be reached (%s)' % (launch.rendezvous + (error,)))
        return 1


if __name__ == '__main__':
    from .main import run_alone

    sys.exit(run_alone('doctor'))
