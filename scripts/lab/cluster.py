"""Emulated hosts (see :mod:`lab.emulation`) with an sshd on each.

::

    with EmulatedCluster(hosts=2) as cluster:
        cluster.run(0, ['ssh', cluster.hosts[1].name, 'hostname']).ok()

It needs root, and on Debian the packages iproute2, openssh-server and openssh-client.
"""
import contextlib
import os
import shlex
import shutil
import tempfile
import time
from pathlib import Path

from . import jobs
from .emulation import Network, find_tools, run

_PRIVILEGE_SEPARATION = Path('/run/sshd')  # sshd insists on it
_PACKAGES = {'sshd': 'openssh-server', 'ssh': 'openssh-client', 'ssh-keygen': 'openssh-client'}
_START_S = 20.0  # for every sshd to answer
_CONNECT_S = 5

# HOME is an empty directory: bash reads ~/.bashrc for commands over ssh, and the commands there may be slow, or
# wait for a lock that a login of before was killed with (pyenv's rehash does, for a minute).
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
SetEnv HOME={directory}/home
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


class EmulatedCluster(Network):
    """Emulated hosts with an sshd each, from the start of the `with` block to its end; parameters as for `Network`.

    Raises RuntimeError on entry: not root, a missing package (named), a command that failed (with its message), an sshd
    that does not answer (with its log).
    """

    def __init__(self, hosts=2, mbit_per_s=None, loopback_names=()):
        super().__init__(hosts, mbit_per_s, loopback_names)
        self._daemons = []

    def open(self):
        """Make the network, start every sshd and log in to each."""
        self._tools = find_tools(_PACKAGES, 'tests/multihost')
        self._directory = Path(tempfile.mkdtemp(prefix='mxhybrid-cluster-'))
        self._undo.callback(shutil.rmtree, str(self._directory), ignore_errors=True)
        super().open()
        self._make_keys()
        self._start_daemons()

    # ------------------------------------------------------------------------------------------- making

    def _make_keys(self):
        for name in ('host_key', 'user_key'):
            run(self._tools['ssh-keygen'], '-q', '-t', 'ed25519', '-N', '', '-C', self.token,
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
        for i, host in enumerate(self.hosts):
            config = self._directory / (host.name + '.sshd_config')
            config.write_text(_SSHD_CONFIG.format(address=host.address, directory=self._directory))
            daemon = jobs.start_command(self.argv(i, [self._tools['sshd'], '-D', '-e', '-f', str(config)]))
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

    @property
    def daemons(self):
        """set of int: process ids of every host's sshd."""
        return {daemon.pid for daemon in self._daemons}

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
        job = jobs.start_command(self.argv(host_index, argv), env=settings, body=body)
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

    def host_of(self, pid):
        """Index of the host on which a process runs, None if on none."""
        return next((i for i, host in enumerate(self.hosts) if pid in self.pids(host.namespace)), None)

    def assert_idle(self, grace=jobs.GRACE_S):
        """Assert that, after a grace in seconds, no process but its sshd runs on any host."""
        deadline = time.monotonic() + grace
        while True:
            left = [(host.name, pid) for host in self.hosts
                    for pid in self.pids(host.namespace) if pid not in self.daemons]
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
