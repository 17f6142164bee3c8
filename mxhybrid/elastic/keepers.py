"""The keepers of a job, as its launcher sees them: one process on each host, started here or by ssh."""
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from ..messaging.keeper_channel import socket_name
from ..messaging.sealed import new_secret

#: Seconds for a keeper to start, over ssh, too.
START_S = 30.0
_PING_S = 2.0
_SSH = ['ssh', '-o', 'BatchMode=yes', '-o', 'StrictHostKeyChecking=no', '-o', 'ConnectTimeout=10',
        '-o', 'ServerAliveInterval=3', '-o', 'ServerAliveCountMax=3']


def is_this_host(name: str) -> bool:
    """Return whether a host name is one of this machine: a socket can be bound to its address."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((socket.gethostbyname(name), 0))
        return True
    except OSError:
        return False


class KeeperProcess:
    """A keeper: its process, and the commits that it has, by its own account.

    A thread calls ``on_message(keeper, message)`` for each message, and with None when the process has ended.
    """

    def __init__(self, host: str, command: List[str], start: Dict[str, Any], on_message: Callable[[Any, Any], None]):
        self.host = host
        #: Names of commits, newest first.
        self.held: List[str] = []
        #: The address for the keeper before, once it has started.
        self.address: Optional[List[Any]] = None
        self.ready = threading.Event()
        self.has_ended = False
        self._on_message = on_message
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         start_new_session=True)
        self.send('start', **start)
        threading.Thread(target=self._read, name='mxhybrid-keeper-' + host, daemon=True).start()

    def send(self, kind: str, **content: Any) -> None:
        """Send a message; nothing happens if the keeper has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(dict(content, kind=kind)).encode() + b'\n')
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError, KeyError):
                    message = json.loads(line.decode())
                    self.held = message['held']
                    if message['kind'] == 'ready':
                        self.address = message['address']
                        self.ready.set()
                    self._on_message(self, message)
        self._process.wait()
        self.has_ended = True
        self.ready.set()
        self._on_message(self, None)

    def end(self) -> None:
        """End the keeper: its input ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, and kill it after a time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Keepers:
    """The keepers of the hosts of a job, whose name no other job has.

    They copy commits by a network `interface`, '' for the one of the host's name.
    """

    def __init__(self, job: str, interface: str, ssh: List[str], on_message: Callable[[Any, Any], None]):
        self._job, self._interface, self._ssh, self._on_message = job, interface, ssh, on_message
        self._secret = new_secret()
        self._keepers: Dict[str, KeeperProcess] = {}

    def use(self, hosts: List[str]) -> List[str]:
        """Have a keeper on each of `hosts`, and on no other one; return the hosts on which none starts."""
        for name in set(self._keepers) - set(hosts):
            self._keepers.pop(name).end()
        for name in hosts:
            self.is_started(name)
        deadline = time.monotonic() + START_S
        for name in hosts:
            while not self._keepers[name].ready.wait(_PING_S) and time.monotonic() < deadline:
                self.tell_all('ping')  # the others shall not take this for the end of the launcher
        absent = [name for name in hosts if self._keepers[name].has_ended or self._keepers[name].address is None]
        for name in absent:
            self._keepers.pop(name).end()
        return absent

    def is_started(self, name: str) -> bool:
        """Return whether a keeper runs on a host; otherwise start one, which tells when it is ready."""
        if name not in self._keepers or self._keepers[name].has_ended:
            self._keepers[name] = KeeperProcess(name, self._command(name), {
                'socket': socket_name(self._job, name), 'secret': self._secret, 'host': name,
                'interface': self._interface}, self._on_message)
        return self._keepers[name].address is not None

    def begin(self, generation: int, hosts: List[str]) -> None:
        """Tell the keepers of `hosts` the number of the generation, and to which keeper each copies its commits."""
        for name, next_name in zip(hosts, hosts[1:] + hosts[:1]):
            address = self._keepers[next_name].address if len(hosts) > 1 else None
            self._keepers[name].send('generation', number=generation, next_address=address)

    def tell_all(self, kind: str, **content: Any) -> None:
        """Send a message to all keepers."""
        for keeper in list(self._keepers.values()):
            keeper.send(kind, **content)

    def newest(self, host: str) -> str:
        """Return the name of the newest commit that the keeper of a host has, '' if it has none."""
        keeper = self._keepers.get(host)
        return keeper.held[0] if keeper is not None and keeper.held and not keeper.has_ended else ''

    def is_current(self, keeper: KeeperProcess) -> bool:
        """Return whether a keeper is that of a host of the job, and no former one."""
        return self._keepers.get(keeper.host) is keeper

    def close(self) -> None:
        """End all keepers."""
        for keeper in self._keepers.values():
            keeper.end()
        for keeper in self._keepers.values():
            keeper.wait(5.0)

    def _command(self, host: str) -> List[str]:
        program = [sys.executable, '-m', 'mxhybrid.elastic.keeper']
        if is_this_host(host):
            return program
        path = shlex.quote(os.environ.get('PYTHONPATH', ''))
        return _SSH + self._ssh + [host, 'cd %s && PYTHONPATH=%s exec %s' % (
            shlex.quote(os.getcwd()), path, ' '.join(map(shlex.quote, program)))]
