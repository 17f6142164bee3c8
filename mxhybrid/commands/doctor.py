"""Look for whatever would keep a job from working, and suggest remedies.

Alone, it checks this host.  Started as a job is started, it checks all hosts of that job: every worker checks its own
host, all workers join the job as a training script would, and worker 0 prints one report:

  mxhybrid doctor
  horovodrun -np 4 -H hostA:2,hostB:2 --network-interface e0 mxhybrid doctor
  python scripts/launch.py -n 4 -s 2 --launcher local mxhybrid doctor

[X] is fine, [ ] keeps a job from working, [-] is advice.  The exit status is 1 if there is any [ ], else 0.
"""
import argparse
import json
import os
import signal
import socket
import sys
import textwrap
import time
from dataclasses import asdict, replace
from typing import Any, Dict, List, Optional, Tuple

from .. import __version__
from ..base import launcher
from ..base.launcher import Launch
from ..base.settings import DECLARED, variable
from ..job.launch_py_processes import end_processes_of_job
from ..job.server_processes import child_program
from ..messaging.notice_board import NoticeBoard
from . import console
from .checks import hosts as host_checks, settings as setting_checks, software
from .checks.comparison import GROUP, Report, SharedFinding, compare, merge_findings
from .checks.findings import ADVICE, FAILED, FINE, Finding
from .checks.processes import call_process, interpreter, package_environment
from .main import run_alone

#: Seconds after its deadline that the joining process gets to report what it waited for.
_LAST_WORDS_S = 15.0

_BOXES = {FINE: '[X]', FAILED: '[ ]', ADVICE: '[-]'}
#: Scope of the doctor's values on horovodrun's notice board.
_SCOPE = 'mxhybrid.doctor'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--json', metavar='FILE', help='also write the findings as JSON into FILE; - writes them to '
                                                       'standard output instead of the text')
    parser.add_argument('--timeout', type=float, default=60.0, metavar='S',
                        help='seconds that each import and each answer may take (default %(default)g)')


# ------------------------------------------------------------------------------------------------------ showing

def lines_of(shared: List[SharedFinding], width: int) -> List[str]:
    """Return findings as text, by group."""
    lines: List[str] = []
    group = ''
    for entry in shared:
        finding = entry.finding
        if finding.group != group:
            group = finding.group
            lines += ['', group]
        text = '%s%s' % (finding.text, ' (%s)' % entry.where if entry.where else '')
        for start, content in (('    %s ' % _BOXES[finding.level], text),
                               ('        -> ', finding.remedy if finding.level != FINE else '')):
            if content:
                lines += textwrap.wrap(content, max(60, width), initial_indent=start, break_long_words=False,
                                       subsequent_indent=' ' * len(start), break_on_hyphens=False)
    return lines


def show(launch: Launch, reports: List[Report], more: List[Finding], output: Optional[str]) -> int:
    """Write the report; return the exit status, 0 if no check failed."""
    shared = merge_findings(reports) + [SharedFinding(finding, '', []) for finding in more]
    failed = sum(entry.finding.level == FAILED for entry in shared)
    hosts, workers = list(dict.fromkeys(report.host for report in reports)), launch.workers or len(reports)
    if output != '-':
        title = 'mxhybrid: doctor %s' % __version__
        if launch.launcher != 'none':
            title += ', %d worker%s of %s' % (workers, 's' * (workers != 1), launch.launcher)
        verdict = '%d problem%s a job from working' % (failed, 's keep' if failed != 1 else ' keeps')
        lines = ['%s on %s' % (title, ', '.join(hosts))] + lines_of(shared, console.columns())
        lines += ['', verdict if failed else 'no problem was found']
        if not failed and launch.launcher == 'none':
            lines[-1] += ': mxhybrid selftest runs small jobs'
        console.write('\n'.join(lines))
    if output:
        _write_json(output, {'mxhybrid': __version__, 'launcher': launch.launcher, 'workers': workers,
                             'hosts': hosts, 'ok': not failed,
                             'findings': [dict(asdict(entry.finding), workers=entry.ranks) for entry in shared],
                             'reports': [asdict(report) for report in reports]})
    return 1 if failed else 0


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
    """Return the findings of this process alone.

    The first worker of a host checks it for all workers there, unless findings can only be exchanged by joining the
    job: then every worker checks it.
    """
    findings = setting_checks.check(launch, os.environ)
    if not launch.local_rank or launch.rendezvous is None:
        packages = software.check(seconds)
        has_mpi = next((finding.data.get('mpi') for finding in packages if finding.name == 'horovod'), None)
        findings = packages + findings + setting_checks.check_tasks(launch, has_mpi)
        findings += host_checks.check(launch, min(seconds, 20.0))
    return Report(launch.rank, socket.gethostname(), findings)


def join_job(report: Report, seconds: float) -> Tuple[Optional[Dict[str, Any]], str]:
    """Join the job in another process; returns its answer, in worker 0, and the problem, empty if there is none."""
    env = package_environment()
    for name, setting in DECLARED.items():
        if setting.is_output:
            env.pop(variable(name), None)
    env.update({'MXHYBRID_PARENT': str(os.getpid()), variable('timeout'): '%g' % seconds,
                variable('log_level'): 'WARNING'})
    limit = seconds + _LAST_WORDS_S
    program = child_program('mxhybrid.commands.checks.try_joining')
    ended = call_process(interpreter() + ['-c', program], limit, env, json.dumps(asdict(report)))
    if ended.status != 0:
        problem = 'joining the job %s' % ended.how(limit)
        return None, '%s: %s' % (problem, ended.last_words()) if ended.last_words() else problem
    return ended.answer(), ''


def _joining_failed(problem: str) -> Finding:
    return Finding(GROUP, 'joining', FAILED, problem, 'look for the message in docs/troubleshooting.md')


def _print_failures(report: Report, reason: str) -> None:
    """Print the failed checks of this worker on standard error."""
    failed = [SharedFinding(finding, '', []) for finding in report.findings if finding.level == FAILED]
    lines = ['mxhybrid doctor: worker %d on %s: %s' % (report.rank, report.host, reason)]
    lines += lines_of(failed, console.columns()) or ['    no problem']
    sys.stderr.write('\n'.join(lines) + '\n')
    sys.stderr.flush()


# ---------------------------------------------------------------------------------------------- several workers

def _by_board(launch: Launch, board: NoticeBoard, report: Report, options: argparse.Namespace) -> int:
    """Exchange findings under horovodrun, by the launcher's own store, so that a broken Horovod is a finding, too."""
    assert launch.workers is not None
    ranks = range(launch.workers)
    deadline = time.monotonic() + 3 * options.timeout
    board.put('report%d' % launch.rank, asdict(report))
    if launch.rank:
        verdict = board.wait(['verdict'], deadline + options.timeout).get('verdict')
        if verdict == 'meet':
            board.put('meeting%d' % launch.rank, join_job(report, options.timeout)[1])
        # Worker 0 ends last, with the exit status: a launcher ends all workers when one of them fails.
        return 0 if verdict is not None else 1
    arrived = board.wait(['report%d' % rank for rank in ranks], deadline)
    reports = [Report.from_json(value) for _, value in sorted(arrived.items(), key=lambda item: int(item[0][6:]))]
    answer, problems = None, {}
    may_join = len(reports) == launch.workers and all(_can_join(arrived_report) for arrived_report in reports)
    board.put('verdict', 'meet' if may_join else 'stay')
    if may_join:
        answer, problems[0] = join_job(report, options.timeout)
        others = board.wait(['meeting%d' % rank for rank in ranks if rank], time.monotonic() + options.timeout)
        problems.update((int(name[7:]), problem) for name, problem in others.items())
    more = compare(reports, launch.workers, answer)
    first_rank = {problem: rank for rank, problem in sorted(problems.items(), reverse=True) if problem}
    for problem, rank in sorted(first_rank.items(), key=lambda item: item[1]):
        more.append(_joining_failed('worker %d on %s: %s' % (rank, reports[rank].host, problem)))
    if not may_join:
        more.append(Finding(GROUP, 'joining', ADVICE, 'joining a job was not tried', 'solve the problems above first'))
    return show(launch, reports, more, options.json)


def _can_join(report: Report) -> bool:
    """Return whether joining the job can be tried at all."""
    needed = ('numpy', 'mxnet', 'horovod', 'mxhybrid', 'settings', 'engine', 'launcher', 'name', 'interfaces',
               'ports')
    return all(finding.level != FAILED or finding.name not in needed for finding in report.findings)


def _by_joining(launch: Launch, report: Report, options: argparse.Namespace) -> int:
    """Exchange findings under launch.py or MPI, by the job itself."""
    answer, problem = None, 'joining a job was not tried: solve the problems above first'
    if _can_join(report):
        answer, problem = join_job(report, options.timeout)
    if problem:
        if launch.scheduler is not None:
            # MXNet's own launcher does not end them, and without this worker they wait for ever.
            end_processes_of_job(launch.scheduler, ('scheduler', 'server'))
        if not launch.rank:
            show(launch, [report], [_joining_failed(problem)], options.json)
        else:
            _print_failures(report, problem)
        return 1
    if answer is None:  # only worker 0, by the ranks of the job, has an answer
        return 0
    reports = [replace(Report.from_json(value), rank=rank) for rank, value in enumerate(answer['reports'])]
    more = compare(reports, answer['workers'], answer)
    return show(launch, reports, more, options.json)


def run(options: argparse.Namespace) -> int:
    launch = launcher.read()
    if launch.launcher == 'none' or launch.workers == 1:
        own_report = examine(launch, options.timeout)
        tasks = launcher.several_tasks()
        if tasks is not None and tasks.certain and tasks.rank:  # task 0 prints the whole report
            _print_failures(own_report, 'task %d of %d: its own findings' % (tasks.rank, tasks.count))
            return 1
        return show(launch, [own_report], [], options.json)
    report: Optional[Report] = None

    def end(number: int, _: Any) -> None:
        """Print the findings of this worker when its launcher ends it: the failure of one worker ends all others."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if report is not None:
            _print_failures(report, 'ended by its launcher; its own findings')
        else:
            sys.stderr.write('mxhybrid doctor: worker %d: ended by its launcher before all checks were made\n'
                             % launch.rank)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    report = examine(launch, options.timeout)
    if launch.rendezvous is None:
        return _by_joining(launch, report, options)
    try:
        return _by_board(launch, NoticeBoard(launch.rendezvous, _SCOPE), report, options)
    except OSError as error:
        _print_failures(report, 'horovodrun at %s:%d cannot be reached (%s)' % (launch.rendezvous + (error,)))
        return 1


if __name__ == '__main__':
    sys.exit(run_alone('doctor'))
