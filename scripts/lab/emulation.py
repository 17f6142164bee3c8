"""Hosts emulated on one machine: network namespaces joined by a bridge, each with its own name and links of a rate.

::

    with Network(hosts=2, mbit_per_s=100) as network:
        subprocess.run(network.argv(1, ['hostname']))

Each host has its own network interfaces (`e0` and a loopback), addresses, host name, `/etc/hosts` and `/dev/shm`, as
real hosts do. All hosts share the rest of the file system (so that one virtual environment and one checkout serve all)
and the process table (so that all processes can be seen).

The bridge lives in a namespace of its own: nothing is added to the machine's own network, no address can clash, no
traffic can leave, and two networks may exist side by side. It needs root and, on Debian, the package iproute2.
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple

from .processes import send_signal

INTERFACE = 'e0'

#: Hosts are named by letters.
MAX_HOSTS = 26

_NETNS = Path('/run/netns')
_NETNS_ETC = Path('/etc/netns')
_SHM = Path('/dev/shm')
_KILL_S = 10.0
_COMMAND_S = 60.0

#: Debian packages of the commands that are run here.
PACKAGES = {'ip': 'iproute2', 'tc': 'iproute2', 'unshare': 'util-linux', 'mount': 'mount'}

# ip netns exec gives the network, /etc/hosts and mounts that nobody else sees, unshare the name; "$@" then sees a host
# of its own.
_AS_HOST = ('ip', 'netns', 'exec', '{namespace}', 'unshare', '--uts',
            'sh', '-c', 'hostname "$0" && mount --bind "$1" /dev/shm && shift && exec "$@"', '{name}', '{shm}')

# A token bucket must hold the bytes that the kernel sends between two ticks, and a segment of 64 KiB of TCP with the
# headers of all its packets: otherwise it splits segments, which costs more CPU time than all else.
_BURST_S = 0.004
_MIN_BURST_BYTES = 81920
_QUEUE = '50ms'

# The same on all machines, or their readings could not be compared.  Every kernel has reno and lets a namespace choose
# it; cubic, the usual default, does as reno does at round trips as short as these (RFC 9438, section 4.3).  bbr, some
# machines' default, does not yield to losses: of many flows that meet, as here, it loses one packet in twenty.
CONGESTION_CONTROL = 'reno'


class EmulationError(RuntimeError):
    """The network cannot be made; the message names the missing program or the command that failed."""


class Host(NamedTuple):
    """An emulated host: its name, its address on the bridge, its network namespace."""

    name: str
    address: str
    namespace: str


def run(*words: str) -> str:
    """Run a command to its end and return its output; EmulationError, with the output, where it fails."""
    # A session of its own: Ctrl-C must not end the commands that clean up.
    try:
        done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True, timeout=_COMMAND_S,
                              start_new_session=True)
    except subprocess.TimeoutExpired as error:
        raise EmulationError('%s: not done after %g s' % (' '.join(words), _COMMAND_S)) from error
    if done.returncode != 0:
        raise EmulationError('%s: status %d: %s' % (' '.join(words), done.returncode, done.stdout.strip()))
    return done.stdout


def find_tools(packages: dict, caller: str) -> dict:
    """Return the paths of commands, by name, also of those where only root looks; `packages` are Debian's, by command.

    EmulationError, which says what `caller` lacks, if this is not root, or if a command is missing.
    """
    if os.geteuid() != 0:
        raise EmulationError('%s needs root: network namespaces cannot be made otherwise' % caller)
    path = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])
    tools = {name: shutil.which(name, path=path) for name in packages}
    missing = sorted({packages[name] for name, found in tools.items() if found is None})
    if missing:
        raise EmulationError('%s needs Debian packages that are not installed: %s' % (caller, ' '.join(missing)))
    os.environ['PATH'] = path
    return tools


class Network:
    """Emulated hosts, from `open`, or the start of a `with` block, to `close`, or its end.

    The hosts are called hosta, hostb, ... `mbit_per_s` is the rate of every host's link in each direction, in 10^6 bits
    per second; by default it is not limited. `loopback_names` are the numbers of hosts whose own name leads them to
    127.0.1.1, as Debian's installer writes it into /etc/hosts; the other hosts still find them. `congestion_control` is
    TCP's on all hosts, see tcp(7). A bridge in the namespace `switch` joins the hosts; host i is at its port
    ``port<i>``.

    EmulationError on entry: this is not root, a package is missing (named), the kernel does not let namespaces choose
    the congestion control, or a command failed (with its message).
    """

    def __init__(self, hosts: int, mbit_per_s: Optional[float] = None, loopback_names: Sequence[int] = (),
                 congestion_control: str = CONGESTION_CONTROL):
        if not 1 <= hosts <= MAX_HOSTS:
            raise ValueError('hosts=%d is not between 1 and %d' % (hosts, MAX_HOSTS))
        if mbit_per_s is not None and not mbit_per_s > 0:
            raise ValueError('mbit_per_s=%g is not above 0' % mbit_per_s)
        self.token = 'mxhybrid-%d-%s' % (os.getpid(), uuid.uuid4().hex[:6])
        self.switch = self.token + '-switch'
        self._mbit_per_s = mbit_per_s
        self._congestion_control = congestion_control
        self._loopback_names = tuple(loopback_names)
        self._undo = contextlib.ExitStack()
        names = ['host' + letter for letter in 'abcdefghijklmnopqrstuvwxyz'[:hosts]]
        self.hosts = [Host(name, '10.77.0.%d' % (i + 1), '%s-%s' % (self.token, name))
                      for i, name in enumerate(names)]

    def __enter__(self) -> 'Network':
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> None:
        """Make the namespaces and their links; call `close` also where this fails."""
        find_tools(PACKAGES, 'an emulated network')
        self._add_namespace(self.switch)
        run('ip', '-n', self.switch, 'link', 'add', 'bridge', 'type', 'bridge')
        run('ip', '-n', self.switch, 'link', 'set', 'bridge', 'up')
        self._no_firewall()
        for i, host in enumerate(self.hosts):
            self._add_namespace(host.namespace)
            # Both ends are made where they belong and never appear among the machine's own interfaces.
            run('ip', '-n', self.switch, 'link', 'add', 'port%d' % i, 'type', 'veth',
                'peer', 'name', INTERFACE, 'netns', host.namespace)
            run('ip', '-n', self.switch, 'link', 'set', 'port%d' % i, 'master', 'bridge', 'up')
            run('ip', '-n', host.namespace, 'address', 'add', host.address + '/24', 'dev', INTERFACE)
            run('ip', '-n', host.namespace, 'link', 'set', INTERFACE, 'up')
            run('ip', '-n', host.namespace, 'link', 'set', 'lo', 'up')
            self._set_congestion_control(host.namespace)
            self._limit(host.namespace, INTERFACE)
            self._limit(self.switch, 'port%d' % i)
            self._write_etc(i)
            self._make_shared_memory(i)

    def close(self) -> None:
        """End every process in the namespaces, then remove all that was made. Safe to call twice."""
        self._undo.close()

    def _no_firewall(self) -> None:
        """Spare frames on the bridge the way through this machine's packet filter, where the kernel has one there."""
        run('ip', 'netns', 'exec', self.switch, 'sh', '-c',
            'for setting in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e "$setting" ] || echo 0 >"$setting"; done')

    def _set_congestion_control(self, namespace: str) -> None:
        try:
            run('ip', 'netns', 'exec', namespace, 'sh', '-c', 'echo "$0" >/proc/sys/net/ipv4/tcp_congestion_control',
                self._congestion_control)
        except EmulationError as error:
            raise EmulationError('TCP congestion control %r is not available in a network namespace: choose reno, or '
                                 'one that sysctl net.ipv4.tcp_allowed_congestion_control shows'
                                 % self._congestion_control) from error

    def _limit(self, namespace: str, interface: str) -> None:
        """Limit the rate at which an interface sends; a link limited at both ends has its rate in each direction."""
        if self._mbit_per_s is None:
            return
        bits = self._mbit_per_s * 1e6
        burst = max(_MIN_BURST_BYTES, int(bits / 8 * _BURST_S))
        run('tc', '-n', namespace, 'qdisc', 'add', 'dev', interface, 'root', 'tbf', 'rate', '%dbit' % bits,
            'burst', str(burst), 'latency', _QUEUE)

    def _add_namespace(self, name: str) -> None:
        self._undo.callback(self._remove_namespace, name)
        run('ip', 'netns', 'add', name)

    def _remove_namespace(self, name: str) -> None:
        # Interfaces live until the last process in their namespace has gone.
        if (_NETNS / name).exists():
            self._kill_processes([name])
            run('ip', 'netns', 'delete', name)
        shutil.rmtree(str(_NETNS_ETC / name), ignore_errors=True)
        with contextlib.suppress(OSError):
            _NETNS_ETC.rmdir()  # goes with the last one

    def _kill_processes(self, namespaces: List[str]) -> None:
        deadline = time.monotonic() + _KILL_S
        while True:
            left = [pid for name in namespaces for pid in self.pids(name)]
            if not left:
                return
            if time.monotonic() > deadline:
                raise EmulationError('processes in namespaces %s survive SIGKILL: %s' % (namespaces, left))
            for pid in left:
                send_signal(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _write_etc(self, index: int) -> None:
        own_host = self.hosts[index]
        lines = ['127.0.0.1 localhost']
        for i, host in enumerate(self.hosts):
            loops = i == index and i in self._loopback_names
            lines.append('%s %s' % ('127.0.1.1' if loops else host.address, host.name))
        etc = _NETNS_ETC / own_host.namespace
        etc.mkdir(parents=True)
        (etc / 'hosts').write_text('\n'.join(lines) + '\n')
        (etc / 'resolv.conf').write_text('')  # no name server: only names in the hosts file exist

    def _make_shared_memory(self, index: int) -> None:
        path = self.shared_memory(index)
        self._undo.callback(shutil.rmtree, str(path), ignore_errors=True)
        path.mkdir()
        path.chmod(0o1777)

    # ------------------------------------------------------------------------------------------- using

    def argv(self, host_index: int, argv: Sequence[object]) -> List[str]:
        """The command line that runs a command on a host."""
        host = self.hosts[host_index]
        return [word.format(namespace=host.namespace, name=host.name, shm=self.shared_memory(host_index))
                for word in _AS_HOST] + [str(word) for word in argv]

    def shared_memory(self, host_index: int) -> Path:
        """The ``/dev/shm`` of a host, which only the processes of that host see."""
        return _SHM / self.hosts[host_index].namespace

    @staticmethod
    def pids(namespace: str) -> List[int]:
        """Processes in a namespace."""
        return [int(pid) for pid in run('ip', 'netns', 'pids', namespace).split()]

    def kill_processes(self) -> None:
        """End every process on every host."""
        self._kill_processes([host.namespace for host in self.hosts])

    def traffic(self, host_index: int) -> Tuple[int, int]:
        """Bytes received and bytes sent so far by a host over the bridge, headers included."""
        links = json.loads(run('ip', '-n', self.hosts[host_index].namespace, '-s', '-j', 'link', 'show', INTERFACE))
        return links[0]['stats64']['rx']['bytes'], links[0]['stats64']['tx']['bytes']
