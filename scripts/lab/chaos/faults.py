"""Faults of a process, of a link, and of a host."""
import contextlib
import os
import resource
import signal
import subprocess
import threading
import time

from lab.emulation import INTERFACE, run
from lab.processes import send_signal

SIGNALS = {'kill': signal.SIGKILL, 'stop': signal.SIGSTOP, 'term': signal.SIGTERM, 'int': signal.SIGINT}

#: Limits of a process that are lowered while it runs.
LIMITS = {'memory': resource.RLIMIT_AS, 'files': resource.RLIMIT_FSIZE}
_SMALL_FILE_BYTES = 1 << 16

#: Seconds between two looks at the files of a checkpoint.
_LOOK_S = 0.001

#: Seconds in which processes that have ended must leave their cgroup.
_LEAVING_S = 30.0

#: The file that fills a disk.
FILLER = 'filler'

#: A slow link, in 10^6 bits per second, and a slow host's share of the time in which its processes may run.
SLOW_MBIT_PER_S, SLOW_RUN_S, SLOW_STOP_S = 4, 0.05, 0.15


def hit(pid, fault):
    """Send the signal of a fault, or limit a process to the memory that it has, or to small files."""
    if fault in SIGNALS:
        os.kill(pid, SIGNALS[fault])
        return
    with open('/proc/%d/statm' % pid) as statm:
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    hard = resource.prlimit(pid, LIMITS[fault])[1]
    resource.prlimit(pid, LIMITS[fault], (taken if fault == 'memory' else _SMALL_FILE_BYTES, hard))


def set_link(cluster, host, up):
    """Plug or unplug the cable between a host and the switch."""
    run('ip', '-n', cluster.switch, 'link', 'set', 'port%d' % host, 'up' if up else 'down')


@contextlib.contextmanager
def slow_link(cluster, host):
    """Make the link of a host slow, in both directions."""
    ends = ((cluster.hosts[host].namespace, INTERFACE), (cluster.switch, 'port%d' % host))
    for namespace, interface in ends:
        run('tc', '-n', namespace, 'qdisc', 'replace', 'dev', interface, 'root', 'tbf', 'rate',
            '%dmbit' % SLOW_MBIT_PER_S, 'burst', '20000', 'latency', '200ms')
    try:
        yield
    finally:
        for namespace, interface in ends:
            run('tc', '-n', namespace, 'qdisc', 'delete', 'dev', interface, 'root')


@contextlib.contextmanager
def slow_processes(find_pids):
    """Let processes run seldom; `find_pids` finds them, again and again."""
    over = threading.Event()

    def slow_down():
        while not over.is_set():
            pids = find_pids()
            for number, seconds in ((signal.SIGSTOP, SLOW_STOP_S), (signal.SIGCONT, SLOW_RUN_S)):
                for pid in pids:
                    send_signal(pid, number)
                time.sleep(seconds)
    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def stop_while_saving(pid, directory, is_over):
    """Stop a server that has begun to write files of a checkpoint; return them.  [] if `is_over()` before."""
    while not is_over():
        files = [path for folder in _unfinished(directory) for path in folder.glob('table-*/*/keys.npy')]
        if files:
            os.kill(pid, signal.SIGSTOP)
            if files[0].parents[2] in _unfinished(directory):
                return files
            os.kill(pid, signal.SIGCONT)  # it was too late
        time.sleep(_LOOK_S)
    return []


def _unfinished(directory):
    """Return the folders of checkpoints that are being written."""
    return [folder for folder in directory.iterdir() if folder.is_dir() and not (folder / 'manifest.json').exists()]


@contextlib.contextmanager
def small_disk(directory, size):
    """Mount a small file system on a directory."""
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=%s' % size, 'chaos', directory], check=True)
    try:
        yield
    finally:
        subprocess.run(['umount', '-l', directory], check=True)


@contextlib.contextmanager
def small_cgroup(limit_bytes):
    """Make a cgroup with little memory, as a container has it; yield the path of the file that takes process ids.

    Yield None if this process may not make one.
    """
    version_1 = os.path.isdir('/sys/fs/cgroup/memory')
    parent = '/sys/fs/cgroup/memory' if version_1 else '/sys/fs/cgroup'
    path = os.path.join(parent, 'mxhybrid-%d' % os.getpid())
    limit = os.path.join(path, 'memory.limit_in_bytes' if version_1 else 'memory.max')
    try:
        os.mkdir(path)
        with open(limit, 'w') as file:
            file.write(str(limit_bytes))
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        yield None
        return
    try:
        yield os.path.join(path, 'cgroup.procs')
    finally:
        _remove_cgroup(path)


def _remove_cgroup(path):
    """Remove a cgroup when its processes, which end, have left it."""
    deadline = time.monotonic() + _LEAVING_S
    while True:
        try:
            os.rmdir(path)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)


def fill(directory):
    """Leave no room in a file system."""
    with contextlib.suppress(OSError), open(os.path.join(directory, FILLER), 'wb', buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
