"""Run one case: start the job, wait for the moment, cause the fault, watch the end, and judge it."""
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List, NamedTuple, Optional

import numpy as np

from lab import jobs
from lab.launchers import over_hosts
from lab.processes import PATIENCE, read_command, send_signal
from mxhybrid.base.errors import CheckpointError
from mxhybrid.checkpoint import folder
from mxhybrid.checkpoint.reader import Reader

from . import faults
from .cases import IMPORT_S, SILENCE_S

BODY = Path(__file__).with_name('body.py')
TABLE_BODY = BODY.with_name('table_body.py')

#: Seconds that a job may take to come to the moment, and beyond its limit to its end.
_MOMENT_S, _PATIENCE_S = 120.0, 40.0

#: Seconds that processes may outlive their launcher.
_GRACE_S = 5.0

#: Messages about memory that a limit refuses: its purpose or size, and the remedy.
_REFUSED = {'memory': r'(\d+ bytes|Unable to allocate).*ulimit -v', 'files': r'shared memory of \d+ bytes.*ulimit -f'}

_POLL_S = 0.02
_TAIL_LINES = 40

#: A disk that holds one checkpoint of two; no parameters; parameters, but no state; a few lines of numbers.
_DISKS = {'checkpoint': '700k', 'parameters': '64k', 'states': '300k', 'metrics': '8k', 'trace': '8k'}

#: Disks for the files of dynamic tables and for their checkpoints, too small for the rows of a step with many new keys.
_TABLE_DISKS = {'rows': '34m', 'checkpoint': '60m'}

#: Seconds that a job may take that resumes from a checkpoint.
_RESUME_S = 120.0

#: Faults that hit one process.
_OF_PROCESSES = (*faults.SIGNALS, *faults.LIMITS)


class Outcome(NamedTuple):
    """The outcome of a case."""

    case: str
    #: The status of the launcher; None if it had to be killed.
    status: Optional[int]
    #: The time from the fault to the end of the last process.
    seconds: float
    #: Causes that processes of the job gave, and whether they name what happened.
    named: List[str]
    right: bool
    #: Processes, shared memory and files that stayed behind.
    left: List[str]
    #: The reasons for which the case failed; empty if it passed.
    problems: List[str]
    #: The last lines, if the case failed.
    output: str


def run_case(case, cluster, reference):
    """Run a case on two hosts; return its Outcome.  `reference` has the weights that training ends with."""
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix='mxhybrid-chaos-'))
        stack.callback(shutil.rmtree, str(directory), ignore_errors=True)
        return _Run(case, cluster, directory, stack).outcome(reference)


def train_alone(body=BODY, keeps_rows=False):
    """Return the weights that one process, which runs `body`, ends with; see :attr:`cases.Case.keeps_rows`."""
    with tempfile.TemporaryDirectory(prefix='mxhybrid-chaos-') as directory:
        spec = {'weights': directory, 'keeps_rows': keeps_rows}
        jobs.run_job(body, 'none', env={'MXHYBRID_CHAOS': json.dumps(spec)}).ok()
        return _weights(Path(directory), 0)


def _weights(directory, rank):
    with np.load(str(directory / ('weights.%d.npz' % rank))) as file:
        return dict(file)


def _until(condition, seconds):
    """Wait until a condition holds, at most some seconds; return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def shared_memory(cluster):
    """Return the names of shared memory that processes of a cluster's hosts made, as ``'hosta:/dev/shm/name'``."""
    return {'%s:/dev/shm/%s' % (host.name, path.name) for index, host in enumerate(cluster.hosts)
            for path in cluster.shared_memory(index).iterdir()}


class _Run:
    """A run of one case: its job, its files, and its fault."""

    def __init__(self, case, cluster, directory, stack):
        self.case, self.cluster, self.directory, self.stack = case, cluster, directory, stack
        for name in ('job', 'saved', 'tmp', 'disk', 'rows'):
            (directory / name).mkdir()
        if case.fault == 'full' and case.host is not None:
            # The launcher needs some.
            stack.enter_context(faults.small_disk(str(cluster.shared_memory(case.host)), '1m'))
            (cluster.shared_memory(case.host) / faults.FILLER).touch()
        elif case.fault == 'full':
            sizes = _TABLE_DISKS if case.has_tables else _DISKS
            stack.enter_context(faults.small_disk(str(directory / 'disk'), sizes[case.target]))
        self._shared_memory = shared_memory(cluster)
        self.body = TABLE_BODY if case.training[0] else BODY
        self._start(self._environment())
        stack.callback(self._clean_up)

    # -- starting ----------------------------------------------------------------------------------------------

    def _start(self, environment):
        command = over_hosts([('hosta', 2), ('hostb', 2)], [self.body], 'e0')
        if self.case.is_elastic:
            command = [sys.executable, '-m', 'mxhybrid', 'run', '-np', '4', '-H', 'hosta:2,hostb:2',
                       '--network-interface', 'e0', sys.executable, str(self.body)]
        self.job = self.cluster.start(0, command, env=environment, body=self.body)

    def _environment(self):
        case = self.case
        spec = {'directory': str(self.directory / 'job'), 'moment': case.moment.partition('+')[0],
                'announcers': case.announcers, 'holds': case.holds,
                'raises': case.rank if case.fault == 'raise' else None,
                'server_raises': case.fault == 'raise' and case.rank is None, 'log': case.fault == 'cut',
                'keeps_rows': case.keeps_rows}
        on_disk = case.fault == 'full' and case.moment in ('saving', 'delta')
        if case.is_elastic:
            spec.update(elastic=True, generation=int(case.moment == 'elastic-restore'))
        if case.has_tables or case.moment == 'saving':
            spec.update(saving=str(self.directory / ('disk' if on_disk else 'saved')),
                        plain=case.target in ('parameters', 'states'))
        if case.must_end_well:
            spec['weights'] = str(self.directory / 'job')
        if case.lasts:
            spec['steps'] = 10 ** 6
        env = dict(case.environment, MXHYBRID_CHAOS=json.dumps(spec), TMPDIR=str(self.directory / 'tmp'))
        if case.has_tables:
            rows = 'disk' if case.target == 'rows' else 'rows'
            env['MXHYBRID_STORAGE'] = '*users*=%s,*=memory' % (self.directory / rows)
        elif case.fault == 'full' and not on_disk and case.host is None:
            env['MXHYBRID_' + case.target.upper()] = str(self.directory / 'disk' / case.target)
        return env

    def _clean_up(self):
        self.job.close()
        for host in self.cluster.hosts:
            # Processes that sshd started for the job wait for a link that was cut. The daemons themselves stay.
            for pid in set(self.cluster.pids(host.namespace)) - self.cluster.daemons:
                send_signal(pid, signal.SIGKILL)

    # -- the fault ---------------------------------------------------------------------------------------------

    def _ended(self):
        return self.job.poll() is not None

    def _wait_for(self, condition, seconds, event):
        """Wait until a condition holds; raise _Missed if the job ends, or the time is over, before the event."""
        _until(lambda: condition() or self._ended(), seconds)
        if not condition():
            raise _Missed('the job %s before %s' % ('ended' if self._ended() else 'did not go on', event))

    def _victim(self):
        """Return the process id of the victim, as soon as it runs."""
        case, victims = self.case, []
        if case.target == 'launcher':
            return self.job.pid

        def look():
            if case.target.startswith('keeper'):  # sshd gives a keeper no variables of the job
                victims[:] = [pid for pid in self.cluster.pids(self.cluster.hosts[case.host].namespace)
                              if read_command(pid)[1:3] == ['-m', 'mxhybrid.elastic.keeper']]
                return victims
            role = case.target.split('-')[0] if case.rank is None else 'worker'
            victims[:] = [process.pid for process in self.job.processes(role)
                          if (case.rank is None or process.rank == case.rank)
                          and (case.host is None or self.cluster.host_of(process.pid) == case.host)]
            return victims
        self._wait_for(look, _MOMENT_S, 'there was a %s' % case.target)
        return victims[0]

    def _inject(self):
        """Cause the fault; return the process id of the victim, if a process is hit."""
        case = self.case
        files = [self.directory / 'job' / ('at.%d' % rank) for rank in case.announcers]
        by_birth = case.moment == 'start' and case.target.split('-')[0] in ('server', 'scheduler')
        victim = None
        if case.fault in faults.SIGNALS and by_birth:
            (self.directory / 'job' / 'go').write_text('')
            victim = self._victim()
        elif (case.fault, case.host) != ('full', None) and not (case.fault == 'raise' and case.rank is None):
            self._wait_for(lambda: all(file.exists() for file in files), _MOMENT_S, case.moment)
            if case.fault in _OF_PROCESSES:
                victim = self._victim()
        if case.moment == 'sending':
            self.stack.enter_context(faults.slow_link(self.cluster, case.place))
        if case.delay:
            (self.directory / 'job' / 'go').write_text('')
            time.sleep(case.delay)
        if case.moment == 'delta' and victim is not None and not faults.stop_while_saving(
                victim, self.directory / 'saved', self._ended):
            raise _Missed('the job ended before a server began to write a delta')
        self.fault_at = time.monotonic()
        if victim is not None:
            faults.hit(victim, case.fault)
        elif case.fault == 'cut':
            faults.set_link(self.cluster, case.host, False)
            self.stack.callback(faults.set_link, self.cluster, case.host, True)
        elif case.fault == 'full' and case.host is not None:
            faults.fill(str(self.cluster.shared_memory(case.host)))
        elif case.fault == 'slow':
            self.stack.enter_context(faults.slow_link(self.cluster, case.host))
            self.stack.enter_context(faults.slow_processes(lambda: [
                process.pid for process in self.job.processes() if process.role != 'launcher'
                and self.cluster.host_of(process.pid) == case.host]))
        elif case.fault == 'away':
            self._wait_for(lambda: 'has kept the other workers waiting' in self.job.output, 10 * SILENCE_S,
                           'the warning')
        if case.fault != 'lost':
            (self.directory / 'job' / 'go').write_text('')
        return victim

    # -- the end -----------------------------------------------------------------------------------------------

    def outcome(self, reference):
        """Cause the fault, watch the end, judge, and resume a job with dynamic tables."""
        try:
            victim = self._inject()
        except _Missed as missed:
            return Outcome(self.case.name, self.job.poll(), 0.0, [], False, [], [str(missed)], self._tail())
        if self.case.fault in ('full', 'none') or self.case.fault == 'raise' and self.case.rank is None:
            _until(self._ended, _MOMENT_S)
        ended = _until(self._ended, self.case.limit + _PATIENCE_S)
        status = self.job.poll()
        rest = self._wait_for_rest(victim)
        seconds = time.monotonic() - self.fault_at
        left = self._left(rest, victim)
        by_body = self.directory / 'job' / 'fault'
        if victim is None and by_body.exists() and (self.case.fault == 'full' or self.case.target == 'server-a'):
            seconds = time.time() - by_body.stat().st_mtime
        outcome = self._judge(status, ended, seconds, left, victim, reference)
        return self._resumed(outcome, reference) if self.case.has_tables and not outcome.problems else outcome

    def _resumed(self, outcome, reference):
        """Start the job again without a fault; add the problems of its end to the outcome."""
        self._clean_up()
        spec = {'saving': str(self.directory / ('disk' if self.case.target == 'checkpoint' else 'saved')),
                'weights': str(self.directory / 'job'), 'keeps_rows': self.case.keeps_rows}
        if self.case.target == 'checkpoint':
            subprocess.run(['mount', '-o', 'remount,size=1g', spec['saving']], check=True)
        self._start({'MXHYBRID_SERVERS_PER_HOST': '2', 'MXHYBRID_CHAOS': json.dumps(spec),
                     'MXHYBRID_STORAGE': '*users*=%s,*=memory' % (self.directory / 'rows')})
        ended = _until(self._ended, _RESUME_S)
        text, status = self.job.output, self.job.poll()
        if not ended or status != 0:
            problems = ['resumed, it %s' % ('ended with status %r' % status if ended else 'did not end')]
        elif 'training from step 0' in text:
            problems = ['it did not resume from a checkpoint']
        else:
            problems = self._check_weights(reference)
        return outcome._replace(problems=problems, output=self._tail() if problems else '')

    def _wait_for_rest(self, victim):
        """Wait for the end of all processes; return those that are left.  A victim that was stopped early may stay."""
        # A host that was cut off notices it by itself; a process that still imports MXNet notices it afterwards.
        extra = (SILENCE_S + 3.0) * self.case.silent + IMPORT_S * (self.case.moment == 'start')
        stays = victim if (self.case.fault, self.case.moment) == ('stop', 'start') else None

        def rest():
            return [process for process in self.job.processes() if process.pid != stays]
        _until(lambda: not rest(), _GRACE_S + extra)
        return rest()

    def _left(self, rest, victim):
        """Return the processes, shared memory and files that are left."""
        if (self.case.fault, self.case.moment) == ('stop', 'start'):
            # A process that was stopped before the job knew it must end by itself when it is continued.
            send_signal(victim, signal.SIGCONT)
            if not _until(lambda: victim not in [process.pid for process in self.job.processes()], IMPORT_S):
                rest = [process for process in self.job.processes() if process.pid == victim] + rest
        left = ['%s pid %d%s' % (process.role, process.pid, ' (the victim)' * (process.pid == victim))
                for process in rest]
        left += sorted(shared_memory(self.cluster) - self._shared_memory)
        rows = 'disk' if self.case.target == 'rows' else 'rows'
        left += [str(path.relative_to(self.directory))
                 for pattern in ('tmp/*', 'saved/*.part', 'disk/*.part', rows + '/*')
                 for path in sorted(self.directory.glob(pattern))]
        return left

    def _text(self):
        """Return the output of the job, and of workers that were cut off from it."""
        logs = sorted((self.directory / 'job').glob('log.*'))
        return self.job.output + ''.join(path.read_text(errors='replace') for path in logs)

    def _tail(self):
        return '\n'.join(self._text().splitlines()[-_TAIL_LINES:])

    def _judge(self, status, ended, seconds, left, victim, reference):
        case, text, problems = self.case, self._text(), []
        causes = sorted(set(re.findall(r'ends, because (.*)', text)) | set(re.findall(r'gave up after .*', text)))
        launcher = re.findall(r'Process name: \d+|(?<=\n)Exit code: .*', text)
        right = self._is_right(causes, launcher, text, victim)
        if not ended:
            problems.append('did not end')
        elif case.must_end_well:
            problems += self._check_weights(reference) if status == 0 else ['status %r, not 0' % status]
        elif status == 0:
            problems.append('status 0 in spite of the fault')
        limit = case.limit * PATIENCE
        if seconds > limit:
            problems.append('%.1f s, not %g' % (seconds, limit))
        if not right:
            problems.append('wrong or no cause named')
        if case.has_tables or case.moment == 'saving' and case.target not in ('parameters', 'states'):
            problems += self._check_checkpoints()
        if left:
            problems.append('left behind: ' + ', '.join(left))
        return Outcome(case.name, status if ended else None, round(seconds, 1), causes + launcher, right, left,
                       problems, self._tail() if problems else '')

    def _check_checkpoints(self):
        """Return the problems: a checkpoint must be left, and all checkpoints must be complete."""
        complete = []
        for directory in (self.directory / 'saved', self.directory / 'disk'):
            try:
                for name in folder.names(str(directory)):
                    Reader(str(directory / name)).verify()
                    complete.append(name)
            except CheckpointError as error:
                return [str(error)]
        return [] if complete else ['no checkpoint is left']

    def _check_weights(self, reference):
        for rank in range(4):
            mine = _weights(self.directory / 'job', rank)
            for name, expected in reference.items():
                rtol, atol = (1e-10, 1e-10) if expected.dtype == np.float64 else (1e-5, 1e-6)
                if not np.allclose(mine[name], expected, rtol=rtol, atol=atol):
                    return ['%s is wrong on worker %d' % (name, rank)]
        return []

    def _is_right(self, causes, launcher, text, victim):
        """Return whether the processes of the job name the fault."""
        case = self.case
        # Before it has joined, a worker on another host knows no more than this.
        if case.moment == 'start':
            causes = [cause for cause in causes if not re.match('the launcher at .* has ended', cause)]
        host = '' if case.place is None else 'host' + 'ab'[case.place]
        if case.is_elastic:
            return re.search(r'the job ended in generation [%s]\b' % case.generations, text) is not None
        if case.must_end_well:
            warned = re.search(r'worker %s \(.*has kept the other workers waiting.*body\.py:\d+' % case.rank, text)
            return not causes and (case.fault != 'away' or warned is not None)
        if case.target == 'launcher':
            return True  # no process is left that could be told
        patterns, reason = [], '' if case.has_tables else None
        if case.fault == 'kill' and case.rank is not None:
            patterns = [r'worker %d(?:, which watches the job,| \(host %s, pid %d\)) died' % (case.rank, host, victim)]
            if not causes:  # the launcher may be quicker than a process that only starts
                return launcher[:1] == ['Process name: %d' % case.rank]
        elif case.fault == 'kill':
            patterns = [r'the %s with pid %d on host \w+ ended with signal 9 \(SIGKILL\)' % (
                case.target.split('-')[0], victim)]
        elif case.fault == 'stop' and case.rank is not None:
            patterns = [r'worker %d(?:, which watches the job,| \(host %s, pid %d\)) has been silent'
                        % (case.rank, host, victim), r'gave up after .* \(worker %d did not join\)' % case.rank]
        elif case.fault == 'stop':
            patterns = [r'the scheduler \(pid %d\) has been silent' % victim,
                        r'a parameter server \(host %s, pid %d\) has been silent' % (host, victim),
                        r'the \w+ with pid %d on host \w+ did not join' % victim]
        elif case.fault == 'raise':
            patterns = [r'worker %s \(host %s, pid \d+\) failed: RuntimeError: deliberately wrong' % (case.rank, host)
                        if case.rank is not None else r'a parameter server .* failed: KeyError: 12345']
            if case.moment == 'saving' and case.rank == 0:
                patterns = [r'failed: CheckpointError: checkpoint\.save failed on worker 0: RuntimeError: deliberately']
            if case.rank is not None and not causes:
                return 'RuntimeError: deliberately wrong' in text
        elif case.fault == 'cut':
            patterns = [r'host hostb \(.*\) has been silent', r'worker 0, which watches the job, has been silent',
                        r'gave up after .* \((the launcher at .* does not answer|worker.* did not join)\)']
        elif case.fault == 'full':
            # MXNet's native code does not say more than that it could not write.
            return re.search('No space left|FileStream.Write incomplete', text) is not None
        elif case.fault in faults.LIMITS:
            # All other processes write the first words of the reason.
            if not re.search(_REFUSED[case.fault], text):
                return False
            patterns = [r'%s \(host %s, pid %d\) failed: .*(?:%s|in full in the output of)' % (
                'worker %d' % case.rank if case.rank is not None else 'a parameter server', host, victim,
                _REFUSED[case.fault])]
            reason = patterns[0]
        elif case.fault == 'lost':
            patterns = [r'worker %d \(.*has kept the other workers waiting.*body\.py:\d+' % case.rank]
        if reason is not None:  # which each worker that is left must give
            leaving_workers = set(re.findall(r'(worker \d) \(.*\) ends, because ' + reason, text))
            if len(leaving_workers) < 3 + (case.rank is None):
                return False
        return bool(causes) and all(any(re.search(pattern, cause) for pattern in patterns) for cause in causes)


class _Missed(Exception):
    """The job did not come to the moment of its case."""
