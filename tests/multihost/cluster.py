"""Hosts emulated on one machine: network namespaces joined by a bridge, each with its own name and sshd.

::

    with EmulatedCluster(hosts=2) as cluster:
        cluster.run(0, ['ssh', cluster.hosts[1].name, 'hostname']).ok()

What differs between two hosts, as it does between real ones: network interfaces (`e0` and a loopback of its own),
addresses, the host's name, `/etc/hosts`, host key, sshd. What they share: the file system (so that one virtual
environment and one checkout serve all) and the process table (so that the test sees every process).

The bridge lives in a namespace of its own: nothing is added to the machine's own network, no address can clash,
no traffic can leave, and two clusters may run side by side. It needs root, and on Debian the packages iproute2,
openssh-server and openssh-client.
"""
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import jobs

INTERFACE = 'e0'
_NETNS = Path('/run/netns')
_NETNS_ETC = Path('/etc/netns')
_PRIVILEGE_SEPARATION = Path('/run/sshd')  # sshd insists on it
_PACKAGES = {'ip': 'iproute2', 'unshare': 'util-linux', 'sshd': 'openssh-server', 'ssh': 'openssh-client',
             'ssh-keygen': 'openssh-client'}
_START_S = 20.0  # for every sshd to answer
_CONNECT_S = 5

# ip netns exec gives the network and /etc/hosts, unshare the name; "$@" then sees a host of its own.
_AS_HOST = ('ip', 'netns', 'exec', '{namespace}', 'unshare', '--uts',
            'sh', '-c', 'hostname "$0" && exec "$@"', '{name}')

_SSHD_CONFIG = '''\
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
'''

_SSH_CONFIG = '''\
Host *
  User root
  IdentityFile {directory}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile none
  BatchMode yes
  ConnectTimeout {connect}
  LogLevel ERROR
'''


class Host(NamedTuple):
    """An emulated host: its name, its address on the bridge, its network namespace."""

    name: str
    address: str
    namespace: str


def _run(*words):
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(words)}: status {done.returncode}: {done.stdout.strip()}')
    return done.stdout


def _find_tools():
    if os.geteuid() != 0:
        raise RuntimeError('network namespaces need root; run these tests as root or leave tests/multihost out')
    path = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin', '/sbin'])
    tools = {name: shutil.which(name, path=path) for name in _PACKAGES}
    missing = sorted({_PACKAGES[name] for name, found in tools.items() if found is None})
    if missing:
        raise RuntimeError(f'tests/multihost needs Debian packages that are not installed: {" ".join(missing)}')
    return tools


class EmulatedCluster:
    """Emulated hosts, from the start of the `with` block to its end.

    Parameters
    ----------
    hosts : int
        How many; they are called hosta, hostb, ...
    loopback_names : sequence of int
        Hosts whose own name leads them to 127.0.1.1, as Debian's installer writes it into /etc/hosts. The other
        hosts still find them.

    Attributes
    ----------
    hosts : list of Host

    Raises
    ------
    RuntimeError
        On entry: not root, a missing package (named), a command that failed (with its message), an sshd that does
        not answer (with its log).
    """

    def __init__(self, hosts=2, loopback_names=()):
        if not 1 <= hosts <= 26:
            raise ValueError(f'hosts={hosts} is not between 1 and 26')
        self._token = f'mxhybrid-{os.getpid()}-{uuid.uuid4().hex[:6]}'
        self._switch = self._token + '-switch'
        self._loopback_names = tuple(loopback_names)
        self._undo = contextlib.ExitStack()
        self._daemons = []
        names = ['host' + letter for letter in 'abcdefghijklmnopqrstuvwxyz'[:hosts]]
        self.hosts = [Host(name, f'10.77.0.{i + 1}', f'{self._token}-{name}') for i, name in enumerate(names)]

    def __enter__(self):
        try:
            self._tools = _find_tools()
            self._directory = Path(tempfile.mkdtemp(prefix='mxhybrid-cluster-'))
            self._undo.callback(shutil.rmtree, str(self._directory), ignore_errors=True)
            self._make_network()
            self._make_keys()
            self._start_daemons()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self):
        """End every process in the namespaces, then remove all that was made. Safe to call twice."""
        self._undo.close()

    # ------------------------------------------------------------------------------------------- making

    def _make_network(self):
        self._add_namespace(self._switch)
        _run('ip', '-n', self._switch, 'link', 'add', 'bridge', 'type', 'bridge')
        _run('ip', '-n', self._switch, 'link', 'set', 'bridge', 'up')
        for i, host in enumerate(self.hosts):
            self._add_namespace(host.namespace)
            # Both ends are made where they belong and never appear among the machine's own interfaces.
            _run('ip', '-n', self._switch, 'link', 'add', f'port{i}', 'type', 'veth',
                 'peer', 'name', INTERFACE, 'netns', host.namespace)
            _run('ip', '-n', self._switch, 'link', 'set', f'port{i}', 'master', 'bridge', 'up')
            _run('ip', '-n', host.namespace, 'address', 'add', host.address + '/24', 'dev', INTERFACE)
            _run('ip', '-n', host.namespace, 'link', 'set', INTERFACE, 'up')
            _run('ip', '-n', host.namespace, 'link', 'set', 'lo', 'up')
            self._write_etc(i)

    def _add_namespace(self, name):
        self._undo.callback(self._remove_namespace, name)
        _run('ip', 'netns', 'add', name)

    def _remove_namespace(self, name):
        # Interfaces live until the last process in their namespace has gone.
        if (_NETNS / name).exists():
            deadline = time.monotonic() + 10
            while True:
                left = self._pids(name)
                if not left:
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f'processes in namespace {name} survive SIGKILL: {left}')
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
                time.sleep(0.05)
            _run('ip', 'netns', 'delete', name)
        shutil.rmtree(str(_NETNS_ETC / name), ignore_errors=True)
        with contextlib.suppress(OSError):
            _NETNS_ETC.rmdir()  # goes with the last one

    def _write_etc(self, index):
        own = self.hosts[index]
        lines = ['127.0.0.1 localhost']
        for i, host in enumerate(self.hosts):
            loops = i == index and i in self._loopback_names
            lines.append(f'{"127.0.1.1" if loops else host.address} {host.name}')
        etc = _NETNS_ETC / own.namespace
        etc.mkdir(parents=True)
        (etc / 'hosts').write_text('\n'.join(lines) + '\n')
        (etc / 'resolv.conf').write_text('')  # no name server: what the hosts file lacks does not exist

    def _make_keys(self):
        for name in ('host_key', 'user_key'):
            _run(self._tools['ssh-keygen'], '-q', '-t', 'ed25519', '-N', '', '-C', self._token,
                 '-f', str(self._directory / name))
        public = (self._directory / 'host_key.pub').read_text()
        (self._directory / 'known_hosts').write_text(
            ''.join(f'{host.name},{host.address} {public}' for host in self.hosts))
        config = self._directory / 'ssh_config'
        config.write_text(_SSH_CONFIG.format(directory=self._directory, connect=_CONNECT_S))
        # horovodrun calls plain `ssh` and has no option for a configuration file.
        wrapper = self._directory / 'bin' / 'ssh'
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(self._tools["ssh"])} -F {config} "$@"\n')
        wrapper.chmod(0o755)
        (self._directory / 'home').mkdir()

    def _start_daemons(self):
        _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        for host in self.hosts:
            config = self._directory / (host.name + '.sshd_config')
            config.write_text(_SSHD_CONFIG.format(address=host.address, directory=self._directory))
            daemon = jobs.start_command(self._argv(host, [self._tools['sshd'], '-D', '-e', '-f', str(config)]))
            self._undo.callback(daemon.close)
            self._daemons.append(daemon)
        deadline = time.monotonic() + _START_S
        for host, daemon in zip(self.hosts, self._daemons):
            while True:
                login = self.run(0, ['ssh', host.name, 'hostname'], timeout=_START_S, settle=False)
                if login.returncode == 0 and login.output.strip() == host.name:
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f'cannot log in to {host.name}: {login.output}\nits sshd says:\n'
                                       f'{daemon.output}')
                time.sleep(0.1)
        self.assert_idle()

    # ------------------------------------------------------------------------------------------- using

    @staticmethod
    def _argv(host, argv):
        return [word.format(namespace=host.namespace, name=host.name) for word in _AS_HOST] \
            + [str(word) for word in argv]

    def start(self, host_index, argv, env=None, body=None):
        """Start a command on a host.

        Parameters
        ----------
        host_index : int
        argv : list of str
        env, body
            As for `jobs.start_command`. HOME is a temporary directory, so that nothing reads or writes the user's
            ssh settings or horovodrun's cache.

        Returns
        -------
        jobs.Job
        """
        path = os.pathsep.join([str(self._directory / 'bin'), os.environ.get('PATH', os.defpath)])
        settings = {'PATH': path, 'HOME': str(self._directory / 'home')}
        settings.update(env or {})
        job = jobs.start_command(self._argv(self.hosts[host_index], argv), env=settings, body=body)
        self._undo.callback(job.close)
        return job

    def run(self, host_index, argv, env=None, timeout=120, body=None, settle=True):
        """Run a command on a host to its end; parameters as for `start`.

        Parameters
        ----------
        timeout : float
            Seconds.
        settle : bool
            Whether to check, as `assert_idle` does, that nothing is left running on any host.

        Returns
        -------
        jobs.Result
        """
        with self.start(host_index, argv, env=env, body=body) as job:
            result = job.wait(timeout)
        if settle:
            self.assert_idle()
        return result

    @staticmethod
    def _pids(namespace):
        return [int(pid) for pid in _run('ip', 'netns', 'pids', namespace).split()]

    def host_of(self, pid):
        """int or None: index of the host on which a process runs."""
        try:
            inode = os.stat(f'/proc/{pid}/ns/net').st_ino
        except OSError:
            return None
        for i, host in enumerate(self.hosts):
            if (_NETNS / host.namespace).stat().st_ino == inode:
                return i
        return None

    def assert_idle(self, grace=jobs.GRACE_S):
        """Assert that, after a grace in seconds, no process but its sshd runs on any host."""
        daemons = {daemon.pid for daemon in self._daemons}
        deadline = time.monotonic() + grace
        while True:
            left = [(host.name, pid) for host in self.hosts
                    for pid in self._pids(host.namespace) if pid not in daemons]
            if not left:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        lines = []
        for name, pid in left:
            with contextlib.suppress(OSError):
                words = Path(f'/proc/{pid}/cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace')
                lines.append(f'  {name} pid {pid}: {words:.200}')
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        raise AssertionError(f'still running on the hosts {grace:g} s after the job:\n' + '\n'.join(lines))

    def traffic(self, host_index):
        """tuple of int: bytes received and bytes sent so far by a host over the bridge, headers included."""
        links = json.loads(_run('ip', '-n', self.hosts[host_index].namespace, '-s', '-j',
                                'link', 'show', INTERFACE))
        return links[0]['stats64']['rx']['bytes'], links[0]['stats64']['tx']['bytes']
