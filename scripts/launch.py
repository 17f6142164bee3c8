#!/usr/bin/env python
"""MXNet's launch.py for CPython 3.8 to 3.11, which ends the whole job when one process of it fails.

The command line, the launchers (local, ssh, mpi, sge, yarn) and the protocol are those of ``mxnet/tools/launch.py``,
which this script runs, and of the package ``dmlc_tracker`` that the mxnet wheel installs::

    python scripts/launch.py -n 4 -s 2 --launcher local python train.py --epochs 3

This script is a single file, in spite of its length: it imports the standard library and MXNet's tracker alone, so that
it can be copied to a machine without this repository. Only elastic jobs need mxhybrid.

As in MXNet, the words of the command are joined by spaces and run by a shell.

Differences:

- The options of the launcher stand before the command. All words after them belong to the command, also those that the
  launcher has, too, such as ``--num-workers``. MXNet's launch.py takes these out of the command.
- Every process that the tracker starts is watched. The first worker, server or scheduler that fails is named, the
  others are ended (SIGTERM, then SIGKILL) and its exit status is the launcher's: 128 + n for signal n.
- When all workers ended with 0, servers and the scheduler have ``LINGER_S`` to follow. Processes that do not are
  ended, with a warning: the workers' results are complete.
- SIGINT, SIGTERM and SIGHUP end the whole job. So does SIGKILL of the launcher: a guardian process outlives it
  for that.
- ``--launcher ssh`` takes names of hosts: ps-lite, which listens at addresses only, gets their addresses.
- ``--launcher local`` lets the system choose the scheduler's port, so that jobs can start at the same time.
- ``--env``, ``--env-worker`` and ``--env-server`` work: the tracker of MXNet 1.9.1 drops the first under ssh and mpi
  and takes the others for words of the command.
- Each line that a worker writes begins with its rank and the stream, ``[1]<stderr>:``, as under horovodrun. Until the
  rank is known, and in jobs without mxhybrid, this is the number of its task, ``[task 1]``, or its host. Not for mpi.
- With one of the options of elastic jobs, such as ``--reset-limit N``, a failed job is started again:
  this script runs ``mxhybrid run``.
- ``-s 0`` is refused for more than one worker. The tracker would wait for Rabit, another library's collectives.

``ssh`` sees the status of every remote process, and they end with their connection. ``mpi`` sees that of mpirun.
``sge`` and ``yarn`` hand the job to a queue: only the scheduler, which runs here, and the submission are watched (as
shipped with MXNet 1.9.1, ``sge`` fails on an attribute that it lacks and ``yarn`` needs a dmlc-yarn.jar).
"""
import argparse
import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import logging
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from typing import Any, Counter, List, NoReturn, Optional

TERM_S = 4.0  # from SIGTERM to SIGKILL
LINGER_S = 20.0  # for servers and the scheduler after the last worker
ECHO_S = 3.0  # between a process that was sent SIGTERM and the one that sent it
ANY_PORT = (0,)
#: Variable with the name of a process's host in the hostfile.
NODE = 'MXHYBRID_NODE'
#: Options of elastic jobs, with their numbers of values.
ELASTIC = {'--min-np': 1, '--max-np': 1, '--host-discovery-script': 1, '--slots-per-host': 1, '--reset-limit': 1,
           '--elastic-timeout': 1, '--blacklist-cooldown-range': 2}
TRACKER_PORTS = range(9091, 9999)  # the tracker's own, which a firewall may let pass

# Starts in every remote shell ahead of the command. Nothing is ever written to the connection's input, so it ends
# when the ssh client does, for whatever reason; then the remote process group (sshd makes one per command) ends too.
REMOTE_WATCH = ('exec 9<&0 </dev/null; ( trap "" TERM HUP; cat <&9; kill -TERM 0; sleep %g; kill -KILL 0 ) '
                '>/dev/null 2>&1 & exec 9<&-; ' % TERM_S)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: The line by which a worker of mxhybrid tells its rank if this variable is set (mxhybrid/job/launch_py.py).
RANK_LINE = re.compile(r'\[mxhybrid\] this is the output of rank (\d+)\n')
ASKS_RANK = 'DMLC_SAY_RANK'

log = logging.getLogger('launch.py')


#: Statuses of a process that was told to end, or ended by itself since others did: as here, and as a shell says it.
_TOLD_TO_END = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
#: The message of ssh in that case.
_SSH_ENDED = 255


class Task:
    """A process that the tracker started, and its status once it has ended.

    The process is not reaped before the job ends: until then nobody else can be given its process id, which is also
    that of its process group.
    """

    def __init__(self, process, role, label):
        self.process = process
        #: 'worker', 'server', 'scheduler', or 'submission' for a process that only hands the job on.
        self.role = role
        #: Whether the process is an ssh that runs it elsewhere.
        self.over_ssh = process.stdin is not None
        self.label = '%s, pid %d' % (label, process.pid)
        #: The exit status, or -n for signal n.
        self.status: Optional[int] = None
        self.ended = threading.Event()
        self._relays: List[threading.Thread] = []

    def relay(self, label):
        """Write the lines of the process to the output of this one, with its rank, or a `label`, in front of them."""
        for source, target, name in ((self.process.stdout, sys.stdout, 'stdout'),
                                     (self.process.stderr, sys.stderr, 'stderr')):
            thread = threading.Thread(target=relay, args=(source, target, label, name), daemon=True)
            thread.start()
            self._relays.append(thread)

    def finish_output(self, deadline):
        """Wait until all that the process wrote is relayed: a process outside of its group may keep the output open."""
        for thread in self._relays:
            thread.join(max(0.0, deadline - time.monotonic()))

    def wait(self):
        """Block until the process ends; returns its status."""
        info = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        assert info is not None  # only with WNOHANG
        self.status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        self.ended.set()
        return self.status

    def ask_to_end(self):
        """Close the connection of an ssh client, which ends the remote side first; SIGTERM for all others."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.signal(signal.SIGTERM)

    def signal(self, number):
        """Send a signal to the process and all its descendants that stayed in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def relay(source, target, label, name):
    """Copy lines from a pipe, with a label in front of each; a progress bar ends its lines by carriage returns."""
    with contextlib.suppress(OSError, ValueError), source:  # if nobody reads, the worker gets SIGPIPE
        for line in io.TextIOWrapper(source, 'utf-8', 'surrogateescape', newline=''):
            rank = RANK_LINE.search(line)
            if rank is not None:
                label, line = rank.group(1), RANK_LINE.sub('', line)
            if line:
                end = '' if line.endswith(('\n', '\r')) else '\n'
                target.buffer.write(('[%s]<%s>:%s%s' % (label, name, line, end)).encode('utf-8', 'surrogateescape'))
                target.buffer.flush()


class Job:
    """All processes of one job, from their start until none is left. A context manager: the job ends with the block.

    The job is done when the `expected` number of processes of each role, besides the scheduler, has ended with 0. Only
    processes of a role get the variables of `role_env`. In a `remote` job, processes other than the scheduler are ssh
    clients. With `labels`, each line of a worker gets a label: a process of role 'worker' is one worker.
    """

    def __init__(self, expected, role_env, remote, labels):
        self._expected = Counter(expected, scheduler=1)
        self._role_env = role_env
        self._remote, self._labels = remote, labels
        self._tasks: List[Task] = []
        self._ends: 'queue.Queue[Task]' = queue.Queue()
        self._lock = threading.Lock()  # no task starts once the job is ending
        self._ending = False
        self._pid = os.getpid()
        self._guardian, self._guardian_pipe = start_guardian()

    def __enter__(self):
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a job in a script's background
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *exc_info):
        self.end()

    def _stop(self, number, frame):
        ignore_signals()
        log.error('%s: ending the job', signal.Signals(number).name)
        sys.exit(128 + number)

    def run(self, command, env=None, **kwargs):
        """Stand in for subprocess.call and check_call in the tracker: start a process, wait for its end.

        The tracker calls this in a thread for each process. After a failure the thread ends by SystemExit, without
        the tracker's traceback: `wait` says what happened.
        """
        if os.getpid() != self._pid:  # in a fork: ssh copies the working directory with a process pool
            return subprocess.check_call(command, env=env, **kwargs)
        task = self._start(command, env, kwargs)
        status = task.wait()
        self._ends.put(task)
        if status != 0:
            if task.role == 'submission':  # in the main thread: there will be nothing to wait for
                raise subprocess.CalledProcessError(status, command)
            sys.exit(1)
        return 0

    def _start(self, command, env, kwargs):
        env = dict(os.environ if env is None else env)
        role, label = describe_command(command, env)
        env.update(self._role_env.get(role, {}))
        labelled = self._labels and role == 'worker'
        if labelled:
            kwargs = dict(kwargs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stdin = subprocess.PIPE if self._remote and role != 'scheduler' else subprocess.DEVNULL
        with self._lock:
            if self._ending:
                sys.exit(1)
            if os.path.basename(kwargs.get('executable') or '') == 'bash':
                # The process itself tells the guardian first: this one may be killed once the other has started.
                command = 'echo $$ >&%d; exec %d>&-; %s' % (self._guardian_pipe, self._guardian_pipe, command)
                kwargs = dict(kwargs, pass_fds=[self._guardian_pipe])
            process = subprocess.Popen(command, env=env, stdin=stdin, start_new_session=True, **kwargs)
            os.write(self._guardian_pipe, b'%d\n' % process.pid)
            task = Task(process, role, label)
            self._tasks.append(task)
        if labelled:
            task.relay('task ' + env['DMLC_TASK_ID'] if 'DMLC_TASK_ID' in env else label.rpartition(' ')[2])
        return task

    def wait(self):
        """Block until all expected processes ended with 0, or exit with the status of the first that failed."""
        done: Counter[str] = Counter()
        left: List[Task] = []  # workers that ended with 0
        deadline: Optional[float] = None
        while done & self._expected != self._expected:
            try:
                task = self._ends.get(timeout=deadline and max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                lingering = [task.label for task in self._tasks if not task.ended.is_set()]
                if lingering:
                    log.warning('all workers ended with 0, but %s still run %g s later: ending them',
                                ', '.join(lingering), LINGER_S)
                return
            if task.status != 0:
                self._fail(self._cause(task), left)
            if task.role == 'worker':
                left.append(task)
            done[task.role] += 1
            if deadline is None and 0 < self._expected['worker'] == done['worker']:
                deadline = time.monotonic() + LINGER_S

    def _cause(self, task):
        """Task: the one that failed by itself. A dying worker may send SIGTERM to the others (mxhybrid does), and
        servers that hear of a failure (mxhybrid's) end with the status that a shell gives to that.
        """
        deadline = time.monotonic() + ECHO_S
        later = task
        with contextlib.suppress(queue.Empty):
            while later.status in _TOLD_TO_END or later.over_ssh and later.status == _SSH_ENDED:
                later = self._ends.get(timeout=max(0.0, deadline - time.monotonic()))
            return later
        return task

    def _fail(self, task, left):
        status = task.status
        others = sum(not other.ended.is_set() for other in self._tasks)
        before = ', after %s had left with status 0' % ', '.join(other.label for other in left) if left else ''
        log.error('%s failed first: %s%s; ending the other %d', task.label,
                  describe_status(status, by_ssh=task.over_ssh), before, others)
        sys.exit(exit_status(status))

    def end(self):
        """End processes that still run, SIGTERM first, and all processes that they left behind in their groups."""
        ignore_signals()
        with self._lock:
            self._ending = True
        for task in self._tasks:
            task.ask_to_end()
        # An ssh client waits for its remote side, which has TERM_S itself.
        deadline = time.monotonic() + TERM_S + (2.0 if self._remote else 0.0)
        for task in self._tasks:
            task.ended.wait(max(0.0, deadline - time.monotonic()))
        for task in self._tasks:
            task.signal(signal.SIGKILL)
        for task in self._tasks:
            task.ended.wait(1.0)
            task.process.poll()
        deadline = time.monotonic() + 1.0
        for task in self._tasks:
            task.finish_output(deadline)
        os.kill(self._guardian, signal.SIGKILL)
        os.waitpid(self._guardian, 0)


def ignore_signals():
    """Let nothing but SIGKILL interrupt the end of the job."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def start_guardian():
    """Fork a process that ends the job if this one is killed without a chance to do so.

    Return its process id, and a pipe that takes the process groups of the job, one number a line. The end of the pipe
    is the sign to act.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(reader)
        return pid, writer
    try:
        os.setsid()
        os.close(writer)
        with os.fdopen(reader) as pipe:
            groups = [int(line) for line in pipe]
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + TERM_S
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
            while groups and time.monotonic() < deadline:
                groups = [group for group in groups if group_exists(group)]
                time.sleep(0.05)
    finally:
        os._exit(0)  # never back into the launcher's code


def group_exists(group):
    """bool: whether a process group has members, zombies included."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def describe_command(command, env):
    """Return the role of the program that a command of the tracker runs, as in `Task`, and a label for messages."""
    # Under ssh and mpi the role travels in the command line, elsewhere in the environment.
    match = re.search(r'DMLC_ROLE[= ](\w+)', command)
    role = match.group(1) if match else env.get('DMLC_ROLE', 'submission')
    host = re.search(NODE + r'=([^;\s]+)', command)
    if host:
        return role, '%s on %s' % (role, host.group(1))
    if 'DMLC_TASK_ID' in env:
        return role, '%s with DMLC_TASK_ID=%s' % (role, env['DMLC_TASK_ID'])
    return role, role


def describe_status(status, by_ssh=False):
    """str: a status of `Task`, in words."""
    if by_ssh and status == 255:
        return 'exit status 255 (ssh: no connection, or killed by a signal)'
    number = status - 128 if status > 128 else -status  # a shell says 128 + n for signal n
    try:
        name = signal.Signals(number).name
    except ValueError:
        return 'exit status %d' % status
    return 'killed by %s' % name if status < 0 else 'exit status %d (%s)' % (status, name)


def exit_status(status):
    """Return the exit status that a shell would report for a status of `Task`."""
    return status if status >= 0 else 128 - status


def refuse(message: str, *args: Any) -> NoReturn:
    """Exit for a wrong command line."""
    log.error(message, *args)
    sys.exit(2)


def check_options(options):
    """Refuse arguments to which the tracker would answer with a traceback or an endless wait."""
    if options.num_workers < 1:
        refuse('-n/--num-workers is %d, and has to be at least 1', options.num_workers)
    if options.num_servers < 0:
        refuse('-s/--num-servers is %d, and cannot be negative', options.num_servers)
    if options.num_servers == 0 and (options.num_workers > 1 or options.launcher != 'local'):
        refuse('-s/--num-servers is 0: a distributed KVStore needs at least one server (-s 1); only '
               'one local worker can do without (-n 1 -s 0 --launcher local)')
    needs_hosts = options.launcher in ('ssh', 'mpi')
    if needs_hosts and options.hostfile is None:
        refuse('--launcher %s needs -H/--hostfile, a file with one host a line', options.launcher)
    if options.hostfile is not None and not needs_hosts:
        refuse('-H/--hostfile is for --launcher ssh and mpi; --launcher %s takes none', options.launcher)
    if options.hostfile is not None and not os.path.isfile(options.hostfile):
        refuse('-H/--hostfile %s is not a file', options.hostfile)


def read_env(settings, option):
    """dict: environment variables from NAME:VALUE, or NAME for the value that it has here."""
    values = {}
    for setting in settings:
        name, colon, value = setting.partition(':')
        if colon:
            values[name] = value
        elif name in os.environ:
            values[name] = os.environ[name]
        else:
            log.warning('%s %s: not set here, so it is not passed on', option, name)
    return values


def in_shell(value):
    """str: a value with each special character escaped; also inside the single quotes that ssh's command stands in."""
    value = str(value)
    if "'" in value or '\n' in value:
        refuse('--env %r: a single quote or a new line cannot be passed to other hosts', value)
    return re.sub(r'([^\w@%+=:,./-])', r'\\\1', value)


def host_address(stock):
    """Wrap the tracker's get_host_ip for one machine: on one without a network, the loopback address will do."""
    def get_host_ip(*args):
        try:
            return stock(*args)
        except OSError:
            os.environ['DMLC_NODE_HOST'] = '127.0.0.1'  # else ps-lite looks for another interface, and aborts
            return '127.0.0.1'
    return get_host_ip


def reserve_port(ports):
    """Return a socket that holds the first free one of `ports` for the scheduler, which may listen on it all the same.

    The scheduler sets SO_REUSEADDR. Set here before a port is chosen, it would give several jobs the same port.
    """
    reservation = socket.socket()
    for port in ports:
        try:
            reservation.bind(('', port))
            break
        except OSError:
            continue
    else:
        refuse('all ports from %d to %d are in use on this host: end another job', ports[0], ports[-1])
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def read_addresses(hostfile):
    """Return the addresses of the hosts in a file, by name: ps-lite listens at addresses only.

    Names that only ssh knows are left out.
    """
    with open(hostfile) as lines:
        names = {line.partition('slots=')[0].strip().partition(':')[0] for line in lines if line.strip()}
    addresses = {}
    for name in names:
        with contextlib.suppress(OSError):
            addresses[name] = socket.gethostbyname(name)
        if len(names) > 1 and addresses.get(name, '').startswith('127.'):
            refuse('-H/--hostfile %s: %s is %s, which other hosts cannot reach: write its address in the network',
                   hostfile, name, addresses[name])
    return addresses


def supervise(job, launcher, env, role_env, addresses):
    """Make `dmlc_tracker` start its processes in `job`.

    `launcher` is the module of dmlc_tracker that will be used. Processes on other hosts get the variables `env` and
    those of their role. `addresses` are those of hosts, by name.
    """
    if not hasattr(threading.Thread, 'isAlive'):  # until CPython 3.8; the tracker calls it
        threading.Thread.isAlive = threading.Thread.is_alive  # type: ignore
    tracker: Any = importlib.import_module('dmlc_tracker.tracker')
    module: Any = importlib.import_module('dmlc_tracker.' + launcher)
    tracker.subprocess = module.subprocess = types.SimpleNamespace(
        call=job.run, check_call=job.run, Popen=subprocess.Popen, PIPE=subprocess.PIPE)

    class Tracker(tracker.PSTracker):
        """The tracker's own, which starts the scheduler, but waits for the whole job."""

        def __init__(self, hostIP, cmd, envs):
            self._reservation = reserve_port(ANY_PORT if launcher == 'local' else TRACKER_PORTS)
            self.port = self._reservation.getsockname()[1]
            super().__init__(hostIP, cmd, port=0, port_end=0, envs=envs)  # tries no ports: `port` stays

        def join(self):
            job.wait()

    tracker.PSTracker = Tracker

    def complete(pass_envs):
        envs = dict(pass_envs, **env)
        envs.update(role_env.get(pass_envs['DMLC_ROLE'], {}))
        if launcher == 'ssh':
            name = envs['DMLC_NODE_HOST']
            envs.update({NODE: name, 'DMLC_NODE_HOST': addresses.get(name, name)})
        return {name: in_shell(value) for name, value in envs.items()}

    if launcher == 'local':
        tracker.get_host_ip = host_address(tracker.get_host_ip)
    elif launcher == 'ssh':
        get_env = module.get_env
        module.get_env = lambda pass_envs: REMOTE_WATCH + get_env(complete(pass_envs))
    elif launcher == 'mpi':
        get_mpi_env = module.get_mpi_env
        module.get_mpi_env = lambda pass_envs: get_mpi_env(complete(pass_envs))


def command_start(words):
    """Return the position in a command line at which the command begins, or the ``--`` before it."""
    values = 0  # of the last option that follow
    for position, word in enumerate(words):
        if word == '--' or not (values or word.startswith('-')):
            return position
        if values:
            values -= 1
        # As argparse reads -n 2, -n2, --num-workers 2 and --num-workers=2; --p3 and --help take no value.
        elif ('=' not in word and (len(word) == 2 or word.startswith('--')) and word != '-h'
              and not '--p3'.startswith(word) and not '--help'.startswith(word)):
            values = ELASTIC.get(word, 1)
    return len(words)


def run_elastic(options, command):
    """Run ``mxhybrid run``, which runs this script for each generation, if an option of elastic jobs is given."""
    taken: List[str] = []
    others: List[str] = []
    position = 0
    while position < len(options):
        name, equals, _ = options[position].partition('=')
        count = 1 if equals else 1 + ELASTIC.get(name, 0)
        (taken if name in ELASTIC else others).extend(options[position:position + count])
        position += count
    if not taken:
        return
    parser = argparse.ArgumentParser(prog='launch.py', add_help=False)
    parser.add_argument('-n', '--num-workers')
    parser.add_argument('-H', '--hostfile')
    parser.add_argument('--launcher', default='ssh')
    known, others = parser.parse_known_args(others)
    if known.launcher not in ('local', 'ssh'):
        refuse('--launcher %s cannot run elastic jobs: give local or ssh', known.launcher)
    if known.num_workers is not None:
        taken += ['-np', known.num_workers]
    if known.hostfile is not None:
        with open(known.hostfile) as lines:
            hosts = [line.split()[0] for line in lines if line.split()]
        if any(':' in host for host in hosts):
            refuse('-H/--hostfile %s: elastic jobs take no ports: give them in ~/.ssh/config', known.hostfile)
        taken += ['-H', ','.join(hosts)]
    os.execv(sys.executable, [sys.executable, '-m', 'mxhybrid', 'run', *taken, '--launch-py', os.path.abspath(__file__),
                              '--', '--launcher', known.launcher, *others, '--', *command])


def load_stock():
    """Load MXNet's launch.py as a module, without importing mxnet."""
    mxnet = importlib.util.find_spec('mxnet')
    if mxnet is None or mxnet.origin is None:
        refuse('mxnet is not installed for %s', sys.executable)
    path = os.path.join(os.path.dirname(mxnet.origin), 'tools', 'launch.py')
    return importlib.machinery.SourceFileLoader('mxnet_launch', path).load_module('mxnet_launch')


def main():
    """Run MXNet's launch.py, with its processes in a `Job`."""
    logging.basicConfig(format='%(name)s: %(message)s', level=logging.INFO)
    words = sys.argv[1:]
    start = command_start(words)
    command = words[start + (words[start:start + 1] == ['--']):]
    run_elastic(words[:start], command)
    sys.argv[1:] = words[:start] + ['--'] + command
    for name in ('DMLC_ROLE', 'DMLC_TASK_ID'):  # what processes of this job get must not come from another job
        os.environ.pop(name, None)
    stock = load_stock()
    convert = stock.dmlc_opts

    with contextlib.ExitStack() as stack:
        def prepare(options):
            """Take the place of dmlc_opts, which turns launch.py's options into the tracker's."""
            check_options(options)
            # Set by mxhybrid run for the script, on whatever host it runs.
            options.env += [name for name in ('MXHYBRID_RESTART', 'MXHYBRID_KEEPER') if name in os.environ]
            env = read_env(options.env, '--env')
            role_env = {'worker': read_env(options.env_worker, '--env-worker'),
                        'server': read_env(options.env_server, '--env-server')}
            os.environ.update(env)
            if options.num_servers == 0:
                os.environ.update(role_env['worker'])
                os.execvp('bash', ['bash', '-c', ' '.join(options.command)])
            labels = options.launcher in ('local', 'ssh')
            if labels:
                role_env['worker'] = dict({ASKS_RANK: '1', 'PYTHONUNBUFFERED': '1'}, **role_env['worker'])
            counts = {'worker': options.num_workers, 'server': options.num_servers}
            expected = {'local': counts, 'ssh': counts, 'mpi': {'worker': 1, 'server': 1}}.get(options.launcher, {})
            job = stack.enter_context(Job(expected, role_env, remote=options.launcher == 'ssh', labels=labels))
            supervise(job, options.launcher, env, role_env,
                      read_addresses(options.hostfile) if options.launcher == 'ssh' else {})
            # The tracker's parser does not know these two, and would take its own options out of the command.
            options.env_worker, options.env_server = [], []
            options.command = ['--'] + options.command
            return convert(options)

        stock.dmlc_opts = prepare
        stock.main()


if __name__ == '__main__':
    main()
