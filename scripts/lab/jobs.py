"""Real jobs: start a job, watch it, read the reports of its workers, and end all of its processes.

A *body* is a Python script that every worker of a job runs, under a launcher::

    result = run_job(BODIES / 'dense.py', workers=2, args=['--steps', '20']).ok()
    np.testing.assert_allclose(result.results[0]['weights']['dense0_weight'], expected)

and it hands its results back::

    from lab.reports import report
    report(kv.rank, weights={name: param.data() for name, param in params.items()}, steps=20)

A test that disturbs a job starts it and keeps hold of it::

    with start_job(body, 'horovodrun', workers=2) as job:
        job.wait_for_output('step 3', timeout=60)
        job.kill(job.wait_for_processes('server', 1, timeout=5)[0].pid)
        result = job.wait(timeout=30)
    assert result.returncode != 0

Every process of a job carries a marker (:mod:`lab.processes`): processes that do not end in time, and processes that
outlive their launcher, fail the job and are killed by process id. Nothing is ever killed by name.
MXHYBRID_TEST_PATIENCE=2 doubles every time limit, for slow machines.
"""
import contextlib
import dataclasses
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Optional

from . import processes, reports
from .launchers import PYTHON_PATH, job_command
from .processes import GRACE_S, MARKER, PATIENCE, POLL_S, JobFailed

TAIL_LINES = 100  # of the output, in a message; horovodrun adds a stack of 25 lines of its own
_CRASH_LINES = 30  # of a crash before them
_REAP_S = 10.0


def _obey_ctrl_c():
    """Restore SIGINT: a shell lets commands in its background ignore it, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """A command of a job, in a session of its own, and the file that takes its output."""

    def __init__(self, label, argv, log, **how):
        self.label, self._log = label, log
        with open(str(log), 'wb') as output:
            self._process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                             preexec_fn=_obey_ctrl_c, **how)
        self.pid = self._process.pid
        resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))

    def poll(self):
        """int or None: its exit status, None while it runs."""
        return self._process.poll()

    def wait(self, timeout):
        """int or None: its exit status, None if it still runs after `timeout` seconds, times the patience."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout * PATIENCE)
        return self._process.returncode

    @property
    def output(self):
        """str: its output so far, standard output and error together."""
        return self._log.read_text(errors='replace')

    def tail(self, lines=TAIL_LINES):
        """str: the last lines of that."""
        return indented(self.output, lines)

    def end_input(self):
        """Close its standard input."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def kill(self):
        """Kill it, and wait until it is gone."""
        if self.poll() is None:
            self._process.kill()
        self.end_input()
        self.wait(_REAP_S)


def indented(output, lines=TAIL_LINES):
    """str: the last lines of an output, and the beginning of a crash before them, to be shown in a message."""
    said = output.splitlines()
    last = said[-lines:]
    for number, line in enumerate(said[:-lines]):
        if 'Fatal Python error' in line:  # of faulthandler, which then shows the stacks of all threads
            last = said[number:min(number + _CRASH_LINES, len(said) - lines)] + ['...'] + last
            break
    return '\n'.join('  | ' + line for line in last) or '  (it said nothing)'


class Job:
    """Commands that belong together, and all processes that they start: marked, watched, and ended together.

    A context manager, which ends them at the end of the block, whatever happens there.  Variables of this process whose
    names begin like the regular expression `not_inherited` do not reach the job.  `env` is added to the environment of
    every command; None as a value removes a name.
    """

    def __init__(self, not_inherited, env=None):
        #: A value that every process of the job carries in its environment.
        self.marker = processes.new_marker()
        #: A folder for files of the job, which goes when the job does.
        self.directory = Path(tempfile.mkdtemp(prefix='mxhybrid-job-'))
        self.commands = []
        self._environment = _with(
            {name: value for name, value in os.environ.items() if not re.match(not_inherited, name)},
            {MARKER: self.marker,
             'OMP_NUM_THREADS': '1',
             'PYTHONPATH': PYTHON_PATH,
             'PYTHONUNBUFFERED': '1',
             # Lines break in the same places whatever terminal there is: with readline, a terminal's width is in here.
             'COLUMNS': '100',
             # SIGABRT then prints the Python stack of every thread, which explains why a job is out of time.
             'PYTHONFAULTHANDLER': '1'}, env)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def start(self, label, argv, env=None, cwd=None, stdin=subprocess.DEVNULL):
        """Start a command; returns it."""
        log = self.directory / ('output.%d' % len(self.commands))
        self.commands.append(Command(label, argv, log, env=_with(self._environment, env), stdin=stdin,
                                     cwd=str(cwd or self.directory)))
        return self.commands[-1]

    def over(self):
        """str: why nothing more is to be expected of the job; empty while it goes on."""
        return ''

    def wait_until(self, condition, timeout, event):
        """Wait until `condition()` holds; `JobFailed` where the job is over, or time is up, without it."""
        timeout *= PATIENCE
        deadline = time.monotonic() + timeout
        while True:
            over = self.over()
            if condition():
                return
            if over or time.monotonic() > deadline:
                message = self.explain(over, timeout, event)
                self.close()
                raise JobFailed(message)
            time.sleep(POLL_S)

    def explain(self, over, timeout, what):
        """Describe the state of the job when it ended, or when time was up."""
        said = '\n'.join('last lines of the output:\n' + command.tail() for command in self.commands)
        return f'{over or "%g s passed" % timeout} while waiting for {what}; running:\n{self.running()}\n{said}'

    def running(self):
        """str: a line for each process that runs."""
        return processes.format_processes(processes.find_processes(self.marker))

    def end(self):
        """Kill all processes of the job that are left."""
        for command in self.commands:
            command.kill()  # by itself: one that renames itself (sshd) overwrites its environment
        processes.kill_processes(self.marker)

    def close(self):
        """Kill all processes that are left and remove the files of the job. Safe to call twice."""
        try:
            self.end()
        finally:
            shutil.rmtree(str(self.directory), ignore_errors=True)


def _with(environment, *changes):
    """A copy of an environment with changes; None as a value removes a name."""
    changed = dict(environment)
    for name, value in (pair for change in changes for pair in (change or {}).items()):
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = str(value)
    return changed


@dataclasses.dataclass
class Result:
    """The result of a job."""

    command: str
    #: The exit status of the launcher, negative for a signal.
    returncode: Optional[int]
    #: Standard output and error of the whole job, together.
    output: str = dataclasses.field(repr=False)
    #: The seconds from the start to the launcher's end.
    seconds: float
    #: The values that each worker gave to `report`, by rank and name. Ranks that reported nothing are absent.
    results: Dict[int, Dict[str, Any]] = dataclasses.field(repr=False)

    def tail(self, lines=TAIL_LINES):
        """str: the last lines of the output."""
        return '\n'.join(self.output.splitlines()[-lines:])

    def ok(self):
        """Assert that the job ended with 0; returns the result itself, to chain."""
        if self.returncode != 0:
            raise JobFailed(f'the job ended with status {self.returncode} after {self.seconds:.1f} s:\n'
                            f'  {self.command}\n{indented(self.output)}')
        return self

    def failed(self, *words):
        """Assert that the job ended with another status than 0 and that its output holds each of `words`."""
        if self.returncode == 0:
            raise JobFailed(f'the job should have failed, but ended with 0:\n  {self.command}\n'
                            f'{indented(self.output)}')
        for word in words:
            if word not in self.output:
                raise JobFailed(f'the job failed without saying {word!r}:\n{indented(self.output)}')
        return self


class LaunchedJob(Job):
    """A job that one command, its launcher, starts. Made by `start_job` and `start_command`."""

    def __init__(self, argv, env=None, body=None, cwd=None):
        super().__init__('(HOROVOD|DMLC|MXHYBRID|MXNET|PS)_')
        self.body = None if body is None else str(body)
        self.command = ' '.join(shlex.quote(word) for word in argv)
        self._reports = self.directory / 'reports'
        self._reports.mkdir()
        self._result = None
        self._started = time.monotonic()
        self._launcher = self.start('the launcher', argv, dict({reports.DIRECTORY: self._reports}, **(env or {})), cwd)
        self.pid = self._launcher.pid

    @property
    def output(self):
        """str: the output of the job so far, standard output and error together."""
        return self._result.output if self._result else self._launcher.output

    def processes(self, role=None):
        """list of Process: those running now; with `role`, of that role only."""
        return [p for p in processes.find_processes(self.marker, self.body) if role in (None, p.role)]

    def running(self):
        """str: a line for each process that runs."""
        return processes.format_processes(self.processes())

    def poll(self):
        """int or None: the launcher's exit status, None while it runs."""
        return self._launcher.poll()

    def over(self):
        """str: that the launcher has ended, if it has."""
        return '' if self.poll() is None else 'the job ended'

    def kill(self, pid, sig=signal.SIGKILL):
        """Send a signal to one process of this job, and to no other."""
        if not processes.read_environ(pid).get(MARKER, '').startswith(self.marker):
            raise ValueError(f'process {pid} does not belong to this job')
        os.kill(pid, sig)

    def wait_for_output(self, text, timeout):
        """Wait until the output holds `text`; `JobFailed` where the job ends, or time is up, without it."""
        self.wait_until(lambda: text in self.output, timeout, f'the output to say {text!r}')

    def wait_for_processes(self, role, count, timeout):
        """Wait until at least `count` processes of a role run; returns them."""
        self.wait_until(lambda: len(self.processes(role)) >= count, timeout, f'{count} {role} process(es)')
        return self.processes(role)

    def wait(self, timeout, grace=GRACE_S):
        """Wait for the end of the job, launcher and all; return its `Result`.

        The launcher may take `timeout` seconds from now, and other processes `grace` seconds more. Otherwise they are
        killed, and `JobFailed` names them; if time is up, it shows their Python stacks, where they can still speak.
        """
        try:
            returncode = self._launcher.wait(timeout)
            if returncode is None:
                self._fail_out_of_time(timeout)
            seconds = time.monotonic() - self._started
            processes.assert_no_processes_left(self.marker, grace, self.body, indented(self.output))
            self._result = Result(self.command, returncode, self.output, seconds, reports.read_reports(self._reports))
            return self._result
        finally:
            self.close()

    def _fail_out_of_time(self, timeout):
        table = self.running()
        for process in self.processes():
            if process.role in ('worker', 'server', 'scheduler'):
                processes.send_signal(process.pid, signal.SIGABRT)
        self._launcher.wait(3)  # for the stacks to arrive; the launcher may end by itself now
        raise JobFailed(f'the job did not end within {timeout * PATIENCE:g} s:\n  {self.command}\n'
                        f'running at that time:\n{table}\n{indented(self.output)}')

    def end(self):
        """Kill all processes that are left; the output of the job can still be read."""
        super().end()
        if self._result is None:
            self._result = Result(self.command, self.poll(), self.output, time.monotonic() - self._started, {})


def start_command(argv, env=None, body=None, cwd=None):
    """Start any command as a `LaunchedJob`: marked, captured, in a session of its own, reading from /dev/null.

    `body` is the script that workers run, by which their role is known; `env` and `cwd` are as for `run_job`.
    """
    return LaunchedJob([str(word) for word in argv], env=env, body=body, cwd=cwd)


def start_job(body, launcher='horovodrun', workers=None, servers=1, args=(), env=None, cwd=None):
    """Start a job, with the parameters of `run_job`; return a `LaunchedJob`, for a `with` statement."""
    env = dict(env or {})
    if launcher == 'horovodrun':
        env.setdefault('MXHYBRID_SERVERS_PER_HOST', str(servers))
    return start_command(job_command(body, launcher, workers, servers, args), env=env, body=body, cwd=cwd)


def run_job(body, launcher='horovodrun', workers=None, servers=1, args=(), env=None, timeout=120, grace=GRACE_S,
            cwd=None):
    """Run a job to its end, and return its `Result`.

    - `body`: the Python script that every worker runs, with this interpreter and the arguments `args`.
    - `launcher`: 'horovodrun', 'launch.py' (scripts/launch.py), 'none', or 'stock-launch.py', which the mxnet wheel has
      (see `STOCK_LAUNCH_WORKS`).
    - `workers`: 2 by default, 1 without a launcher.
    - `servers`: in all under launch.py, per host under horovodrun.
    - `env`: added to the environment; None as a value removes a name. HOROVOD_*, DMLC_*, MXHYBRID_*, MXNET_* and PS_*
      are not inherited.
    - `timeout`: seconds for the whole job; `grace`: seconds that processes may outlive their launcher.
    - `cwd`: a fresh temporary directory by default.

    `JobFailed` if the job is out of time or leaves processes behind; never for its exit status (`Result.ok` does that).
    """
    with start_job(body, launcher, workers, servers, args, env, cwd) as job:
        return job.wait(timeout, grace)
