"""Real jobs for tests: start one, watch it, read what its workers report, leave nothing behind.

A test names a *body*, a Python script that every worker of the job runs, and a launcher::

    result = run_job(BODIES / 'dense.py', workers=2, args=['--steps', '20']).ok()
    np.testing.assert_allclose(result.results[0]['weights']['dense0_weight'], expected)

and the body hands its results back::

    from jobs import report
    report(kv.rank, weights={name: param.data() for name, param in params.items()}, steps=20)

Fault tests hold the job in their hands::

    with start_job(body, 'horovodrun', workers=2) as job:
        job.wait_for_output('step 3', timeout=60)
        job.kill(job.wait_for_processes('server', 1, timeout=5)[0].pid)
        result = job.wait(timeout=30)
    assert result.returncode != 0

Every process of a job carries a marker, unique to the job, in its environment. That is how processes are found in
``/proc``: those that do not end in time, and those that outlive their launcher, fail the test and are killed by
process id. Nothing is ever killed by name.

Bodies import this module, so it imports neither mxnet nor horovod.
"""
import contextlib
import importlib.util
import os
import pickle
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
BODIES = TESTS / 'parallel' / 'bodies'

MARKER = 'MXHYBRID_TEST_JOB'
OUT = 'MXHYBRID_TEST_OUT'
# One prefix for all jobs of this process, so that a last check can ask for any of them.
SESSION = uuid.uuid4().hex[:12]

# The wheel's launch.py calls Thread.isAlive, which CPython 3.9 removed.
STOCK_LAUNCH_WORKS = sys.version_info < (3, 9)
LAUNCHERS = ('horovodrun', 'launch.py', 'stock-launch.py', 'none')

GRACE_S = 5.0  # processes may end this long after their launcher
TAIL_LINES = 100  # of the output, in a message; horovodrun adds a stack of 25 lines of its own
_POLL_S = 0.05
_INHERITED = re.compile(r'(HOROVOD|DMLC|MXHYBRID|MXNET|PS)_')


# ---------------------------------------------------------------------------------------------- processes

class Process(NamedTuple):
    """A running process of a job.

    Attributes
    ----------
    pid : int
    role : str
        'worker', 'server', 'scheduler' or 'launcher' (everything that serves the launch: the launcher itself,
        its shells and its middlemen).
    cmdline : str
    """

    pid: int
    role: str
    cmdline: str

    @property
    def environ(self):
        """dict: the environment that the process was started with, empty once it has gone."""
        return read_environ(self.pid)

    @property
    def rank(self):
        """int or None: Horovod's rank, else DMLC's task id; None where the environment names neither."""
        environ = self.environ
        for name in ('HOROVOD_RANK', 'DMLC_TASK_ID'):
            if environ.get(name, '').isdigit():
                return int(environ[name])
        return None


def read_environ(pid):
    """dict: the environment that process `pid` was started with; empty for a zombie or a process gone."""
    try:
        raw = Path(f'/proc/{pid}/environ').read_bytes()
    except OSError:
        return {}
    pairs = (item.partition('=') for item in raw.decode(errors='replace').split('\0'))
    return {name: value for name, sep, value in pairs if sep}


def _read_argv(pid):
    try:
        raw = Path(f'/proc/{pid}/cmdline').read_bytes()
    except OSError:
        return []
    return raw.decode(errors='replace').rstrip('\0').split('\0')


def _role(argv, environ, body):
    # DMLC_ROLE comes from launch.py, MXHYBRID_ROLE from mxhybrid, which starts its servers itself under horovodrun.
    for name in ('DMLC_ROLE', 'MXHYBRID_ROLE'):
        if environ.get(name) in ('server', 'scheduler'):
            return environ[name]
    runs_body = body is not None and os.path.basename(argv[0]).startswith('python') and argv[1:2] == [body]
    return 'worker' if runs_body else 'launcher'


def find_processes(marker, body=None):
    """Find the running processes of a job, zombies excluded.

    Parameters
    ----------
    marker : str
        Value of the marker variable, or a prefix of it (`SESSION` for all jobs of this process).
    body : str, optional
        Path of the script that workers run, needed to tell workers from launchers.

    Returns
    -------
    list of Process
        By process id.
    """
    found = []
    for pid in sorted(int(name) for name in os.listdir('/proc') if name.isdigit()):
        if pid == os.getpid():
            continue
        environ = read_environ(pid)
        if environ.get(MARKER, '').startswith(marker) and _state(pid) not in ('Z', 'X', ''):
            argv = _read_argv(pid)
            found.append(Process(pid, _role(argv, environ, body), ' '.join(argv)))
    return found


def _state(pid):
    try:
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    except (OSError, IndexError):
        return ''


def _send(pid, sig):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def kill_processes(marker, timeout=10.0):
    """Kill every process of a job by process id, again and again until none is left (they may be forking)."""
    deadline = time.monotonic() + timeout
    while True:
        left = find_processes(marker)
        if not left:
            return
        if time.monotonic() > deadline:
            raise AssertionError('processes survive SIGKILL:\n' + format_processes(left))
        for process in left:
            _send(process.pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def format_processes(processes):
    """str: a line for each process."""
    return '\n'.join(f'  pid {p.pid:<7} {p.role:<9} state {_state(p.pid) or "-"}  {p.cmdline:.200}'
                     for p in processes) or '  (none)'


def assert_no_processes_left(marker, grace=GRACE_S, body=None, output=''):
    """Fail, and kill them, if processes of a job still run after a grace.

    Parameters
    ----------
    marker : str
        As for `find_processes`.
    grace : float
        Seconds to wait for the last ones to end.
    body : str, optional
    output : str
        The job's output, whose tail is shown.

    Raises
    ------
    AssertionError
        Naming each process left.
    """
    deadline = time.monotonic() + grace
    left = find_processes(marker, body)
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = find_processes(marker, body)
    if left:
        table = format_processes(left)
        kill_processes(marker)
        raise AssertionError(f'processes still running {grace:g} s after their launcher ended:\n{table}\n'
                             + _tail(output))


def _tail(output):
    return 'last lines of the output:\n' + '\n'.join('  | ' + line for line in output.splitlines()[-TAIL_LINES:])


# ------------------------------------------------------------------------------------------------ reports

def report(rank, **values):
    """Hand results from a body to its test; called in a worker, as often as wanted (later values win).

    Parameters
    ----------
    rank : int
    **values
        NumPy arrays, MXNet arrays, numbers, strings, None, and lists, tuples and dicts of them.
    """
    path = Path(os.environ[OUT]) / f'rank{rank}.pickle'
    merged = pickle.loads(path.read_bytes()) if path.exists() else {}
    merged.update({name: _plain(value, name) for name, value in values.items()})
    scratch = path.with_suffix(f'.{os.getpid()}')
    scratch.write_bytes(pickle.dumps(merged))
    os.replace(str(scratch), str(path))


def _plain(value, name):
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, dict):
        return {key: _plain(item, f'{name}[{key!r}]') for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(item, f'{name}[{i}]') for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if hasattr(value, 'asnumpy'):
        return value.asnumpy()
    if type(value).__module__ == 'numpy':
        return value
    raise TypeError(f'report({name}=...): cannot hand over a {type(value).__name__}; '
                    'convert it to NumPy or plain Python')


# --------------------------------------------------------------------------------------------------- jobs

class Result:
    """What a job left: its exit status, its output and the reports of its workers.

    Attributes
    ----------
    returncode : int
        Exit status of the launcher, negative for a signal.
    output : str
        Standard output and error of the whole job, together.
    seconds : float
        From the start to the launcher's end.
    results : dict of int to dict
        `results[rank][name]`, what each worker gave to `report`. Ranks that reported nothing are absent.
    """

    def __init__(self, command, returncode, output, seconds, results):
        self.command = command
        self.returncode = returncode
        self.output = output
        self.seconds = seconds
        self.results = results

    def __repr__(self):
        return f'<Result returncode={self.returncode} seconds={self.seconds:.1f} ranks={sorted(self.results)}>'

    def tail(self, lines=TAIL_LINES):
        """str: the last lines of the output."""
        return '\n'.join(self.output.splitlines()[-lines:])

    def ok(self):
        """Assert that the job ended with 0; returns the result itself, to chain."""
        if self.returncode != 0:
            raise AssertionError(f'the job ended with status {self.returncode} after {self.seconds:.1f} s:\n'
                                 f'  {self.command}\n{_tail(self.output)}')
        return self

    def failed(self, *words):
        """Assert that the job ended with another status than 0 and that its output holds each of `words`."""
        if self.returncode == 0:
            raise AssertionError('the job should have failed, but ended with 0:\n'
                                 f'  {self.command}\n{_tail(self.output)}')
        for word in words:
            if word not in self.output:
                raise AssertionError(f'the job failed without saying {word!r}:\n{_tail(self.output)}')
        return self


def _obey_ctrl_c():
    """Undo what a shell does to commands in its background: those ignore SIGINT, and so would all they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Job:
    """A running job, with every process that belongs to it. Made by `start_job` and `start_command`.

    As a context manager it is killed at the end of the block, whatever happens there.

    Attributes
    ----------
    pid : int
        Process id of the launcher.
    marker : str
        What every process of the job carries in its environment.
    """

    def __init__(self, argv, env=None, body=None, cwd=None):
        self.marker = f'{SESSION}-{uuid.uuid4().hex[:12]}'
        self.body = None if body is None else str(body)
        self.command = ' '.join(shlex.quote(word) for word in argv)
        self._directory = Path(tempfile.mkdtemp(prefix='mxhybrid-job-'))
        self._reports = self._directory / 'reports'
        self._reports.mkdir()
        self._result = None
        self._started = time.monotonic()
        with open(str(self._directory / 'output'), 'wb') as output:
            self._launcher = subprocess.Popen(
                argv, env=self._environment(env), cwd=str(cwd or self._directory), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_obey_ctrl_c)
        self.pid = self._launcher.pid
        resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))

    def _environment(self, extra):
        env = {name: value for name, value in os.environ.items() if not _INHERITED.match(name)}
        env.update({
            MARKER: self.marker,
            OUT: str(self._reports),
            'OMP_NUM_THREADS': '1',
            'PYTHONPATH': os.pathsep.join([str(REPOSITORY), str(TESTS)]),
            'PYTHONUNBUFFERED': '1',
            # SIGABRT then prints the Python stack of every thread, which is how a job out of time explains itself.
            'PYTHONFAULTHANDLER': '1',
        })
        for name, value in (extra or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = str(value)
        return env

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    @property
    def output(self):
        """str: what the job has written so far, standard output and error together."""
        path = self._directory / 'output'
        return self._result.output if self._result else path.read_text(errors='replace')

    def processes(self, role=None):
        """list of Process: those running now; with `role`, of that role only."""
        return [p for p in find_processes(self.marker, self.body) if role in (None, p.role)]

    def poll(self):
        """int or None: the launcher's exit status, None while it runs."""
        return self._launcher.poll()

    def kill(self, pid, sig=signal.SIGKILL):
        """Send a signal to one process of this job, and to no other."""
        if read_environ(pid).get(MARKER) != self.marker:
            raise ValueError(f'process {pid} does not belong to this job')
        os.kill(pid, sig)

    def wait_for_output(self, text, timeout):
        """Wait until the output holds `text`; AssertionError where the job ends, or time is up, without it."""
        self.wait_until(lambda: text in self.output, timeout, f'the output to say {text!r}')

    def wait_for_processes(self, role, count, timeout):
        """Wait until at least `count` processes of a role run; returns them."""
        self.wait_until(lambda: len(self.processes(role)) >= count, timeout, f'{count} {role} process(es)')
        return self.processes(role)

    def wait_until(self, condition, timeout, what):
        """Wait until `condition()` holds; AssertionError where the job ends, or time is up, without it."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self._launcher.poll() is not None
            if condition():
                return
            if ended or time.monotonic() > deadline:
                why = 'the job ended' if ended else f'{timeout:g} s passed'
                message = (f'{why} while waiting for {what}; running:\n'
                           f'{format_processes(self.processes())}\n{_tail(self.output)}')
                self.close()
                raise AssertionError(message)
            time.sleep(_POLL_S)

    def wait(self, timeout, grace=GRACE_S):
        """Wait for the end of the job, launcher and all.

        Parameters
        ----------
        timeout : float
            Seconds, from now, that the launcher may take.
        grace : float
            Seconds that other processes may take to end after it.

        Returns
        -------
        Result

        Raises
        ------
        AssertionError
            If time is up (with the processes still running and, where they can still speak, their Python
            stacks), or if processes outlive the launcher. They are killed first.
        """
        try:
            try:
                returncode = self._launcher.wait(timeout)
                seconds = time.monotonic() - self._started
            except subprocess.TimeoutExpired:
                self._fail_out_of_time(timeout)
            assert_no_processes_left(self.marker, grace, self.body, self.output)
            results = {}
            for path in self._reports.glob('rank*.pickle'):
                results[int(path.stem[len('rank'):])] = pickle.loads(path.read_bytes())
            self._result = Result(self.command, returncode, self.output, seconds, results)
            return self._result
        finally:
            self.close()

    def _fail_out_of_time(self, timeout):
        running = self.processes()
        table = format_processes(running)
        for process in running:
            if process.role in ('worker', 'server', 'scheduler'):
                _send(process.pid, signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._launcher.wait(3)  # for the stacks to arrive; the launcher may end by itself now
        raise AssertionError(f'the job did not end within {timeout:g} s:\n  {self.command}\n'
                             f'running at that time:\n{table}\n{_tail(self.output)}')

    def close(self):
        """Kill what is left of the job and remove its files. Safe to call twice."""
        if self._launcher.poll() is None:
            self._launcher.kill()  # by itself: a launcher that renames itself (sshd) overwrites its environment
        kill_processes(self.marker)
        self._launcher.wait()
        if self._result is None and self._directory.exists():
            self._result = Result(self.command, self._launcher.returncode, self.output,
                                  time.monotonic() - self._started, {})
        shutil.rmtree(str(self._directory), ignore_errors=True)


def beside_python(name):
    """str: path of a command installed in the environment of this interpreter."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FileNotFoundError(f'{name} is not installed beside {sys.executable}')
    return str(path)


def stock_launch():
    """str: path of the launch.py that the mxnet wheel ships."""
    spec = importlib.util.find_spec('mxnet')
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f'mxnet is not installed for {sys.executable}')
    return str(Path(spec.origin).parent / 'tools' / 'launch.py')


def job_command(body, launcher='horovodrun', workers=None, servers=1, args=()):
    """list of str: the command line that starts a job; parameters as for `run_job`."""
    if launcher not in LAUNCHERS:
        raise ValueError(f'launcher {launcher!r} is none of {", ".join(LAUNCHERS)}')
    if workers is None:
        workers = 1 if launcher == 'none' else 2
    script = [sys.executable, str(body)] + [str(arg) for arg in args]
    if launcher == 'none':
        if workers != 1:
            raise ValueError(f'workers={workers}, but without a launcher there is one')
        return script
    if launcher == 'horovodrun':
        return [sys.executable, beside_python('horovodrun'), '-np', str(workers), '--gloo'] + script
    path = str(REPOSITORY / 'scripts' / 'launch.py') if launcher == 'launch.py' else stock_launch()
    # dmlc_tracker joins the words again without quoting them.
    return [sys.executable, path, '-n', str(workers), '-s', str(servers), '--launcher', 'local'] \
        + [shlex.quote(word) for word in script]


def start_command(argv, env=None, body=None, cwd=None):
    """Start any command as a job: marked, captured, in a session of its own, reading from /dev/null.

    Parameters
    ----------
    argv : list of str
    env : dict, optional
        Added to the environment; None as a value removes a name.
    body : path, optional
        The script that workers run, to tell their role.
    cwd : path, optional
        A fresh temporary directory by default.

    Returns
    -------
    Job
    """
    return Job([str(word) for word in argv], env=env, body=body, cwd=cwd)


def start_job(body, launcher='horovodrun', workers=None, servers=1, args=(), env=None):
    """Start a job; parameters as for `run_job`.

    Returns
    -------
    Job
        To be used in a `with` statement, or closed by hand.
    """
    env = dict(env or {})
    if launcher == 'horovodrun':
        env.setdefault('MXHYBRID_SERVERS_PER_HOST', str(servers))
    return start_command(job_command(body, launcher, workers, servers, args), env=env, body=body)


def run_job(body, launcher='horovodrun', workers=None, servers=1, args=(), env=None, timeout=120, grace=GRACE_S):
    """Run a job to its end.

    Parameters
    ----------
    body : path
        Python script that every worker runs, with this interpreter.
    launcher : {'horovodrun', 'launch.py', 'stock-launch.py', 'none'}
        'launch.py' is scripts/launch.py, 'stock-launch.py' the one in the mxnet wheel (see `STOCK_LAUNCH_WORKS`).
    workers : int
        2 by default, 1 without a launcher.
    servers : int
        In all under launch.py, per host under horovodrun.
    args : sequence of str
        Arguments of the body.
    env : dict, optional
        Added to the environment; None as a value removes a name. HOROVOD_*, DMLC_*, MXHYBRID_*, MXNET_* and PS_*
        are not inherited.
    timeout : float
        Seconds for the whole job.
    grace : float
        Seconds that processes may outlive their launcher.

    Returns
    -------
    Result

    Raises
    ------
    AssertionError
        If the job is out of time or leaves processes behind; never for its exit status (`Result.ok` does that).
    """
    with start_job(body, launcher, workers, servers, args, env) as job:
        return job.wait(timeout, grace)
