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
import signal
import tempfile
import time
from pathlib import Path

from . import jobs
from .emulation import Network, find_tools, run
from .processes import send_signal

_PACKAGES = {'sshd': 'openssh-server', 'ssh': 'openssh-client', 'ssh-keygen': 'openssh-client'}
_START_S = 20.0  # for every sshd to answer
_CONNECT_S = 5

# HOME is an empty directory: bash reads ~/.bashrc for commands over ssh, and the commands there may be slow, or
# wait for a lock that a login of before was killed with (pyenv's rehash does, for a minute).
SSHD_CONFIG = '''\
ListenAddress {address}
Port {port}
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
  IdentityFile {directory}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile none
  BatchMode yes
  ConnectTimeout {connect}
  LogLevel ERROR
'''


def write_ssh_files(directory, ssh):
    """Write keys, an empty home, and bin/ssh, which is `ssh` with these keys, into a directory."""
    if os.getuid() == 0:
        Path('/run/sshd').mkdir(mode=0o755, exist_ok=True)  # sshd insists on it; Debian's service would make it
    for name in ('host_key', 'user_key'):
        run('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', str(directory / name))
    config = directory / 'ssh_config'
    config.write_text(_SSH_CONFIG.format(directory=directory, connect=_CONNECT_S))
    # horovodrun calls plain `ssh` and has no option for a configuration file.
    wrapper = directory / 'bin' / 'ssh'
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(ssh)} -F {config} "$@"\n')
    wrapper.chmod(0o755)
    (directory / 'home').mkdir()


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
        write_ssh_files(self._directory, self._tools['ssh'])
        self._start_daemons()

    # ------------------------------------------------------------------------------------------- making

    def _start_daemons(self):
        public = (self._directory / 'host_key.pub').read_text()
        (self._directory / 'known_hosts').write_text(
            ''.join(f'{host.name},{host.address} {public}' for host in self.hosts))
        for i, host in enumerate(self.hosts):
            config = self._directory / (host.name + '.sshd_config')
            config.write_text(SSHD_CONFIG.format(address=host.address, port=22, directory=self._directory))
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
        """Start a command on a host, as `jobs.start_command` does.

        HOME is a temporary directory, so that nothing reads or writes the user's ssh settings or horovodrun's cache.
        """
        path = os.pathsep.join([str(self._directory / 'bin'), os.environ.get('PATH', os.defpath)])
        settings = {'PATH': path, 'HOME': str(self._directory / 'home')}
        settings.update(env or {})
        job = jobs.start_command(self.argv(host_index, argv), env=settings, body=body)
        self._undo.callback(job.close)
        return job

    def run(self, host_index, argv, env=None, timeout=120, body=None, settle=True):
        """Run a command on a host to its end; return its `jobs.Result`.

        With `settle`, check, as `assert_idle` does, that nothing is left running on any host.
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
        def other_processes():
            return [(host.name, pid) for host in self.hosts
                    for pid in self.pids(host.namespace) if pid not in self.daemons]

        deadline = time.monotonic() + grace
        left = other_processes()
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = other_processes()
        if not left:
            return
        lines = []
        for name, pid in left:
            with contextlib.suppress(OSError):
                words = Path(f'/proc/{pid}/cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace')
                lines.append(f'  {name} pid {pid}: {words:.200}')
            send_signal(pid, signal.SIGKILL)
        raise AssertionError(f'still running on the hosts {grace:g} s after the job:\n' + '\n'.join(lines))
