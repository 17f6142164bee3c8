"""Start, watch and end the scheduler and servers of a job; find addresses and ports for them."""
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .errors import SettingError

#: Seconds that servers get to leave by themselves after the last worker has.
FAREWELL_S = 10.0

#: Launcher variables that would make a server believe it is a worker of theirs.
_WORKER_PREFIXES = ('HOROVOD_', 'OMPI_', 'PMI_', 'PMIX_')


def free_port(host: str) -> int:
    """A TCP port that the system says is free on `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        return sock.getsockname()[1]


def interface_address(interface: str) -> str:
    """IPv4 address of a network interface.

    Raises
    ------
    SettingError
        No such interface, or it has no IPv4 address.
    """
    import psutil  # comes with Horovod

    addresses = psutil.net_if_addrs()
    for entry in addresses.get(interface, []):
        if entry.family == socket.AF_INET:
            return entry.address
    raise SettingError('HOROVOD_GLOO_IFACE=%r has no IPv4 address on host %s: choose one of %s with '
                       'horovodrun --network-interface'
                       % (interface, socket.gethostname(), ', '.join(sorted(addresses))))


def interface_of(address: str) -> Optional[str]:
    """Name of the network interface that has the IPv4 `address`."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None


def address_towards(host: str, port: int) -> str:
    """Own IPv4 address as seen on the way to `host`; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        return sock.getsockname()[0]


def check_host_name() -> str:
    """Address of this host's own name, in a job over several hosts.

    Raises
    ------
    SettingError
        The name resolves to loopback: Horovod would advertise that to the other hosts.
    """
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        raise SettingError('host name %r does not resolve (%s): add a line "<its network address> %s" to /etc/hosts'
                           % (name, error, name)) from error
    if address.startswith('127.'):
        raise SettingError('host name %r resolves to %s on this host, but the job spans several hosts and Horovod '
                           'tells them this address: replace it in /etc/hosts by "<its network address> %s"'
                           % (name, address, name))
    return address


def program_of_child(module: str) -> str:
    """A program for ``python -c`` that runs a module, and dies with the process that ``MXHYBRID_PARENT`` names.

    The kernel sees to that (PR_SET_PDEATHSIG of linux/prctl.h), from before MXNet is imported, which takes seconds.
    """
    return '\n'.join(['import ctypes, os, runpy, signal, sys',
                      'ctypes.CDLL(None).prctl(1, signal.SIGKILL)',
                      'if os.getppid() != int(os.environ["MXHYBRID_PARENT"]):',
                      '    sys.exit("the process that started this one is gone")',
                      'runpy.run_module(%r, run_name="__main__", alter_sys=True)' % module])


class Children:
    """Scheduler and server processes of one worker.

    Parameters
    ----------
    environment : dict
        ``DMLC_*`` and ``MXHYBRID_*`` variables for them.
    on_death : callable
        Called with a sentence when one ends before :meth:`farewell`.
    """

    def __init__(self, environment: Dict[str, str], on_death: Callable[[str], None]):
        self._environment = environment
        self._on_death = on_death
        self._processes: List[Tuple[str, subprocess.Popen]] = []
        self._leaving = self._parted = False

    def start(self, role: str, secret: str) -> None:
        """Start one process as `role`, 'scheduler' or 'server', and tell it the job's secret, as nobody else."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(_WORKER_PREFIXES)}
        env.pop('DMLC_ROLE', None)
        env.update(self._environment)
        env.setdefault('OMP_NUM_THREADS', '1')
        package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        env['PYTHONPATH'] = os.pathsep.join([package_parent] + [p for p in [env.get('PYTHONPATH')] if p])
        env['MXHYBRID_ROLE'] = role
        env['MXHYBRID_SECRET'] = secret
        env['MXHYBRID_PARENT'] = str(os.getpid())
        process = subprocess.Popen([sys.executable, '-c', program_of_child('mxhybrid.server')], env=env,
                                   stdin=subprocess.DEVNULL)
        self._processes.append((role, process))

    def pids(self) -> List[List[Any]]:
        """Role and process id of each."""
        return [[role, process.pid] for role, process in self._processes]

    def watch(self) -> None:
        """Notice the death of a child from now on."""
        threading.Thread(target=self._watch, name='mxhybrid-children', daemon=True).start()

    def _watch(self) -> None:
        while not self._parted:
            for role, process in self._processes:
                status = process.poll()
                if status is not None and not self._parted and not (status == 0 and self._leaving):
                    # A moment for the monitor, which may know more: an error that the server itself reported.
                    time.sleep(0.5)
                    self._on_death('the %s with pid %d on host %s ended with %s'
                                   % (role, process.pid, socket.gethostname(), describe_status(status)))
                    return
            time.sleep(0.2)

    def expect_end(self) -> None:
        """From now on the children may end, with status 0."""
        self._leaving = True

    def end(self) -> None:
        """After a failure: end those that still run, also one that is stopped, and would hold launchers' pipes open."""
        self._parted = True
        for _, process in self._processes:
            process.kill()

    def farewell(self) -> None:
        """Wait for the children to end by themselves, end those that do not."""
        self._parted = True
        deadline = time.monotonic() + FAREWELL_S
        for _, process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def describe_status(status: int) -> str:
    """Say what a ``Popen.returncode`` means."""
    if status < 0:
        names = {int(known): ' (%s)' % known.name for known in signal.Signals}
        return 'signal %d%s' % (-status, names.get(-status, ''))
    return 'exit status %d' % status


def end_processes_of_job(uri: str, port: str, roles: Tuple[str, ...]) -> None:
    """End the other processes on this host of the ``launch.py`` job whose scheduler is at `uri`:`port`.

    Under MXNet's own launcher nobody else would: its scheduler and servers wait for a dead worker for ever.
    A process belongs to the job when its environment names that scheduler, it runs as one of `roles`
    (``DMLC_ROLE``) and for the same user.
    """
    wanted_roles = {('DMLC_ROLE=' + role).encode() for role in roles}
    wanted = {('DMLC_PS_ROOT_URI=' + uri).encode(), ('DMLC_PS_ROOT_PORT=' + port).encode()}
    for entry in os.listdir('/proc'):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if os.stat('/proc/' + entry).st_uid != os.getuid():
                continue
            with open('/proc/%s/environ' % entry, 'rb') as handle:
                variables = set(handle.read().split(b'\0'))
            if wanted <= variables and wanted_roles & variables:
                os.kill(int(entry), signal.SIGTERM)
        except OSError:
            continue
